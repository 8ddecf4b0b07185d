"""Decoders whose rounds commit as many tokens as they are told to, to time models without weights.

Random weights accept nothing. What a round costs does not depend on what is accepted, so times with
a given number are those of a trained model that accepts as much; the images mean nothing.
"""

import dataclasses

import jax.numpy as jnp

from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.tree import Tree

# Multiples of it fall evenly between whole numbers.
_GOLDEN = 0.6180339887


def forced(decoder: Decoder, tokens_per_round: float) -> Decoder:
  """The decoder, with rounds of `tokens_per_round` in the mean, whatever is drafted.

  Everything is computed as before, the verdict too; then the path goes down the main chain.

  Raises:
    ValueError: if its main chain is shorter, or known at run time only.
  """
  tree = decoder.drafter.tree
  if not isinstance(tree, Tree):
    raise ValueError('the decoder has a tree that is known at run time only; its rounds cannot be '
                     'told how far to go.')
  if not 1 <= tokens_per_round <= tree.main_length + 1:
    raise ValueError(f'tokens_per_round is {tokens_per_round}; the decoder has {tree.main_length} '
                     f'drafts in a row, so it must be 1 to {tree.main_length + 1}.')
  verify = decoder.verifier.verify

  def forced_verify(rng, layout, tokens, probs, target_probs, positions):
    verdict = verify(rng, layout, tokens, probs, target_probs, positions)
    chance = (positions[0].astype(jnp.float32) * _GOLDEN) % 1
    wanted = jnp.floor(tokens_per_round - 1 + chance).astype(verdict.node.dtype)
    wanted = jnp.minimum(wanted, layout.tree.main_length)
    # No node is below 0; the compiler does not know it and computes the verdict.
    return verdict._replace(node=jnp.where(verdict.node < 0, verdict.node, wanted))

  return dataclasses.replace(
      decoder, verifier=decoder.verifier._replace(verify=forced_verify))
