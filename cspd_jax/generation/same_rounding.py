"""Whether seed-exact programs round as `vanilla(window=N)` does, on the device at hand.

A seed-exact decoder repeats the tokens of `vanilla(window=N)` bit for bit under two conditions.
Where one fails, its guarantee is seed-exact up to rounding.

The first is that a pass computes a token alike in every place of the window and in every row. One
run of the target's pass shows it, with the model's parameters, before the first images of each
batch size and form of prompts (`decoding.rounding`). It cannot see that another program is
compiled to other kernels, and in bfloat16 it misses what changes one token in thousands; so on a
CPU, where both dtypes have the same order of sums, small models are compared in float32 too.

The second is that both programs have the same kernels. On NVIDIA GPUs, where XLA times several and
keeps the fastest, `core.programs` has it keep its choice, and the kernels of each program are
compared with the kernels of `vanilla(window=N)`, if that was compiled. This cannot see what
a kernel computes.
"""

import contextlib
import functools
import hashlib
import json
import pathlib
from collections.abc import Hashable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax import sharding
from cspd_jax.core import batches, kernels, programs, rows
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.decoding import rounding
from cspd_jax.decoding.loop import Decoder, State
from cspd_jax.files import atomic

# The most bytes of narrow parameters that a CPU copies to float32.
_COPIED = 1 << 30


class SameRounding:
  """What was found of the seed-exact decoders of a model so far.

  For other processes, the kernels of `vanilla(window=N)` are stored beside the compilation cache.

  Attributes:
    differing: specifications of the decoders that are seed-exact up to rounding.
  """

  def __init__(self) -> None:
    # By program, but for its decoder: products of `vanilla(window=N)`, and of others by text.
    self._baselines: dict[Hashable, frozenset[str]] = {}
    self._others: dict[Hashable, dict[str, frozenset[str]]] = {}
    self._compared: dict[Hashable, bool] = {}
    self.differing: set[str] = set()

  def check(self, decoder: Any, text: str, program: Hashable, params: Any, condition: Any,
            count: int, mesh: jax.sharding.Mesh | None = None) -> None:
    """Compares places and rows of passes of `count` images, the first time for these shapes.

    `text` is the decoder's specification, and `program` what its target depends on in addition to
    the shapes. The images have the first row of the condition, NumPy arrays.
    """
    if (window := _window(decoder)) == 1:
      return
    name = (window, program, count, *(leaf.shape[1:] for leaf in jax.tree.leaves(condition)))
    if name not in self._compared:
      equal = batches.select(condition, np.zeros(count, int))
      self._compared[name] = all(
          _is_equal(decoder.target, window, each, equal, mesh) for each in _precisions(params))
    if not self._compared[name]:
      self.differing.add(text)

  def kernel_check(self, decoder: Any, text: str, *program: Hashable) -> programs.Inspect | None:
    """Returns a callback that compares the kernels of a decoder's programs, for `programs.jit`.

    None if nothing is to be compared. `text` is the decoder's specification, and `program` what its
    program depends on besides.
    """
    window = _window(decoder)
    return functools.partial(self._compare, text, (window, *program)) if window > 1 else None

  def _compare(self, text: str, program: tuple[Hashable, ...], arguments: tuple[Any, ...],
               compiled: str) -> None:
    # The module has the name of the function, such as `join` or `advance` of slots.
    name = (*program, compiled.partition(',')[0], _shapes(arguments))
    own = kernels.chosen(compiled)
    if text == f'vanilla(window={program[0]})':
      self._baselines[name] = own
      _store(name, own)
    else:
      self._others.setdefault(name, {})[text] = own
    baseline = self._baselines.get(name) or _stored(name)
    for other, products in self._others.get(name, {}).items() if baseline else ():
      if differ := len(baseline - products):
        self.differing.add(other)
        logging.warning(
            '%s is seed-exact up to rounding: for %d of %d products, XLA chose other kernels than '
            'for vanilla(window=%d); see docs/exactness.md.',
            other, differ, len(baseline), program[0])


def _window(decoder: Any) -> int:
  """The tokens of a pass of a seed-exact decoder; 1 if nothing is to be compared."""
  if not isinstance(decoder, Decoder) or decoder.guarantee is not Guarantee.SEED_EXACT:
    return 1
  return decoder.drafter.tree.num_nodes + 1


def _precisions(params: Any) -> Iterator[Any]:
  """Yields the parameters in the dtypes in which passes are compared."""
  yield params
  leaves = jax.tree.leaves(params)
  is_narrow = lambda leaf: leaf.dtype in (jnp.bfloat16, jnp.float16)
  if (jax.default_backend() == 'cpu' and any(map(is_narrow, leaves))
      and sum(leaf.nbytes for leaf in leaves) <= _COPIED):
    yield jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if is_narrow(leaf) else leaf, params)


def _is_equal(target: Any, window: int, params: Any, condition: Any,
              mesh: jax.sharding.Mesh | None) -> bool:
  """Whether all places and rows of a pass have equal logits for equal tokens; logs if not."""
  def digests(params, condition, begins, *_):
    return rounding.digests(target, window, params, condition, begins)

  begins = rounding.passes(window, target.num_tokens, rows.count(condition))
  # With the signature of a decoder, whose keys have the axis of the images too.
  run = programs.jit(
      digests if mesh is None else sharding.over_images(digests, mesh), short_sums=True)
  found = rounding.compare(begins, sharding.gathered(run(params, condition, begins, None, None)))
  if not found.is_equal:
    logging.warning('Decoders are seed-exact up to rounding in windows of %d: %s; see '
                    'docs/exactness.md.', window, found)
  return found.is_equal


def _shapes(arguments: tuple[Any, ...]) -> tuple[Hashable, ...]:
  """The shapes of a program's arguments, without the drafter's, which are the last."""
  without = lambda leaf: leaf._replace(drafter=None) if isinstance(leaf, State) else leaf
  leaves = jax.tree.leaves(jax.tree.map(
      without, arguments[:-1], is_leaf=lambda leaf: isinstance(leaf, State)))
  return tuple((str(leaf.dtype), *leaf.shape) for leaf in leaves)


def _path(name: Hashable) -> pathlib.Path | None:
  """The file of the products of `vanilla(window=N)` in a program; None if nothing is kept."""
  folder = programs.kept_kernels()
  digest = hashlib.sha256(repr(name).encode()).hexdigest()[:24]
  return None if folder is None else folder / f'vanilla-{digest}.json'


def _store(name: Hashable, products: frozenset[str]) -> None:
  if path := _path(name):
    # A full disk, or someone else's folder: the process itself still compares.
    with contextlib.suppress(OSError):
      atomic.write(path, json.dumps(sorted(products)).encode())


def _stored(name: Hashable) -> frozenset[str]:
  path = _path(name)
  try:
    return frozenset(json.loads(path.read_bytes())) if path else frozenset()
  except (OSError, TypeError, ValueError):  # It is only a comparison that is left out.
    return frozenset()
