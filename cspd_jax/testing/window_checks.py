"""What `check_target` asks of prefills and of windows of consecutive tokens.

Every check takes a `Probe` and yields a sentence for everything that is wrong.
"""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import contract, refill
from cspd_jax.testing.probe import SPARE, Probe, distance

# Tokens of the windows that are tried.
SIZES = (2, 5)


def determinism(probe: Probe) -> Iterator[str]:
  """The same arguments give the same numbers, also when traced again."""
  again = dataclasses.replace(probe)  # Compiles anew.
  for name, run in (
      ('prefill', lambda p: p.prefill(p.params, p.condition)[0]),
      ('score', lambda p: p.score(p.open(), p.tokens[:, :1], 0)[0])):
    first = np.asarray(run(probe))
    if not all(np.array_equal(first, np.asarray(run(p)), equal_nan=True) for p in (probe, again)):
      yield (f'{name}: two calls with the same arguments give different logits; the functions must '
             'be pure, with no random numbers of their own.')


def finite(probe: Probe) -> Iterator[str]:
  """Logits are finite numbers."""
  if not np.isfinite(np.asarray(probe.prefill(probe.params, probe.condition)[0])).all():
    yield 'prefill: logits are not finite; mask tokens with large negative numbers, not with inf.'
  if not np.isfinite(probe.one_by_one[0]).all():
    yield 'score: logits are not finite; mask tokens with large negative numbers, not with inf.'


def power(probe: Probe) -> Iterator[str]:
  """Tokens matter so much that mistakes would show."""
  if probe.target.num_tokens < 2:
    return
  changed = probe.read(probe.other(probe.tokens))[0]
  effect = distance(probe.one_by_one[0], changed).max()
  if effect < 3 * probe.tolerance:
    yield (f'score: other tokens change the distributions by {effect:.2g} in total variation, '
           'which is too little to tell mistakes from rounding; give trained parameters, or larger '
           'random ones, in float32.')


def streams(probe: Probe) -> Iterator[str]:
  """The stream that depends on the condition comes first."""
  logits = np.asarray(probe.prefill(probe.params, probe.condition)[0], np.float64)
  if logits.shape[0] == 2:
    first, second = (distance(stream[None, :1], stream[None]).max() for stream in logits)
    if first <= probe.tolerance < second:
      yield ('prefill: the second stream depends on the condition and the first does not; the '
             'conditional stream comes first, the null condition second.')


def prefill_rows(probe: Probe) -> Iterator[str]:
  """A row's prefill depends on its own condition only."""
  logits = np.asarray(probe.prefill(probe.params, probe.condition)[0])
  order = np.roll(np.arange(logits.shape[1]), 1)

  def of_rows(rows):
    condition = jax.tree.map(lambda x: x[rows], probe.condition)
    return np.asarray(probe.prefill(probe.params, condition)[0])

  turned, alone = of_rows(order), of_rows(order[:1])
  apart = max(distance(turned, logits[:, order]).max(), distance(alone, logits[:, order[:1]]).max())
  if apart > probe.tolerance:
    yield (f'prefill: the distribution of a row changes by {apart:.2g} in total variation with the '
           'other rows of the batch; rows must not know each other.')


def windows(probe: Probe) -> Iterator[str]:
  """A window in one pass gives what its tokens give one by one."""
  want = probe.one_by_one[0]
  for size in SIZES:
    start, cache, logits = 0, probe.open(), []
    while start + size <= probe.tokens.shape[1]:
      out, _, cache = probe.score(cache, probe.tokens[:, start:start + size], start)
      logits.append(out)
      start += size
    if not logits:
      continue
    got = np.concatenate(logits, axis=2)
    apart = distance(got, want[:, :, :start]).max(axis=0)
    apart = np.where(probe.fits(np.arange(start) + 1), apart, 0)
    if apart.max() > probe.tolerance:
      number = int(np.argmax(apart > probe.tolerance))
      yield (
          f'score: {size} tokens in one pass give other distributions than one by one: after token '
          f'{number} of the image, place {number % size} of its window, they are '
          f'{apart[number]:.2g} apart in total variation; node i is token number start + '
          'tree.depth[i] and sees the condition, the tokens before start, and its ancestors.')


def later_tokens(probe: Probe) -> Iterator[str]:
  """A token of a window does not see later ones."""
  window = probe.tokens[:, probe.start:probe.start + 5]
  changed = np.concatenate([window[:, :-1], probe.other(window[:, -1:])], axis=1)
  first, second = (
      probe.score(probe.before, tokens, probe.start)[0] for tokens in (window, changed))
  apart = distance(first, second)[:, :-1]
  if apart.size and apart.max() > probe.tolerance:
    yield ('score: a token of a window sees a later one: when the last token changes, the '
           f'distributions before it change by {apart.max():.2g} in total variation; nodes may see '
           'the tokens before start and their ancestors only.')


def starts(probe: Probe) -> Iterator[str]:
  """Rows may be at different token numbers."""
  size = 2
  last = probe.tokens.shape[1] - size
  if last < 1:
    return
  want, _, cache = probe.one_by_one
  start = np.arange(len(probe.tokens))[::-1] % (last + 1)
  numbers = start[:, None] + np.arange(size)
  window = np.take_along_axis(probe.tokens, numbers, axis=1)
  got = probe.score(cache, window, start)[0]
  want = np.take_along_axis(want, numbers[None, :, :, None], axis=2)
  apart = np.where(probe.fits(numbers + 1), distance(got, want), 0).max()
  if apart > probe.tolerance:
    yield (f'score: rows that start at different tokens, {start.tolist()}, get distributions '
           f'{apart:.2g} apart in total variation from those at the same starts in all rows; start '
           'is one number per row.')


