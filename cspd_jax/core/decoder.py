"""What the decoders of both kinds of tokens share: the call, and the checks before it."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts, rows, tracing
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.core.tracing import usual_promotion

# The most rows whose rounds are printed.
_MOST_SHOWN = 16


class AnyDecoder(abc.ABC):
  """A decoder: `decoder(params, condition, key)`, which draws one image's tokens per row.

  A pure function of arrays, to be jitted as a whole: `cspd_jax.jit(decoder)`, or `jax.jit`. To
  follow a decode round by round, call `start`, `round` and `finish`, which make up the function.

  Attributes:
    failure: in words, what the target returned for rows whose `Decoded.valid` is False.
    raw_log_probs: whether the result has `Decoded.raw_log_probs`.
  """

  failure: ClassVar[str]
  raw_log_probs = False

  @usual_promotion
  def check(self, condition: Any, sampling: SamplingParams = SamplingParams()) -> jax.Array:
    """Returns which rows `[B]` bool can be decoded with a condition and sampling options.

    Call it before compiling: a traced call cannot read values, and marks invalid rows in
    `Decoded.valid` instead. An invalid condition or option whose value is concrete is a ValueError.
    """
    return self.check_condition(condition) & self.check_sampling(sampling, rows.count(condition))

  @usual_promotion
  def __call__(self, params: Any, condition: Any, key: jax.Array,
               sampling: SamplingParams = SamplingParams(), draft_params: Any = None) -> Any:
    """Generates one image's tokens per row of `condition`; raises the errors of `check`.

    Args:
      params: the target's parameters.
      condition: what the target, and a draft model, read, with leading axis `B`.
      key: one random key, or one per row `[B]`. A row depends on its own key and condition only;
        with continuous tokens up to rounding, because a model may choose the shape of a pass by all
        rows.
      sampling: guidance, temperature and cuts, of all models; run-time values.
      draft_params: the parameters of the drafter, or of the draft model; None if it has none.

    Returns:
      The tokens `[B, T]` or `[B, T, C]`, forward passes and more of every row, a `Decoded`.
    """
    state = self.start(params, condition, key, sampling, draft_params)
    for end, round_ in self.phases:
      state = jax.lax.while_loop(
          lambda state, end=end: jnp.any(state.count < end),
          lambda state, round_=round_: round_(params, state, sampling, draft_params), state)
    return self.finish(state)

  @property
  @abc.abstractmethod
  def guarantee(self) -> Guarantee:
    """How the tokens relate to the distribution that the decoder is to sample."""

  @property
  @abc.abstractmethod
  def phases(self) -> Sequence[tuple[int, Callable[..., Any]]]:
    """Functions like `round`, one after the other, and how many tokens are committed after each.

    Decoders of discrete tokens have one.
    """

  @abc.abstractmethod
  def check_condition(self, condition: Any) -> jax.Array:
    """Returns which rows `[B]` bool of a condition can be decoded; raises the errors of `check`."""

  @abc.abstractmethod
  def check_sampling(self, sampling: SamplingParams, num_rows: int | None = None) -> jax.Array:
    """Returns which rows `[B]` bool of the options can be decoded; raises the errors of `check`.

    There are `num_rows`, by default as many as an option has values.
    """

  @abc.abstractmethod
  def start(self, params: Any, condition: Any, key: Any,
            sampling: SamplingParams = SamplingParams(), draft_params: Any = None) -> Any:
    """Returns the state before the first round.

    Takes the arguments and raises the errors of a call. `key` may be the `core.random.row_keys` of
    a key, too, for rows that go on from their own random state.
    """

  @abc.abstractmethod
  def round(self, params: Any, state: Any, sampling: SamplingParams = SamplingParams(),
            draft_params: Any = None) -> Any:
    """Runs one draft-score-verify-commit round; complete rows do not change.

    `sampling` must be as in the rounds before: a verifier may keep what it drew with it.
    """

  @abc.abstractmethod
  def finish(self, state: Any) -> Any:
    """Returns the result, a `Decoded`; of continuous tokens also before every row is complete."""

  @abc.abstractmethod
  def intermediate(self, num_rows: int) -> float:
    """Returns about how many bytes a round of `num_rows` images needs in addition to its state."""


def summary(decoded: Any) -> str:
  """Returns a `Decoded` in a line: tokens, rounds if they are few, rows that are not valid, and
  other fields.
  """
  rounds = decoded.rounds
  is_short = tracing.is_concrete(rounds) and 0 < getattr(rounds, 'size', 0) <= _MOST_SHOWN
  shown = ' '.join(str(np.asarray(rounds)).split()) if is_short else contracts.described(rounds)
  if tracing.is_concrete(decoded.valid) and not np.all(decoded.valid):
    shown += (f', {np.sum(~np.asarray(decoded.valid))} of {np.size(decoded.valid)} rows NOT VALID '
              '(an option or a condition that the model does not support, or NaN)')
  others = [name for name, value in decoded._asdict().items()
            if value is not None and name not in ('tokens', 'rounds')]
  return (f'{type(decoded).__name__}(tokens: {contracts.described(decoded.tokens)}, '
          f'rounds: {shown}, and {", ".join(others)})')
