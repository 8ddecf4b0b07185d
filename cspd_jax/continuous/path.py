"""Speculative sampling with a draft model, whose drafts the path test accepts: exact.

A round, for a row with `n` committed tokens:

    draft   `gamma` more tokens by the draft model, one after the other
    score   the target on the `gamma + 1` contexts, in parallel, and its head on the drafts'
            denoising paths: the log density ratio of every draft
    verify  accept drafts until one fails
    commit  the accepted drafts and one more token: the residual of the failed one, or the
            target's own next token (the bonus)

The ratio is that of the whole path of kernels `split .. 0`, not of the last kernel alone: that one
is so narrow (a standard deviation of 0.006) that two models never agree on it. The path has a
density because kernel 0 adds its noise too. Noise above `split` is shared by position: it makes the
states of the two models before `split` alike and drops out of the ratio. This is the test of CSpD
(arXiv 2411.11925, equations 1 to 5) without its factor Sigma, which compares densities at two
different points and is not exact; `split = 0` is its test of the last kernel.

In a masked model every true context requires a pass: slower than the target alone at large batch.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import coupling, head as head_lib, noise as noise_lib
from cspd_jax.continuous.base import Cost, DecodeContext, Draft, Drafter, Target, Verdict, Verifier
from cspd_jax.continuous.head import Head
from cspd_jax.continuous.span import Span, TokenBatch
from cspd_jax.core import contracts, rows
from cspd_jax.core.contracts import check_part

DEFAULT_ETA = 0.95
_NEGLIGIBLE = 1e-6  # Probability below which failing residual draws are not mentioned.


def model(draft: Target, aligned: bool = True, guided_as_verified: bool = False) -> Drafter:
  """Returns a drafter that decodes token by token with a draft model and its own true contexts.

  `draft` has the same tokens as the target and reads the same condition. If `aligned`, its head
  uses the noise of the positions, as the target's does. `guided_as_verified` is as in `Drafter`.
  """
  check_part('draft', draft, Target)
  return Drafter(functools.partial(_propose, draft, aligned), draft,
                 functools.partial(_check_pair, draft), guided_as_verified)


def _check_pair(draft: Target, target: Target) -> None:
  if target.cached is not None or draft.cached is not None:
    raise ValueError('the target or the draft model is causal; a draft model requires masked models'
                     ' on both sides; decode a causal model with windows.')
  for name, words in (('num_tokens', 'tokens per image'), ('token_dim', 'numbers per token'),
                      ('num_streams', 'guidance streams')):
    of_target, of_draft = getattr(target, name), getattr(draft, name)
    if of_target != of_draft:
      raise ValueError(f'draft has {of_draft} {words}, the target {of_target}; they must be equal.')


def _propose(model: Target, aligned: bool, context: DecodeContext, span: Span, tokens: jax.Array,
             memory: Any) -> Draft:
  """Continues the image with the draft model, each draft conditioned on those before it."""
  verifier = context.verifier
  sample_draft = verifier.sample_draft
  assert sample_draft is not None, 'make_decoder refuses a drafter then'
  head = head_lib.Head(model, context.schedule, context.draft_params)
  num_drafts = span.num_drafts(verifier.bonus)
  batch, length = span.ranks.shape[0], span.ranks.shape[1] - verifier.bonus

  def draft_token(tokens, j):
    token_span = span.select(jnp.full((batch, 1), j))
    z = contracts.transform(
        model, context.draft_params, context.condition, tokens,
        span.rank_of_position < (span.count + j)[:, None])
    token_span = token_span._replace(scale=token_span.draft_scale)
    token, record = sample_draft(
        head, token_span.batch(head_lib.pick(z, token_span.positions)), aligned)
    # Rows without a draft number `j` write out of range, which drops the token.
    position = jnp.where(j < num_drafts, token_span.positions[:, 0], tokens.shape[1])
    return tokens.at[jnp.arange(batch), position].set(token, mode='drop'), record

  def step(j, carry):
    tokens, records = carry
    tokens, record = draft_token(tokens, j)
    return tokens, jax.tree.map(lambda old, new: old.at[:, j].set(new), records, record)

  # Ones where there is no draft, so that no standard deviation is 0 and no density infinite.
  records = jax.tree.map(
      lambda leaf: jnp.ones((batch, length, *leaf.shape[1:]), leaf.dtype),
      jax.eval_shape(draft_token, tokens, jnp.int32(0))[1])
  return Draft(*jax.lax.fori_loop(0, jnp.max(num_drafts), step, (tokens, records)))


class PathStart(NamedTuple):
  """A model's chain before kernel `split`."""

  x: jax.Array  # `[N, C]` its state.
  log_std: jax.Array  # `[N]` sum of the logarithms of all standard deviations of the kernels above.


class Path(NamedTuple):
  """The states that the kernels `split .. 0` generated."""

  states: jax.Array  # `[N, split + 1, C]` the state after each kernel; the last is the token.
  log_density: jax.Array  # `[N]` under the model that drew it, without the constant.


