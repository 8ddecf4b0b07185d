"""Text is UTF-8 in every locale, in files and in what a terminal can show of it."""

import json
import os
import subprocess
import sys

import numpy as np
from PIL import Image

# The locale knows ASCII only, and whatever relies on it raises an error.
_LOCALE = dict(LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0', PYTHONWARNDEFAULTENCODING='1')
_PROGRAM = '''
import sys, warnings
warnings.filterwarnings(
    'error', category=EncodingWarning, module='(cspd_jax|checkpoints_conversion)')
from cspd_jax.cli import compiled
from cspd_jax.commands import evaluate
from cspd_jax.core import exits
from cspd_jax.generation import memory, prompts, results
compiled.processor(), memory._lines(__import__('pathlib').Path('/proc/meminfo'))
listed = prompts.of_file('lines.jsonl')
assert exits.code_of(lambda: print(listed[0])) == 0
assert results.file_name(3, listed[0], 1).isascii(), results.file_name(3, listed[0], 1)
for layout in ('geneval --prompts=lines.jsonl', 'coco'):
  words = f'evaluate --images=images --output={layout[:4]} --layout={layout}'.split()
  assert evaluate.main(words) == 0
'''


def test_a_locale_without_the_characters(tmp_path):
  prompts = ['\u65e5\u672c fox', 'un caf\u00e9']
  (tmp_path / 'images').mkdir()
  for number in range(2):
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / 'images' / f'{number}.png')
  (tmp_path / 'images' / 'report.json').write_text(json.dumps(dict(rows=[
      dict(file=f'{number}.png', prompt=prompt, number=number)
      for number, prompt in enumerate(prompts)])), encoding='utf-8')
  lines = [json.dumps(dict(prompt=prompt), ensure_ascii=False) + '\n' for prompt in prompts]
  (tmp_path / 'lines.jsonl').write_text(''.join(lines), encoding='utf-8')
  done = subprocess.run([sys.executable, '-c', _PROGRAM], cwd=tmp_path, capture_output=True,
                        env=dict(os.environ, PYTHONPATH=os.getcwd(), **_LOCALE), check=False)
  assert done.returncode == 0, done.stderr.decode()
  assert done.stdout.decode('ascii').startswith('\\u65e5\\u672c fox\n')
  for number, line in enumerate(lines):
    file = tmp_path / 'gene' / f'{number:05}' / 'metadata.jsonl'
    assert file.read_text(encoding='utf-8') == line
  captions = json.loads((tmp_path / 'coco' / 'captions.json').read_text(encoding='utf-8'))
  assert [row['caption'] for row in captions] == prompts
