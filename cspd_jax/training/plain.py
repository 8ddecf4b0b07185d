"""Training of an EAGLE network on whole images with the target's guided distributions.

The training of a corrector begins with it (`training.corrector_recipe`), because a step without
windows is cheap.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from cspd_jax.decoding import warp as warp_lib
from cspd_jax.generation.parts import Teacher
from cspd_jax.models import eagle
from cspd_jax.training import optimizer as optimizer_lib
from cspd_jax.training.optimizer import OptimizerConfig, TrainState

Params = Any
# Lower bound of probabilities, so that their logarithms are finite.
_TINY = 1e-20


def loss(params: Params, config: eagle.EagleConfig, target_params: Params, teacher: Teacher,
         tokens: jax.Array, condition: Any, guidance_scale: jax.Array,
         ) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the KL divergence between the target's and the network's distributions.

  Args:
    params: parameters of the network, without the target's.
    config: configuration of the network.
    target_params: parameters of the frozen target.
    teacher: the target.
    tokens: `[B, T]` image tokens.
    condition: condition of the images.
    guidance_scale: `[]` guidance scale of both distributions.

  Returns:
    The mean divergence in nats per token, and the metric 'overlap', the mean of `sum min(p, q)`.
  """
  warp = warp_lib.Warp(guidance_scale=guidance_scale)
  target_logits, features = target_outputs(target_params, teacher, tokens, condition)
  probs = warp_lib.probabilities(target_logits, warp, jnp.arange(tokens.shape[1])[None])
  streams = features.shape[0]
  logits, _ = eagle.predict(
      eagle.attach(target_params, params), config, teacher.ends,
      jnp.tile(tokens[:, :-1], (streams, 1)),
      features[:, :, :-1].reshape(-1, features.shape[2] - 1, features.shape[3]),
      eagle.prompt(config, condition))
  draft_probs = warp_lib.probabilities(
      logits.reshape(streams, -1, *logits.shape[1:]), warp, jnp.arange(1, tokens.shape[1])[None])
  target_probs = probs[:, 1:]
  return (jnp.mean(divergence(target_probs, draft_probs)),
          {'overlap': jnp.mean(jnp.sum(jnp.minimum(target_probs, draft_probs), axis=-1))})


def step(
    state: TrainState, batch: tuple[jax.Array, Any, jax.Array], target_params: Params,
    config: eagle.EagleConfig, optimizer: OptimizerConfig, teacher: Teacher,
) -> tuple[TrainState, dict[str, jax.Array]]:
  """Does one optimiser step; jit with `config`, `optimizer` and `teacher` static.

  Args:
    state: state before the step.
    batch: tokens `[B, T]`, the condition of every image and the guidance scale `[]`.
    target_params: parameters of the frozen target.
    config: configuration of the network.
    optimizer: configuration of the optimiser.
    teacher: the target.

  Returns:
    The next state and scalar metrics: 'loss', 'overlap' and 'grad_norm'.
  """
  (value, parts), grads = jax.value_and_grad(loss, has_aux=True)(
      state.params, config, target_params, teacher, *batch)
  metrics = {'loss': value, **parts, 'grad_norm': optax.tree.norm(grads)}
  return optimizer_lib.update(state, grads, optimizer), metrics


def target_outputs(target_params: Params, teacher: Teacher, tokens: jax.Array, condition: Any
                   ) -> tuple[jax.Array, jax.Array]:
  """Returns the target's logits `[S, B, T, V]` and features `[S, B, C + T - 1, F]`."""
  both = [teacher.forward(target_params, condition, tokens, jnp.full(tokens.shape[:1], drop))
          for drop in (False, True)]
  logits, features = (jnp.stack(parts) for parts in zip(*both))
  return logits, features


def divergence(p: jax.Array, q: jax.Array) -> jax.Array:
  """Computes the Kullback-Leibler divergence `KL(p || q)` `[...]` of distributions `[..., V]`."""
  ratio = jnp.log(jnp.maximum(p, _TINY)) - jnp.log(jnp.maximum(q, _TINY))
  return jnp.sum(p * ratio, axis=-1)
