"""Checks of the recorded distributions of drafts, for `check_drafter`.

Invariant 1: the recorded distribution of a token is its exact distribution given everything that is
attached to earlier positions. Invariant 2: nothing attached to a position influences an earlier
one. Both say that tokens follow their recorded distributions in every group of drafts that have
something at earlier positions in common. A group by the distribution that was recorded for an
earlier token shows whether that token was drawn with knowledge of the later one.

Let each of `n` independent tokens be `v` with mean probability `p`. Then `n f` or more of them are
`v` with a probability of at most `exp(-n KL(f, p))` (Hoeffding, 1963), for any `n`. The union bound
over the cells of a test yields its false-alarm rate.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cspd_jax.testing.draft_probe import FALSE_ALARM, GREEDY, PLAIN, DraftProbe, Round

_LEAST = 8  # Groups with fewer tokens refute nothing.
# Odd numbers by which `digest` mixes columns.
_MULTIPLIERS = np.random.default_rng(0).integers(1, 2**62, 4096, dtype=np.uint64) * 2 + 1


class Misfit(NamedTuple):
  """The cell that refutes a distribution most clearly."""

  members: np.ndarray  # `[n]` bool: which tokens its group has.
  token: int  # The token that is too frequent or too rare.
  frequency: float  # Its frequency in the group.
  probability: float  # Its mean probability there.

  def __str__(self) -> str:
    return (f'token {self.token} has frequency {self.frequency:.3g} in {self.members.sum()} drafts '
            f'and recorded probability {self.probability:.3g}')


def misfit(tokens: np.ndarray, probs: np.ndarray, groups: np.ndarray, log_alarm: float
           ) -> Misfit | None:
  """Tests whether `tokens` `[n]` follow their distributions `probs` `[n, V]` in every group.

  Tokens of one group have one number in `groups` `[n]`, determined before they are drawn.
  `log_alarm` is the logarithm of the probability that tokens which follow `probs` are refuted.
  Returns the worst of the cells that refute; None if no cell does.
  """
  if not tokens.size:
    return None
  _, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
  vocab_size = probs.shape[-1]
  counts = np.zeros((len(sizes), vocab_size))
  np.add.at(counts, (index, tokens), 1)
  order = np.argsort(index, kind='stable')
  starts = np.cumsum(sizes) - sizes
  expected = np.add.reduceat(probs[order], starts, axis=0)
  large = sizes >= _LEAST
  if not large.any():
    return None
  size = sizes[large, None]
  frequency, probability = counts[large] / size, np.clip(expected[large] / size, 0, 1)
  cells = 2 * large.sum() * vocab_size
  log_p = np.log(cells) - size * _divergence(frequency, probability)
  worst = np.unravel_index(np.argmin(log_p), log_p.shape)
  if log_p[worst] >= log_alarm:
    return None
  group = np.flatnonzero(large)[worst[0]]
  return Misfit(index == group, int(worst[1]), float(frequency[worst]), float(probability[worst]))


def _divergence(f: np.ndarray, p: np.ndarray) -> np.ndarray:
  """Kullback-Leibler divergence of two Bernoulli distributions; `p` may be off by rounding."""
  with np.errstate(divide='ignore', invalid='ignore'):
    # A frequency of 1 of a token whose float32 probability is 1 - 1e-7 refutes nothing.
    p = np.where(np.abs(f - p) < 1e-5, f, p)
    term = lambda f, p: np.where(f > 0, f * np.log(f / p), 0)
    return term(f, p) + term(1 - f, 1 - p)


def digest(*columns: np.ndarray) -> np.ndarray:
  """Maps each row of integers `[n, ...]` to one number; equal rows have equal numbers."""
  flat = [column.reshape(len(column), int(np.prod(column.shape[1:]))) for column in columns]
  words = np.concatenate(flat, axis=1).astype(np.int64).astype(np.uint64)
  with np.errstate(over='ignore'):
    mixed = (words + np.uint64(1)) * np.resize(_MULTIPLIERS, words.shape[1])
    mixed ^= mixed >> np.uint64(29)
    return (mixed * np.uint64(0xBF58476D1CE4E5B9)).sum(axis=1)


def rounded(probs: np.ndarray) -> np.ndarray:
  """Distributions as integers, to compare them."""
  return np.rint(np.nan_to_num(probs) * 1e5).astype(np.int64)


class Drawn(NamedTuple):
  """The tokens of one node in one round that were drawn; `n` of them."""

  number: int  # Number of the round, from 1.
  node: int  # The node.
  rows: np.ndarray  # `[n]` index of their images.
  tokens: np.ndarray  # `[n]`.
  probs: np.ndarray  # `[n, V]` their recorded distributions, without earlier siblings.
  missing: float  # Fraction of the images without a candidate.
  groups: dict[str, np.ndarray]  # `[n]` groups of tokens, from coarse to fine; see `LEVELS`.

  def misfit(self, groups: np.ndarray, log_alarm: float) -> Misfit | None:
    """Tests whether the tokens follow their record in all groups `[n]`."""
    return misfit(self.tokens, self.probs, groups, log_alarm)


# What the tokens of a group have in common, in addition to the sampling options.
LEVELS = ('options', 'row', 'image', 'rows above', 'path')


def normalised(probe: DraftProbe) -> Iterator[str]:
  """Recorded distributions sum to 1, without negative numbers."""
  for number, drafts in enumerate(probe.results.rounds, 1):
    if drafts.probs is None:
      return
    for node in range(1, drafts.tokens.shape[1] + 1):
      valid = _reached(probe, drafts, node) & (drafts.tokens[:, node - 1] >= 0)
      row = probe.drafter.layout.probs_rows[node]
      probs = drafts.probs[valid, row]
      # NaN fails both comparisons.
      bad = np.flatnonzero(~((np.abs(probs.sum(axis=1) - 1) < 1e-3) & (probs >= 0).all(axis=1)))
      if bad.size:
        worst = probs[bad[0]]
        yield (f'propose: row {row} of probs, recorded for node {node}, sums to {worst.sum():.4g} '
               f'with minimum {worst.min():.3g} in round {number}; it must be the distribution of '
               'one draw, which sums to 1 with no entry below 0: normalise it after all cuts.')


def frequencies_match(probe: DraftProbe) -> Iterator[str]:
  """Drafts have the frequencies that their recorded distributions predict."""
  layout = probe.drafter.layout
  if layout.draws == 'fixed':
    return
  nodes = [(node, node) for node in range(1, len(layout.probs_rows))]
  # A candidate behind a side branch is tested given that branch.
  nodes += [(node, leaf) for leaf, node in enumerate(layout.leaf_candidate) if node > 0]
  log_alarm = np.log(FALSE_ALARM / (len(probe.results.rounds) * len(nodes) * len(LEVELS) + 1))
  earlier: dict[int, Drawn] = {}
  for number, drafts in enumerate(probe.results.rounds, 1):
    for node, end in nodes:
      drawn = _drawn(probe, drafts, number, node, end)
      for level in LEVELS:
        if bad := drawn.misfit(drawn.groups[level], log_alarm):
          yield _sentence(probe, drafts, drawn, end, level, bad, log_alarm, node in earlier)
      if drawn.tokens.size:
        earlier[node] = drawn


def are_new(probe: DraftProbe) -> Iterator[str]:
  """Drafts do not depend on those of the round before, if `reuses_drafts` is False."""
  if probe.drafter.reuses_drafts or probe.drafter.layout.draws == 'fixed':
    return
  tree, nodes = probe.tree, range(1, probe.tree.num_nodes + 1)
  log_alarm = np.log(FALSE_ALARM / (len(probe.results.rounds) * len(nodes) + 1))
  for number, (last, drafts) in enumerate(itertools.pairwise(probe.results.rounds), 2):
    for node in nodes:
      drawn = _drawn(probe, drafts, number, node, node)
      # The last draft for the same position, on the main chain.
      shift = (drafts.start - last.start)[drawn.rows]
      at = shift + tree.depth[node]
      old = np.where(at <= tree.main_length,
                     last.tokens[drawn.rows, np.minimum(at, tree.num_nodes) - 1], -1)
      if bad := drawn.misfit(digest(probe.option[drawn.rows], shift, old), log_alarm):
        yield (f'reuses_drafts is False, but in round {number} node {node} depends on the draft of '
               f'the round before for its position: after a {old[bad.members][0]} there, {bad}; '
               'set reuses_drafts=True, or draw new drafts in every round.')


def _reached(probe: DraftProbe, drafts: Round, node: int) -> np.ndarray:
  """`[B]` bool: whether a node is inside the image, behind candidates only."""
  above = drafts.parents[:, node]
  every, reached = np.arange(probe.samples), np.ones(probe.samples, bool)
  depth = np.ones(probe.samples, int)
  while (above > 0).any():
    inner = above > 0
    reached &= ~inner | (drafts.tokens[every, np.maximum(above - 1, 0)] >= 0)
    depth += inner
    above = np.where(inner, drafts.parents[every, above], 0)
  return reached & (drafts.start + depth < probe.model.length)


def _drawn(probe: DraftProbe, drafts: Round, number: int, node: int, end: int,
           row: int | None = None, draws: str | None = None) -> Drawn:
  """The tokens of a node, drawn from its own row of the recorded distributions or from another."""
  layout, tree = probe.drafter.layout, probe.tree
  row = layout.probs_rows[node] if row is None else row
  assert drafts.probs is not None  # Drafts that are not fixed have them.
  probs, tokens = drafts.probs[:, row].copy(), drafts.tokens[:, node - 1]
  siblings = [other for other in range(1, node) if tree.parents[other] == tree.parents[node]]
  if (draws or layout.draws) == 'distinct':
    for other in siblings:
      sibling = drafts.tokens[:, other - 1]
      probs[(np.arange(probe.model.vocab_size) == sibling[:, None])] = 0
  mass = probs.sum(axis=1)
  # A token of probability 0 was chosen, not drawn: exact verification is then exact whatever it is.
  own = np.take_along_axis(probs, np.maximum(tokens, 0)[:, None], axis=1)[:, 0]
  possible = _reached(probe, drafts, node) & _reached(probe, drafts, end) & (mass > 1e-4)
  if end != node:
    possible &= drafts.tokens[:, end - 1] >= 0
  rows = np.flatnonzero(possible & (tokens >= 0) & (own > 0))
  missing = np.mean(tokens[possible] < 0) if possible.any() else 0.0
  path = [*tree.paths[node, 1:tree.depth[node]], *siblings]
  if end != node:
    path += [other for other in tree.paths[end, 1:tree.depth[end] + 1] if other not in path]
  take = lambda value: value[rows]
  option = take(probe.option)
  committed = np.where(np.arange(drafts.image.shape[1]) <= drafts.start[:, None], drafts.image, -1)
  above = [layout.probs_rows[other] for other in path]
  own_row = rounded(take(drafts.probs[:, layout.probs_rows[node]]))
  image = take(committed)
  groups = dict(zip(LEVELS, (
      digest(option), digest(option, own_row), digest(option, image),
      digest(option, image, rounded(take(drafts.probs[:, above]))),
      digest(option, image, take(drafts.tokens[:, [other - 1 for other in path]])))))
  return Drawn(number, node, rows, take(tokens), take(probs) / take(mass)[:, None], float(missing),
               groups)


def _fits(drawn: Drawn, log_alarm: float) -> bool:
  return bool(drawn.tokens.size) and not any(
      drawn.misfit(groups, log_alarm) for groups in drawn.groups.values())


def _sentence(probe: DraftProbe, drafts: Round, drawn: Drawn, end: int, level: str, bad: Misfit,
              log_alarm: float, fitted_before: bool) -> str:
  """Describes what is wrong with a node whose tokens do not follow their record."""
  node, layout = drawn.node, probe.drafter.layout
  assert drafts.probs is not None
  row = layout.probs_rows[node]
  place = f'node {node}' if end == node else f'node {node}, the candidate after leaf {end},'
  where = f'in round {drawn.number} {bad}'
  for other in range(drafts.probs.shape[1]):
    if other != row and _fits(_drawn(probe, drafts, drawn.number, node, end, other), log_alarm):
      return (f'propose: {place} was drawn from row {other} of probs, not from row {row}, which '
              f'layout.probs_rows[{node}] names: {where}; set layout.probs_rows[{node}] to '
              f'{other}, or record its distribution in row {row}.')
  for other_draws in {'iid', 'distinct'} - {layout.draws}:
    has_siblings = probe.tree.parents.index(probe.tree.parents[node]) < node
    if drawn.groups['path'].size and has_siblings and _fits(
        _drawn(probe, drafts, drawn.number, node, end, draws=other_draws), log_alarm):
      return (f"propose: {place} and its siblings are drawn as '{other_draws}' describes, but "
              f"layout.draws is '{layout.draws}': {where}; set layout.draws to '{other_draws}', or "
              'draw them as it says.')
  return f'propose: {place} ' + _cause(probe, drawn, level, bad, where, row, fitted_before)


def _cause(probe: DraftProbe, drawn: Drawn, level: str, bad: Misfit, where: str, row: int,
           fitted_before: bool) -> str:
  """The rest of a sentence about a node that no other reading of its record explains."""
  if level in ('options', 'row') and (when := _chosen(probe, drawn, bad)) is not None:
    return (f'always has the most probable token of row {row} of probs{when}: {where}; such a '
            "token is chosen, not drawn: record a one-hot distribution, or set layout.draws to "
            "'fixed'.")
  if level in ('options', 'row') and drawn.missing > 1e-3:
    return (f'does not follow row {row} of probs: {where}, and the node has no candidate in '
            f'{drawn.missing:.3g} of the images; whether it has one (token -1) must not depend on '
            'the token that was drawn.')
  if fitted_before:
    return (f'followed row {row} of probs in earlier rounds and no longer does: {where}; a draft '
            'that is kept must be recorded with its distribution in this round, given all that is '
            'committed now.')
  if level == 'rows above':
    return (f'depends on what is recorded for an earlier position of the same round: {where}; an '
            'earlier token must be drawn without knowledge of a later one (invariant 2), so draw '
            'from the root to the leaves.')
  if level == 'path':
    return (f'follows row {row} of probs on average, but not given the tokens above it: {where}; '
            'record its distribution given the path to it (invariant 1), and draw no earlier token '
            'with knowledge of it (invariant 2).')
  if level == 'image':
    return (f'follows row {row} of probs on average, but not given the committed tokens: {where}; '
            'record its distribution given everything at earlier positions (invariant 1).')
  rows, parents = probe.drafter.layout.probs_rows, probe.tree.parents
  if others := [other for other in range(1, len(rows)) if rows[other] == rows[drawn.node]
                and parents[other] != parents[drawn.node]]:
    return (f'does not follow row {row} of probs: {where}; that row is also the row of node '
            f'{others[0]}, which is not its sibling: record the distribution of node {drawn.node} '
            'in a row of its own.')
  only = _only_with_options(drawn, probe)
  return (f'does not follow row {row} of probs: {where}{only}; record the distribution that it was '
          'drawn from as it was, after guidance, temperature and cuts (invariant 1).')


def _chosen(probe: DraftProbe, drawn: Drawn, bad: Misfit) -> str | None:
  """Whether tokens are always the most probable ones: None, or with which options."""
  is_best, option = drawn.tokens == drawn.probs.argmax(axis=1), probe.option[drawn.rows]
  if is_best.all():
    return ''
  is_greedy = option[bad.members][0] == GREEDY and is_best[option == GREEDY].all()
  return ' at temperature 0' if is_greedy else None


def _only_with_options(drawn: Drawn, probe: DraftProbe) -> str:
  """Says so if the tokens follow their record without guidance, temperature and cuts."""
  plain = probe.option[drawn.rows] == PLAIN
  fits = misfit(drawn.tokens[plain], drawn.probs[plain], drawn.groups['row'][plain],
                np.log(FALSE_ALARM)) is None
  return ', though it does without guidance, temperature and cuts' if fits and plain.any() else ''
