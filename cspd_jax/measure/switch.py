"""Decoders that differ only in their verifiers, joined in one function.

Of a decoder of discrete tokens, the verifier is the smallest part to compile. One program therefore
contains all verifiers of a drafter and selects one by an index at run time. Separate compilations
would take most of the time of a large comparison. The switch does not change the tokens, and the
times on a CPU by less than 5 %.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from cspd_jax.decoding.base import Verifier
from cspd_jax.decoding.loop import Decoder, make_decoder


def one_of(decoders: Sequence[Decoder]) -> Callable[..., Any]:
  """Joins decoders that differ only in their verifiers.

  Returns:
    A function like a decoder, whose `draft_params` are the index of the decoder that runs, a scalar
    int32, and the `draft_params` of that decoder.
  """
  first = decoders[0]

  def decode(params, condition, key, warp, selected):
    index, draft_params = selected
    verifier = switch([decoder.verifier for decoder in decoders], index)
    return make_decoder(first.target, first.drafter, verifier)(
        params, condition, key, warp, draft_params)

  return decode


def switch(verifiers: Sequence[Verifier], index: jax.Array) -> Verifier:
  """Returns a verifier that runs `verifiers[index]`, selected at run time.

  Args:
    verifiers: either all or none of them must be `seed_exact`.
    index: scalar int32.
  """

  def verify(rng, layout, tokens, *args):
    def branch(verifier):
      def run():
        # A copy, so that each verifier draws the random numbers that it would draw alone.
        verdict = verifier.verify(copy.copy(rng), layout, tokens, *args)
        tv_bound = verdict.tv_bound
        if tv_bound is None:
          tv_bound = jnp.full(tokens.shape, 0.0 if verifier.exact else jnp.nan)
        return verdict._replace(tv_bound=tv_bound)
      return run
    return jax.lax.switch(index, [branch(verifier) for verifier in verifiers])

  return Verifier(
      verify, exact=all(verifier.exact for verifier in verifiers),
      needs_probs=any(verifier.needs_probs for verifier in verifiers),
      seed_exact=verifiers[0].seed_exact,
      bounded=all(verifier.exact or verifier.bounded for verifier in verifiers),
      verifies_fixed=all(
          verifier.verifies_fixed or not verifier.needs_probs for verifier in verifiers))
