"""Finds mistakes in a drafter: one call checks a user's drafter on a small model.

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
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.core import fields
from cspd_jax.decoding.base import DRAWS, Drafter, Layout, Params
from cspd_jax.decoding.tree import Budget, Tree, runtime_tree
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing.draft_probe import (
  FALSE_ALARM,
  OPTIONS,
  DraftProbe,
  Round,
)
from cspd_jax.testing.report import Check, CheckReport, collect, complaint, required
from cspd_jax.testing.tabular import Tabular, first_prefix, prefix_number, tabular

_MAX_PREFIXES = 2**19  # The most prefixes of the model that is made if none is passed.
_LEAST = 8  # Groups with fewer tokens refute nothing.
# Odd numbers by which `_digest` mixes columns.
_MULTIPLIERS = np.random.default_rng(0).integers(1, 2**62, 4096, dtype=np.uint64) * 2 + 1


def check_drafter(drafter: Drafter, draft_params: Params = None, *, model: Tabular | None = None,
                  samples: int = 2**14, progress: bool = True) -> CheckReport:
  """Checks that a drafter satisfies the contract of `base.Drafter`, in rounds of the library.

  Exact verification is exact only if the recorded distributions are those that the drafts were
  drawn from. The drafter decodes whole images of a model that is a table; in every round the
  frequencies of the drafts are compared with `Draft.probs`, given the committed tokens, the tokens
  above and what was recorded for them. So are the tokens of the images with the model's own
  distributions. Shapes and dtypes; the tree and the layout; tokens out of range; distributions that
  do not sum to 1; the use of random numbers; the independence of the rows; and, if `reuses_drafts`
  is False, that of the rounds. Rows take turns with plain sampling, guidance with a temperature,
  top-p, and temperature 0. Random numbers are the same in every call; with others, each of the
  three comparisons of frequencies refuses a correct drafter with a probability of at most 1e-6.
  Raises ProblemsError with a sentence per failed check: what is wrong, where, what was measured and
  declared, and the remedy; ValueError if the drafter refuses the model.

  Args:
    drafter: the drafter. Its randomness must come from `DecodeContext.rowwise`.
    draft_params: its parameters, if any. Drafts from rounded logits, recorded from exact ones, show
      if the logits are large: add a number such as 200 to the last bias of a network.
    model: the model to draft for; by default `tabular(jax.random.key(0), 3, 6, guided=True,
      row_width=3)`, longer and with fewer tokens if the drafts are deeper. Pass one if the drafter
      fits a single vocabulary or grid. Its condition is class 0.
    samples: number of images; errors above about `5 / sqrt(samples)` in total variation show.
    progress: whether a line on stderr says which check runs once that takes more than five seconds.
  """
  samples -= samples % len(OPTIONS)  # The rows take turns.
  fields.require(samples >= 2**8, 'samples', samples, f'at least {2**8} for frequencies to differ')
  model = _model(drafter) if model is None else model
  probe = DraftProbe(drafter, model, draft_params, samples)
  report = required('drafter', collect('drafter', CHECKS, probe, progress))
  if drafter.tree.num_nodes and not any(
      (drafts.tokens >= 0).any() for drafts in probe.results.rounds):
    report = report._replace(notes=(
        'no draft was checked: the drafter had no candidate in any round, all its tokens are -1.',))
  return report


def _model(drafter: Drafter) -> Tabular:
  """A table with room for the drafts."""
  length = 3 * max(2, -(-(drafter.tree.max_depth + 2) // 3))
  for vocab_size in (3, 2):
    if first_prefix(length, vocab_size) <= _MAX_PREFIXES:
      return tabular(jax.random.key(0), vocab_size, length, guided=True, row_width=3)
  raise ValueError(
      f'the drafts are {drafter.tree.max_depth} tokens deep, and a model of as many tokens has too '
      'many prefixes for a table; check the drafter with fewer drafts, at most 16 deep.')


def _layout(probe: DraftProbe) -> Iterator[str]:
  """The layout describes every node of the tree."""
  layout, tree = probe.drafter.layout, probe.drafter.layout.tree
  if not isinstance(tree, Tree | Budget):
    yield f'layout.tree is {tree!r:.60}; it must be a Tree, or a Budget for trees of each round.'
    return
  if layout.draws not in DRAWS:
    yield f'layout.draws is {layout.draws!r}; it must be one of {", ".join(DRAWS)}.'
  size = tree.num_nodes + 1
  for name in ('probs_rows', 'leaf_candidate'):
    value, least = getattr(layout, name), -1 if name == 'leaf_candidate' else 0
    if len(value) != size or not all(isinstance(entry, int | np.integer) for entry in value):
      yield (f'layout.{name} is {value!r:.80}; it must be {size} whole numbers, one for the root '
             f'and one for each of the {size - 1} drafts.')
    if min(value) < least or max(value) >= size:
      yield (f'layout.{name} has entries from {min(value)} to {max(value)}; with {size - 1} drafts '
             f'they must be {least} to {size - 1}.')
  if isinstance(tree, Tree):
    yield from _nodes(layout, tree)
  elif layout.draws != 'fixed':
    yield (f"layout.draws is '{layout.draws}' and layout.tree is a Budget; drafts whose tree "
           "depends on them are chosen, not drawn: set draws to 'fixed'.")


def _nodes(layout: Layout, tree: Tree) -> Iterator[str]:
  """Siblings have one row of distributions, and leaves of side branches the right candidate."""
  for children in tree.children if layout.draws != 'fixed' else ():
    rows = {int(node): layout.probs_rows[node] for node in children if node > 0}
    if len(set(rows.values())) > 1:
      yield (f'layout.probs_rows has rows {list(rows.values())} for the siblings {list(rows)}; '
             'siblings are drawn from one distribution and must have the same row.')
  for leaf, node in enumerate(layout.leaf_candidate):
    fits = (tree.children[leaf, 0] < 0 and leaf > tree.main_length
            and node == tree.depth[leaf] + 1 <= tree.main_length and layout.draws != 'fixed')
    if node >= 0 and not fits:
      yield (f'layout.leaf_candidate[{leaf}] is {node}; it must be -1, or, for the leaf of a side '
             'branch of drawn drafts, the node of the main chain that is one deeper than the leaf.')


def _shapes(probe: DraftProbe) -> Iterator[str]:
  """Results have their shapes and dtypes, and the state has the same in every round."""
  probe.decoder(rejection())  # Raises the error of a drafter that refuses the model.
  for verifier in (None, match()):  # The first is `rejection`, which needs distributions.
    try:
      if verifier is None:
        before, after = probe.shapes()
      else:
        jax.eval_shape(probe.decoder(verifier).round, probe.model.params, jax.eval_shape(
            probe.decoder(verifier).start, probe.model.params, np.zeros(probe.samples, np.int32),
            probe.keys, probe.sampling, probe.draft_params), probe.sampling, probe.draft_params)
    except Exception as error:  # Any, of the user's code.
      kind = 'an exact verifier' if verifier is None else (
          'match, a verifier with needs_probs=False, so that context.needs_probs is False')
      yield complaint(error, f'the drafter raises {{}}, in a round with {kind}.')
      return
  yield from _same_state(before, after)


def _same_state(before: Any, after: Any) -> Iterator[str]:
  if jax.tree.structure(before) != jax.tree.structure(after):
    yield (f'update: it returns a state of structure {jax.tree.structure(after)}; it must return '
           f'that of init, {jax.tree.structure(before)}.')
  for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after)):
    if (old.shape, old.dtype) != (new.shape, new.dtype):
      yield (f'update: it returns a state whose leaf state{jax.tree_util.keystr(path)} is '
             f'{new.dtype.name}{list(new.shape)}; it must be {old.dtype.name}{list(old.shape)}, as '
             'init returns it.')


def _topology(probe: DraftProbe) -> Iterator[str]:
  """Trees of a round have parents before their children, within the budget."""
  budget = probe.drafter.tree
  if not isinstance(budget, Budget):
    return
  for number, drafts in enumerate(probe.results.rounds, 1):
    parents, nodes = drafts.parents, np.arange(drafts.parents.shape[1])
    wrong = np.argwhere((parents >= nodes) | (parents < np.minimum(nodes, 1) - 1))
    if wrong.size:
      row, node = wrong[0]
      yield (f'propose: in round {number} the parent of node {node} is {parents[row, node]}; the '
             'root, node 0, has -1, and the parent of every other node must be an earlier node.')
    want = jax.tree.map(np.asarray, runtime_tree(parents, budget))
    rank = (np.arange(len(nodes))[:, None] > nodes) & (parents[:, :, None] == parents[:, None])
    for name, size, limit in (('depth', want.depth.max(), budget.max_depth),
                              ('number of children', rank.sum(-1)[:, 1:].max() + 1,
                               budget.max_children)):
      if size > limit:
        yield (f'propose: in round {number} a node has {name} {size}; layout.tree allows {limit}, '
               'so choose other nodes or enlarge the Budget.')
    for name, value in vars(want).items():
      if not np.array_equal(value, getattr(drafts.tree, name)):
        yield (f'propose: in round {number} {name} of the draft\'s tree does not follow from its '
               'parents; build it with tree.runtime_tree(parents, budget).')


def _tokens(probe: DraftProbe) -> Iterator[str]:
  vocab_size = probe.model.vocab_size
  for number, drafts in enumerate(probe.results.rounds, 1):
    wrong = np.argwhere((drafts.tokens < -1) | (drafts.tokens >= vocab_size))
    if wrong.size:
      row, index = wrong[0]
      yield (f'propose: in round {number} node {index + 1} has token {drafts.tokens[row, index]}; '
             f'drafts are tokens, 0 to {vocab_size - 1}, or -1 for no candidate.')


def _random_numbers(probe: DraftProbe) -> Iterator[str]:
  """Random numbers are used once."""
  for uses in probe.results.uses:
    for name, use in uses.items():
      if not use.kept_noise.all():
        yield (f'{name}: it returns random numbers with another noise of positions; return the '
               'state that context.rowwise returns, whose noise is that of its argument.')
      if (use.drawn & ~use.advanced).any():
        yield (f'{name}: it draws random numbers and returns the state from before the draws, so '
               'that the verifier draws the same numbers again; return the state that '
               'context.rowwise returns.')


def _rows(probe: DraftProbe) -> Iterator[str]:
  """The drafts of a row do not depend on the other rows."""
  # Every other block of rows has other random numbers, and the rest is in other places.
  shift = 2 * len(OPTIONS)
  stays = np.arange(probe.samples) // len(OPTIONS) % 2 == 0
  stays[:shift] = False
  moved = jax.tree.map(lambda x: np.roll(np.asarray(x), shift, axis=0), probe.keys)
  keys = jax.tree.map(lambda x: np.where(stays[:, None], x, x ^ np.uint32(1)), moved)
  for (_, draft, _), drafts in zip(probe.run(keys, 2), probe.results.rounds):
    if draft is None:
      return
    got, want = np.asarray(draft.tokens)[stays], np.roll(drafts.tokens, shift, axis=0)[stays]
    if not np.array_equal(got, want):
      node = int(np.flatnonzero((got != want).any(axis=0))[0]) + 1
      yield (f'propose: the token of node {node} changes with the other rows of the batch, or with '
             'the index of its row; rows must be independent, so draw by context.rowwise, whose '
             'random numbers are those of one row.')


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


def _digest(*columns: np.ndarray) -> np.ndarray:
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

  rows: np.ndarray  # `[n]` index of their images.
  tokens: np.ndarray  # `[n]`.
  probs: np.ndarray  # `[n, V]` their recorded distributions, without earlier siblings.
  groups: dict[str, np.ndarray]  # `[n]` groups of tokens, from coarse to fine; see `LEVELS`.

  def misfit(self, groups: np.ndarray, log_alarm: float) -> Misfit | None:
    """Tests whether the tokens follow their record in all groups `[n]`."""
    return misfit(self.tokens, self.probs, groups, log_alarm)


# What the tokens of a group have in common, in addition to the sampling options, for sentences.
LEVELS = {
    'options': '', 'row': '', 'image': ' given the committed tokens',
    'rows above': ' given what is recorded for the nodes before it',
    'path': ' given the tokens before it'}


def _normalised(probe: DraftProbe) -> Iterator[str]:
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


def _frequencies_match(probe: DraftProbe) -> Iterator[str]:
  """Drafts have the frequencies that their recorded distributions predict."""
  layout = probe.drafter.layout
  if layout.draws == 'fixed':
    return
  nodes = [(node, node) for node in range(1, len(layout.probs_rows))]
  # A candidate behind a side branch is tested given that branch.
  nodes += [(node, leaf) for leaf, node in enumerate(layout.leaf_candidate) if node > 0]
  log_alarm = np.log(FALSE_ALARM / (len(probe.results.rounds) * len(nodes) * len(LEVELS) + 1))
  for number, drafts in enumerate(probe.results.rounds, 1):
    for node, end in nodes:
      drawn = _drawn(probe, drafts, node, end)
      for level, given in LEVELS.items():
        if bad := drawn.misfit(drawn.groups[level], log_alarm):
          after = '' if end == node else f', the candidate after leaf {end},'
          guidance, temperature, *_ = OPTIONS[probe.option[drawn.rows][bad.members][0]]
          yield (
              f'propose: node {node}{after} does not follow row {layout.probs_rows[node]} of '
              f'probs{given}: in round {number}, with guidance scale {guidance} and temperature '
              f'{temperature}, {bad}; record the distribution that it was drawn from, after all '
              "options, given everything at earlier positions, and draw no earlier token with "
              'knowledge of it (invariants 1 and 2).')


def _are_new(probe: DraftProbe) -> Iterator[str]:
  """Drafts do not depend on the last round's, if `reuses_drafts` is False."""
  if probe.drafter.reuses_drafts or probe.drafter.layout.draws == 'fixed':
    return
  tree, nodes = probe.tree, range(1, probe.tree.num_nodes + 1)
  log_alarm = np.log(FALSE_ALARM / (len(probe.results.rounds) * len(nodes) + 1))
  for number, (last, drafts) in enumerate(itertools.pairwise(probe.results.rounds), 2):
    for node in nodes:
      drawn = _drawn(probe, drafts, node, node)
      # The last draft for the same position, on the main chain.
      shift = (drafts.start - last.start)[drawn.rows]
      at = shift + tree.depth[node]
      old = np.where(at <= tree.main_length,
                     last.tokens[drawn.rows, np.minimum(at, tree.num_nodes) - 1], -1)
      if bad := drawn.misfit(_digest(probe.option[drawn.rows], shift, old), log_alarm):
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


