"""Compares the kernels of seed-exact programs with those of `vanilla(window=N)`, on NVIDIA GPUs.

A seed-exact decoder repeats the tokens of `vanilla(window=N)` bit for bit if the same kernels
compute the same products. `core.programs` has XLA keep the kernels that it chooses; here each
program is compared after it was compiled. Where a kernel differs, the decoder is seed-exact up to
rounding.
"""

import contextlib
import functools
import hashlib
import json
import pathlib
from collections.abc import Hashable
from typing import Any

import jax
from absl import logging

from cspd_jax.core import kernels, programs
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.decoding import specification as discrete
from cspd_jax.decoding.loop import Decoder, State
from cspd_jax.files import atomic


class SameKernels:
  """The kernels of the seed-exact programs of a model that were compiled so far.

  Those of `vanilla(window=N)` are stored with the compilation cache, too, for other processes.

  Attributes:
    differing: specifications of the decoders with a program that differs from its baseline's.
  """

  def __init__(self) -> None:
    # By program, but for its decoder: products of `vanilla(window=N)`, and those of others by text.
    self._baselines: dict[Hashable, frozenset[str]] = {}
    self._others: dict[Hashable, dict[str, frozenset[str]]] = {}
    self.differing: set[str] = set()

  def inspect(self, decoder: Any, text: str, *program: Hashable) -> programs.Inspect | None:
    """Returns what compares the programs of a decoder, as for `programs.jit`; None if nothing does.

    `text` is the decoder's specification, and `program` what its program depends on besides.
    """
    if not isinstance(decoder, Decoder) or discrete.guarantee(decoder) != Guarantee.SEED_EXACT:
      return None
    window = decoder.drafter.tree.num_nodes + 1
    return functools.partial(self._inspect, text, (window, *program)) if window > 1 else None

  def _inspect(self, text: str, program: tuple[Hashable, ...], arguments: tuple[Any, ...],
               compiled: str) -> None:
    # The name of the module is that of the function, such as `join` or `advance` of slots.
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


def _shapes(arguments: tuple[Any, ...]) -> tuple[Hashable, ...]:
  """The shapes of a program's arguments, without those of the drafter, which are the last."""
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