def start_path(head: Head, batch: TokenBatch, split: int, aligned: bool = True) -> PathStart:
  """Runs the kernels above `split` for the tokens `[N]`; `aligned` is as for `model`."""
  purpose = noise_lib.STEP if aligned else noise_lib.DRAFT
  batch, levels = head.modulated(batch), head.schedule.num_levels
  noise = noise_lib.chain_normal(batch.keys, purpose, levels, head.target.token_dim)

  def step(i, carry):
    x, log_std = carry
    level = levels - 1 - i
    k = head.kernel(batch, x, level)
    x = k.mean + k.std * noise[:, level]
    return PathStart(x, log_std + jnp.sum(jnp.log(k.std), axis=-1))

  x = head.start(batch) if aligned else noise_lib.normal(
      batch.keys, purpose, levels, head.target.token_dim)
  return jax.lax.fori_loop(
      0, levels - 1 - split, step, PathStart(x, jnp.zeros(x.shape[:1], x.dtype)))


def draw_path(head: Head, batch: TokenBatch, x: jax.Array, split: int, purpose: int,
              trial: jax.typing.ArrayLike = 0) -> Path:
  """Draws path number `trial` for a purpose from states `x` `[N, C]` before kernel `split`."""
  noise = noise_lib.chain_normal(batch.keys, purpose, split + 1, head.target.token_dim, trial)

  def step(x, level):
    k = head.kernel(batch, x, level)
    x = k.mean + k.std * noise[:, level]
    return x, (x, coupling.log_density_of_draw(x, k.mean, k.std))

  states, log_density = jax.lax.scan(step, x, jnp.arange(split, -1, -1))[1]
  return Path(states.swapaxes(0, 1), jnp.sum(log_density, axis=0))


def score_path(head: Head, batch: TokenBatch, x: jax.Array, states: jax.Array) -> jax.Array:
  """Returns the log density `[N]` of another model's path `[N, split + 1, C]`; one head call.

  `x` `[N, C]` is this model's own state before the first kernel of the path.
  """
  before = jnp.concatenate([x[:, None], states[:, :-1]], axis=1)
  k = head.kernel(batch, before, jnp.arange(states.shape[1] - 1, -1, -1))
  return jnp.sum(coupling.log_density(states, k.mean, k.std), axis=1)


def repeat_tokens(batch: TokenBatch, num: int) -> TokenBatch:
  """Repeats every token of `batch` `num` times in a row."""
  return jax.tree.map(lambda leaf: jnp.repeat(leaf, num, axis=0), batch._replace(
      z=batch.z.swapaxes(0, 1)))._replace(z=jnp.repeat(batch.z, num, axis=1))


class Tested(NamedTuple):
  """How the test of a row's drafts ended, each `[B]`."""

  accepted: jax.Array  # Drafts before the first that failed.
  failed: jax.Array  # Whether one failed.
  has_next: jax.Array  # Whether the target draws a token after the accepted drafts.


class Drafted(NamedTuple):
  """The record of drafts."""

  z: jax.Array  # `[N, S, D]` what the draft model's transformer returned for them.
  start: PathStart  # Its chains before kernel `split`, leaves `[N, ...]`.
  path: Path  # Its paths, leaves `[N, ...]`.


def path_test(split: int, eta: float = DEFAULT_ETA, max_trials: int = coupling.DEFAULT_TRIALS,
              bonus: bool = True, sigma: bool = False) -> Verifier:
  """Accepts drafts up to the first whose path fails, and replaces that one.

  The arguments are as for `decoders.exact_path`, and whether the ratio has the paper's factor
  `sigma` (its equation 4): the tokens then follow the distribution only where both models have the
  same variances. Raises ValueError for options out of range.
  """
  coupling.check(eta, max_trials)
  test = _PathTest(split, eta, max_trials, bonus, sigma)
  guarantee = 'exact up to rounding'
  if eta**max_trials >= _NEGLIGIBLE:
    guarantee += (f' and residual draws of which {max_trials} proposals fail, which `missed` '
                  'counts')
  if sigma:
    guarantee = ('biased where the models have different learned variances; elsewhere '
                 f'{guarantee}')
  return Verifier(test.verify, test.sample_draft, guarantee, bonus=int(bonus), visibility='true',
                  exact=not sigma, head_states=test.head_states)


