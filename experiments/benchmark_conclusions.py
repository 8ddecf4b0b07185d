"""Does what the papers say hold here? Answers from the numbers of a benchmark."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments import benchmark_parts as parts_lib
from experiments.benchmark_report import Row

# Standard errors that a difference must exceed.
_CLEAR = 2.0
# The largest of some dozens of exact decoders exceeds this once in a few hundred runs.
_BIASED = 4.0


class Conclusion(NamedTuple):
  """Attributes:
    claim: what should hold.
    answer: 'yes', 'no' or 'unclear', if the difference is within its noise.
    numbers: what the answer rests on.
  """

  claim: str
  answer: str
  numbers: str


def of_pairs(rows: Sequence[Row]) -> list[Conclusion]:
  """What the table of pairs says."""
  by_name = {(row.drafter, row.verifier): row.figures for row in rows}
  result = []
  unbiased = {name: abs(row['nll_excess']) / row['nll_excess_error']
              for name, row in by_name.items() if row['guarantee'] != 'relaxed'}
  worst = max(unbiased, key=unbiased.get)
  result.append(Conclusion(
      'exact decoders are exact', 'yes' if unbiased[worst] < _BIASED else 'no',
      f'NLL minus entropy is 0 within {unbiased[worst]:.1f} standard errors for all '
      f'{len(unbiased)} of them (most for {" + ".join(worst)})'))
  seeded = {name: row['equal_to_vanilla'] for name, row in by_name.items()
            if row['guarantee'] == 'seed-exact' and name[0] != 'vanilla'}
  if seeded:
    result.append(Conclusion(
        'match gives the images of vanilla', 'yes' if min(seeded.values()) == 1 else 'no',
        f'{np.mean(list(seeded.values())):.0%} of the images are equal, with {len(seeded)} '
        'drafters'))
  static, dynamic = (by_name.get((name, 'exact')) for name in ('eagle_tree', 'eagle2'))
  if static and dynamic:
    gap = static['accepted_length'] - dynamic['accepted_length']
    error = np.hypot(static['accepted_length_error'], dynamic['accepted_length_error'])
    result.append(Conclusion(
        "EAGLE-1's tree accepts more than one of EAGLE-2 with as many drafts",
        _answer(gap, error),
        f'accepted length {static["accepted_length"]:.2f} +- '
        f'{static["accepted_length_error"]:.2f} against {dynamic["accepted_length"]:.2f} +- '
        f'{dynamic["accepted_length_error"]:.2f}'))
  return result


def of_curves(points: Mapping[str, Sequence[Row]]) -> list[Conclusion]:
  """What the trade-off curves say, by drafter."""
  claims = (
      ('clamped Cool-SD is closer to the target than uniform relaxation', 'Cool-SD', 'uniform'),
      ('clamped Cool-SD is closer to the target than the printed one', 'Cool-SD',
       'Cool-SD, printed'),
      ('LANTERN++ is closer to the target with G* than with the released residual', 'LANTERN++, G*',
       'LANTERN++, released'))
  return [_compare(f'{claim}, {drafter}', _curve(rows, better), _curve(rows, worse))
          for claim, better, worse in claims for drafter, rows in points.items()]


def _curve(rows: Sequence[Row], method: str) -> tuple[np.ndarray, np.ndarray, int]:
  """Rounds and `tv_bound`, both `[points, N]`, of a method, and the tokens of an image."""
  wanted = {method, 'exact'} if parts_lib.METHODS[method].from_exact else {method}
  decoded = [row.sample.decoded for row in rows if row.verifier in wanted]
  return (np.array([one.rounds - 1 for one in decoded], np.float64),
          np.array([one.tv_bound for one in decoded], np.float64), decoded[0].tokens.shape[1])


def _at(curve, lengths: np.ndarray, kept: np.ndarray) -> np.ndarray:
  """`tv_bound` per token at accepted lengths, interpolated, from the images `kept` `[N]` bool."""
  _, tv_bound, tokens = curve
  x, y = _lengths(curve, kept), tv_bound[:, kept].mean(axis=1) / tokens
  order = np.argsort(x)
  return np.interp(lengths, x[order], y[order])


def _lengths(curve, kept: np.ndarray) -> np.ndarray:
  """Accepted lengths of the points, from the images `kept`."""
  rounds, _, tokens = curve
  return (tokens - 1) / rounds[:, kept].mean(axis=1)


def _compare(claim: str, better, worse) -> Conclusion:
  """Mean difference over the lengths that both curves reach; its error by the jackknife."""
  count = better[0].shape[1]
  everything = np.ones(count, bool)
  reach = [_lengths(curve, everything) for curve in (better, worse)]
  low, high = max(x.min() for x in reach), min(x.max() for x in reach)
  if low >= high:
    return Conclusion(claim, 'unclear', 'the curves have no accepted length in common')
  lengths = np.linspace(low, high, 33)
  gap = lambda kept: np.mean(_at(worse, lengths, kept) - _at(better, lengths, kept))
  left_one_out = [gap(~row) for row in np.eye(count, dtype=bool)]
  error = np.sqrt((count - 1) * np.var(left_one_out))
  middle = np.array([(low + high) / 2])
  ours, theirs = (_at(curve, middle, everything)[0] for curve in (better, worse))
  return Conclusion(
      claim, _answer(gap(everything), error),
      f'{ours:.4f} against {theirs:.4f} per token at length {middle[0]:.2f}; lower by '
      f'{gap(everything):.4f} +- {error:.4f} on average from {low:.2f} to {high:.2f}')


def _answer(gap: float, error: float) -> str:
  return 'unclear' if abs(gap) <= _CLEAR * error else 'yes' if gap > 0 else 'no'
