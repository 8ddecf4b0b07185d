"""Finds mistakes in a target: one call checks a user's model."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts
from cspd_jax.decoding import continuous_batching, prefix as prefix_lib
from cspd_jax.decoding.base import Condition, Params, Target, TreeLike
from cspd_jax.decoding.tree import Budget, RuntimeTree, Tree, chain, runtime_tree
from cspd_jax.testing import probe as probe_lib
from cspd_jax.testing.probe import ROWS, SPARE, Probe, distance
from cspd_jax.testing.report import Check, CheckReport, collect, complaint, required

SIZES = (2, 5)  # Numbers of tokens of the windows that are checked.
# `(params, condition, tokens [B, n]) -> [B, n, V]`: logits of token `i` from the tokens before it.
Logits = Callable[[Params, Condition, jax.Array], jax.Array]
_NOT_COMPARED = (
    'the forward pass of the training was not compared: a mistake that prefill, score and commit '
    'share, such as positions that are off by one, passes all checks; pass logits, the forward '
    'pass of the trained model over a whole image.')
# Where the cache of every stream must remain, for sentences.
_PLACES = ('the conditional stream is logits[0] and the null condition logits[1], in prefill and '
           'in score, and the cache of a stream stays its own')
# A main chain of three nodes, a sibling of the first with a child, and a sibling of the second.
TREE = Tree((-1, 0, 1, 2, 0, 1, 4))
# Topologies of the rows of a run-time tree.
_PARENTS = ((-1, 0, 1, 2, 0, 1, 4), (-1, 0, 0, 0, 2, 4, 1), (-1, 0, 1, 1, 0, 4, 5))
# Follows the report of a tree that is scored as a chain.
_CHAINS_ONLY = ('. Every node sees all nodes before it, as in a chain; a target that scores chains '
                'only sets supports_trees=False.')


def check_target(target: Target, params: Params, condition: Condition, *,
                 key: jax.Array | None = None, logits: Logits | None = None,
                 progress: bool = True) -> CheckReport:
  """Checks that a target satisfies the contract of `base.Target`, on random tokens.

  Shapes and dtypes; determinism; the order of the guidance streams in `prefill` and `score`, with a
  prefix and after `commit`; windows against one-by-one scoring, with rows at different starts;
  trees, static and run-time, node by node, and `commit`, unless `supports_trees` is False;
  leftovers of rejected drafts; the end of the image; independence of the rows and order of the
  cache's rows; features. Distributions are compared by their total variation, over the first row of
  an image, the beginning of the second and the last tokens. Use float32 parameters: in bfloat16
  rounding hides small mistakes. All of this compares the target with itself; that it is the model
  that was trained only `logits` shows. Raises ProblemsError, a sentence per check.

  Args:
    target: the target.
    params: its parameters; trained ones, or random ones large enough that tokens matter.
    condition: for any number of rows; different rows reveal more, and the order of the streams.
    key: draws the tokens.
    logits: the forward pass that the model was trained with:
      `(params, condition, tokens [B, n]) -> [B, n, V]`, where entry `i` predicts token `i`
      from the condition and the tokens before it. Scoring must agree with it. Without it a note
      says that it was not compared.
    progress: whether a line on stderr says which check runs once that takes more than five seconds.
  """
  checks = [check for check in CHECKS if target.supports_trees or not check.of_trees]
  if logits is not None:
    # Before commit, which is not to blame for a score that is shifted.
    checks.insert([check.name for check in CHECKS].index('rows of prefill'), Check(
        'training pass', lambda probe: _training_pass(probe, logits), ('finite logits',)))
  notes, last = tuple(_notes(target)), () if logits is not None else (_NOT_COMPARED,)
  if shapes := next(_shapes(target, params, condition), None):
    return required('target', CheckReport(
        {'shapes': shapes}, [], [check.name for check in checks], notes + last))
  with jax.default_matmul_precision('highest'):
    probe = probe_lib.make(target, params, condition, jax.random.key(0) if key is None else key)
    report = collect('target', checks, probe, progress)
    if logits is None:
      notes += tuple(_unchecked_streams(probe))
  return required(
      'target', report._replace(passed=['shapes', *report.passed], notes=notes + last))


def _notes(target: Target) -> Iterator[str]:
  """Yields a sentence for every property that the target does not let us check."""
  if target.check_condition is Target._field_defaults['check_condition']:
    yield ('conditions are unchecked: the target has no check_condition, so decoders accept any '
           'condition, also one whose values are out of range.')
  if not target.supports_trees:
    yield ('trees and commit are unchecked: supports_trees is False, so make_decoder refuses '
           'drafters of trees.')


def _shapes(target: Target, params: Params, condition: Condition) -> Iterator[str]:
  """Checks shapes and dtypes for chains without running the target."""
  for name, least in dict(vocab_size=2, num_tokens=1, row_width=1, num_streams=1).items():
    value = getattr(target, name)
    if not isinstance(value, int | np.integer) or value < least:
      yield f'{name} is {value!r}; it must be a whole number of at least {least}.'
  if target.num_streams > 2:
    yield f'num_streams is {target.num_streams}; it must be 1, or 2 with a null condition.'
  leaves = jax.tree.leaves(condition)
  if not leaves or any(np.ndim(leaf) == 0 or len(leaf) != len(leaves[0]) for leaf in leaves):
    yield 'condition: its leaves must be arrays with one leading axis, the rows.'
  batch = len(leaves[0])

  def run():
    _, _, cache = contracts.prefill(target, params, condition, target.num_tokens + SPARE)
    start = jnp.zeros((batch,), jnp.int32)
    for num_drafts in (0, 2):
      tokens = jnp.zeros((batch, num_drafts + 1), jnp.int32)
      _, _, cache = contracts.score(target, params, cache, tokens, start, chain(num_drafts))
    contracts.forced_tokens(target, jnp.zeros((batch, 3), jnp.int32))

  try:
    contracts.supported_rows(target, condition)
    jax.eval_shape(run)
  except contracts.ContractError as error:
    yield str(error)
  if target.forced is not None:
    forced = np.asarray(target.forced(jnp.arange(target.num_tokens)))
    if forced.min() < -1 or forced.max() >= target.vocab_size:
      yield (f'forced: tokens go from {forced.min()} to {forced.max()}; they must be tokens, 0 to '
             f'{target.vocab_size - 1}, or -1 where a position is free.')


def _training_pass(probe: Probe, logits: Logits) -> Iterator[str]:
  """Scoring one by one returns the logits of the training pass."""
  tokens = jnp.asarray(probe.tokens)
  want = np.asarray(logits(probe.params, probe.condition, tokens))
  if want.shape != (*tokens.shape, probe.target.vocab_size):
    yield (f'logits: they have shape {want.shape}; it must be '
           f'{(*tokens.shape, probe.target.vocab_size)}: rows, tokens, vocab_size.')
  first = np.asarray(probe.prefill(probe.params, probe.condition)[0])[:, :, None]
  got = np.concatenate([first, probe.singly[0][:, :, :-1]], axis=2)
  apart, *other = (distance(stream[None], want[None]).max(axis=0) for stream in got)
  if apart.max() > probe.tolerance:
    number = int(np.argmax(apart > probe.tolerance))
    where = 'prefill' if number == 0 else 'score'
    if other and other[0][number] <= probe.tolerance:
      yield (f'{where}: the guidance streams are swapped: the second stream has the distribution '
             f'of the training pass for token {number}, and the first is {apart[number]:.2g} apart '
             'in total variation; the conditional stream comes first.')
    yield (f'{where}: the distribution of token {number} is {apart[number]:.2g} apart in total '
           'variation from that of the training pass; check the token numbers (is one off by one?) '
           'and what the first token sees.')


def _determinism(probe: Probe) -> Iterator[str]:
  """The same arguments return the same numbers, also when traced again."""
  again = dataclasses.replace(probe)  # Compiles again.
  for name, run in (
      ('prefill', lambda p: p.prefill(p.params, p.condition)[0]),
      ('score', lambda p: p.score(p.new_cache(), p.tokens[:, :1], 0)[0])):
    first = np.asarray(run(probe))
    if not all(np.array_equal(first, np.asarray(run(p)), equal_nan=True) for p in (probe, again)):
      yield (f'{name}: two calls with the same arguments return different logits; the functions '
             'must be pure and must not draw random numbers.')


def _finite(probe: Probe) -> Iterator[str]:
  """Logits are finite, or -inf for impossible tokens."""
  for name, logits in (('prefill', probe.prefill(probe.params, probe.condition)[0]),
                       ('score', probe.singly[0])):
    if not _are_valid(logits):
      yield (f'{name}: logits contain NaN or +inf, or are -inf for all tokens; they must be finite '
             'for the tokens that can be drawn, and -inf for the others.')


def _are_valid(logits: np.ndarray) -> bool:
  """Whether logits `[..., V]` define distributions: no NaN or +inf, and not -inf for all tokens."""
  logits = np.asarray(logits, np.float64)
  return not (np.isnan(logits).any() or np.isposinf(logits).any() or
              np.isneginf(logits).all(axis=-1).any())


def _power(probe: Probe) -> Iterator[str]:
  """Tokens matter enough for mistakes to be visible."""
  if probe.target.num_tokens < 2:
    return
  changed = probe.score_singly(probe.different(probe.tokens))[0]
  effect = distance(probe.singly[0], changed).max()
  if effect < 3 * probe.tolerance:
    yield (f'score: other tokens change the distributions by {effect:.2g} in total variation, '
           'which is too little to distinguish mistakes from rounding; use trained parameters, or '
           'larger random ones, in float32.')


def _prefill_rows(probe: Probe) -> Iterator[str]:
  """A row's prefill depends on its own condition only."""
  logits = np.asarray(probe.prefill(probe.params, probe.condition)[0])
  order = np.roll(np.arange(logits.shape[1]), 1)

  def logits_of(rows: np.ndarray) -> np.ndarray:
    condition = jax.tree.map(lambda x: x[rows], probe.condition)
    return np.asarray(probe.prefill(probe.params, condition)[0])

  rolled, alone = logits_of(order), logits_of(order[:1])
  apart = max(distance(rolled, logits[:, order]).max(), distance(alone, logits[:, order[:1]]).max())
  if apart > probe.tolerance:
    yield (f'prefill: the distribution of a row changes by {apart:.2g} in total variation with the '
           'other rows of the batch; rows must be independent.')


