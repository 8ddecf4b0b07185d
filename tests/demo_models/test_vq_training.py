"""The training step of the tokenizer."""


import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import vq
from experiments.demo_models import tokenizers

CONFIG = vq.VQConfig(
    ch=8, ch_mult=(1, 2), num_res_blocks=1, z_channels=8, codebook_size=16, codebook_dim=4)
TRAIN = tokenizers.VQTrainConfig(quantize_from=10, restart_every=5)


def _images(seed=0):
  """Smooth random images, which a few steps can learn."""
  coarse = jax.random.uniform(jax.random.key(seed), (4, 2, 2, 3), minval=-1, maxval=1)
  return jax.image.resize(coarse, (4, 8, 8, 3), 'linear')


@pytest.mark.slow
def test_straight_through_gradient_reaches_the_encoder():
  params = vq.init(CONFIG, jax.random.key(0))
  no_commitment = tokenizers.VQTrainConfig(commitment_weight=0.0)
  grads = jax.jit(jax.grad(lambda p: tokenizers.vq_loss(
      p, CONFIG, no_commitment, _images())[0]))(params)
  for part in ('encoder', 'decoder', 'quant_conv', 'post_quant_conv', 'codebook'):
    assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads[part])), part


@pytest.mark.slow
def test_unused_vectors_restart_on_latents_and_used_ones_stay():
  params = vq.init(CONFIG, jax.random.key(0))
  latents = vq.latents(params, CONFIG, _images())
  usage = jnp.arange(16) % 2.0
  at = jnp.int32(TRAIN.quantize_from + TRAIN.restart_every)
  moved, new_usage = tokenizers._restart(at, params, usage, latents, TRAIN)
  old, new = params['codebook']['embedding'], moved['codebook']['embedding']
  np.testing.assert_array_equal(new[1::2], old[1::2])
  flat = np.asarray(latents).reshape(-1, 4)
  for vector in np.asarray(new[::2]):
    assert (np.abs(flat - vector).max(axis=1) == 0).any()
  np.testing.assert_array_equal(new_usage, np.ones(16))
  unchanged, _ = tokenizers._restart(at + 1, params, usage, latents, TRAIN)
  np.testing.assert_array_equal(unchanged['codebook']['embedding'], old)
