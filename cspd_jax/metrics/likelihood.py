"""Likelihood of generated images under the target: the most sensitive test for a bias.

A relaxed decoder accepts tokens that the target would not have drawn, so its images are less likely
under the target than the target's own, or more likely if it prefers probable tokens. One forward
pass over the complete tokens yields every distribution that the target would have drawn from.

`distance` compares two targets along the same images, for example after quantization.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts, programs, rows
from cspd_jax.core.sampling import SamplingParams, is_guided
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.decoding import accept, warp as warp_lib
from cspd_jax.decoding.base import Condition, Target
from cspd_jax.decoding.tree import chain
from cspd_jax.generation.model import Model
from cspd_jax.metrics import base
from cspd_jax.metrics.base import Metric


class Likelihood(NamedTuple):
  """Means over the tokens of each image, in nats.

  Attributes:
    nll: `[B]` negative log-likelihood under the sampled distribution; inf if that excludes a
      token, for example by top-k. Its mean over vanilla's images is the entropy rate of the model.
    entropy: `[B]` entropy of the same distributions. Along the images of an exact decoder
      `nll - entropy` has mean 0 for any condition, and much less variance than `nll`, most of whose
      variance is the variation of the entropy between images.
  """

  nll: jax.Array
  entropy: jax.Array


@usual_promotion
def likelihood(target: Target, params: Any, condition: Condition, tokens: jax.Array,
               sampling: SamplingParams) -> Likelihood:
  """Computes the likelihood of whole images under the target's sampled distribution.

  To be called under `jax.jit`. The target has the stream of the null condition if guidance is used;
  conditions have leading axis `B`, tokens are `[B, T]`. Rows whose options or condition are invalid
  are NaN. An invalid condition or option, if its values are concrete, and tokens of another shape
  raise ValueError.
  """
  probs = distributions(target, params, condition, tokens, sampling)
  entropy = jnp.sum(jax.scipy.special.entr(probs), axis=-1)
  nll = -jnp.log(accept.take(probs, tokens))
  return Likelihood(nll=jnp.mean(nll, axis=1), entropy=jnp.mean(entropy, axis=1))


@usual_promotion
def distributions(target: Target, params: Any, condition: Condition, tokens: jax.Array,
                  sampling: SamplingParams) -> jax.Array:
  """Returns the distribution of every token, `[B, T, V]`; arguments as for `likelihood`."""
  logits, positions = _logits(target, params, condition, tokens, sampling)
  return warp_lib.probabilities(logits, sampling, positions, contracts.forced_tokens(target,
                                                                                    positions))


@usual_promotion
def log_probs(target: Target, params: Any, condition: Condition, tokens: jax.Array,
              sampling: SamplingParams) -> jax.Array:
  """Returns the log-probability of every token of whole images, `[B, T]`.

  Arguments as for `likelihood`. Differentiable in the parameters, for training on sampled images:
  with the parameters that sampled them it equals `Decoded.log_probs` up to rounding. Other
  parameters may cut a token that was sampled, whose value is then -inf, without a gradient. So
  sample without cuts and pass a `SamplingParams` whose `top_k`, `top_p` and `min_p` are None; or
  compare with `Decoded.raw_log_probs`, for such a `SamplingParams` of temperature 1.

  Tokens of a given prefix count as generated ones; for the others alone, pass the target of
  `decoding.prefix.target` with its condition and the tokens behind the prefix.
  """
  logits, positions = _logits(target, params, condition, tokens, sampling)
  forced = contracts.forced_tokens(target, positions)
  if sampling.top_k is None and sampling.top_p is None and sampling.min_p is None:
    return warp_lib.log_probs_of_logits(logits, sampling, positions, forced, positions, tokens)
  probs = warp_lib.probabilities(logits, sampling, positions, forced)
  return warp_lib.log_probs(probs, positions, tokens)


def _logits(target: Target, params: Any, condition: Condition, tokens: jax.Array,
            sampling: SamplingParams) -> tuple[jax.Array, jax.Array]:
  """Logits `[S, B, T, V]` of whole images, NaN in invalid rows, and their positions `[B, T]`."""
  num_rows = rows.count(condition)
  if jnp.shape(tokens) != (num_rows, target.num_tokens):
    raise ValueError(f'tokens has shape {jnp.shape(tokens)}; it must be that of whole images, '
                     f'({num_rows}, {target.num_tokens}).')
  valid = contracts.supported_rows(target, condition) & warp_lib.check(
      sampling, target.num_streams, num_rows)
  first, _, cache = target.prefill(params, condition, target.num_tokens)
  logits = first[:, :, None]
  if target.num_tokens > 1:
    # All tokens but the last, as one long chain of drafts.
    start = jnp.zeros(tokens.shape[:1], jnp.int32)
    rest, _, _ = target.score(params, cache, tokens[:, :-1], start, chain(target.num_tokens - 2))
    logits = jnp.concatenate([logits, rest], axis=2)
  logits = jnp.where(valid[:, None, None], logits, jnp.nan)
  return logits, jnp.broadcast_to(jnp.arange(target.num_tokens), tokens.shape)


def unigram_distance(tokens: np.ndarray, others: np.ndarray, vocab_size: int) -> float:
  """Returns the total variation between the token frequencies of two sets of images `[N, T]`.

  For few tokens it is well above 0 even if the distributions are equal; compare it with that of
  two equally large samples of one decoder.
  """
  shares = [np.bincount(np.asarray(part).reshape(-1), minlength=vocab_size) / np.size(part)
            for part in (tokens, others)]
  return float(0.5 * np.abs(shares[0] - shares[1]).sum())


def measured(sample: base.Sample, model: Model) -> Likelihood:
  """Returns the likelihood of a sample's images, `[N]` NumPy arrays, cached by the sample."""
  guided = is_guided(sample.sampling)
  target = model.target(guided=guided)
  run = programs.get_or_build(model.kept.programs, ('likelihood', guided), lambda: programs.jit(
      lambda *arguments: likelihood(target, *arguments), label='the likelihood'))
  return sample.once('likelihood', lambda: sample.batched(
      lambda condition, tokens, sampling: run(model.params, condition, tokens, sampling)))


