"""Runs a drafter in the library's own rounds and records its drafts, for `check_drafter`."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.core.random import RowKeys, row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding.base import Draft, Drafter, Params, Verifier
from cspd_jax.decoding.loop import Decoder, State, make_decoder
from cspd_jax.decoding.tree import Tree
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing.tabular import Tabular

# Sampling options of rows that take turns: guidance scale, temperature, top-p.
OPTIONS = ((1.0, 1.0, 1.0), (1.5, 0.8, 1.0), (1.2, 1.0, 0.7), (1.0, 0.0, 1.0))
FALSE_ALARM = 1e-6  # Probability that a comparison of frequencies refuses a correct drafter.


class Uses(NamedTuple):
  """How a function of the drafter uses the rows' random numbers, `[B]` bool each."""

  drawn: jax.Array  # Whether its result changes with them.
  advanced: jax.Array  # Whether it returns the state after them.
  kept_noise: jax.Array  # Whether it returns the noise of positions unchanged.


class Round(NamedTuple):
  """The drafts of one round, as NumPy arrays."""

  start: np.ndarray  # `[B]` number of the root, the last committed token.
  # `[B, T']` the image tokens before the round; those up to `start` are committed.
  image: np.ndarray
  tokens: np.ndarray  # `[B, N]` the drafts.
  probs: np.ndarray | None  # `[B, M, V]` the recorded distributions, or None.
  parents: np.ndarray  # `[B, N + 1]` the topology.
  tree: Any  # All arrays of the topology, if it is known at run time only.


class Results(NamedTuple):
  """The drafts of all rounds of whole images."""

  rounds: list[Round]
  images: np.ndarray  # `[B, T]` the images that `rejection` makes of them.
  uses: list[dict[str, Uses]]  # How `init`, `propose` and `update` used random numbers.


@dataclasses.dataclass(frozen=True)
class DraftProbe:
  """A drafter on a tabular model, with `B` independent images; arguments as of `check_drafter`."""

  drafter: Drafter
  model: Tabular
  draft_params: Params
  samples: int

  @functools.cached_property
  def option(self) -> np.ndarray:
    """The index `[B]` of a row's sampling options in `OPTIONS`."""
    return np.arange(self.samples) % len(OPTIONS)

  @functools.cached_property
  def sampling(self) -> SamplingParams:
    """The sampling options of the rows."""
    return self._warp(self.option)

  def _warp(self, option: Any) -> SamplingParams:
    scale, temperature, top_p = np.asarray(OPTIONS, np.float32)[option].T
    if self.model.target.num_streams == 1:
      scale = np.ones_like(scale)
    return SamplingParams(scale, temperature, np.zeros(np.shape(option), np.int32), top_p, -1, None)

  @functools.cached_property
  def target_probs(self) -> np.ndarray:
    """The model's distribution `[options, P, V]` after every prefix, with every option."""
    probs = np.stack([self.model.probs(self._warp(option)) for option in range(len(OPTIONS))])
    return probs / probs.sum(axis=-1, keepdims=True, dtype=np.float64)

  @property
  def tree(self) -> Tree:
    """The topology, static as all trees of drawn tokens are."""
    assert isinstance(self.drafter.tree, Tree)
    return self.drafter.tree

  @property
  def keys(self) -> RowKeys:
    """The random state of the rows."""
    return row_keys(jax.random.key(0), self.samples)

  def decoder(self, verifier: Verifier) -> Decoder:
    """The drafter with a verifier; raises ValueError if the drafter refuses the model."""
    target = self.model.target
    try:
      return make_decoder(target, self.drafter, verifier)
    except ValueError as error:
      error.add_note(
          f'The drafter was checked on a model of {target.vocab_size} tokens with images of '
          f'{target.num_tokens} in rows of {target.row_width}; pass model=tabular(...) of sizes '
          'that fit it.')
      raise

  @functools.cached_property
  def _recorded(self) -> Decoder:
    return make_decoder(self.model.target, _recording(self.drafter), rejection())

  def _start(self, keys: RowKeys) -> State:
    condition = jnp.zeros(self.samples, jnp.int32)
    return self._recorded.start(self.model.params, condition, keys, self.sampling,
                                self.draft_params)

  def _step(self, state: State) -> tuple[State, Draft, dict[str, Uses]]:
    state = self._recorded.round(self.model.params, state, self.sampling, self.draft_params)
    inner, draft, uses = state.drafter
    return state._replace(drafter=inner), draft, uses

  @functools.cached_property
  def _jitted(self) -> tuple[Any, Any]:
    return (programs.jit(self._start, options=programs.UNOPTIMISED),
            programs.jit(self._step, options=programs.UNOPTIMISED))

  def shapes(self) -> tuple[Any, Any]:
    """Traces a round: the shapes of the drafter's state before and after it."""
    state = jax.eval_shape(self._start, self.keys)
    before, _ = state.drafter
    state = state._replace(drafter=before)
    after, _, _ = jax.eval_shape(self._step, state)
    return before, after.drafter

  def run(self, keys: RowKeys, rounds: int | None = None
          ) -> Iterator[tuple[State, Draft | None, dict[str, Uses]]]:
    """Yields every state before a round, its draft and its use of random numbers; then the last."""
    start, step = self._jitted
    state = start(keys)
    inner, uses = state.drafter
    state = state._replace(drafter=inner)
    while rounds != 0 and np.any(np.asarray(state.count) < self.model.length):
      after, draft, later = step(state)
      yield state, draft, uses | later
      state, uses, rounds = after, {}, None if rounds is None else rounds - 1
    yield state, None, uses

  @functools.cached_property
  def results(self) -> Results:
    """The result of whole images."""
    rounds, uses = [], []
    for state, draft, used in self.run(self.keys):
      uses.append(jax.tree.map(np.asarray, used))
      if draft is not None:
        rounds.append(_as_round(self.drafter, state, draft))
    return Results(rounds, np.asarray(state.tokens)[:, :self.model.length], uses)


