"""Finds mistakes in a target: one call checks a user's model."""

import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts
from cspd_jax.decoding import continuous_batching, prefix as prefix_lib
from cspd_jax.decoding.base import Condition, Params, Target
from cspd_jax.decoding.tree import chain
from cspd_jax.testing import probe as probe_lib, tree_checks
from cspd_jax.testing.probe import ROWS, SPARE, Probe, distance
from cspd_jax.testing.report import Check, CheckReport, collect, required

SIZES = (2, 5)  # Numbers of tokens of the windows that are checked.
# `(params, condition, tokens [B, T]) -> [B, T, V]`: logits of token `i` from the tokens before it.
Logits = Callable[[Params, Condition, jax.Array], jax.Array]
_NOT_COMPARED = (
    'the forward pass of the training was not compared: a mistake that prefill, score and commit '
    'share, such as positions that are off by one, passes all checks; pass logits, the forward '
    'pass of the trained model over a whole image.')
# Where the cache of every stream must remain, for sentences.
_PLACES = ('the conditional stream is logits[0] and the null condition logits[1], in prefill and '
           'in score, and the cache of a stream stays its own')


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
      `(params, condition, tokens [B, T]) -> [B, T, V]`, where entry `i` predicts token `i`
      from the condition and the tokens before it, of a whole image. Scoring must agree with it.
      Without it a note says that it was not compared.
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
  count, size = probe.tokens.shape[1], probe.target.num_tokens
  tokens = jnp.asarray(np.pad(probe.tokens, ((0, 0), (0, size - count)), mode='wrap'))
  try:
    want = np.asarray(logits(probe.params, probe.condition, tokens))
  except Exception as error:  # It is the caller's, and may fail in any way.
    yield (f'logits: it raises {type(error).__name__} for {len(tokens)} rows and tokens '
           f'{tokens.shape}: {str(error):.300}')
    return
  expected = (*tokens.shape, probe.target.vocab_size)
  if want.shape != expected:
    extra = ('; leave the last entry out, which predicts a token after the image'
             if want.shape == (len(tokens), size + 1, expected[2]) else '')
    yield (f'logits: they have shape {want.shape}; it must be {expected}: rows, tokens, '
           f'vocab_size{extra}.')
  want = want[:, :count]
  first = np.asarray(probe.prefill(probe.params, probe.condition)[0])[:, :, None]
  got = np.concatenate([first, probe.singly[0][:, :, :-1]], axis=2)
  apart = distance(got[:1], want[None]).max(axis=0)
  if apart.max() > probe.tolerance:
    number = int(np.argmax(apart > probe.tolerance))
    yield (f'{"score" if number else "prefill"}: the distribution of token {number} is '
           f'{apart[number]:.2g} apart in total variation from the training pass; check the token '
           'numbers (is one off by one?), what the first token sees, and that the conditional '
           'stream comes first.')


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
  of the second stream are therefore equal, and in the first one they differ as the conditions do.
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
    Check('tree', tree_checks.static, of_trees=True),
    Check('run-time tree', tree_checks.run_time, of_trees=True),
    Check('commit', tree_checks.commit, ('starts', 'tree', 'run-time tree', 'training pass'),
          of_trees=True),
    Check('features', _features),
    Check('end of the image', _end, ('leftovers',)),
)