def _windows(probe: Probe) -> Iterator[str]:
  """A window in one pass returns the same logits as its tokens one by one."""
  want = probe.singly[0]
  for size in SIZES:
    start, cache, logits = 0, probe.new_cache(), []
    while start + size <= probe.tokens.shape[1]:
      out, _, cache = probe.score(cache, probe.tokens[:, start:start + size], start)
      logits.append(out)
      start += size
    if not logits:
      continue
    got = np.concatenate(logits, axis=2)
    apart = distance(got, want[:, :, :start]).max(axis=0)
    apart = np.where(probe.is_inside(np.arange(start) + 1), apart, 0)
    if apart.max() > probe.tolerance:
      number = int(np.argmax(apart > probe.tolerance))
      yield (
          f'score: {size} tokens in one pass have other distributions than one by one: after token '
          f'{number} of the image, index {number % size} in its window, they are '
          f'{apart[number]:.2g} apart in total variation; node i is token number start + '
          'tree.depth[i] and sees the condition, the tokens before start, and its ancestors.')


def _later_tokens(probe: Probe) -> Iterator[str]:
  """A token of a window does not see later ones."""
  window = probe.tokens[:, probe.start:probe.start + 5]
  changed = np.concatenate([window[:, :-1], probe.different(window[:, -1:])], axis=1)
  first, second = (
      probe.score(probe.cache_at_start, tokens, probe.start)[0] for tokens in (window, changed))
  apart = distance(first, second)[:, :-1]
  if apart.size and apart.max() > probe.tolerance:
    yield ('score: a token of a window sees a later one: when the last token changes, the '
           f'distributions before it change by {apart.max():.2g} in total variation; nodes may see '
           'only the tokens before start and their ancestors.')


