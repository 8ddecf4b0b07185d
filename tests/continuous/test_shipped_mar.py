"""The shipped MAR pair with its tokenizer: it loads, is small, generates images."""

import pathlib

import numpy as np
import pytest

import cspd_jax
from cspd_jax.continuous import head_drafter, schedule as schedule_lib, speculative_head
from cspd_jax.files import store

_KINDS = {'mar_demo/target': 'mar', 'mar_demo/draft': 'mar', 'mar_demo/tokenizer': 'kl_vae'}
_ASSETS = pathlib.Path(cspd_jax.__file__).parent / 'assets'


@pytest.fixture(scope='module')
def models():
  return {name: store.load(name, dtype='float32') for name in _KINDS}


def test_they_are_small():
  files = [path for name in _KINDS for path in (_ASSETS / name).rglob('*') if path.is_file()]
  assert sum(path.stat().st_size for path in files) <= 9.5e6


@pytest.mark.slow
@pytest.mark.parametrize('scale', [1.0, 2.0])
def test_the_fitted_drafter_is_used(models, monkeypatch, scale):
  used, speculative = [], speculative_head.speculative

  def recording(target, schedule, length, rho, *more):
    used.append(rho)
    return speculative(target, schedule, length, rho, *more)

  monkeypatch.setattr(speculative_head, 'speculative', recording)
  cspd_jax.load('mar_demo').decoder('exact_head', guided=scale != 1)
  entry = models['mar_demo/target'].metadata['head_drafter']['plain' if scale == 1 else 'guided']
  np.testing.assert_allclose(used, [entry['rho']])
  assert np.max(np.abs(used[0] - head_drafter.default_rho(schedule_lib.make()))) > 0.02


@pytest.mark.slow
def test_decoders_that_draft_take_one_token_per_step():
  model = cspd_jax.load('mar_demo')
  assert len(model.table.decoders) == 8
  for name in model.table.decoders:
    if name in ('mar', 'exact_head', 'windows'):
      assert 'in 16 steps' in model.decoder(f'{name}(num_iter=16)').distribution
      continue
    with pytest.raises(ValueError, match=f"{name} has no parameter 'num_iter'"):
      model.decoder(f'{name}(num_iter=16)')