def _as_round(drafter: Drafter, state: State, draft: Draft) -> Round:
  draft = jax.tree.map(np.asarray, draft)
  parents = np.tile(np.asarray(drafter.tree.parents), (len(draft.tokens), 1)) if isinstance(
      drafter.tree, Tree) else draft.tree.parents  # type: ignore[union-attr]
  probs = None if drafter.layout.draws == 'fixed' else np.asarray(draft.probs, np.float64)
  return Round(np.asarray(state.count) - 1, np.asarray(state.tokens), draft.tokens, probs, parents,
               draft.tree)


def _recording(drafter: Drafter) -> Drafter:
  """The drafter whose state after a round has its draft and its use of random numbers as well."""

  def init(context, condition, rng, result):
    after, state = drafter.init(context, condition, rng, result)
    _, other = drafter.init(context, condition, _elsewhere(rng), result)
    return after, (state, {'init': _uses(rng, after, state, other)})

  def propose(context, state, rng, root, start):
    after, inner, draft = drafter.propose(context, state, rng, root, start)
    _, _, other = drafter.propose(context, state, _elsewhere(rng), root, start)
    uses = {'propose': _uses(rng, after, draft.tokens, other.tokens)}
    return after, (inner, draft, uses), draft

  def update(context, state, rng, result):
    inner, draft, uses = state
    after, new = drafter.update(context, inner, rng, result)
    _, other = drafter.update(context, inner, _elsewhere(rng), result)
    return after, (new, draft, uses | {'update': _uses(rng, after, new, other)})

  return drafter._replace(init=init, propose=propose, update=update)


def _elsewhere(rng: RowKeys) -> RowKeys:
  """Other random numbers, with the same noise of positions."""
  return rng._replace(stream=rng.stream + jnp.array([2**20, 0], jnp.uint32))


def _uses(before: RowKeys, after: RowKeys, result: Any, other: Any) -> Uses:
  batch = len(before.stream)
  same = jnp.ones(batch, bool)
  for first, second in zip(jax.tree.leaves(result), jax.tree.leaves(other)):
    if jnp.ndim(first) and len(first) == batch:
      equal = (first == second) | ((first != first) & (second != second))
      same &= equal.reshape(batch, -1).all(axis=1)
  return Uses(~same, jnp.any(before.stream != after.stream, axis=1),
              jnp.all(before.noise == after.noise, axis=1))
