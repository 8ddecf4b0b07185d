"""Inception features of images, as the evaluators that people compare with compute them.

The evaluators resize images to 299 pixels in different ways, which changes a FID by several per
cent, so that a feature belongs to a variant: `adm` is the evaluator of ADM (arXiv:2105.05233) and
torch-fidelity, `pytorch_fid` that of pytorch-fid.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.checkpoints import kinds
from cspd_jax.models import inception
from cspd_jax.models.inception import Features, InceptionConfig

Params = Any

kinds.register('inception', kinds.Kind(InceptionConfig, inception.init))


class Variant(NamedTuple):
  """How an evaluator prepares images.

  Attributes:
    half_pixel: whether pixels are resized around their centres; otherwise around their corners, as
      in TensorFlow 1. Neither smooths larger images first.
    center: the pixel value that becomes 0.
    scale: the difference to `center` that becomes 1.
  """

  half_pixel: bool
  center: float
  scale: float


VARIANTS = {
    'adm': Variant(half_pixel=False, center=128.0, scale=128.0),
    'pytorch_fid': Variant(half_pixel=True, center=127.5, scale=127.5)}


def prepared(images: jax.Array, variant: Variant) -> jax.Array:
  """Resizes and scales images.

  Args:
    images: `[B, H, W, 3]` uint8.
    variant: the evaluator.

  Returns:
    `[B, 299, 299, 3]` float32.
  """
  x = images.astype(jnp.float32)
  rows, columns = (_weights(size, variant.half_pixel) for size in images.shape[1:3])
  x = jnp.einsum('rh,bhwk,sw->brsk', rows, x, columns,
                 precision=jax.lax.Precision.HIGHEST)
  return (x - variant.center) / variant.scale


@functools.cache
def _weights(size: int, half_pixel: bool) -> np.ndarray:
  """Linear interpolation from `size` pixels as a matrix `[299, size]`."""
  shift = 0.5 if half_pixel else 0.0
  places = np.maximum((np.arange(inception.SIDE) + shift) * size / inception.SIDE - shift, 0)
  low = np.floor(places).astype(int)
  weights = np.zeros((inception.SIDE, size))
  every = np.arange(inception.SIDE)
  np.add.at(weights, (every, low), 1 - (places - low))
  np.add.at(weights, (every, np.minimum(low + 1, size - 1)), places - low)
  return weights.astype(np.float32)


@functools.partial(jax.jit, static_argnames=('config', 'variant'))
def features(params: Params, config: InceptionConfig, images: jax.Array, variant: str) -> Features:
  """Returns the features of images.

  Args:
    params: the network's parameters.
    config: its sizes.
    images: `[B, H, W, 3]` uint8.
    variant: a key of `VARIANTS`.

  Raises:
    ValueError: for images of another shape or dtype, or an unknown variant.
  """
  if variant not in VARIANTS:
    raise ValueError(f'variant is {variant!r}; it must be one of: {", ".join(VARIANTS)}.')
  if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != jnp.uint8:
    raise ValueError(f'images are {images.dtype}{list(images.shape)}; they must be uint8 '
                     '[B, H, W, 3].')
  return inception.apply(params, config, prepared(images, VARIANTS[variant]))
