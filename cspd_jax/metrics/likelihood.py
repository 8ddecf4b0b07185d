"""How likely the target finds images that a decoder made: the sharpest test of a bias.

A relaxed decoder accepts tokens that the target would not have drawn, so the target finds
its images less likely than its own, or more likely if it keeps to the probable tokens. One
forward pass over the finished tokens gives every distribution that the target would have drawn
from.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.decoding import accept, warp as warp_lib
from cspd_jax.decoding.base import Condition, Target
from cspd_jax.decoding.tree import chain
from cspd_jax.metrics import base
from cspd_jax.metrics.base import Metric


class Likelihood(NamedTuple):
  """Per image, mean over its tokens, in nats.

  Attributes:
    nll: `[B]` negative log-likelihood under the distribution that is sampled; inf if the
      distribution excludes a token, which cuts can bring about. Its mean over vanilla's images is
      the entropy rate of the model.
    entropy: `[B]` entropy of the same distributions. Along the images of an exact decoder
      `nll - entropy` has mean 0, whatever the images show: the noise of the images, which
      makes up most of that of `nll`, is not in it.
  """

  nll: jax.Array
  entropy: jax.Array


def likelihood(target: Target, params: Any, condition: Condition, tokens: jax.Array,
               warp: warp_lib.Warp) -> Likelihood:
  """Likelihood of whole images under the target's warped distribution; to be jitted.

  Args:
    target: the model, with the guidance stream if it is used.
    params: its parameters.
    condition: what the images show, leading axis `B`.
    tokens: `[B, T]` finished images.
    warp: the sampling options.

  Returns:
    A `Likelihood`.
  """
  found = distributions(target, params, condition, tokens, warp)
  entropy = jnp.sum(jax.scipy.special.entr(found), axis=-1)
  nll = -jnp.log(accept.take(found, tokens))
  return Likelihood(nll=jnp.mean(nll, axis=1), entropy=jnp.mean(entropy, axis=1))


def distributions(target: Target, params: Any, condition: Condition, tokens: jax.Array,
                  warp: warp_lib.Warp) -> jax.Array:
  """What every token of whole images is drawn from, `[B, T, V]`; arguments as for `likelihood`."""
  first, _, cache = target.prefill(params, condition, target.num_tokens)
  logits = first[:, :, None]
  if target.num_tokens > 1:
    # All tokens but the last as one long chain of drafts.
    start = jnp.zeros(tokens.shape[:1], jnp.int32)
    rest, _, _ = target.score(
        params, cache, tokens[:, :-1], start, chain(target.num_tokens - 2))
    logits = jnp.concatenate([logits, rest], axis=2)
  positions = jnp.broadcast_to(jnp.arange(target.num_tokens), tokens.shape)
  return warp_lib.probabilities(
      logits, warp, positions, None if target.forced is None else target.forced(positions))


def unigram_distance(tokens: np.ndarray, others: np.ndarray, vocab_size: int) -> float:
  """Total variation between how often two sets of images `[N, T]` use each token.

  From few tokens it is well above 0 even if the distributions are equal; compare it with that of
  two equally large samples of one decoder.
  """
  shares = [np.bincount(np.asarray(part).reshape(-1), minlength=vocab_size) / np.size(part)
            for part in (tokens, others)]
  return float(0.5 * np.abs(shares[0] - shares[1]).sum())


def of_sample(sample: base.Sample, model: Any) -> Likelihood:
  """The likelihood of a sample's images, `[N]` NumPy arrays, computed once per sample."""
  guided = bool(np.any(np.asarray(sample.sampling.guidance_scale) != 1))

  target = model.target(guided=guided)
  run = programs.kept(model, ('likelihood', guided), lambda: jax.jit(
      lambda *arguments: likelihood(target, *arguments)))
  return sample.once('likelihood', lambda: sample.batched(
      lambda condition, tokens, sampling: run(model.params, condition, tokens, sampling)))


def _nll(sample: base.Sample, model: Any) -> base.Value:
  return base.mean(of_sample(sample, model).nll)


def _excess(sample: base.Sample, model: Any) -> base.Value:
  found = of_sample(sample, model)
  return base.mean(found.nll - found.entropy)


def _difference(sample: base.Sample, model: Any) -> base.Value:
  if sample.reference is None:
    return base.UNKNOWN
  own, theirs = (of_sample(one, model).nll for one in (sample, sample.reference))
  # Each image against those of the same condition.
  return base.mean(own - theirs.reshape(-1, len(own)).mean(axis=0))


def _unigrams(sample: base.Sample, model: Any) -> base.Value:
  if sample.reference is None:
    return base.UNKNOWN
  return base.Value(unigram_distance(
      sample.tokens, sample.reference.tokens, model.target(guided=False).vocab_size))


NLL = Metric(
    'nll', 'NLL', '{:.3f}', _nll, group='fidelity',
    meaning="mean negative log-likelihood per token under the target's guided distribution, nats")
NLL_DIFFERENCE = Metric(
    'nll_difference', 'NLL - vanilla', '{:+.3f}', _difference, group='fidelity',
    meaning="NLL above that of the target's own images of the same prompts")
NLL_EXCESS = Metric(
    'nll_excess', 'NLL - entropy', '{:+.3f}', _excess, group='fidelity',
    meaning='NLL above the entropy of the distributions along the same images; 0 for all exact '
    'decoders')
UNIGRAM_DISTANCE = Metric(
    'unigram_distance', 'unigrams', '{:.3f}', _unigrams, group='fidelity',
    meaning="total variation between how often its images and the target's own use each token")
