"""From a converted folder of every family to trained drafters, a tuned decoder and a comparison."""

import numpy as np
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.commands import compare, train, tune
from tests.families import whole

for _package in ('ftfy', 'tiktoken', 'tokenizers'):  # They read words.
  pytest.importorskip(_package)


def _run(program, capsys, *words):
  """Runs a program, which must succeed, and returns what it prints."""
  code = program.main(['program', *words])
  printed = capsys.readouterr()
  assert code == 0, printed.err
  return printed.out


@pytest.mark.slow
@pytest.mark.parametrize('family', whole.WHOLE)
def test_drafters_of_a_converted_folder(family, tmp_path, capsys):
  folder = tmp_path / 'model'
  whole.convert(family, tmp_path / 'published', folder)
  capsys.readouterr()
  model = f'--model={folder}'

  fitted = _run(
      train, capsys, model, '--smoke', f'--output={folder}/neighbours', f'--workdir={tmp_path}/fit')
  assert f'Stored in {folder}/neighbours' in fitted

  eagle = folder / 'eagle'
  trained = _run(train, capsys, model, '--kind=eagle', '--smoke',
                 f'--workdir={tmp_path}/train', f'--output={eagle}')
  assert f'Stored in {eagle}' in trained
  loaded = cspd_jax.load(folder, eagle=eagle, neighbours=folder / 'neighbours')
  assert {'neighbours', 'eagle'} <= loaded.drafts.keys()
  decode = lambda decoder: np.asarray(loaded.generate(
      ['a cat', 'a dog, 中文'], seed=1, decoder=decoder).decoded.tokens)
  vanilla = decode('vanilla')
  assert len(np.unique(vanilla)) > 3
  for decoder in ('seed_exact(window=4)', 'eagle(tree=chain(2))+match',
                  'corrected_seed_exact(corrector=neighbours, window=4, iterations=2)',
                  'corrected_seed_exact(corrector=eagle, window=4)',
                  'corrected_seed_exact(corrector=layers, window=4)'):
    np.testing.assert_array_equal(decode(decoder), vanilla, err_msg=decoder)

  families.save(folder, loaded.family, {'eagle': 'eagle', 'neighbours': 'neighbours'})
  before = (folder / 'model.json').read_bytes()
  decoders = ('vanilla', 'mc_sjd', 'eagle(tree=chain(2))', 'corrected(corrector=neighbours)')
  _run(tune, capsys, model, '--dry_run',
       f'--decoder={",".join(decoders)}', '--window=4',
       '--batch_size=1', '--num_images=2', '--prompt=a cat',
       f'--output={tmp_path}/tune')
  rows = (tmp_path / 'tune' / 'rows.csv').read_text()
  assert all(name in rows for name in ('vanilla', 'mc_sjd', 'eagle', 'corrected'))
  assert (folder / 'model.json').read_bytes() == before, 'a dry run stores nothing'

  _run(compare, capsys, model, '--prompt=a cat',
       '--num_images=1', '--budget=1',
       '--decoder=vanilla,mc_sjd,eagle(tree=chain(2)),corrected(corrector=neighbours)',
       f'--output={tmp_path}/compare')
  assert len(list((tmp_path / 'compare').glob('images_*.png'))) == 4
