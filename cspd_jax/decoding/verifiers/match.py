"""Verification by equality: draws the target's tokens and accepts the drafts that equal them."""

import jax
import jax.numpy as jnp

from cspd_jax.decoding import accept
from cspd_jax.decoding.base import Layout, Rng, Verdict, Verifier


def match(seed_exact: bool = True) -> Verifier:
  """Draws a token from the target's distribution at every node and follows the matching drafts.

  Every committed token is a draw from the target's distribution, so the output is exact whatever
  the drafts are (deterministic Jacobi decoding, Song et al., arXiv 2002.03629, with sampling).

  `seed_exact` draws with the noise of the position (predictive sampling, Wiggers and Hoogeboom,
  arXiv 2002.09928). Token `k` is then `argmax(log p_k + g_k)` for a fixed `g_k`, and the sequence
  equals, token for token, the sequence of any other decoder with this verifier and the same key, as
  long as their `p_k` are rounded alike (`ancestral(window)`). Else the noise is new in every round.
  """

  def verify(rng: Rng, layout: Layout, tokens: jax.Array, probs: jax.Array | None,
             target_probs: jax.Array, positions: jax.Array) -> Verdict:
    tree = accept.topology(layout)
    if seed_exact:
      samples = rng.draw_at(positions, target_probs)
    else:
      samples = rng.draw(target_probs)
    parents = jnp.maximum(jnp.asarray(tree.parents), 0)
    node = accept.last_accepted(tokens == samples[parents], tree)
    return Verdict(node, samples[node], samples)

  return Verifier(verify, exact=True, needs_probs=False, seed_exact=seed_exact)
