"""EAGLE drafts: one small layer continues the target's own features.

The network reads a token together with the feature it was predicted from and
predicts the next feature; the target's output matrix turns that into a law
(EAGLE, arXiv 2401.15077). The target's true features of all committed tokens stay
in the network's cache, predicted ones serve while drafting only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.base import Cache, Draft, Drafter, Layout, Params, Target
from cspd_jax.decoding.drafters import siblings
from cspd_jax.decoding.tree import Tree


class Network(NamedTuple):
  """A drafting network as pure functions; shapes as in `base.Target`.

  Its sequence is one token behind the target's: entry `C - 1 + k` pairs image token
  `k` with the feature that predicted it, so entry `C - 1` pairs token 0 with the
  feature of the condition's last token.

  Attributes:
    prefill: `(params, features [S, B, C, F], num_slots) -> cache`: reads all but the
      last of the condition's features and makes room for `num_slots` image tokens.
    step: `(params, cache, tokens [B, n], features [S, B, n, F], start [B], depth,
      visible) -> (logits [S, B, n, V], features [S, B, n, F], cache)`. Entry `i` is
      image token number `start + depth[i]` (`[n]` or `[B, n]`) with the feature that
      predicted it. `visible`, bool `[n, m]` or `[B, n, m]`: of the `m` newest slots,
      from slot `start` on, which each entry sees; the `n` entries are written to the
      last `n` of those. All slots before `start` are seen. The features returned are
      the predicted ones, in place of the target's for the token that follows.
    vocab_size: `V`.
    num_tokens: tokens of an image.
  """

  prefill: Callable[[Params, jax.Array, int], Cache]
  step: Callable[..., tuple[jax.Array, jax.Array, Cache]]
  vocab_size: int
  num_tokens: int
