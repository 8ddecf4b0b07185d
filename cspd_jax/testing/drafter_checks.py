"""Finds mistakes in a drafter: one call checks a user's drafter on a small model."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from cspd_jax.core import fields
from cspd_jax.decoding.base import DRAWS, Drafter, Layout, Params
from cspd_jax.decoding.tree import Budget, Tree, runtime_tree
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing import recorded_checks
from cspd_jax.testing.draft_probe import FALSE_ALARM, OPTIONS, DraftProbe
from cspd_jax.testing.recorded_checks import digest, misfit
from cspd_jax.testing.report import Check, CheckReport, collect, complaint, required
from cspd_jax.testing.tabular import Tabular, first_prefix, prefix_number, tabular

_MOST_PREFIXES = 2**19  # The most prefixes of the model that is made if none is passed.


def check_drafter(drafter: Drafter, draft_params: Params = None, *, model: Tabular | None = None,
                  samples: int = 2**14) -> CheckReport:
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
    drafter: the drafter. Its randomness must be that of `DecodeContext.rowwise`.
    draft_params: its parameters, if any.
    model: the model to draft for; by default `tabular(jax.random.key(0), 3, 6, guided=True,
      row_width=3)`, longer and with fewer tokens if the drafts are deeper. Pass one if the drafter
      fits a single vocabulary or grid. Its condition is class 0.
    samples: number of images; errors above about `5 / sqrt(samples)` in total variation show.
  """
  samples -= samples % len(OPTIONS)  # The rows take turns.
  fields.require(samples >= 2**8, 'samples', samples, f'at least {2**8} for frequencies to differ')
  model = _model(drafter) if model is None else model
  probe = DraftProbe(drafter, model, draft_params, samples)
  report = required('drafter', collect(CHECKS, probe))
  if drafter.tree.num_nodes and not any(
      (drafts.tokens >= 0).any() for drafts in probe.results.rounds):
    report = report._replace(notes=(
        'no draft was checked: the drafter had no candidate in any round, all its tokens are -1.',))
  return report


def _model(drafter: Drafter) -> Tabular:
  """A table with room for the drafts."""
  length = 3 * max(2, -(-(drafter.tree.max_depth + 2) // 3))
  for vocab_size in (3, 2):
    if first_prefix(length, vocab_size) <= _MOST_PREFIXES:
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
          'match, a verifier with needs_probs=False, so that env.needs_probs is False')
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
               'state that env.rowwise returns, whose noise is that of its argument.')
      if (use.drawn & ~use.advanced).any():
        yield (f'{name}: it draws random numbers and returns the state from before the draws, so '
               'that the verifier draws the same numbers again; return the state that env.rowwise '
               'returns.')


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
             'the index of its row; rows must be independent, so draw by env.rowwise, whose random '
             'numbers are those of one row.')


def _images(probe: DraftProbe) -> Iterator[str]:
  """Exact verification of the drafts returns the model's distribution."""
  images, log_alarm = probe.results.images, np.log(FALSE_ALARM / (2 * probe.model.length))
  for position in range(probe.model.length):
    prefix = prefix_number(images[:, :position], probe.model.vocab_size)
    rows = probe.target_probs[probe.option, prefix]
    for groups in (digest(probe.option), digest(probe.option, prefix)):
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
    Check('normalised', recorded_checks.normalised, ('tokens',)),
    Check('frequencies', recorded_checks.frequencies_match, ('normalised', 'random numbers')),
    Check('images', _images, ('frequencies', 'tree')),
    Check('new drafts', recorded_checks.are_new, ('frequencies',)),
)