def _starts(probe: Probe) -> Iterator[str]:
  """Rows may start at different token numbers."""
  size = 2
  last = probe.tokens.shape[1] - size
  if last < 1:
    return
  want, _, cache = probe.singly
  start = np.arange(len(probe.tokens))[::-1] % (last + 1)
  numbers = start[:, None] + np.arange(size)
  window = np.take_along_axis(probe.tokens, numbers, axis=1)
  got = probe.score(cache, window, start)[0]
  want = np.take_along_axis(want, numbers[None, :, :, None], axis=2)
  apart = np.where(probe.is_inside(numbers + 1), distance(got, want), 0).max()
  if apart > probe.tolerance:
    yield (f'score: rows that start at different tokens, {start.tolist()}, have distributions '
           f'{apart:.2g} apart in total variation from rows that all have the same start; start is '
           'one number per row.')


def _stale_slots(probe: Probe) -> Iterator[str]:
  """Leftovers of a longer window that was rejected do not matter."""
  start = probe.start
  window = probe.tokens[:, start:start + 2]
  rejected = probe.different(probe.tokens[:, start:start + 5])
  _, _, cache = probe.score(probe.cache_at_start, rejected, start)
  got, _, _ = probe.score_singly(window, cache, start)
  numbers = start + np.arange(window.shape[1])
  apart = distance(got, probe.singly[0][:, :, numbers])
  apart = np.where(probe.is_inside(numbers + 1), apart, 0).max()
  if apart > probe.tolerance:
    yield ('score: leftovers of rejected drafts are seen: after a longer window with other tokens '
           f'the distributions are {apart:.2g} apart in total variation; slots after the last node '
           'of this pass must not be read, and a recurrent model must begin from the state after '
           'token start - 1, so its cache stores one state per token.')


