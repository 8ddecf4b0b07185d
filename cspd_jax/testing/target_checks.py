"""Finds mistakes in a target: one call checks a user's model."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import contract
from cspd_jax.decoding.base import Condition, Params, Target
from cspd_jax.decoding.tree import chain
from cspd_jax.testing import probe as probe_lib, tree_checks, window_checks
from cspd_jax.testing.probe import Probe, distance
from cspd_jax.testing.report import Check, Report, collect

# `(params, condition, tokens [B, n]) -> [B, n, V]`: logits of token `i` from the tokens before it.
Logits = Callable[[Params, Condition, jax.Array], jax.Array]

CHECKS = (
    Check('determinism', window_checks.determinism),
    Check('finite logits', window_checks.finite),
    Check('tokens matter', window_checks.power, ('finite logits',)),
    Check('streams', window_checks.streams),
    Check('rows of prefill', window_checks.prefill_rows),
    Check('rows of score', window_checks.rows),
    Check('rows of the cache', window_checks.cache_rows, ('rows of score',)),
    Check('later tokens', window_checks.later_tokens),
    Check('windows', window_checks.windows, ('later tokens',)),
    Check('leftovers', window_checks.stale_slots, ('windows',)),
    Check('starts', window_checks.starts, ('leftovers',)),
    Check('tree', tree_checks.static_tree, of_trees=True),
    Check('run-time tree', tree_checks.run_time_tree, of_trees=True),
    Check('commit', tree_checks.commit, ('leftovers', 'tree'), of_trees=True),
    Check('commit of rows', tree_checks.commit_rows, ('starts', 'run-time tree', 'commit'),
          of_trees=True),
    Check('features', window_checks.features),
    Check('end of the image', window_checks.end, ('leftovers',)),
)


def check_target(target: Target, params: Params, condition: Condition, *,
                 key: jax.Array | None = None, logits: Logits | None = None) -> Report:
  """Checks that a target satisfies the contract of `base.Target`, on random tokens.

  Shapes, dtypes and streams; determinism; windows against one-by-one scoring, with rows at
  different starts; trees, static and run-time, node by node, and `commit`, unless `supports_trees`
  is False; leftovers of rejected drafts; the end of the image; independence of the rows and order
  of the cache's rows; features.
  Distributions are compared by their total variation. Use float32 parameters: in bfloat16 rounding
  hides small mistakes.

  Args:
    target: the target.
    params: its parameters; trained ones, or random ones large enough that tokens matter.
    condition: for any number of rows; different rows reveal more.
    key: draws the tokens.
    logits: the forward pass that the model was trained with, if available:
      `(params, condition, tokens [B, n]) -> [B, n, V]`, where entry `i` predicts token `i`
      from the condition and the tokens before it. Scoring must agree with it.

  Returns:
    A `Report` without problems.

  Raises:
    ValueError: with the report, if there are problems.
  """
  report = find_problems(target, params, condition, key=key, logits=logits)
  if report.problems:
    raise ValueError(f'the target is not what decoders need:\n{report}')
  return report


def find_problems(target: Target, params: Params, condition: Condition, *,
                  key: jax.Array | None = None, logits: Logits | None = None) -> Report:
  """As `check_target`, but returns the report instead of raising an error."""
  checks = [check for check in CHECKS if target.supports_trees or not check.of_trees]
  if logits is not None:
    checks.append(Check('training pass', lambda probe: _training_pass(probe, logits)))
  notes = tuple(_notes(target))
  if shapes := list(_shapes(target, params, condition)):
    return Report({'shapes': shapes}, [], [check.name for check in checks], notes)
  with jax.default_matmul_precision('highest'):
    probe = probe_lib.make(
        target, params, condition, jax.random.key(0) if key is None else key)
    report = collect(checks, probe)
  return report._replace(passed=['shapes', *report.passed], notes=notes)


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
      return
  if target.num_streams > 2:
    yield f'num_streams is {target.num_streams}; it must be 1, or 2 with a null condition.'
    return
  leaves = jax.tree.leaves(condition)
  if not leaves or any(np.ndim(leaf) == 0 or len(leaf) != len(leaves[0]) for leaf in leaves):
    yield 'condition: its leaves must be arrays with one leading axis, the rows.'
    return
  batch = len(leaves[0])

  def run():
    _, _, cache = contract.prefill(target, params, condition, target.num_tokens + probe_lib.SPARE)
    start = jnp.zeros((batch,), jnp.int32)
    for num_drafts in (0, 2):
      tokens = jnp.zeros((batch, num_drafts + 1), jnp.int32)
      _, _, cache = contract.score(target, params, cache, tokens, start, chain(num_drafts))
    contract.forced_tokens(target, jnp.zeros((batch, 3), jnp.int32))

  try:
    contract.check_condition(target, condition)
    jax.eval_shape(run)
  except contract.ContractError as error:
    yield str(error)
    return
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
    return
  first = np.asarray(probe.prefill(probe.params, probe.condition)[0])[:1, :, None]
  got = np.concatenate([first, probe.singly[0][:1, :, :-1]], axis=2)
  apart = distance(got, want[None]).max(axis=0)
  if apart.max() > probe.tolerance:
    number = int(np.argmax(apart > probe.tolerance))
    where = 'prefill' if number == 0 else 'score'
    yield (f'{where}: the distribution of token {number} is {apart[number]:.2g} apart in total '
           'variation from that of the training pass; check the token numbers (is one off by one?) '
           'and what the first token sees.')
