"""Weights under published names, drawn anew from a seed.

The recorded outputs in `tests/data` come from the official PyTorch modules with
every weight redrawn like this: one `numpy.random.default_rng(seed)`; in sorted
order of the published names, standard normal numbers of the tensor's shape,
cast to float32; vectors named `*weight` (norm scales) become `1 + 0.2 n`, other
vectors (biases) `0.1 n`, and everything else `n / sqrt(product of all axes but
the first)`. Nothing keeps its value from initialization.
"""

import pathlib

import numpy as np

from checkpoints_conversion import convert, rules
from cspd_jax.testing import check_target

_DATA = pathlib.Path(__file__).parent.parent / 'data'


def weights(shapes, seed):
  """Arrays by name for `{name: shape}`."""
  rng, drawn = np.random.default_rng(seed), {}
  for name in sorted(shapes):
    shape = shapes[name]
    n = rng.standard_normal(shape).astype(np.float32)
    if len(shape) > 1:
      drawn[name] = n / np.float32(np.sqrt(np.prod(shape[1:])))
    elif name.endswith('weight'):
      drawn[name] = np.float32(1) + np.float32(0.2) * n
    else:
      drawn[name] = np.float32(0.1) * n
  return drawn


def params(family, config, seed):
  """Parameters of a model with such weights, through the real converter."""
  family = rules.FAMILIES[family]
  return convert.convert(family, config, weights(convert.published_shapes(family, config), seed))


def recorded(name):
  """Recorded outputs by name."""
  with np.load(_DATA / f'{name}.npz') as stored:
    return dict(stored)


def check(module, config, params, condition, guided=True):
  """Checks windows, trees and commit of a model, also against its training pass."""
  report = check_target(
      module.target(config, guided=guided), params, condition,
      logits=lambda params, condition, tokens: module.logits_and_features(
          params, config, condition, tokens, np.zeros(len(tokens), bool))[0])
  assert not report.problems and 'training pass' in report.passed