def _drawn(probe: DraftProbe, drafts: Round, node: int, end: int) -> Drawn:
  """The drawn tokens of a node in a round; `end` is the node, or a leaf whose candidate it is."""
  layout, tree = probe.drafter.layout, probe.tree
  assert drafts.probs is not None  # Drafts that are not fixed have them.
  probs, tokens = drafts.probs[:, layout.probs_rows[node]].copy(), drafts.tokens[:, node - 1]
  siblings = [other for other in range(1, node) if tree.parents[other] == tree.parents[node]]
  if layout.draws == 'distinct':
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
      _digest(option), _digest(option, own_row), _digest(option, image),
      _digest(option, image, rounded(take(drafts.probs[:, above]))),
      _digest(option, image, take(drafts.tokens[:, [other - 1 for other in path]])))))
  return Drawn(rows, take(tokens), take(probs) / take(mass)[:, None], groups)


def _images(probe: DraftProbe) -> Iterator[str]:
  """Exact verification of the drafts returns the model's distribution."""
  images, log_alarm = probe.results.images, np.log(FALSE_ALARM / (2 * probe.model.length))
  for position in range(probe.model.length):
    prefix = prefix_number(images[:, :position], probe.model.vocab_size)
    rows = probe.target_probs[probe.option, prefix]
    for groups in (_digest(probe.option), _digest(probe.option, prefix)):
      if bad := misfit(images[:, position], rows, groups, log_alarm):
        yield (f'update: with exact verification token number {position} of the image is '
               f'{bad.token} with frequency {bad.frequency:.3g} in {bad.members.sum()} images, '
               f'where the model has probability {bad.probability:.3g}, though all drafts follow '
               'their recorded distributions; the drafter must not keep or choose drafts by what '
               'the verifier drew or rejected after them.')


CHECKS = (
    Check('layout', _layout),
    Check('shapes', _shapes, ('layout',)),
    Check('tree', _topology, ('shapes',)),
    Check('tokens', _tokens, ('shapes', 'tree')),
    Check('random numbers', _random_numbers, ('shapes',)),
    Check('rows', _rows, ('shapes',)),
    Check('normalised', _normalised, ('tokens',)),
    Check('frequencies', _frequencies_match, ('normalised', 'random numbers')),
    Check('images', _images, ('frequencies', 'tree')),
    Check('new drafts', _are_new, ('frequencies',)),
)
