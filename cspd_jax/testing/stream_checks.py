"""Checks of the order of the guidance streams, for `check_target`.

The null condition is the same for all images. With the same tokens in all rows, the distributions
of the second stream are therefore equal, and those of the first one differ as the conditions do.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import prefix as prefix_lib
from cspd_jax.testing.probe import ROWS, Probe, distance

# Where the cache of every stream must remain, for sentences.
_PLACES = ('the conditional stream is logits[0] and the null condition logits[1], in prefill and '
           'in score, and the cache of a stream stays its own')


def streams(probe: Probe) -> Iterator[str]:
  """The stream that depends on the condition comes first: in prefill, in score, after a prefix."""
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


def unchecked(probe: Probe) -> Iterator[str]:
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


def are_swapped(probe: Probe, got: np.ndarray, want: np.ndarray, valid: Any = True) -> bool:
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