def _rows(probe: Probe) -> Iterator[str]:
  """A row's scores depend on its own tokens only."""
  tokens = probe.tokens.copy()
  tokens[1] = probe.different(tokens[1])
  apart = distance(probe.score_singly(tokens)[0], probe.singly[0])
  apart = np.delete(apart, 1, axis=0).max()
  if apart > probe.tolerance:
    yield (f'score: the distributions of a row change by {apart:.2g} in total variation with the '
           'tokens of another row; rows must be independent.')


def _cache_rows(probe: Probe) -> Iterator[str]:
  """Rows of a cache can be reordered, as when a row starts the next image."""
  cache, count, streams = probe.cache_at_start, len(probe.tokens), probe.target.num_streams
  few = jax.tree.map(lambda x: x[:2], probe.condition)
  try:
    axes = continuous_batching.row_axes(
        cache, jax.eval_shape(probe.prefill, probe.params, few)[2], streams, count, 2)
  except contracts.ContractError as error:
    yield str(error)
    return
  order = np.roll(np.arange(count), 1)

  def reordered(leaf: jax.Array, axis: int) -> jax.Array:
    blocks = np.arange(leaf.shape[axis] // count)[:, None]
    return jnp.take(leaf, (blocks * count + order).ravel(), axis)

  window = probe.tokens[order, probe.start:probe.start + 2]
  got = probe.score_singly(window, jax.tree.map(reordered, cache, axes), probe.start)[0]
  want = probe.singly[0][:, order, probe.start:probe.start + 2]
  is_inside = probe.is_inside(probe.start + np.arange(window.shape[1]) + 1)
  apart = np.where(is_inside, distance(got, want), 0)
  if apart.max() > probe.tolerance:
    yield (f'cache: with its rows in another order the distributions are {apart.max():.2g} apart '
           'in total variation; an axis of all streams must contain the rows of one stream after '
           'those of the other, row b of stream s at s B + b.')


def _features(probe: Probe) -> Iterator[str]:
  """Prefill and score both return features, and windows return the same as single tokens."""
  of_prefill = probe.prefill(probe.params, probe.condition)[1]
  _, singly, _ = probe.singly
  for name, present, other in (('prefill', of_prefill, 'score'), ('score', singly[0], 'prefill')):
    if present is None and (of_prefill is not None or singly[0] is not None):
      yield (f'{name}: it returns no features, but {other} does; both must return them, or None.')
  if of_prefill is None:
    return
  if of_prefill.shape[-1] != singly[0].shape[-1]:
    yield (f'score: its features have size {singly[0].shape[-1]}, those of prefill '
           f'{of_prefill.shape[-1]}; they must be equal.')
  size = min(5, probe.tokens.shape[1])
  got = np.asarray(probe.score(probe.new_cache(), probe.tokens[:, :size], 0)[1], np.float64)
  want = np.concatenate([np.asarray(single, np.float64) for single in singly[:size]], axis=2)
  error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)
  if not error <= 10 * probe.tolerance:
    yield (f'score: features of {size} tokens in one pass differ from those one by one, by '
           f'{error:.2g} of the largest; they must be the features that the logits are computed '
           'from.')


