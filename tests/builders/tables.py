"""Tables of conditionals for tests of decoders: a target, what drafts for it, enumerated rounds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import specification
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.testing.enumerate import enumerate_rounds
from cspd_jax.testing.tabular import Tabular, drafts, tabular

PLAIN = SamplingParams(guidance_scale=1.5, temperature=0.9)


class Pair(NamedTuple):
  """A target and a draft model of the same sizes, and decoders of them by text."""

  model: Tabular
  draft: Tabular
  drafts: dict[str, Any]
  codebook: np.ndarray
  num_heads: int

  def build(self, spec, target=None, **sizes):
    """The decoder of a text, which is completed with sizes if there are any."""
    spec = specification.complete(spec, **sizes) if sizes else spec
    return specification.build(
        spec, target or self.model.target, self.drafts, self.codebook)

  def draft_params(self, spec):
    """Parameters of what drafts for a decoder."""
    is_stacked = specification.needs(spec) == 'medusa'
    return jnp.stack([self.draft.params] * self.num_heads) if is_stacked else self.draft.params


def pair(vocab_size=4, length=6, *, num_heads=2, **options):
  """Two guided tables, with a codebook of two numbers per token."""
  model, draft = (tabular(jax.random.key(seed), vocab_size, length, guided=True, **options)
                  for seed in (0, 1))
  codebook = np.random.default_rng(0).standard_normal((vocab_size, 2))
  return Pair(
      model, draft, drafts(model.target, draft.target, num_heads), codebook, num_heads)


def enumerated(parts, vocab_size=3, rounds=1, sampling=PLAIN, *, length=4, forced=None,
               make=make_decoder):
  """Enumerates rounds of a decoder of a guided table in rows of two tokens, in float64.

  Tokens 2 and 3 are a large image of the small one before them.

  Args:
    parts: `model -> (drafter, verifier)`, and a third part if the drafter reads no table: the
      function from a table to its parameters.
    vocab_size: of the model.
    rounds: how many. Two rounds also check the distributions that are recorded.
    sampling: the options.
    length: tokens of an image.
    forced: tokens by position.
    make: builds the decoder; its constructor also joins parts that are refused.

  Returns:
    The total variation to the distribution of the model, and what the rounds did.
  """
  with jax.enable_x64(True):
    built = tabular(jax.random.key(0), vocab_size, length, guided=True, row_width=2,
                    forced=forced, dtype=jnp.float64)
    small = jnp.array([-1, -1, 0, 1])
    target = built.target._replace(small=lambda positions: small[jnp.clip(positions, 0, 3)])
    drafter, verifier, *params_of = parts(built._replace(target=target))
    table = jax.random.normal(jax.random.key(1), built.params.shape)
    result = enumerate_rounds(
        make(target, drafter, verifier), built, sampling, rounds=rounds,
        draft_params=params_of[0](table) if params_of else table)
    np.testing.assert_allclose(result.distribution.sum(), 1, atol=1e-12)
    return 0.5 * np.abs(result.distribution - built.distribution(sampling)).sum(), result


def warped(logits, scale, temperature, top_k=0, top_p=1.0, min_p=0.0):
  """The distribution `[V]` of logits of all streams `[S, V]` in float64; ties stay together."""
  x, *null = np.asarray(logits, np.float64)
  if null:
    x = null[0] + float(scale) * (x - null[0])
  if temperature == 0:
    top_k, temperature = 1, 1.0
  if top_k:
    x = np.where(x >= np.sort(x)[max(len(x) - int(top_k), 0)], x, -np.inf)
  quotients = (x - x.max()) / float(temperature)
  p = np.exp(quotients) / np.exp(quotients).sum()
  before = np.asarray([p[x > value].sum() for value in x])
  p = np.where((before <= top_p) & (x - x.max() >= temperature * np.log(max(min_p, 1e-300))), p, 0)
  return p / p.sum()
