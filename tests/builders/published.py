"""Weights under published names, drawn anew from a seed, and what was recorded with them.

The recorded outputs in `tests/data` come from the official PyTorch modules with
every weight redrawn like this: one `numpy.random.default_rng(seed)`; in sorted
order of the published names, standard normal numbers of the tensor's shape,
cast to float32; vectors named `*weight` (norm scales) become `1 + 0.2 n`, other
vectors (biases) `0.1 n`, and everything else `n / sqrt(product of all axes but
the first)`. Nothing keeps its value from initialization.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from checkpoints_conversion import convert, rules
from cspd_jax.core import matrices
from cspd_jax.files import weights as stored
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


def tensors(family, config, seed=0):
  """Such weights of a network under their published names."""
  return weights(convert.published_shapes(rules.get(family), config), seed)


def params(family, config, seed=0):
  """Parameters of a network with such weights, through the real converter."""
  return convert.convert(rules.get(family), config, tensors(family, config, seed))


def random_params(init, scale=0.3, dtype=np.float32, seed=0):
  """Normal numbers times `scale` in place of all that `init(key)` draws."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, scale, leaf.shape), dtype),
                      jax.eval_shape(init, jax.random.key(0)))


def recorded(name):
  """Recorded outputs by name."""
  with np.load(_DATA / f'{name}.npz') as stored:
    return dict(stored)


def assert_same(params, others):
  """Requires parameters of the same names, dtypes and bits."""
  params, others = (stored.named(matrices.plain(one)) for one in (params, others))
  assert params.keys() == others.keys()
  for name, leaf in params.items():
    assert leaf.dtype == others[name].dtype, name
    np.testing.assert_array_equal(leaf, others[name], err_msg=name)


def check(module, config, params, condition, guided=True):
  """Checks windows, trees and commit of a model, also against its training pass."""
  report = check_target(
      module.target(config, guided=guided), params, condition,
      logits=lambda params, condition, tokens: module.logits_and_features(
          params, config, condition, tokens, np.zeros(len(tokens), bool))[0])
  assert not report.problems and 'training pass' in report.passed