def _end(probe: Probe) -> Iterator[str]:
  """Windows may run past the last token of the image."""
  size, total = 5, probe.target.num_tokens
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, probe.target.vocab_size, (len(probe.tokens), total + SPARE))
  cache, at = probe.new_cache(), max(total - 3, 0)
  for start in range(0, at, size):
    _, _, cache = probe.score(cache, tokens[:, start:start + size], start)
  want = probe.score_singly(tokens[:, at:at + 2], cache, at)[0]
  past, _, after = probe.score(cache, tokens[:, at:at + size], at)
  following = probe.score(after, tokens[:, at + 1:at + 2], at + 1)[0]
  apart = distance(np.concatenate([past[:, :, :1], following], axis=2), want)
  apart = np.where(probe.is_inside(at + 1 + np.arange(2)), apart, 0).max()
  last = np.maximum(total - 1 - np.arange(len(tokens)) % 2, 0)
  last = probe.score(cache, tokens[:, at:at + size], last)[0]
  if not _are_valid(np.concatenate([past, last], axis=2)):
    yield (f'score: logits contain NaN or +inf where a window runs past the last token, number '
           f'{total - 1}; they are ignored but must define distributions, so clip token numbers '
           'before table look-ups.')
  elif apart > probe.tolerance:
    yield (f'score: a window that runs past the last token changes the last distributions by '
           f'{apart:.2g} in total variation; prefill must allocate num_slots slots.')


def _streams(probe: Probe) -> Iterator[str]:
  """The stream that depends on the condition comes first: in prefill, in score, after a prefix.

  The null condition is the same for all images. With the same tokens in all rows, the distributions
  of the second stream are therefore equal, and those of the first one differ as the conditions do.
  """
  if probe.target.num_streams != 2:
    return
  null_is_free = False
  for place, logits in _stages(_with_one_prefix(probe)):
    first, second = _depend(probe, logits)
    if second and not first:
      yield (f'{place}: the guidance streams are swapped: the second stream depends on the '
             f'condition and the first does not; {_PLACES}.')
    if second and null_is_free:
      yield (f'{place}: the guidance streams are mixed: the second stream depends on the '
             f'condition, which it did not do before; {_PLACES}.')
    null_is_free |= first and not second


def _unchecked_streams(probe: Probe) -> Iterator[str]:
  """Yields a sentence if the condition does not show which stream is the null condition."""
  if probe.target.num_streams != 2:
    return
  depend = [_depend(probe, logits) for _, logits in _first_stages(_with_one_prefix(probe))]
  if (True, False) in depend:
    return
  both = any(second for _, second in depend)
  yield ('the order of the guidance streams is unchecked: '
         + ('both depend on the condition; pass logits, with which the first is compared.' if both
            else 'neither depends on the condition; pass rows of different conditions.'))


def _are_swapped(probe: Probe, got: np.ndarray, want: np.ndarray, valid: Any = True) -> bool:
  """Whether logits `[2, ..., V]` are those wanted, in the other order of the streams, if valid."""
  return len(got) == 2 and bool(
      np.where(valid, distance(got[::-1], want), 0).max() <= probe.tolerance)


def _depend(probe: Probe, logits: np.ndarray) -> tuple[bool, bool]:
  """Whether the distributions of each stream differ between rows, by logits `[2, R, ..., V]`."""
  first, second = (distance(stream[None, :1], stream[None]).max() > probe.tolerance
                   for stream in np.asarray(logits, np.float64))
  return bool(first), bool(second)


def _with_one_prefix(probe: Probe) -> Probe:
  """The probe with the same prefix in all rows, on which the null condition depends too."""
  if not isinstance(probe.condition, prefix_lib.Prefixed):
    return probe
  tokens = jnp.broadcast_to(probe.condition.tokens[:1], probe.condition.tokens.shape)
  return dataclasses.replace(probe, condition=probe.condition._replace(tokens=tokens))


def _first_stages(probe: Probe) -> Iterator[tuple[str, np.ndarray]]:
  """Yields logits of the prefill and of a first token, which is the same in all rows."""
  logits, _, cache = probe.prefill(probe.params, probe.condition)
  yield 'prefill', logits
  yield 'score, or the cache of prefill', probe.score(cache, _same(probe, 0, 1), 0)[0]


