"""Times rounds of a decoder in the middle of an image on the current device, and its rates.

The parameters may be random: random weights accept no drafts, but the cost of a round does not
depend on what is accepted, so `with_acceptance` lets a decoder commit as many tokens as a trained
model would. The images then mean nothing. The compiled program is read as well (`costs.hlo`),
so that bytes and kernels are reported along with the times.
"""

import dataclasses
import fractions
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import matrices, programs, random
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.tree import Tree
from cspd_jax.families import FAMILIES
from cspd_jax.files import weights
from cspd_jax.generation.model import Model
from cspd_jax.measure import timing
from experiments.costs import devices, hlo, predicted

_DEVIATION = 0.02  # Standard deviation of random weights.
_INT8_DEVIATION = 74  # That of random numbers of eight bits.
_DENOMINATOR = 1000  # Largest one of tokens per round, whose multiples are counted in integers.
# Iterations of a timed run of copies or products, so that the time to launch it is negligible.
_ITERATIONS = 16
# Sizes double until a run takes this many seconds; the largest arrays exceed all caches.
_ENOUGH = 0.05
_COPY_SIZES, _MATRIX_SIZES = (1 << 26, 1 << 31), (512, 8192)


class TimedRound(NamedTuple):
  """A compiled program of rounds, to be timed."""

  # `count -> ` runs the prefill and `count` rounds; waits for the result.
  run: Callable[[int], Any]
  # `accelerator -> ` cost of a round on a device of such rates.
  cost: Callable[[devices.Accelerator], hlo.Cost]
  seconds: float  # Compilation time.


