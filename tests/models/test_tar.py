"""Tar: features of codes, what is refused, published sizes, and the official classes."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.decoding.tree import chain
from cspd_jax.models import tar
from tests.builders import published
from tests.models import cases
from tests.models.cases import BRIDGE, TAR, TAR_SEEDS

pytestmark = pytest.mark.usefixtures('precise')


@pytest.fixture(scope='module')
def recorded():
  return published.recorded('tar')


@pytest.mark.verifies('parity', 'ta_tok')
def test_features_of_codes_agree(recorded):
  """At every scale: the table of positions is enlarged, and made smaller with antialiasing."""
  case, apply = cases.case('ar_dtok'), jax.jit(tar.Bridge(BRIDGE).apply)
  bridge = lambda codes: apply({'params': case.params['bridge']}, codes)
  features = bridge(case.condition)
  np.testing.assert_allclose(features, recorded['features'], atol=2e-5)
  assert recorded['features'].std() > 0.5
  for side in tar.SIDES[:2]:
    of_grid = bridge(np.arange(side**2)[None] % 50)
    np.testing.assert_allclose(of_grid[:, -40:], recorded[f'features_{side}'], atol=2e-5)




def test_published_sizes():
  """The table of a file with 729 codes before the tokens of its images."""
  assert [(config.num_tokens, config.num_positions, config.most_codes, config.ffn_dim)
          for config in tar.PRESETS.values()] == [
              (256, 984, 729, 3584), (1024, 1752, 729, 3584), (4096, 4824, 729, 3584)]
  assert [config.num_tokens for config in tar.PRIORS.values()] == [729, 729]
  small = dataclasses.replace(tar.PRIORS['tar_7b'], height=9, width=9)
  assert small.num_tokens == 81 and not small.has_null


needs_clone = pytest.mark.skipif('TAR_CLONE' not in os.environ, reason='TAR_CLONE is not set')


@needs_clone
def test_recorded_arrays_are_those_of_the_official_classes(recorded):
  from tests.models import tar_reference
  again = tar_reference.recorded()
  assert again.keys() == recorded.keys()
  for name, array in again.items():
    np.testing.assert_allclose(array, recorded[name], atol=1e-5)


@needs_clone
def test_greedy_tokens_with_guidance_are_those_of_the_official_loop():
  import torch

  from tests.models import tar_reference
  case = cases.case('ar_dtok')
  params, codes = case.params, np.asarray(case.condition)
  network = tar_reference.ar_dtok(published.tensors('ar_dtok', TAR, TAR_SEEDS['ar_dtok']))
  tokenizer = tar_reference.bridge(published.tensors('ta_tok', BRIDGE, TAR_SEEDS['ta_tok']))
  with torch.no_grad():
    features = tokenizer.decode_from_bottleneck(torch.from_numpy(codes))
    expected = network.sample(features, cfg_scale=4.0, top_k=1).numpy()
  target = tar.target(TAR, guided=True)
  guided = lambda logits: logits[1] + 4 * (logits[0] - logits[1])
  logits, _, cache = target.prefill(params, jnp.asarray(codes), 16)
  tokens = [jnp.argmax(guided(logits), axis=-1)]
  for start in range(15):
    logits, _, cache = target.score(
        params, cache, tokens[-1][:, None], jnp.full(2, start), chain(0))
    tokens.append(jnp.argmax(guided(logits)[:, 0], axis=-1))
  np.testing.assert_array_equal(jnp.stack(tokens, axis=1), expected)
