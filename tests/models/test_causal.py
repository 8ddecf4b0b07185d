"""The adapter with families whose condition is text tokens: caches, prompts, and decoders.

That windows, trees and prompts of any length agree with published models is tested by family.
"""


import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import causal, conditions, early_fusion
from tests.models import published

VOCAB = 33
CONFIG = early_fusion.EarlyFusionConfig(
    height=5, width=4, vocab_size=VOCAB, num_codes=19, first_code=4, row_end=30, dim=24,
    num_layers=2, num_heads=4, ffn_dim=20)
# The prompts of two images in two streams, of any length each.
PROMPTS = [[[20, 25, 31, 22, 30, 21, 27], [21]], [[28, 21], [23, 20, 32]]]
_TARGET = early_fusion.target(CONFIG, guided=True)


def _prompt():
  """Left-padded tokens `[B, S, C]`; padding holds tokens that would matter if they were seen."""
  longest = max(len(tokens) for image in PROMPTS for tokens in image)
  padded = [[[24] * (longest - len(tokens)) + tokens for tokens in image] for image in PROMPTS]
  visible = [[np.arange(longest) >= longest - len(tokens) for tokens in image]
             for image in PROMPTS]
  return causal.Prompt(jnp.asarray(padded), jnp.asarray(visible))


@pytest.mark.parametrize('room,slots', [(8, 11), (508, 511), (509, 512), (510, 576), (900, 960)])
def test_large_caches_are_made_of_tiles(room, slots):
  layers = ((jnp.ones((2, 1, 3, 4)),) * 2,)
  positions = causal.prompt_positions(jnp.ones((2, 3), bool))
  cache = causal.allocate(layers, positions, room)
  assert cache.layers[0][1].shape == (2, 1, slots, 4)
  np.testing.assert_array_equal(cache.layers[0][0][:, :, :3], 1)
  assert not cache.layers[0][0][:, :, 3:].any()


@pytest.mark.parametrize('tokens, visible, message', [
    (np.zeros((1, 3), int), np.ones((1, 3), bool), r'tokens \(1, 3\).*requires \[B, 2, C\]'),
    (np.zeros((1, 1, 3), int), np.ones((1, 1, 3), bool), r'tokens \(1, 1, 3\)'),
    (np.zeros((1, 2, 3), int), np.ones((1, 2, 2), bool), r'visible \(1, 2, 2\)'),
    (np.zeros((1, 2, 3), int), np.arange(3) < [[[2], [3]]], 'padded on the left'),
    (np.zeros((1, 2, 3), int), np.array([[[1, 0, 1], [1, 1, 1]]], bool), 'padded on the left'),
    (np.zeros((1, 2, 0), int), np.zeros((1, 2, 0), bool), 'at least one token'),
    (np.full((1, 2, 3), VOCAB), np.ones((1, 2, 3), bool), 'tokens from 33 to 33.*0 to 32'),
])
def test_unusable_prompts_are_refused(tokens, visible, message):
  with pytest.raises(ValueError, match=message):
    _TARGET.check_condition(causal.Prompt(tokens, visible))


def test_prompts_of_the_right_kind_are_accepted():
  target = _TARGET
  target.check_condition(_prompt())
  with pytest.raises(ValueError, match='condition is a list; this model requires a models.con'):
    target.check_condition(PROMPTS)


def test_a_condition_of_the_wrong_number_of_streams_is_refused_while_tracing():
  target = causal.target(CONFIG.causal(1)._replace(
      embed_condition=lambda params, prompt, count: causal.embed_prompt(
          params, CONFIG.transformer, prompt)), 1)
  with pytest.raises(ValueError, match='4 rows for 2 images; this target has 1 guidance streams'):
    jax.eval_shape(lambda: target.prefill(published.params('anole', CONFIG, 3), _prompt(), 4))


@pytest.mark.parametrize('ids, message', [
    ([[[3]]], 'tokens from 3 to 3; this model supports 0 to 2'),
    ([[[-1]]], 'tokens from -1 to -1'),
    ([[[1.0]]], 'tokens of dtype float64; they must be integers')])
def test_published_ids_that_are_none_are_refused(ids, message):
  prompt = conditions.Prompt(np.array(ids), np.ones((1, 1, 1), bool))
  with pytest.raises(ValueError, match=message):
    conditions.renumbered(prompt, np.array([2, 0, 1]))