@dataclasses.dataclass(frozen=True)
class _PathTest:
  """The options of `path_test`, with its two functions."""

  split: int
  eta: float
  max_trials: int
  bonus: bool
  sigma: bool

  def sample_draft(self, head: Head, batch: TokenBatch, aligned: bool) -> tuple[jax.Array, Drafted]:
    start = start_path(head, batch, self.split, aligned)
    path = draw_path(head, batch, start.x, self.split, noise_lib.DRAFT)
    return path.states[:, -1], Drafted(batch.z.swapaxes(0, 1), start, path)

  def head_states(self, width: int) -> int:
    """The states of the paths of the drafts, or of proposals for a residual draw."""
    return (self.split + 1) * max(width - self.bonus, coupling.TRIALS_PER_PASS)

  def verify(self, context: DecodeContext, span: Span, draft: Draft | None, z: jax.Array
             ) -> Verdict:
    assert draft is not None, 'make_decoder requires a drafter'
    drafted: Drafted = draft.record
    num_drafts = span.num_drafts(self.bonus)
    num_rows, width = span.ranks.shape
    length = width - self.bonus
    head = Head(context.target, context.schedule, context.params)
    start = start_path(head, span.batch(z), self.split)
    start = jax.tree.map(lambda leaf: leaf.reshape(num_rows, width, *leaf.shape[1:]), start)
    log_sigma = self.sigma * (drafted.start.log_std - start.log_std[:, :length])

    flat = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
    index = jnp.broadcast_to(jnp.arange(length), (num_rows, length))
    batch = span.select(index).batch(z[:, :, :length])
    log_p = score_path(head, batch, flat(start.x[:, :length]), flat(drafted.path.states))
    log_uniform = noise_lib.log_uniform(batch.keys, noise_lib.ACCEPT, 0)
    log_ratio = log_p - flat(drafted.path.log_density) + flat(log_sigma)
    passed = coupling.accept(log_ratio, log_uniform, self.eta)
    passed = passed.reshape(num_rows, length) & (index < num_drafts[:, None])
    accepted = coupling.accepted_length(passed)
    failed = span.active & (accepted < num_drafts)
    has_next = failed | (span.active & self.bonus)

    next_token, trials, missed = self._next_token(
        context, span, drafted, z, start.x, log_sigma, Tested(accepted, failed, has_next))
    tokens = jnp.pad(drafted.path.states[:, :, -1], [(0, 0), (0, width - length), (0, 0)])
    pad = lambda leaf: jnp.pad(leaf, [(0, 0), (0, width - length)])
    is_next = jnp.arange(width) == accepted[:, None]
    return Verdict(
        tokens=jnp.where(is_next[..., None], next_token[:, None], tokens),
        length=jnp.where(span.active, accepted + has_next, 0),
        tested=pad((index <= accepted[:, None]) & (index < num_drafts[:, None])),
        accepted=pad(index < accepted[:, None]),
        trials=jnp.where(failed, trials, 0), missed=(failed & missed).astype(jnp.int32),
        cost=self._cost(context, span, num_drafts, failed, trials))

  def _next_token(self, context: DecodeContext, span: Span, drafted: Drafted, z: jax.Array,
                  x: jax.Array, log_sigma: jax.Array, tested: Tested
                  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws, by `coupling.residual`, the token after the accepted drafts of rows that have one."""
    assert context.draft_model is not None, 'make_decoder requires a drafter'
    head = Head(context.target, context.schedule, context.params)
    draft_head = Head(context.draft_model, context.schedule, context.draft_params)
    num, last = coupling.TRIALS_PER_PASS, span.ranks.shape[1] - 1
    accepted, failed, has_next = tested
    # Rows without a rejected draft score some other draft; their first proposal is accepted.
    target_index = jnp.minimum(accepted, last)[:, None]
    draft_index = jnp.minimum(accepted, last - self.bonus)[:, None]
    target_z = head_lib.pick(z, target_index)
    draft_z = jnp.moveaxis(rows.take(drafted.z, draft_index), 2, 0)
    target_batch = repeat_tokens(span.select(target_index).batch(target_z), num)
    draft_batch = repeat_tokens(span.select(draft_index).batch(draft_z), num)
    target_x = jnp.repeat(rows.take(x, target_index)[:, 0], num, axis=0)
    draft_x = jnp.repeat(rows.take(drafted.start.x, draft_index)[:, 0], num, axis=0)
    log_sigma = jnp.repeat(rows.take(log_sigma, draft_index)[:, 0], num)

    def propose(trials):
      trial = jnp.tile(trials, accepted.shape[0])
      path = draw_path(head, target_batch, target_x, self.split, noise_lib.PROPOSE, trial)
      log_q = score_path(draft_head, draft_batch, draft_x, path.states)
      log_ratio = jnp.where(jnp.repeat(failed, num), path.log_density - log_q + log_sigma, jnp.inf)
      log_uniform = noise_lib.log_uniform(target_batch.keys, noise_lib.RESIDUAL, 0, trial)
      by_row = lambda leaf: leaf.reshape(-1, num, *leaf.shape[1:])
      return by_row(path.states[:, -1]), by_row(log_ratio), by_row(log_uniform)

    return coupling.residual(propose, has_next, self.eta, self.max_trials)

  def _cost(self, context: DecodeContext, span: Span, num_drafts: jax.Array, failed: jax.Array,
            trials: jax.Array) -> Cost:
    """Counts head calls: shared kernels, one to score, the path's kernels in every pass."""
    above, path_length = context.schedule.num_levels - 1 - self.split, self.split + 1
    passes = -(-trials // coupling.TRIALS_PER_PASS)
    path_states = (num_drafts + passes * coupling.TRIALS_PER_PASS) * path_length
    states = span.size * above + path_states
    return Cost(
        head_calls=jnp.where(span.active, above + (num_drafts > 0) + passes * path_length, 0),
        head_rows=context.target.num_streams * states,
        draft_head_calls=num_drafts * context.schedule.num_levels + jnp.where(failed, passes, 0))