def _stages(probe: Probe) -> Iterator[tuple[str, np.ndarray]]:
  """Yields places in which streams can be swapped and logits from there, the simplest first."""
  yield from _first_stages(probe)
  length = probe.tokens.shape[1]
  if length > 1:
    cache = probe.score(probe.new_cache(), _same(probe, 0, 1), 0)[2]
    yield 'the cache of score', probe.score(cache, _same(probe, 1, 2), 1)[0]
    size = min(5, length)
    logits, _, cache = probe.score(probe.new_cache(), _same(probe, 0, size), 0)
    yield f'score of {size} tokens in one pass', logits
    if length > size:
      yield (f'the cache of score of {size} tokens in one pass',
             probe.score(cache, _same(probe, size, size + 1), size)[0])
  width = probe.target.row_width
  if width < probe.target.num_tokens:  # As `Model.with_prefix` does.
    after = dataclasses.replace(
        probe, target=prefix_lib.target(probe.target, width), condition=prefix_lib.Prefixed(
            probe.condition, jnp.asarray(_same(probe, 0, width))))
    logits, _, cache = after.prefill(after.params, after.condition)
    place = f'score with a prefix of {width} tokens'
    yield place, logits
    yield f'the cache of {place}', after.score(cache, _same(probe, width, width + 1), 0)[0]


def _same(probe: Probe, start: int, end: int) -> np.ndarray:
  """The tokens `[R, end - start]` of the first row in all rows."""
  return np.tile(probe.tokens[:1, start:end], (ROWS, 1))


def _static_tree(probe: Probe) -> Iterator[str]:
  """The nodes of a static tree see their ancestors and no others."""
  yield from _failures(
      probe, TREE, 'a Tree', 'a target that scores chains only sets supports_trees=False')
  yield from _problems(probe, TREE, 'a Tree')


def _run_time_tree(probe: Probe) -> Iterator[str]:
  """The same for a different topology in every row."""
  kind = 'a RuntimeTree, a topology per row,'
  yield from _failures(
      probe, _row_trees(), kind, 'its depth [B, N + 1], ancestors [B, N + 1, N + 1] and paths '
      '[B, N + 1, D + 1] are traced arrays, so use jax.numpy on them, not NumPy, `if` or `range`')
  yield from _problems(probe, _row_trees(), kind)


def _commit(probe: Probe) -> Iterator[str]:
  """After a commit, the cache contains the accepted path."""
  nodes, new = _nodes(probe), _nodes(probe)[:, -1:]
  _, _, cache = probe.score(probe.cache_at_start, nodes, probe.start, TREE)
  for node in (6, 5, 3):  # The last one ends the main chain, whose entries stay.
    path, depth = TREE.paths[node], int(TREE.depth[node])
    moves = jnp.tile(jnp.asarray(path[1:TREE.side_depth + 1]), (ROWS, 1))
    after = probe.commit(cache, jnp.full(ROWS, probe.start), moves)
    end = probe.start + depth + 1
    got = probe.score(after, new, end)[0][:, :, 0]
    sequence = np.concatenate([nodes[:, path[:depth + 1]], new], axis=1)
    want = probe.score_singly(sequence, probe.cache_at_start, probe.start)[0][:, :, -1]
    apart = distance(got, want).max()
    if apart <= probe.tolerance or not probe.is_inside(probe.start + depth + 2):
      continue
    if _are_swapped(probe, got, want):
      yield ('commit: the guidance streams are swapped: after it, the next score returns in each '
             'stream the distributions of the other; the cache of a stream must stay its own.')
    for shift in (1, -1):
      shifted = probe.commit(cache, jnp.full(ROWS, probe.start + shift), moves)
      if distance(probe.score(shifted, new, end)[0][:, :, 0], want).max() <= probe.tolerance:
        yield (f'score or commit: they number tokens differently: commit is right with start '
               f'{shift:+d} in place of start, and without it distributions are {apart:.2g} apart '
               'in total variation; in both, start is the number of the root, and node i of score '
               'is token start + tree.depth[i].')
    is_side = node > TREE.main_length
    if is_side and jax.tree.all(jax.tree.map(np.array_equal, cache, after)):
      yield ('commit: it returns the cache unchanged; it must move the entry of node '
             'path[b, d - 1] to slot start[b] + d, or tokens after an accepted side path read '
             f'rejected drafts (distributions {apart:.2g} apart in total variation).')
    yield (f'commit: after node {node} of the tree {TREE.parents} was accepted, which lies '
           f'{"off" if is_side else "on"} the main chain, the next score returns distributions '
           f'{apart:.2g} apart in total variation from scoring the same tokens one by one; commit '
           'must move the entry of node path[b, d - 1] to slot start[b] + d unless path[b, d - 1] '
           'is d, and must not change slots before start[b] + 1.')


