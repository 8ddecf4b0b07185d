"""Memory that parameters and caches occupy, computed from shapes and dtypes alone.

Nothing is allocated or compiled, so models that were only described (`families.describe`) work too.
"""

import math
from typing import Any

import jax
import numpy as np

from cspd_jax.decoding.base import Condition, Params, Target
from cspd_jax.generation.model import Model


def size(tree: Any) -> float:
  """Returns the bytes of all leaves of a tree, such as a model's parameters.

  Args:
    tree: arrays or `jax.ShapeDtypeStruct`s.
  """
  return float(sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
                   for leaf in jax.tree.leaves(tree)))


def cache_size(target: Target, params: Params, condition: Condition, num_slots: int) -> float:
  """Returns the bytes of a target's cache.

  Args:
    target: the model; with guidance, its cache holds both streams.
    params: its parameters, arrays or shapes.
    condition: of `B` images, arrays or shapes. The cache holds its tokens too.
    num_slots: image tokens that the cache has room for.
  """
  return size(jax.eval_shape(
      lambda params, condition: target.prefill(params, condition, num_slots)[2],
      params, condition))


def live_cache(model: Model, guided: bool, condition: Condition) -> float:
  """Returns the bytes of the cache that a round reads on average over an image.

  That is the part for the condition and half of the image's tokens. It is 0 for models of
  continuous tokens, which have no cache.

  Args:
    model: the model.
    guided: whether the null condition's stream is cached as well.
    condition: of `B` images, arrays or shapes.
  """
  if model.engine.name != 'discrete':
    return 0.0
  target = model.target(guided=guided)
  return cache_size(target, model.params, condition, target.num_tokens // 2)
