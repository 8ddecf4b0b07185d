"""Verification by equality: draw the target's token, keep drafts that equal it."""

import jax.numpy as jnp

from cspd_jax.decoding.base import Verdict, Verifier
from cspd_jax.decoding.verifiers import walk


def match(seed_exact: bool = True) -> Verifier:
  """Draws one token from the target's distribution at every node and follows the matches.

  What is committed is always a draw from the target's distribution, so the output is exact
  whatever was drafted (deterministic Jacobi decoding, Song et al., arXiv
  2002.03629, with sampling).

  Args:
    seed_exact: draw with the noise that belongs to the position (predictive
      sampling, Wiggers and Hoogeboom, arXiv 2002.09928). Token `k` is then
      `argmax(log p_k + g_k)` for one `g_k`, and the sequence equals, token for
      token, that of any other decoder with this verifier and the same key, as far as
      their `p_k` are rounded alike (`ancestral(window)`).
      Otherwise fresh noise every round.
  """

  def verify(rng, layout, tokens, probs, target_probs, positions):
    del probs
    tree = layout.tree
    if seed_exact:
      samples = rng.draw_at(positions, target_probs)
    else:
      samples = rng.draw(target_probs)
    parents = jnp.maximum(jnp.asarray(tree.parents), 0)
    node = walk.deepest(tokens == samples[parents], tree)
    return Verdict(node, samples[node], samples)

  return Verifier(verify, exact=True, needs_probs=False, seed_exact=seed_exact)
