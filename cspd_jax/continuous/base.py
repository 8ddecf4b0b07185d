"""What a decoder of continuous tokens asks of a model.

In the shape descriptions, `B` is the number of rows (images), `S` the number
of guidance streams (1, or 2: conditional then unconditional), `T` the number of
tokens of an image, `C` the length of a token, `D` the length of the vector that
the diffusion head is conditioned on and `N` any number of states.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Params = Any
Condition = Any


class Modulation(NamedTuple):
  """A diffusion head in two parts: what depends on the step and `z` alone, and the rest.

  The first part is most of a head with adaptive layer norms. Done once per token and
  level, it is not repeated for every state, and its weights are not read at every kernel.

  Attributes:
    make: `(params, step [L], z [N, D]) -> modulation`, a pytree with leaves `[N, L, ...]`: that of
      every `z` at every step.
    apply: `(params, x [N, C], modulation, row [N]) -> (eps [N, C], v [N, C])` with leaves
      `[R, ...]`, of which every state takes one; with the above, this is `Target.denoise`.
  """

  make: Callable[[Params, jax.Array, jax.Array], Any]
  apply: Callable[[Params, jax.Array, Any, jax.Array], tuple[jax.Array, jax.Array]]


class Target(NamedTuple):
  """A masked model of continuous tokens with a diffusion head, as pure functions.

  The distribution of a hidden token given the visible ones is that of a chain of Gaussian
  kernels, `schedule.posterior` of the head's two outputs, from pure noise down to
  level 0. With guidance there is one state per token: the head is asked once
  with either stream's `z`, the guided noise is `eps_u + w (eps_c - eps_u)`, and
  `v` is that of the conditional stream.

  Attributes:
    transform: `(params, condition, tokens [B, T, C], visible [B, T] bool) ->
      z [S, B, T, D]`: one forward pass of the transformer. Rows may have
      different numbers of visible tokens. What `tokens` holds where `visible` is
      False is ignored, whatever it is. `z` is returned for every position; that of
      a visible one means nothing.
    denoise: `(params, x [N, C], step [N], z [N, D]) -> (eps [N, C], v [N, C])`: the
      diffusion head. `step` is the step of the full process, 0 to 999, which
      `schedule.Schedule.steps` gives for a level. `eps` is the predicted noise and
      `v` says where the log-variance lies in its range, from -1 (least) to 1;
      it may lie outside. Both are float32, computed from `x` in float32 with full
      precision: the first kernel multiplies an error of `eps` by 316.
    num_tokens: `T`.
    token_dim: `C`.
    num_streams: `S`; 2 if the model runs a null condition for guidance.
    check_condition: `condition -> None`; raises ValueError for a condition the
      model does not know. Called on concrete values only.
    modulation: `denoise` in two parts, if it has them.
  """

  transform: Callable[[Params, Condition, jax.Array, jax.Array], jax.Array]
  denoise: Callable[[Params, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
  num_tokens: int
  token_dim: int
  num_streams: int = 1
  check_condition: Callable[[Condition], None] = lambda condition: None
  modulation: Modulation | None = None
