"""Training of an EAGLE network for corrected windows, on windows as a decoder met them.

A step takes windows that a corrected decoder has met (`training.windows`): the old main chain with
the target's stale features, and the image's final tokens as the new context. The network reads the
old window, and the new one in a few passes with the corrected features of the pass before, as
`drafters.from_network` does. A draft at a place is accepted with probability
`a = sum_x min(p(x), q(x))`, so a chain of them with `a_1 + a_1 a_2 + ...` in the mean: that is what
is maximised.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cspd_jax.core import fields
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.drafters import small_network
from cspd_jax.models import eagle
from cspd_jax.training import plain as plain_lib, state as state_lib
from cspd_jax.training.drafter import Teacher
from cspd_jax.training.optimizer import OptimizerConfig
from cspd_jax.training.state import TrainState
from cspd_jax.training.windows import Windows

Params = Any
# Places behind the root that are measured.
_PLACES = (1, 2, 3, 4, 6, 8, 12, 16)
# Below this a probability does not matter, and its logarithm would.
_TINY = 1e-20


@dataclasses.dataclass(frozen=True)
class CorrectorTrainConfig:
  """Optimisation of a corrector.

  Attributes:
    optimizer: configuration of the optimiser.
    windows_per_image: rounds of each of them.
    passes: reads of the new window.
    guidance_scales: one of them is drawn per step.
    divergence_weight: weight of the target's divergence from the corrected distributions, at the
      places that are reached.
    plain_weight: weight of its divergence from what the network says of the images alone, without
      a window to correct; right behind a changed token there is little else to go by.
  """

  optimizer: OptimizerConfig = OptimizerConfig(num_steps=1500, batch_size=8, warmup_steps=50)
  windows_per_image: int = 6
  passes: int = 3
  guidance_scales: tuple[float, ...] = (2.0,)
  divergence_weight: float = 0.5
  plain_weight: float = 5.0

  def __post_init__(self):
    fields.check(
        self, guidance_scales=fields.FINITE, divergence_weight=fields.NOT_NEGATIVE,
        plain_weight=fields.NOT_NEGATIVE)
    if not self.guidance_scales:
      raise ValueError('guidance_scales is empty; give at least one.')


class Batch(NamedTuple):
  """Windows of some images; `W` per image.

  Attributes:
    tokens: `[B, T]`.
    condition: of the images.
    first: `[B, W]`, accepted: `[B, W]`, nodes: `[B, W, L]`, features: `[B, W, L + 1, S, F]`; see
      `Windows`.
    guidance_scale: `[]`.
  """

  tokens: jax.Array
  condition: Any
  first: jax.Array
  accepted: jax.Array
  nodes: jax.Array
  features: jax.Array
  guidance_scale: jax.Array


def batch_of(windows: Windows, conditions: Any, train: CorrectorTrainConfig, index: int) -> Batch:
  """The batch of step number `index`; `conditions` has one row per image."""
  rng = np.random.default_rng((train.optimizer.seed, index))
  images = rng.choice(len(windows.tokens), train.optimizer.batch_size, replace=False)
  open_ = windows.accepted[images] >= 0
  rounds = np.stack([
      rng.choice(np.flatnonzero(row), train.windows_per_image,
                 replace=row.sum() < train.windows_per_image) for row in open_])
  at = images[:, None], rounds
  return Batch(
      windows.tokens[images], jax.tree.map(lambda leaf: leaf[images], conditions),
      windows.first[at], windows.accepted[at], windows.nodes[at], windows.features[at],
      np.float32(rng.choice(train.guidance_scales)))


class Agreement(NamedTuple):
  """How far the network agrees with the target.

  Attributes:
    overlap: per pass, `[B, W, L]` overlaps of corrected distributions behind the new roots.
    divergence: per pass, `[B, W, L]` the target's divergence from them.
    inside: `[B, W, L]` which of these places lie inside of the image.
    plain: `[B, T - 1]` the target's divergence from what the network says of the image alone.
  """

  overlap: list[jax.Array]
  divergence: list[jax.Array]
  inside: jax.Array
  plain: jax.Array


def agreement(params: Params, config: eagle.EagleConfig, train: CorrectorTrainConfig,
              target_params: Params, teacher: Teacher, batch: Batch) -> Agreement:
  """How far the corrected distributions of every pass agree with the target's.

  Args:
    params: the network's own parameters.
    config: its sizes.
    train: number of passes.
    target_params: the frozen target's.
    teacher: the target.
    batch: the windows.
  """
  images, count = batch.tokens.shape
  length = batch.nodes.shape[2]
  warp = warp_lib.Warp(guidance_scale=batch.guidance_scale)
  probs, features = plain_lib.asked(target_params, teacher, batch.tokens, batch.condition, warp)

  start = batch.first + batch.accepted + 1
  places = start[..., None] + 1 + jnp.arange(length)
  inside = places < count
  at = batch.accepted[..., None] + 1 + jnp.arange(length)
  known = (at <= length)[..., None, None]
  answers = batch.features.astype(features.dtype)
  stale = _take(answers, jnp.minimum(at, length))
  wanted = jax.vmap(lambda row, index: row[index])(probs, jnp.minimum(places, count - 1))
  params, network = eagle.attach(target_params, params), eagle.network(config, teacher.ends)
  said, old, read = _reader(network, params, batch, features, answers)
  plain = plain_lib.divergence(probs[:, 1:], warp_lib.probabilities(
      network.logits(params, said[:, :, :-1]), warp, jnp.arange(1, count)[None]))
  root = jax.vmap(lambda row, at: row[at])(jnp.moveaxis(said, 0, 2), jnp.minimum(start, count - 1))
  old = _take(old, jnp.minimum(at - 1, length - 1))
  hints, found = stale, []
  for _ in range(train.passes):
    said = jnp.concatenate([root[:, :, None], read(hints[:, :, :-1])], axis=2)
    hints = small_network.correct(network, params, said, old, stale, known)
    flat = hints.reshape(images, -1, *hints.shape[3:])
    corrected = warp_lib.probabilities(
        network.logits(params, jnp.moveaxis(flat, 2, 0)), warp, places.reshape(images, -1))
    corrected = corrected.reshape(wanted.shape)
    found.append((jnp.sum(jnp.minimum(corrected, wanted), axis=-1),
                  plain_lib.divergence(wanted, corrected)))
  overlap, divergence = (list(part) for part in zip(*found))
  return Agreement(overlap, divergence, inside, plain)


def _take(x: jax.Array, index: jax.Array) -> jax.Array:
  """Entries `[B, W, n, ...]` of `x` `[B, W, L, ...]` by their numbers `[B, W, n]`."""
  return jax.vmap(jax.vmap(lambda row, at: row[at]))(x, index)


def _reader(network: Any, params: Params, batch: Batch, features: jax.Array, answers: jax.Array):
  """What the network says of the images, of old windows, and how it reads new windows.

  Slots of its cache hold the image, then the old windows, then the new ones.

  Returns:
    `[S, B, T, F]` behind the images' tokens, `[B, W, L, S, F]` behind the old nodes, and a function
    of the features `[B, W, L - 1, S, F]` of the first tokens behind the new roots to what is said
    there.
  """
  images, count = batch.tokens.shape
  windows, length = batch.nodes.shape[1:]
  slots = count + windows * (2 * length - 1)
  condition = features.shape[2] - count + 1
  cache = network.prefill(params, batch.condition, features[:, :, :condition], slots)
  zero = jnp.zeros((images,), jnp.int32)
  said, cache = network.step(
      params, cache, batch.tokens, features[:, :, condition - 1:], zero, np.arange(count),
      np.tri(count, dtype=bool))
  start = batch.first + batch.accepted + 1

  def step(cache, first, tokens, inputs, before):
    """Reads windows of tokens `[B, W, n]` behind the tokens number `first`; `before` are slots."""
    size = tokens.shape[2]
    own = np.kron(np.eye(windows, dtype=bool), np.tri(size, dtype=bool))
    image = jnp.repeat(np.arange(before) <= first[..., None], size, axis=1)
    image = image & (np.arange(before) < count)
    depth = first[..., None] + 1 + jnp.arange(size)
    flat = inputs.reshape(images, -1, *inputs.shape[3:])
    found, cache = network.step(
        params, cache, tokens.reshape(images, -1), jnp.moveaxis(flat, 2, 0), zero,
        depth.reshape(images, -1),
        jnp.concatenate([image, jnp.broadcast_to(own, (images, *own.shape))], axis=2))
    return jnp.moveaxis(found, 0, 2).reshape(inputs.shape), cache

  old, cache = step(cache, batch.first, batch.nodes, answers[:, :, :-1], count)
  places = jnp.minimum(start[..., None] + 1 + jnp.arange(length - 1), count - 1)
  tokens = jax.vmap(lambda row, at: row[at])(batch.tokens, places)
  read = lambda inputs: step(cache, start, tokens, inputs, count + windows * length)[0]
  return said, old, read


def loss(params: Params, config: eagle.EagleConfig, train: CorrectorTrainConfig,
         target_params: Params, teacher: Teacher, batch: Batch,
         ) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Minus the mean accepted length, and divergences by their weights, averaged over the passes.

  Arguments as for `agreement`. Beside the loss come figures of the last pass.
  """
  found = agreement(params, config, train, target_params, teacher, batch)
  total, plain = 0.0, jnp.mean(found.plain)
  for rate, spread in zip(found.overlap, found.divergence):
    lengths, reached = accepted_length(rate, found.inside)
    reached = jax.lax.stop_gradient(reached)
    divergence_ = jnp.sum(spread * reached) / jnp.maximum(jnp.sum(reached), 1)
    total += train.divergence_weight * divergence_ - jnp.mean(lengths)
  parts = {'length': jnp.mean(lengths), 'divergence': divergence_, 'plain': plain}
  return total / train.passes + train.plain_weight * plain, parts