def copy_bandwidth(repeats: int = 5) -> float:
  """Measures the bytes per second, read and written, of copies of large arrays."""
  # Every iteration reads and writes every element, and the compiler cannot remove any.
  run = jax.jit(lambda x: jax.lax.fori_loop(0, _ITERATIONS, lambda i, x: x + i, x))
  return _rate(run, lambda size: jnp.zeros((size // 4,), jnp.float32), lambda size: 2 * size,
               _COPY_SIZES, repeats)


def matrix_rate(dtype: str = 'bfloat16', repeats: int = 5) -> float:
  """Measures the multiplications and additions per second of products of square matrices."""
  run = jax.jit(lambda x: jax.lax.fori_loop(0, _ITERATIONS, lambda i, y: y @ x, x))
  return _rate(run, lambda size: jnp.full((size, size), 1 / size, dtype), lambda size: 2 * size**3,
               _MATRIX_SIZES, repeats)


def _rate(run: Callable[[jax.Array], jax.Array], array: Callable[[int], jax.Array],
          work: Callable[[int], int], sizes: tuple[int, int], repeats: int) -> float:
  size, largest = sizes
  while True:
    timed = timing.measure({'run': functools.partial(run, array(size))}, repeats, warmup=2)
    seconds = timed['run'].median
    if seconds > _ENOUGH or size >= largest:
      return work(size) * _ITERATIONS / seconds
    size *= 2


def accepted_drafts(count: Any, tokens_per_round: float) -> Any:
  """Returns how many drafts a round accepts that starts with `count` tokens, by `with_acceptance`.

  Round k after the prefill ends with 1 + floor(k `tokens_per_round`) tokens.
  """
  tokens, rounds = fractions.Fraction(tokens_per_round).limit_denominator(
      _DENOMINATOR).as_integer_ratio()
  ends = -(-count * rounds // tokens)  # The first round that ends with more tokens.
  return ends * tokens // rounds - count


def with_acceptance(decoder: Decoder, tokens_per_round: float) -> Decoder:
  """Returns the decoder with rounds that commit `tokens_per_round` tokens on average.

  Everything is computed as before, including the verdict, but the accepted path always follows the
  main chain. The prefill is not one of the rounds. It raises ValueError if that chain is shorter,
  or the tree is built at run time.
  """
  tree = decoder.drafter.tree
  if not isinstance(tree, Tree):
    raise ValueError('the decoder has a tree that is built at run time, so the number of tokens '
                     'that its rounds commit cannot be set; leave it out.')
  if not 1 <= tokens_per_round <= tree.main_length + 1:
    raise ValueError(f'tokens_per_round is {tokens_per_round}; the decoder has {tree.main_length} '
                     f'drafts in a row, so it must be 1 to {tree.main_length + 1}.')
  verify = decoder.verifier.verify

  def verify_and_override(rng, layout, tokens, probs, target_probs, positions):
    verdict = verify(rng, layout, tokens, probs, target_probs, positions)
    # The position after the root is the number of committed tokens.
    node = accepted_drafts(positions[0], tokens_per_round).astype(verdict.node.dtype)
    node = jnp.minimum(node, layout.tree.main_length)
    # No node is negative, but the compiler cannot infer that and computes the verdict.
    return verdict._replace(node=jnp.where(verdict.node < 0, verdict.node, node))

  return dataclasses.replace(
      decoder, verifier=decoder.verifier._replace(verify=verify_and_override))


def committed(model: Model, decoders: Sequence[str], config: predicted.Accepted, guided: bool = True
              ) -> dict[str, float]:
  """Returns the tokens per round of `vanilla` and of decoders of a model.

  Those of a report are its step compression, which counts the prefill as a round of one token; the
  rounds after it commit a little more. It raises ValueError for a decoder that `accepted` does not
  have, or that cannot commit them.
  """
  tokens: dict[str, float] = {}
  for text in map(str, map(model.specification, ('vanilla', *decoders))):
    count = predicted.measured(config.accepted, text, override=config.tokens_per_round).tokens
    if count is None:
      raise ValueError(f'decoder holds {text!r}, which the report accepted ({config.accepted!r}) '
                       'does not contain; give tokens_per_round.')
    with_acceptance(model.decoder(text, guided=guided), count)
    tokens[text] = count
  return tokens


def random_like(shapes: Any, seed: int = 0) -> Any:
  """Creates arrays for a tree of `jax.ShapeDtypeStruct`s, on the device.

  Matrices are normal with standard deviation 0.02, int8 matrices uniform with the same one; norms
  and masks are ones, other integers zeros.
  """
  def array(key, leaf):
    if isinstance(leaf, matrices.Int8):  # Zeros could be read or multiplied faster.
      bits = jax.random.bits(key, leaf.values.shape, np.uint8)
      return matrices.Int8(bits.astype(np.int8), jnp.full(
          leaf.scale.shape, _DEVIATION / _INT8_DEVIATION, leaf.scale.dtype))
    if jnp.issubdtype(leaf.dtype, jnp.integer):
      return jnp.zeros(leaf.shape, leaf.dtype)
    if leaf.dtype == bool or leaf.ndim < 2:
      return jnp.ones(leaf.shape, leaf.dtype)
    return _DEVIATION * jax.random.normal(key, leaf.shape, leaf.dtype)

  create = jax.jit(array, static_argnums=1)
  is_int8 = lambda leaf: isinstance(leaf, matrices.Int8)
  leaves, structure = jax.tree.flatten(shapes, is_leaf=is_int8)
  keys = jax.random.split(jax.random.key(seed), max(1, len(leaves)))
  shape = lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype)
  return structure.unflatten([
      create(key, matrices.Int8(*map(shape, leaf)) if is_int8(leaf) else shape(leaf))
      for key, leaf in zip(keys, leaves)])


def with_int8_matrices(model: Model) -> Model:
  """Returns a described model with described int8 matrices."""
  inputs = matrices.check('int8', model.family, FAMILIES[model.family].target.matrices)
  names = iter(weights.named(model.params))

  def described(leaf: Any) -> Any:
    if not (count := inputs(next(names))):
      return leaf
    return matrices.Int8(jax.ShapeDtypeStruct(leaf.shape, np.int8),
                         jax.ShapeDtypeStruct(leaf.shape[count:], np.float32))

  return dataclasses.replace(model, params=jax.tree.map(described, model.params))


def program(decoder: Decoder, params: Any, condition: Any, sampling: Any, draft_params: Any,
            graphs: str | None = None) -> TimedRound:
  """Compiles rounds that start when half of the image is complete.

  The sampling options are those of `warp.drop_inactive`. `graphs` is the unit that becomes one CUDA
  graph.
  """
  batch = jax.tree.leaves(condition)[0].shape[0]

  def run(params, condition, key, sampling, draft_params, count):
    state = decoder.start(params, condition, key, sampling, draft_params)
    middle = jnp.full_like(state.count, decoder.target.num_tokens // 2)
    # The first half of the cache holds zeros, which take equally long to read.
    state = jax.lax.fori_loop(
        0, count, lambda i, state: decoder.round(params, state, sampling, draft_params),
        state._replace(count=middle))
    return state.count, state.tokens

  keys = random.row_keys(jax.random.key(0), batch)
  arguments = (params, condition, keys, sampling, draft_params)
  compiled = programs.compiled(run, *arguments, np.int32(1), graphs=graphs)

  return TimedRound(lambda count: compiled.run(*arguments, np.int32(count)),
                    lambda accelerator: hlo.Program(
                        compiled.run.as_text(), balance=accelerator.balance).round(),
                    compiled.seconds)


def measure(programs: Mapping[str, TimedRound], count: int, repeats: int
            ) -> dict[str, timing.Timing]:
  """Measures the seconds of a round of every program; the programs alternate.

  The time of the prefill is measured and subtracted from that of `count` rounds; it raises
  ValueError if the difference is below the noise of the measurement.
  """
  runs = {(name, number): lambda each=each, number=number: each.run(number)
          for name, each in programs.items() for number in (0, count)}
  timed = timing.measure(runs, repeats)
  times = {name: timing.Timing((timed[name, count].seconds - timed[name, 0].median) / count)
           for name in programs}
  if unmeasured := [name for name, each in times.items() if each.median <= 0]:
    raise ValueError(
        f'{count} rounds of {unmeasured[0]} took no longer than none; give more rounds.')
  return times
