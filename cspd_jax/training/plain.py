"""Training of an EAGLE network on whole images, by the target's guided distributions.

What `training.corrector` begins with: a step is cheap, for no windows are read.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from cspd_jax.decoding import warp as warp_lib
from cspd_jax.models import eagle
from cspd_jax.training import state as state_lib
from cspd_jax.training.drafter import Teacher
from cspd_jax.training.optimizer import OptimizerConfig
from cspd_jax.training.state import TrainState

Params = Any
# Below this a probability does not matter, and its logarithm would.
_TINY = 1e-20


def loss(params: Params, config: eagle.EagleConfig, target_params: Params, teacher: Teacher,
         tokens: jax.Array, condition: Any, guidance_scale: jax.Array,
         ) -> tuple[jax.Array, dict[str, jax.Array]]:
  """The target's divergence from what the network says of whole images, nats per token.

  Args:
    params: the network's own parameters.
    config: its sizes.
    target_params: the frozen target's.
    teacher: the target.
    tokens: `[B, T]`.
    condition: of the images.
    guidance_scale: `[]`.

  Returns:
    It, and 'overlap' beside it: the mean of `sum min(p, q)`.
  """
  warp = warp_lib.Warp(guidance_scale=guidance_scale)
  probs, features = asked(target_params, teacher, tokens, condition, warp)
  streams = features.shape[0]
  logits, _ = eagle.predict(
      eagle.attach(target_params, params), config, teacher.ends,
      jnp.tile(tokens[:, :-1], (streams, 1)),
      features[:, :, :-1].reshape(-1, features.shape[2] - 1, features.shape[3]),
      eagle.prompt(config, condition))
  found = warp_lib.probabilities(
      logits.reshape(streams, -1, *logits.shape[1:]), warp, jnp.arange(1, tokens.shape[1])[None])
  wanted = probs[:, 1:]
  return (jnp.mean(divergence(wanted, found)),
          {'overlap': jnp.mean(jnp.sum(jnp.minimum(wanted, found), axis=-1))})


def step(
    state: TrainState, batch: tuple[jax.Array, Any, jax.Array], target_params: Params,
    config: eagle.EagleConfig, optimizer: OptimizerConfig, teacher: Teacher,
) -> tuple[TrainState, dict[str, jax.Array]]:
  """One step of `loss` on tokens, condition and guidance scale; jit like `step`."""
  (value, parts), grads = jax.value_and_grad(loss, has_aux=True)(
      state.params, config, target_params, teacher, *batch)
  metrics = {'loss': value, **parts, 'grad_norm': optax.tree.norm(grads)}
  return state_lib.update(state, grads, optimizer), metrics


def asked(target_params: Params, teacher: Teacher, tokens: jax.Array, condition: Any,
          warp: warp_lib.Warp) -> tuple[jax.Array, jax.Array]:
  """The target's distributions `[B, T, V]` of images, and its features `[S, B, C + T - 1, F]`."""
  both = [teacher.forward(target_params, condition, tokens, jnp.full(tokens.shape[:1], drop))
          for drop in (False, True)]
  logits, features = (jnp.stack(parts) for parts in zip(*both))
  return warp_lib.probabilities(logits, warp, jnp.arange(tokens.shape[1])[None]), features


def divergence(p: jax.Array, q: jax.Array) -> jax.Array:
  """Kullback-Leibler divergence of `p` from `q`, `[...]`, of distributions `[..., V]`."""
  ratio = jnp.log(jnp.maximum(p, _TINY)) - jnp.log(jnp.maximum(q, _TINY))
  return jnp.sum(p * ratio, axis=-1)
