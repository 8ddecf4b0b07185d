"""Text is UTF-8 in every locale, in files and in what a terminal can show of it."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import cspd_jax
from cspd_jax.commands import generate, train
from cspd_jax.families import folder as folder_lib, prompt_kinds
from tests.builders import models
from tests.families import tiny

# The locale knows ASCII only, and whatever relies on it raises an error.
_LOCALE = dict(LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0', PYTHONWARNDEFAULTENCODING='1')
_PROGRAM = '''
import sys, warnings
warnings.filterwarnings(
    'error', category=EncodingWarning, module='(cspd_jax|checkpoints_conversion)')
from cspd_jax.cli import compiled
from cspd_jax.commands import evaluate
from cspd_jax.cli import exits
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


@pytest.fixture
def odd(tmp_path):
  """A folder whose name has a byte that is no UTF-8."""
  try:
    (folder := pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b'/caf\xe9'))).mkdir()
  except OSError:
    pytest.skip('the file system has UTF-8 names only')
  return folder


def test_a_model_and_an_output_whose_names_are_no_utf_8(odd, capsys):
  """All images were decoded before the first file could not be written."""
  tiny.saved(odd / 'plain')
  model, output = (pathlib.Path(f'{odd}/{name}\udcfe') for name in ('model', 'out'))
  (odd / 'plain').rename(model)
  (odd / 'prompts\udcfd').write_text('sea\nsky\n', encoding='utf-8')
  words = ['generate', f'--model={model}', f'--prompts={odd}/prompts\udcfd', f'--output={output}',
           '--decoder=sjd(window=4)', f'--stream={odd}/now\udcfc.png']
  assert generate.main(words) == 0
  assert 'model model\\udcfe on' in capsys.readouterr().out
  with Image.open(output / '00001_sky_seed0.png') as image:
    assert image.text['model'] == 'model\\udcfe'
  report = json.loads((output / 'report.json').read_text(encoding='utf-8'))
  assert report['model'] == 'model\\udcfe' and json.dumps(report, ensure_ascii=False).encode()
  assert report['settings']['loading']['model'].endswith('caf\\udce9/model\\udcfe')
  assert generate.main(words) == 0 and 'are complete' in capsys.readouterr().out
  assert cspd_jax.load(model).generate(['sea'], decoder='vanilla')._repr_html_().encode()


def test_a_model_that_refers_to_networks_whose_names_are_no_utf_8(odd):
  """As cspd-tune --store writes one; it could not be loaded."""
  source = tiny.saved(odd / 'model')
  place = folder_lib.place(source, odd / 'tuned')
  place.store('cpu', {1: 'vanilla'})
  assert str(cspd_jax.load(odd / 'tuned').specification()) == 'vanilla'


def test_labels_that_are_no_text():
  conditions = prompt_kinds.classes(2, ['caf\udce9', 'tea'])
  assert conditions.titles([0]) == ['caf\\udce9'] and list(conditions.prompts)[1] == 'tea'


def test_a_training_is_refused_where_it_could_not_be_stored(odd, capsys):
  """Orbax failed at the first checkpoint, after the images were sampled."""
  models.llamagens(odd)
  words = ['train', '--smoke', f'--model={odd}/model', '--kind=eagle', f'--workdir={odd}/work']
  assert train.main(words) == 2
  error = capsys.readouterr().err
  assert error.startswith('error: ') and 'bytes that are no UTF-8' in error
  assert not (odd / 'work').exists()
