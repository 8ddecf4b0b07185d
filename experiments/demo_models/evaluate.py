"""Held-out metrics of a trained tokenizer and its models, for the report of a training run."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import warp as warp_lib
from experiments.demo_models import autoregressive

_BATCH = 16
_LN2 = float(np.log(2))


def codebook(tokens: np.ndarray, size: int) -> dict[str, float]:
  """Measures the use of a codebook.

  Args:
    tokens: `[N, T]` tokens of training images.
    size: number of codes in the codebook.

  Returns:
    'codebook_used' (fraction of the codes that occur) and 'codebook_perplexity'.
  """
  counts = np.bincount(tokens.reshape(-1), minlength=size)
  shares = counts[counts > 0] / counts.sum()
  return {'codebook_used': float(np.mean(counts > 0)),
          'codebook_perplexity': float(np.exp(-np.sum(shares * np.log(shares))))}


def model(
    params: Any,
    config: autoregressive.Config,
    tokens: np.ndarray,
    conditions: Any,
    guidance_scale: float,
) -> dict[str, Any]:
  """Measures likelihood and entropy of a model's distributions along held-out images.

  Args:
    params: parameters of the model.
    config: configuration of the model.
    tokens: `[N, T]` held-out images.
    conditions: conditions of these images, every leaf `[N, ...]`, such as labels `[N]`.
    guidance_scale: guidance scale of the guided distributions.

  Returns:
    'nll_nats' and 'nll_bits' per token given the condition, 'nll_nats_no_label' and
    'nll_bits_no_label' without, and for the distributions 'plain' and 'guided' a dictionary with
    the token entropy's quantiles 'entropy_bits_q10', '_q50' and '_q90', the mean largest
    probability 'top1_mean', the fraction of tokens whose largest probability is below 0.2,
    'top1_below_0.2', and the mean of the sum of squared probabilities, 'collision'. Tokens that
    the grammar forces are excluded.
  """
  free = np.flatnonzero(autoregressive.is_free(config))

  def measure(tokens, condition):
    logits = jnp.stack([
        autoregressive.logits(params, config, condition, tokens,
                              jnp.full(tokens.shape[:1], dropped)) for dropped in (False, True)])
    logits, tokens = logits[:, :, free], tokens[:, free]
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[None, ..., None], axis=-1)
    warp, positions = warp_lib.Warp(guidance_scale=guidance_scale), jnp.asarray(free)[None]
    probs = {'plain': warp_lib.probabilities(logits[:1], warp_lib.Warp(), positions),
             'guided': warp_lib.probabilities(logits, warp, positions)}
    stats = {name: (jnp.sum(jax.scipy.special.entr(p), -1) / _LN2, jnp.max(p, -1),
                    jnp.sum(p * p, -1)) for name, p in probs.items()}
    return -log_probs[..., 0], stats

  compiled = jax.jit(measure)
  parts = [jax.device_get(compiled(*batch)) for batch in _batches(tokens, conditions)]
  nll = np.concatenate([part[0] for part in parts], axis=1).mean(axis=(1, 2))
  report: dict[str, Any] = {'nll_nats': float(nll[0]), 'nll_bits': float(nll[0] / _LN2),
                            'nll_nats_no_label': float(nll[1]),
                            'nll_bits_no_label': float(nll[1] / _LN2)}
  for name in ('plain', 'guided'):
    entropy, top1, collision = (
        np.concatenate([part[1][name][i] for part in parts]) for i in range(3))
    report[name] = {
        **{f'entropy_bits_q{q}': float(np.percentile(entropy, q)) for q in (10, 50, 90)},
        'top1_mean': float(top1.mean()), 'top1_below_0.2': float(np.mean(top1 < 0.2)),
        'collision': float(collision.mean())}
  return report


def _batches(tokens: np.ndarray, conditions: Any) -> Iterator[Any]:
  """Yields `_BATCH` images and their conditions at a time; the last batch may be smaller."""
  for start in range(0, tokens.shape[0], _BATCH):
    yield autoregressive.part((tokens, conditions), start, _BATCH)