def _commit_rows(probe: Probe) -> Iterator[str]:
  """Rows may have different starts and paths."""
  last = np.array([6, 3, 5, 0])
  start = np.minimum(np.array([0, 1, 2, 1]), max(probe.tokens.shape[1] - 6, 0))
  nodes, new = _nodes(probe), _nodes(probe)[:, -1:]
  nodes[:, 0] = probe.tokens[np.arange(ROWS), start]
  for tree in (TREE, _row_trees()):
    _, _, cache = probe.score(probe.singly[2], nodes, start, tree)
    depth, path = map(np.asarray, tree.reach(jnp.asarray(last)))
    cache = probe.commit(cache, jnp.asarray(start), jnp.asarray(path[:, 1:tree.side_depth + 1]))
    got = probe.score(cache, new, start + depth + 1)[0][:, :, 0]
    rows = [np.concatenate([probe.tokens[row, :start[row]],
                            nodes[row, path[row, :depth[row] + 1]], new[row]])
            for row in range(ROWS)]
    sequence = np.stack([np.pad(row, (0, max(map(len, rows)) - len(row))) for row in rows])
    end = start + depth + 1
    want = probe.score_singly(sequence)[0][:, np.arange(ROWS), end]
    apart = np.where(probe.is_inside(end + 1), distance(got, want), 0).max()
    if apart > probe.tolerance:
      yield (f'commit: when rows accept different paths, to nodes {last.tolist()} from starts '
             f'{start.tolist()}, the next score returns distributions {apart:.2g} apart in total '
             'variation from scoring the same tokens one by one; start and path are per row.')


def _failures(probe: Probe, tree: TreeLike, kind: str, remedy: str) -> Iterator[str]:
  """Traces `score` and `commit` with a tree; yields a sentence if one of them fails."""
  start, runtime = jnp.full(ROWS, probe.start), None if isinstance(tree, Tree) else tree
  score = lambda params, cache, nodes, start, runtime: contracts.score(
      probe.target, params, cache, nodes, start, runtime or tree)
  commit = functools.partial(contracts.commit, probe.target)
  cache, nodes = probe.cache_at_start, jnp.asarray(_nodes(probe), jnp.int32)
  path = jnp.zeros((ROWS, tree.side_depth), jnp.int32)
  for function, arguments in ((score, (probe.params, cache, nodes, start, runtime)),
                              (commit, (cache, start, path))):
    try:
      jax.eval_shape(function, *arguments)
    except Exception as error:  # Any, of the user's code.
      name = 'score' if function is score else 'commit'
      yield complaint(error, f'{name}: with {kind} it raises {{}}; {remedy}.')