def accepted_length(overlap: jax.Array, inside: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Drafts of a chain that are accepted in the mean, `[B, W]`, and how often places are reached.

  Args:
    overlap: `[B, W, L]` the probability that a draft is accepted when it is reached.
    inside: `[B, W, L]` which places lie inside of the image.
  """
  passed = jnp.cumprod(overlap * inside, axis=-1)
  reached = jnp.concatenate([jnp.ones_like(passed[..., :1]), passed[..., :-1]], axis=-1) * inside
  return jnp.sum(passed, axis=-1), reached


def step(state: TrainState, batch: Batch, target_params: Params, config: eagle.EagleConfig,
         train: CorrectorTrainConfig, teacher: Teacher,
         ) -> tuple[TrainState, dict[str, jax.Array]]:
  """One optimiser step; jit with the configurations and `teacher` static."""
  (value, parts), grads = jax.value_and_grad(loss, has_aux=True)(
      state.params, config, train, target_params, teacher, batch)
  metrics = {'loss': value, **parts, 'grad_norm': optax.tree.norm(grads)}
  return state_lib.update(state, grads, train.optimizer), metrics


def measure(params: Params, target_params: Params, batch: Batch, config: eagle.EagleConfig,
            train: CorrectorTrainConfig, teacher: Teacher) -> dict[str, jax.Array]:
  """Figures of the last pass.

  Returns:
    'length', drafts of a chain accepted in the mean; 'plain', see `Agreement`; 'overlap_1' and so
    on, the acceptance rate at a place behind the root when it is reached.
  """
  found = agreement(params, config, train, target_params, teacher, batch)
  lengths, reached = accepted_length(found.overlap[-1], found.inside)
  rates = jnp.sum(found.overlap[-1] * reached, axis=(0, 1)) / jnp.maximum(
      jnp.sum(reached, axis=(0, 1)), _TINY)
  places = {f'overlap_{place}': rates[place - 1] for place in _PLACES if place <= len(rates)}
  return {'length': jnp.mean(lengths), 'plain': jnp.mean(found.plain), **places}