def stale_slots(probe: Probe) -> Iterator[str]:
  """Leftovers of a longer window that was rejected do not matter."""
  start = probe.start
  window = probe.tokens[:, start:start + 2]
  rejected = probe.other(probe.tokens[:, start:start + 5])
  _, _, cache = probe.score(probe.before, rejected, start)
  got, _, _ = probe.read(window, cache, start)
  numbers = start + np.arange(window.shape[1])
  apart = distance(got, probe.one_by_one[0][:, :, numbers])
  apart = np.where(probe.fits(numbers + 1), apart, 0).max()
  if apart > probe.tolerance:
    yield ('score: leftovers of rejected drafts are seen: after a longer window with other tokens '
           f'the distributions are {apart:.2g} apart in total variation; slots after the last node '
           'of this pass hold nothing that may be read.')


def rows(probe: Probe) -> Iterator[str]:
  """A row's scores depend on its own tokens only."""
  tokens = probe.tokens.copy()
  tokens[1] = probe.other(tokens[1])
  apart = distance(probe.read(tokens)[0], probe.one_by_one[0])
  apart = np.delete(apart, 1, axis=0).max()
  if apart > probe.tolerance:
    yield (f'score: the distributions of a row change by {apart:.2g} in total variation with the '
           'tokens of another row; rows must not know each other.')


def cache_rows(probe: Probe) -> Iterator[str]:
  """Rows of a cache can change places, as they do where a row takes the next image."""
  cache, count, streams = probe.before, len(probe.tokens), probe.target.num_streams
  few = jax.tree.map(lambda x: x[:2], probe.condition)
  try:
    axes = refill.row_axes(cache, jax.eval_shape(probe.prefill, probe.params, few)[2], streams,
                           count, 2)
  except contract.ContractError as error:
    yield str(error)
    return
  order = np.roll(np.arange(count), 1)

  def turned(leaf, axis):
    blocks = np.arange(leaf.shape[axis] // count)[:, None]
    return jnp.take(leaf, (blocks * count + order).ravel(), axis)

  window = probe.tokens[order, probe.start:probe.start + 2]
  got = probe.read(window, jax.tree.map(turned, cache, axes), probe.start)[0]
  want = probe.one_by_one[0][:, order, probe.start:probe.start + 2]
  apart = np.where(probe.fits(probe.start + np.arange(window.shape[1]) + 1), distance(got, want), 0)
  if apart.max() > probe.tolerance:
    yield (f'cache: with its rows in another order the distributions are {apart.max():.2g} apart '
           'in total variation; an axis of all streams has the rows of one stream after those of '
           'the other, row b of stream s at s B + b.')


def features(probe: Probe) -> Iterator[str]:
  """Features come from prefill and score alike, in windows as one by one."""
  of_prefill = probe.prefill(probe.params, probe.condition)[1]
  _, singly, _ = probe.one_by_one
  for name, present, other in (('prefill', of_prefill, 'score'), ('score', singly[0], 'prefill')):
    if present is None and (of_prefill is not None or singly[0] is not None):
      yield (f'{name}: it returns no features, but {other} does; both return them, or both None.')
      return
  if of_prefill is None:
    return
  if of_prefill.shape[-1] != singly[0].shape[-1]:
    yield (f'score: its features have size {singly[0].shape[-1]}, those of prefill '
           f'{of_prefill.shape[-1]}; they must be equal.')
    return
  size = min(5, probe.tokens.shape[1])
  got = np.asarray(probe.score(probe.open(), probe.tokens[:, :size], 0)[1], np.float64)
  want = np.concatenate([np.asarray(one, np.float64) for one in singly[:size]], axis=2)
  error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)
  if not error <= 10 * probe.tolerance:
    yield (f'score: features of {size} tokens in one pass differ from those one by one, by '
           f'{error:.2g} of the largest; they must be those that the logits are computed from.')


def end(probe: Probe) -> Iterator[str]:
  """Windows may run past the last token of the image."""
  size, total = 5, probe.target.num_tokens
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, probe.target.vocab_size, (len(probe.tokens), total + SPARE))
  cache, at = probe.open(), max(total - 3, 0)
  for start in range(0, at, size):
    _, _, cache = probe.score(cache, tokens[:, start:start + size], start)
  want = probe.read(tokens[:, at:at + 2], cache, at)[0]
  past, _, after = probe.score(cache, tokens[:, at:at + size], at)
  following = probe.score(after, tokens[:, at + 1:at + 2], at + 1)[0]
  apart = distance(np.concatenate([past[:, :, :1], following], axis=2), want)
  apart = np.where(probe.fits(at + 1 + np.arange(2)), apart, 0).max()
  last = np.maximum(total - 1 - np.arange(len(tokens)) % 2, 0)
  last = probe.score(cache, tokens[:, at:at + size], last)[0]
  if not np.isfinite(np.concatenate([past, last], axis=2)).all():
    yield (f'score: logits are not finite where a window runs past the last token, number '
           f'{total - 1}; they are ignored but must be finite, so clip token numbers before tables '
           'are read.')
  elif apart > probe.tolerance:
    yield (f'score: a window that runs past the last token changes the last distributions by '
           f'{apart:.2g} in total variation; prefill must make room for num_slots image tokens.')