def _problems(probe: Probe, tree: TreeLike, kind: str) -> Iterator[str]:
  """Yields the mistakes in the scores of a tree, the most informative first."""
  nodes = _nodes(probe)
  depth, ancestors, paths = _tables(tree)
  score = lambda nodes: probe.score(probe.cache_at_start, nodes, probe.start, tree)[0]
  got, valid = score(nodes), probe.is_inside(probe.start + depth + 1)
  changed = []
  for node in range(nodes.shape[1]):
    other = nodes.copy()
    other[:, node] = probe.different(other[:, node])
    changed.append(np.where(valid, distance(score(other), got), 0))
  seen = np.stack(changed, axis=-1)  # [R, i, j]: the effect of node j on node i.
  want = _expected(probe, nodes, depth, paths)
  apart = np.where(valid, distance(got, want), 0)
  if apart.max() > probe.tolerance and _are_swapped(probe, got, want, valid):
    yield (f'score: the guidance streams are swapped: with {kind} each stream has the '
           'distributions that the other has one by one; the conditional stream comes first.')

  rows, readers, read = np.nonzero((seen > probe.tolerance) & ~ancestors)
  if rows.size:
    parent = np.where(depth > 0, np.take_along_axis(
        paths, np.maximum(depth - 1, 0)[..., None], axis=2)[..., 0], -1)
    siblings = parent[rows, readers] == parent[rows, read]
    first = int(np.argmax(siblings))
    relation = ('its sibling' if siblings[first] else
                'below it' if ancestors[rows[first], read[first], readers[first]] else
                'in another branch')
    yield (f'score: with {kind} node {readers[first]} sees node {read[first]}, which is '
           f'{relation}; a node may see only the tokens before start, its ancestors and itself, as '
           f'in tree.ancestors{_CHAINS_ONLY if _is_chain(probe, seen, valid) else "."}')
  if apart.max() <= probe.tolerance:
    return
  row, node = np.argwhere(apart > probe.tolerance)[0]
  above = paths[row, node, :depth[row, node] + 1]
  unseen = [int(other) for other in above if seen[row, node, other] == 0]
  if unseen:
    yield (f'score: with {kind} node {node} does not see node {unseen[-1]}, which is above it or '
           'itself; a node must see its ancestors and itself, as in tree.ancestors.')
  yield (f'score: with {kind} node {node} sees the right nodes but has a distribution '
         f'{apart[row, node]:.2g} apart in total variation from the same tokens one by one; its '
         f'token number must be start + tree.depth[{node}], whatever its index among the nodes.')


def _is_chain(probe: Probe, seen: np.ndarray, valid: np.ndarray) -> bool:
  """Whether nodes `[R, i]` see all nodes `j` before them and no later ones, as far as valid."""
  chain = np.tri(seen.shape[-1], dtype=bool)
  valid = valid & probe.is_inside(probe.start + np.arange(seen.shape[-1]) + 1)
  return bool((np.where(valid[..., None], seen > probe.tolerance, chain) == chain).all())


def _expected(probe: Probe, nodes: np.ndarray, depth: np.ndarray, paths: np.ndarray) -> np.ndarray:
  """`[S, R, N + 1, V]` logits after the path to every node, scored one by one."""
  expected = []
  for node in range(nodes.shape[1]):
    path = paths[:, node, :depth[:, node].max() + 1]
    sequence = np.take_along_axis(nodes, path, axis=1)
    logits = probe.score_singly(sequence, probe.cache_at_start, probe.start)[0]
    expected.append(logits[:, np.arange(len(nodes)), depth[:, node]])
  return np.stack(expected, axis=2)


def _nodes(probe: Probe) -> np.ndarray:
  """`[R, N + 1]` the root and random drafts."""
  rng = np.random.default_rng(1)
  nodes = rng.integers(0, probe.target.vocab_size, (ROWS, TREE.num_nodes + 1))
  nodes[:, 0] = probe.tokens[:, probe.start]
  return nodes


def _row_trees() -> RuntimeTree:
  """A topology for every row."""
  parents = jnp.asarray([_PARENTS[row % len(_PARENTS)] for row in range(ROWS)], jnp.int32)
  return runtime_tree(parents, Budget(TREE.num_nodes, 3, 3))


def _tables(tree: TreeLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  depth, ancestors, paths = map(np.asarray, (tree.depth, tree.ancestors, tree.paths))
  if isinstance(tree, RuntimeTree):
    return depth, ancestors, paths
  rows = lambda x: np.broadcast_to(x, (ROWS, *x.shape))
  return rows(depth), rows(ancestors), rows(paths)


CHECKS = (
    Check('determinism', _determinism),
    Check('finite logits', _finite),
    Check('tokens matter', _power, ('finite logits',)),
    Check('streams', _streams),
    Check('rows of prefill', _prefill_rows),
    Check('rows of score', _rows),
    Check('rows of the cache', _cache_rows, ('rows of score',)),
    Check('later tokens', _later_tokens),
    Check('windows', _windows, ('later tokens',)),
    Check('leftovers', _stale_slots, ('windows',)),
    Check('starts', _starts, ('leftovers',)),
    Check('tree', _static_tree, of_trees=True),
    Check('run-time tree', _run_time_tree, of_trees=True),
    Check('commit', _commit, ('leftovers', 'tree', 'training pass'), of_trees=True),
    Check('commit of rows', _commit_rows, ('starts', 'run-time tree', 'commit'),
          of_trees=True),
    Check('features', _features),
    Check('end of the image', _end, ('leftovers',)),
)
