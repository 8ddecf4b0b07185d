"""Inception features of images, as the evaluators that people compare with compute them.

The evaluators resize images to 299 pixels in different ways, which changes a FID by several per
cent, so that features belong to an evaluator: ADM's (arXiv:2105.05233), torch-fidelity, whose
features are the same, or pytorch-fid.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.files import store
from cspd_jax.models import inception
from cspd_jax.models.inception import Features, InceptionConfig

Params = Any

store.register('inception', store.Kind(InceptionConfig, inception.init))


class Evaluator(NamedTuple):
  """An evaluator's preparation of images, and its inception score.

  Attributes:
    title: its name.
    half_pixel: whether pixels are resized around their centres; otherwise around their corners, as
      in TensorFlow 1. Neither smooths larger images first.
    center: the pixel value that becomes 0.
    scale: the difference to `center` that becomes 1.
    split: images per split of the inception score, in their order; None means 10 splits of shuffled
      images.
    scores: its scores, of FID, sFID, IS, precision and recall.
    one_size: whether it reads an array, in which all images have one size.
  """

  title: str
  half_pixel: bool
  center: float
  scale: float
  split: int | None = None
  scores: tuple[str, ...] = ('FID',)
  one_size: bool = False

  def has_features_of(self, other: 'Evaluator') -> bool:
    """Whether all images that `other` reads have the same features for this evaluator."""
    preparation = lambda kind: (kind.half_pixel, kind.center, kind.scale)
    return preparation(self) == preparation(other) and self.one_size <= other.one_size


EVALUATORS = {
    'adm': Evaluator('ADM', half_pixel=False, center=128.0, scale=128.0, split=5000,
                     scores=('FID', 'sFID', 'IS', 'precision', 'recall'), one_size=True),
    # Its precision and recall use the features of another network.
    'torch_fidelity': Evaluator('torch-fidelity', half_pixel=False, center=128.0, scale=128.0,
                                scores=('FID', 'IS')),
    'pytorch_fid': Evaluator('pytorch-fid', half_pixel=True, center=127.5, scale=127.5)}


def prepared(images: jax.Array, evaluator: Evaluator) -> jax.Array:
  """Resizes and scales images `[B, H, W, 3]` uint8 to `[B, 299, 299, 3]` float32."""
  x = images.astype(jnp.float32)
  rows, columns = (_weights(size, evaluator.half_pixel) for size in images.shape[1:3])
  x = jnp.einsum('rh,bhwk,sw->brsk', rows, x, columns, precision=jax.lax.Precision.HIGHEST)
  return (x - evaluator.center) / evaluator.scale


def resized(image: np.ndarray, evaluator: str) -> np.ndarray:
  """Resizes an image `[H, W, 3]` uint8 on the host, so that all share a program: `[299, 299, 3]`
  float32.
  """
  kind, (height, width, _) = EVALUATORS[evaluator], image.shape
  rows, columns = (_weights(size, kind.half_pixel) for size in (height, width))
  x = rows @ image.reshape(height, -1).astype(np.float32)
  x = np.einsum('rwk,sw->rsk', x.reshape(-1, width, 3), columns, optimize=True)
  return (x - kind.center) / np.float32(kind.scale)


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


def features(params: Params, config: InceptionConfig, images: jax.Array, evaluator: str
             ) -> Features:
  """Returns features of images `[B, H, W, 3]` uint8, or of `resized`."""
  if images.dtype == jnp.float32 and images.shape[1:] == (inception.SIDE, inception.SIDE, 3):
    return _program(config, None)(params, images)
  assert images.ndim == 4 and images.dtype == jnp.uint8, 'uint8 [B, H, W, 3]'
  return _program(config, EVALUATORS[evaluator])(params, images)


@functools.cache
def _program(config: InceptionConfig, evaluator: Evaluator | None
             ) -> Callable[[Params, jax.Array], Features]:
  """Returns the jitted network for images as they are, or as an evaluator prepares them."""
  ready = (lambda images: images) if evaluator is None else functools.partial(
      prepared, evaluator=evaluator)
  return programs.jit_unless_traced(
      lambda params, images: inception.apply(params, config, ready(images)))