def _difference(sample: base.Sample, model: Model) -> base.Value:
  if sample.reference is None:
    return base.UNKNOWN
  nll, reference_nll = (measured(images, model).nll for images in (sample, sample.reference))
  # Compares each image with the reference images of the same condition.
  return base.mean(nll - reference_nll.reshape(-1, len(nll)).mean(axis=0))


def _unigrams(sample: base.Sample, model: Model) -> base.Value:
  if sample.reference is None:
    return base.UNKNOWN
  return base.Value(unigram_distance(
      sample.tokens, sample.reference.tokens, model.target(guided=False).vocab_size))


NLL = Metric(
    'nll', 'NLL', '{:.3f}', lambda *args: base.mean(measured(*args).nll), group='fidelity',
    meaning="mean negative log-likelihood per token under the target's guided distribution, nats")
NLL_DIFFERENCE = Metric(
    'nll_difference', 'NLL - vanilla', '{:+.3f}', _difference, group='fidelity',
    meaning="NLL minus the NLL of the target's own images of the same prompts")
NLL_EXCESS = Metric(
    'nll_excess', 'NLL - entropy', '{:+.3f}',
    lambda *args: base.mean(measured(*args).nll - measured(*args).entropy), group='fidelity',
    meaning='NLL minus the entropy of the distributions along the same images; its expectation is '
    '0 for all exact decoders')
UNIGRAM_DISTANCE = Metric(
    'unigram_distance', 'unigrams', '{:.3f}', _unigrams, group='fidelity',
    meaning="total variation between the token frequencies of its images and of the target's own")


class Distance(NamedTuple):
  """Distances `[B]` of images, over their tokens.

  Along the target's own images, the mean of `relative_entropy` is the relative entropy of whole
  images per token; the mean of `other_nll - nll` is the same, but varies more.
  """

  nll: jax.Array  # Mean negative log-likelihood under the target, in nats.
  other_nll: jax.Array  # The same under the other target.
  # Mean relative entropy of the other distribution of a token from the target's, in nats.
  relative_entropy: jax.Array
  total_variation: jax.Array  # Mean total variation between the two distributions of a token.
  largest: jax.Array  # The largest total variation.


def distance(target: Target, params: Any, other_params: Any, condition: Condition,
             tokens: jax.Array, sampling: SamplingParams, other: Target | None = None) -> Distance:
  """Compares the distributions of two targets along whole images; call it under `jax.jit`.

  The arguments of `likelihood`, the parameters of the other target, and that target, None if it
  differs in its parameters only.
  """
  probs, other_probs = (
      distributions(model, parameters, condition, tokens, sampling)
      for model, parameters in ((target, params), (other or target, other_params)))
  variation = 0.5 * jnp.sum(jnp.abs(probs - other_probs), axis=-1)
  nll, other_nll = (jnp.mean(-jnp.log(accept.take(part, tokens)), axis=1)
                    for part in (probs, other_probs))
  # With the difference of the sums, which is 0 up to rounding, no entry is negative.
  entropy = jnp.sum(jax.scipy.special.kl_div(probs, other_probs), axis=-1)
  return Distance(nll, other_nll, jnp.mean(entropy, axis=1), jnp.mean(variation, axis=1),
                  jnp.max(variation, axis=1))
