"""Training of a network for corrected windows, on windows recorded while decoding.

The network is an EAGLE network, or one that reads what is near (`models.local`).

A step reads windows that a corrected decoder scored, see `Windows`: the old main chain with the
target's stale features, and the image's final tokens as the new context. The network reads the
old window once, and the new window in a few passes, each with the corrected features of the pass
before, as `drafters.from_network` does. A draft is accepted with probability
`a = sum_x min(p(x), q(x))` when it is reached, so the mean accepted length of a chain is
`a_1 + a_1 a_2 + ...`: the objective.

The training begins on whole images with the target's guided distributions (`plain_step`), because a
step without windows is cheap. All that a local network reads of its images was recorded along with
their windows, so that the target is not run at all.

While images are decoded, a recorder keeps of every round the main chain and the target's features
along it, the windows. The image's final tokens are the context that the next round should have had.
`train` continues the run that its folder holds and does nothing if that run is complete. `model` is
the target with its tokenizer and drafters.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax.core import batches, fields, programs
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.base import RoundResult
from cspd_jax.decoding.drafters import correctors
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.tree import Tree
from cspd_jax.files import atomic, matrices, npz, run_folder
from cspd_jax.generation import memory, run
from cspd_jax.generation.model import Model, Request
from cspd_jax.generation.parts import Teacher
from cspd_jax.models import eagle, local
from cspd_jax.training import (
  drafter as drafter_lib,
  loop,
  neighbours,
  optimizer as optimizer_lib,
  samples,
)
from cspd_jax.training.optimizer import OptimizerConfig, TrainState

Params = Any
CorrectorConfig = eagle.EagleConfig | local.LocalConfig
_DECODE_BATCH = 64
# Depths behind the root whose acceptance rates are reported.
_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
# Lower bound of probabilities, so that their logarithms and ratios are finite.
_TINY = 1e-20


@dataclasses.dataclass(frozen=True)
class CorrectorTrainConfig:
  """Configuration of a corrector's training.

  Attributes:
    windows_per_image: windows per image and step.
    passes: passes over the new window.
    guidance_scales: guidance scales; each step draws one.
    divergence_weight: weight of the KL divergence between the target's distributions and the
      corrected ones, at positions that are reached.
    plain_weight: weight of that divergence on the whole image, without a window to correct, or for
      a local network on the old window. Right behind a changed token the corrector can rely on
      little else.
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
    fields.check_lists(self, 'guidance_scales')


# How a local network is trained by default: on whole images, and on windows.
LOCAL_PLAIN = OptimizerConfig(num_steps=800, batch_size=4, muon_learning_rate=0.02, warmup_steps=50,
                              cooldown_steps=300, weight_decay=0.02)
LOCAL_TRAIN = CorrectorTrainConfig(
    OptimizerConfig(num_steps=1500, batch_size=8, muon_learning_rate=0.02, warmup_steps=50,
                    cooldown_steps=600, weight_decay=0.02),
    windows_per_image=3, passes=2, plain_weight=1.0)


@dataclasses.dataclass(frozen=True)
class CorrectorRecipe(samples.Sampled, loop.Intervals):
  """Configuration of a corrector, its training data and its training.

  Attributes:
    drafter: configuration of the network.
    plain: configuration of the optimiser on whole images, for a local network on those of the
      windows; None begins with windows, which suffices if the model's EAGLE network is the start.
    train: configuration of the training on windows.
    decoder: decoder that records the windows: a corrected decoder whose drafts are a chain.
    images: file of whole images to train on, see `samples.stored`; None samples them from the
      target.
    num_plain_images: whole images to train on, the first ones of the file.
    num_train_images: images whose windows to train on.
    num_held_out_images: images whose windows to measure on, as far as they fill whole batches.
  """

  drafter: CorrectorConfig
  plain: OptimizerConfig | None
  train: CorrectorTrainConfig
  decoder: str = 'corrected(corrector=eagle, window=32, iterations=2, tree=chain())'
  images: str | None = None
  num_plain_images: int = 4096
  num_train_images: int = 1152
  num_held_out_images: int = 128
  seed: int = dataclasses.field(default=500, kw_only=True)

  def __post_init__(self):
    super().__post_init__()
    samples.check_batch_size('train.optimizer', self.train.optimizer,
                             min(self.num_train_images, self.num_held_out_images))
    if self.plain is not None:
      samples.check_batch_size('plain', self.plain, self.num_train_images if self.kind == 'local'
                               else self.num_plain_images)

  @property
  def kind(self) -> str:
    """The kind of the checkpoint."""
    return 'local' if isinstance(self.drafter, local.LocalConfig) else 'eagle'

  @property
  def role(self) -> str:
    """The role of the network in a model."""
    return 'local' if self.kind == 'local' else 'corrector'


class Windows(NamedTuple):
  """Recorded rounds of `N` images: `R` rounds per image, `L` drafts in the main chain.

  Attributes:
    tokens: `[N, T]` tokens of the images.
    first: `[N, R]` index of the last committed token before a round.
    accepted: `[N, R]` number of drafts that the round accepted; -1 if the image was complete.
    nodes: `[N, R, L]` drafts of the main chain, behind that token.
    features: `[N, R, L + 1, S, F]` features of the target, behind that token and these drafts.
  """

  tokens: np.ndarray
  first: np.ndarray
  accepted: np.ndarray
  nodes: np.ndarray
  features: np.ndarray


class CorrectorBatch(NamedTuple):
  """A batch of images with `W` windows each: tokens `[B, T]`, condition and guidance scale `[]`.

  The others are `first` `[B, W]`, `accepted` `[B, W]`, `nodes` `[B, W, L]` and `features`
  `[B, W, L + 1, S, F]` of `Windows`, and `along`, for a local network those of `along`, else None.
  """

  tokens: jax.Array
  condition: Any
  first: jax.Array
  accepted: jax.Array
  nodes: jax.Array
  features: jax.Array
  guidance_scale: jax.Array
  along: jax.Array | None = None


def along(windows: Windows) -> np.ndarray:
  """Returns the target's features `[N, T, S, F]` that predicted the tokens of the images.

  That of the first token, which no round has drawn, is 0.
  """
  images, count = windows.tokens.shape
  drafts = np.arange(windows.features.shape[2])
  # Drafts behind the end of an image are not accepted.
  result = np.zeros((images, count, *windows.features.shape[3:]), windows.features.dtype)
  for first, accepted, features in zip(
      windows.first.T, windows.accepted.T, np.moveaxis(windows.features, 1, 0)):
    at = first[:, None] + 1 + drafts
    image, draft = np.nonzero((drafts <= accepted[:, None]) & (at < count))
    result[image, at[image, draft]] = features[image, draft]
  return result


def batch_of(windows: Windows, conditions: Any, train: CorrectorTrainConfig, index: int,
             in_order: bool = False, features: np.ndarray | None = None) -> CorrectorBatch:
  """Returns the batch of step `index`, of images drawn at random or `in_order`.

  `conditions` has one row per image, and so have `features`, those of `along`.
  """
  rng, size = np.random.default_rng((train.optimizer.seed, index)), train.optimizer.batch_size
  images = (np.arange(index * size, (index + 1) * size) if in_order else
            rng.choice(len(windows.tokens), size, replace=False))
  incomplete = windows.accepted[images] >= 0
  rounds = np.stack([
      rng.choice(np.flatnonzero(row), train.windows_per_image,
                 replace=row.sum() < train.windows_per_image) for row in incomplete])
  at = images[:, None], rounds
  return CorrectorBatch(
      windows.tokens[images], jax.tree.map(lambda leaf: leaf[images], conditions),
      windows.first[at], windows.accepted[at], windows.nodes[at], windows.features[at],
      np.float32(rng.choice(train.guidance_scales)),
      None if features is None else features[images])


class Agreement(NamedTuple):
  """Agreement of the network's distributions with the target's.

  Attributes:
    overlap: per pass, `[B, W, L]` overlap `sum_x min(p, q)` of the corrected distributions behind
      the new roots.
    divergence: per pass, `[B, W, L]` KL divergence between the target's distributions and them.
    inside: `[B, W, L]` bool, whether the position is inside the image.
    plain: `[B, T - 1]` KL divergence between the target's distributions and those of the network
      on the whole image, both without cuts; for a local network `[B, W, L]` on the old window.
  """

  overlap: list[jax.Array]
  divergence: list[jax.Array]
  inside: jax.Array
  plain: jax.Array


def agreement(params: Params, config: CorrectorConfig, train: CorrectorTrainConfig,
              target_params: Params, teacher: Teacher, batch: CorrectorBatch,
              sampling: SamplingParams) -> Agreement:
  """Compares the corrected distributions of every pass with the target's, with the same options.

  `params` are those of the network, without the frozen target's, and `teacher` is the target.
  """
  images, count = batch.tokens.shape
  length = batch.nodes.shape[2]
  start = batch.first + batch.accepted + 1
  positions = start[..., None] + 1 + jnp.arange(length)
  inside = positions < count
  reading = (_local_reading if isinstance(config, local.LocalConfig) else _eagle_reading)(
      params, config, target_params, teacher, batch, sampling)
  # Entries of the old window; the last positions of the new window are behind its end.
  entries = batch.accepted[..., None] + 1 + jnp.arange(length)
  has_stale = entries <= length
  old = jax.tree.map(
      lambda x: _gather(x, jnp.minimum(entries - 1, length - 1)), reading.old)
  stale = _gather(reading.stale, jnp.minimum(entries, length))
  target_probs = reading.target_probs(jnp.minimum(positions, count - 1))
  corrected, overlap, divergence = stale, [], []
  for _ in range(train.passes):
    corrected = reading.correct(reading.read(corrected), old, stale, has_stale)
    flat = corrected.reshape(images, -1, *corrected.shape[3:])
    draft_probs = teacher.probs(
        reading.logits(jnp.moveaxis(flat, 2, 0)), sampling, positions.reshape(images, -1))
    draft_probs = draft_probs.reshape(target_probs.shape)
    overlap.append(jnp.sum(jnp.minimum(draft_probs, target_probs), axis=-1))
    divergence.append(kl_divergence(target_probs, draft_probs))
  return Agreement(overlap, divergence, inside, reading.plain)


class _Reading(NamedTuple):
  """The inputs of a network for a batch.

  Attributes:
    target_probs: `positions [B, W, L] -> [B, W, L, V]` the target's distributions of tokens.
    stale: `[B, W, L + 1, S, F]` the target's features of the old window.
    old: what the network predicts behind the old nodes, with leading axes `[B, W, L]`.
    read: from features `[B, W, L, S, F]` of the new window to what the network predicts there.
    correct: `(new, old, stale, has_stale [B, W, L]) -> ` corrected features.
    logits: the target's head.
    plain: see `Agreement`.
  """

  target_probs: Callable[[jax.Array], jax.Array]
  stale: jax.Array
  old: Any
  read: Callable[[jax.Array], Any]
  correct: Callable[[Any, Any, jax.Array, jax.Array], jax.Array]
  logits: Callable[[jax.Array], jax.Array]
  plain: jax.Array


def _eagle_reading(params: Params, config: Any, target_params: Params, teacher: Teacher,
                   batch: CorrectorBatch, sampling: SamplingParams) -> _Reading:
  count = batch.tokens.shape[1]
  logits, features = drafter_lib.target_outputs(
      target_params, teacher, batch.tokens, batch.condition)
  probs = teacher.probs(logits, sampling, jnp.arange(count)[None])
  params, network = eagle.attach(target_params, params), eagle.network(config, teacher.ends)
  stale = batch.features.astype(features.dtype)
  outputs, old, read = _reader(network, params, batch, features, stale)
  plain = kl_divergence(*(
      teacher.probs(x, warp_lib.uncut(sampling), jnp.arange(1, count)[None])
      for x in (logits[:, :, 1:], network.logits(params, outputs[:, :, :-1]))))
  start = batch.first + batch.accepted + 1
  root = _of_rows(jnp.moveaxis(outputs, 0, 2), jnp.minimum(start, count - 1))
  return _Reading(
      lambda positions: _of_rows(probs, positions), stale, old,
      lambda corrected: jnp.concatenate([root[:, :, None], read(corrected[:, :, :-1])], axis=2),
      lambda new, old, stale, has_stale: correctors.correct(
          network, params, new, old, stale, has_stale[..., None, None]),
      functools.partial(network.logits, params), plain)


def _local_reading(params: Params, config: Any, target_params: Params, teacher: Teacher,
                   batch: CorrectorBatch, sampling: SamplingParams) -> _Reading:
  (images, count), (windows, length) = batch.tokens.shape, batch.nodes.shape[1:]
  width, rows = config.row_width, images * windows
  assert batch.along is not None  # As `train` calls `batch_of`.
  along, features = (x.astype(jnp.float32) for x in (batch.along, batch.features))
  # Every window is a row of its own.
  flat = lambda x: x.reshape(rows, *x.shape[2:])
  unflat = lambda x: x.reshape(images, windows, *x.shape[1:])
  tokens = jnp.repeat(
      jnp.pad(batch.tokens, ((0, 0), (0, length + 1))), windows, axis=0)
  first, accepted, nodes = map(flat, (batch.first, batch.accepted, batch.nodes))

  read = lambda x: local.read(params, config, x)

  def row(start):
    """Returns the reads of the last `W + 1` committed tokens up to number `start` `[B, W]`."""
    at = start[..., None] - width + jnp.arange(width + 1)
    return read(flat(_of_rows(along, jnp.clip(at, 0, count - 1))))

  def predict(image, row, window, start):
    return jax.tree.map(unflat, local.predict(
        params, config, image, jnp.concatenate([row, window[:, :-1]], axis=1), start))

  old_image = jax.vmap(jax.lax.dynamic_update_slice_in_dim, (0, 0, 0, None))(
      tokens, nodes, first + 1, 0)
  window = read(flat(features))
  # The first node counts as the root of the old window, as in `local.corrector`.
  old = predict(old_image, jnp.concatenate([row(batch.first)[:, 1:], window[:, :1]], axis=1),
                window[:, 1:], first + 1)
  start = first + accepted + 1
  new_row = row(batch.first + batch.accepted + 1)
  logits = lambda x: teacher.ends.logits(target_params, x)

  def probs(features, positions, sampling):
    x = jnp.moveaxis(features.reshape(images, -1, *features.shape[3:]), 2, 0)
    return teacher.probs(
        logits(x), sampling, positions.reshape(images, -1)).reshape(*positions.shape, -1)

  old_positions = batch.first[..., None] + 2 + jnp.arange(length)
  plain = kl_divergence(*(probs(x, old_positions, warp_lib.uncut(sampling))
                          for x in (features[:, :, 1:], old.features)))
  inside = old_positions < count
  return _Reading(
      lambda positions: probs(_of_rows(along, positions), positions, sampling), features, old,
      lambda corrected: predict(tokens, new_row, read(flat(corrected)), start),
      functools.partial(local.correct, params, config), logits,
      plain * inside / jnp.maximum(jnp.mean(inside), _TINY))


# The entries of each row at indices of its own; `_gather` those of each window of each row.
_of_rows = jax.vmap(lambda row, index: row[index])
_gather = jax.vmap(_of_rows)


def _reader(network: correctors.Network, params: Params, batch: CorrectorBatch, features: jax.Array,
            window_features: jax.Array,
            ) -> tuple[jax.Array, jax.Array, Callable[[jax.Array], jax.Array]]:
  """Applies the network to the images and the old windows, and prepares it for the new windows.

  Slots of its cache hold the image, then the old windows, then the new ones. Returns features
  `[S, B, T, F]` behind the images' tokens, features `[B, W, L, S, F]` behind the old nodes, and a
  function that reads the new windows: from input features `[B, W, L - 1, S, F]` of the first tokens
  behind the new roots to the features that the network predicts there.
  """
  images, count = batch.tokens.shape
  windows, length = batch.nodes.shape[1:]
  slots = count + windows * (2 * length - 1)
  condition = features.shape[2] - count + 1
  cache = network.prefill(params, batch.condition, features[:, :, :condition], slots)
  zero = jnp.zeros((images,), jnp.int32)
  outputs, cache = network.step(
      params, cache, batch.tokens, features[:, :, condition - 1:], zero, np.arange(count),
      np.tri(count, dtype=bool))
  start = batch.first + batch.accepted + 1

  def step(cache, first, tokens, inputs, before):
    """Reads windows of tokens `[B, W, n]` behind token `first`, with `before` slots in use."""
    size = tokens.shape[2]
    window = np.kron(np.eye(windows, dtype=bool), np.tri(size, dtype=bool))
    image = jnp.repeat(np.arange(before) <= first[..., None], size, axis=1)
    image = image & (np.arange(before) < count)
    depth = first[..., None] + 1 + jnp.arange(size)
    flat = inputs.reshape(images, -1, *inputs.shape[3:])
    predicted, cache = network.step(
        params, cache, tokens.reshape(images, -1), jnp.moveaxis(flat, 2, 0), zero,
        depth.reshape(images, -1),
        jnp.concatenate([image, jnp.broadcast_to(window, (images, *window.shape))], axis=2))
    return jnp.moveaxis(predicted, 0, 2).reshape(inputs.shape), cache

  old, cache = step(cache, batch.first, batch.nodes, window_features[:, :, :-1], count)
  positions = jnp.minimum(start[..., None] + 1 + jnp.arange(length - 1), count - 1)
  tokens = _of_rows(batch.tokens, positions)
  read = lambda inputs: step(cache, start, tokens, inputs, count + windows * length)[0]
  return outputs, old, read


def loss(params: Params, config: CorrectorConfig, train: CorrectorTrainConfig,
         target_params: Params, teacher: Teacher, batch: CorrectorBatch, sampling: SamplingParams
         ) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the loss: minus the mean accepted length plus the weighted divergences.

  The accepted length and the divergence of the windows are averages over the passes. The
  distributions have the batch's guidance scale and the other options of `sampling`, but no cuts,
  which have no gradients, and temperature 1 in place of 0. Arguments as for `agreement`.

  Returns the loss, and the metrics 'length' and 'divergence' of the last pass and 'plain'.
  """
  sampling = warp_lib.uncut(sampling._replace(guidance_scale=batch.guidance_scale))
  result = agreement(params, config, train, target_params, teacher, batch, sampling)
  total, plain = jnp.float32(0), jnp.mean(result.plain)
  for overlap, divergence in zip(result.overlap, result.divergence):
    lengths, reached = accepted_length(overlap, result.inside)
    reached = jax.lax.stop_gradient(reached)
    divergence = jnp.sum(divergence * reached) / jnp.maximum(jnp.sum(reached), 1)
    total += train.divergence_weight * divergence - jnp.mean(lengths)
  parts = {'length': jnp.mean(lengths), 'divergence': divergence, 'plain': plain}
  return total / train.passes + train.plain_weight * plain, parts


def accepted_length(overlap: jax.Array, inside: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Computes the mean accepted length `[B, W]` of chains of drafts.

  A draft that is reached is accepted with probability `overlap` `[B, W, L]`; `inside` `[B, W, L]`
  is whether its position is inside the image. Also returns the probability `[B, W, L]` that a draft
  is reached.
  """
  accepted = jnp.cumprod(overlap * inside, axis=-1)
  reached = jnp.concatenate(
      [jnp.ones_like(accepted[..., :1]), accepted[..., :-1]], axis=-1) * inside
  return jnp.sum(accepted, axis=-1), reached


def step(state: TrainState, batch: CorrectorBatch, target_params: Params, config: CorrectorConfig,
         train: CorrectorTrainConfig, teacher: Teacher, sampling: SamplingParams
         ) -> tuple[TrainState, dict[str, jax.Array]]:
  """Does one optimiser step; jit with the configurations and `teacher` static."""
  return optimizer_lib.step(state, lambda params: loss(
      params, config, train, target_params, teacher, batch, sampling), train.optimizer)


def measure(params: Params, target_params: Params, batch: CorrectorBatch, config: CorrectorConfig,
            train: CorrectorTrainConfig, teacher: Teacher, sampling: SamplingParams
            ) -> dict[str, jax.Array]:
  """Measures the last pass with the sampling options `sampling`; arguments as for `agreement`.

  Returns 'length', the mean accepted length of a chain; 'plain', see `Agreement`; 'overlap_1' and
  so on, the acceptance rate at a depth behind the root when it is reached.
  """
  result = agreement(params, config, train, target_params, teacher, batch, sampling)
  lengths, reached = accepted_length(result.overlap[-1], result.inside)
  rates = jnp.sum(result.overlap[-1] * reached, axis=(0, 1)) / jnp.maximum(
      jnp.sum(reached, axis=(0, 1)), _TINY)
  overlaps = {f'overlap_{depth}': rates[depth - 1] for depth in _DEPTHS if depth <= len(rates)}
  return {'length': jnp.mean(lengths), 'plain': jnp.mean(result.plain), **overlaps}


def plain_loss(params: Params, config: CorrectorConfig, target_params: Params, teacher: Teacher,
               tokens: jax.Array, condition: Any, sampling: SamplingParams
               ) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the KL divergence between the target's and the network's distributions.

  Images `[B, T]` and their condition are whole; for a local network the features of `along` are in
  the place of the condition. Both distributions have the options of `sampling`, as for `loss`.
  Returns the mean divergence in nats per token, and the metric 'overlap', the mean
  of `sum min(p, q)`.
  """
  sampling = warp_lib.uncut(sampling)
  if isinstance(config, local.LocalConfig):
    features = condition.astype(jnp.float32)
    # From number -1 on, with nothing before the image.
    reads = jnp.pad(local.read(params, config, features[:, :-1]),
                    ((0, 0), (config.row_width + 1, 0), (0, 0), (0, 0), (0, 0)))
    predicted = local.predict(params, config, tokens, reads, jnp.full(tokens.shape[:1], -1))
    target_logits, logits = (teacher.ends.logits(target_params, jnp.moveaxis(x, 2, 0))
                             for x in (features, predicted.features[:, 1:]))
  else:
    target_logits, features = drafter_lib.target_outputs(target_params, teacher, tokens, condition)
    streams = features.shape[0]
    logits, _ = eagle.predict(
        eagle.attach(target_params, params), config, teacher.ends,
        jnp.tile(tokens[:, :-1], (streams, 1)),
        features[:, :, :-1].reshape(-1, features.shape[2] - 1, features.shape[3]),
        eagle.prompt(config, condition))
    logits = logits.reshape(streams, -1, *logits.shape[1:])
  probs = teacher.probs(target_logits, sampling, jnp.arange(tokens.shape[1])[None])
  draft_probs = teacher.probs(logits, sampling, jnp.arange(1, tokens.shape[1])[None])
  overlap = jnp.sum(jnp.minimum(probs[:, 1:], draft_probs), axis=-1)
  return jnp.mean(kl_divergence(probs[:, 1:], draft_probs)), {'overlap': jnp.mean(overlap)}


def plain_step(state: TrainState, batch: tuple[jax.Array, Any], target_params: Params,
               config: CorrectorConfig, optimizer: OptimizerConfig, teacher: Teacher,
               sampling: SamplingParams) -> tuple[TrainState, dict[str, jax.Array]]:
  """Does one optimiser step on whole images, tokens and condition; jit as `step`."""
  return optimizer_lib.step(state, lambda params: plain_loss(
      params, config, target_params, teacher, *batch, sampling), optimizer)


def kl_divergence(p: jax.Array, q: jax.Array) -> jax.Array:
  """Computes the Kullback-Leibler divergence `KL(p || q)` `[...]` of distributions `[..., V]`."""
  ratio = jnp.log(jnp.maximum(p, _TINY)) - jnp.log(jnp.maximum(q, _TINY))
  return jnp.sum(p * ratio, axis=-1)


def check(recipe: CorrectorRecipe, model: Model) -> None:
  """Raises ValueError unless the corrector fits the model, whose parameters are in float32."""
  if isinstance(recipe.drafter, local.LocalConfig):
    samples.check_sizes(recipe.drafter, model, neighbours.shared(model) | dict(
        feature_dim=drafter_lib.feature_dim(recipe, model)))
  else:
    drafter_lib.check(recipe, model)
  if recipe.images is not None:  # Before anything is sampled.
    samples.stored(recipe.images, model, recipe.prompts, recipe.num_plain_images)
  decoder: Any = model.decoder(recipe.decoder)  # Of discrete tokens.
  tree = decoder.drafter.layout.tree
  if not tree.is_chain:
    raise ValueError(f'decoder is {recipe.decoder!r}; its drafts must be a chain; add '
                     'tree=chain().')


def recorded(recipe: CorrectorRecipe, model: Model, split: str, workdir: pathlib.Path
             ) -> tuple[Windows, np.ndarray]:
  """Returns the windows of a split and the index `[N]` of every image's prompt.

  They are recorded in `workdir` if they are absent; a file of another target or run, and more
  windows than the memory holds, raise ValueError.
  """
  name = f'num_{split}_images'
  count = getattr(recipe, name)
  prompts = samples.prompts_of(model, recipe.prompts)
  indices = np.arange(count) % len(prompts)
  key, sampling = jax.random.key(recipe.seed + (split != 'train')), samples.sampling(recipe, model)
  decoder: Any = model.decoder(recipe.decoder)
  # A recorder carries more from round to round, so the batch size is chosen for it.
  request = samples.request(model, prompts, count, sampling, seed=key, decoder=recipe.decoder,
                            batch_size=1)
  settings = run.settings(request)
  path = run_folder.Run(workdir / f'windows_{split}', settings).folder / 'windows.npz'
  if path.exists():
    arrays = npz.arrays(path, atomic.REMAKE, needed=Windows._fields)
    return Windows(*(arrays[name] for name in Windows._fields)), indices
  memory.check_host(name, count, _least_bytes(decoder, request), 'windows')
  needs = dataclasses.replace(request, sampler=dataclasses.replace(
      request.sampler, decoder=recording(decoder),
      names=(f'windows of {request.sampler.specification}',))).estimate()
  size = needs.most(min(_DECODE_BATCH, count))
  model.check_memory(recipe.decoder, needs, size)
  record = recorder(decoder)
  result = concatenate(list(batches.each(
      lambda index: record(*request.arguments(index)), count, size,
      lambda done, total: logging.info('windows of %s: %d of %d images', split, done, total))))
  atomic.write_arrays(path, result._asdict())
  return result, indices


def _least_bytes(decoder: Decoder, request: Request) -> float:
  """Returns the bytes of host memory that the windows of an image need at the least.

  That is if every round accepts all drafts. They are held twice while those of all images are
  joined.
  """
  watched = recording(decoder)
  state = jax.eval_shape(
      lambda params, condition, key, *rest: watched.start(
          params, condition, row_keys(key, 1), *rest),
      *request.arguments(np.zeros(1, int)))
  windows = [getattr(state.drafter, name) for name in Windows._fields[1:]]
  rounds = -(-(decoder.target.num_tokens - 1) // state.drafter.features.shape[1])
  return 2 * rounds * memory.size(windows)


def measured_by(recipe: CorrectorRecipe, model: Model) -> tuple[str, int]:
  """Returns the decoder that `learn` predicts the acceptance of, and the length of its chain."""
  recorder: Any = model.decoder(recipe.decoder)
  length = recorder.drafter.layout.tree.num_nodes
  return (f'corrected(corrector={recipe.role}, window={length + 1}, '
          f'iterations={recipe.train.passes}, tree=chain())'), length


def sample(recipe: CorrectorRecipe, model: Model, workdir: pathlib.Path) -> None:
  """Samples the images that `workdir` does not hold yet, and records their windows."""
  for split in ('train', 'held_out'):
    recorded(recipe, model, split, workdir)
  if recipe.plain and recipe.kind != 'local':
    _plain_images(recipe, model, workdir)


def _plain_images(recipe: CorrectorRecipe, model: Model, workdir: pathlib.Path
                  ) -> tuple[np.ndarray, np.ndarray]:
  """Returns the tokens `[N, T]` of whole images and the index `[N]` of every image's prompt."""
  if recipe.images is not None:
    return samples.stored(recipe.images, model, recipe.prompts, recipe.num_plain_images)
  return samples.sampled(
      model, recipe.prompts, recipe.num_plain_images, jax.random.key(recipe.seed + 2),
      samples.sampling(recipe, model), workdir / 'tokens')


def init(recipe: CorrectorRecipe, model: Model) -> Params:
  """Returns the initial parameters: those of the model's EAGLE network of the same name and shape.

  Further layers add 0 to the residual stream at first. A local network begins as `init_local`.
  """
  if isinstance(recipe.drafter, local.LocalConfig):
    near = model.drafts.get('neighbours')
    return init_local(recipe, near and matrices.plain(near.params))
  params = eagle.init(recipe.drafter, jax.random.key(recipe.seed))
  if 'eagle' not in model.drafts:
    return params
  pretrained = matrices.plain(model.drafts['eagle'].params)
  if recipe.drafter.own_embedding:  # The network's own table starts as the target's embedding.
    pretrained = {'token_embedding': drafter_lib.teacher(model).ends.embed(
        model.params, jnp.arange(recipe.drafter.vocab_size)), **pretrained}
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  for name, value in params.items():
    if name in pretrained and shapes(pretrained[name]) == shapes(value):
      # A training step donates the memory of its input.
      params[name] = jax.tree.map(jnp.copy, pretrained[name])
    elif name.startswith('layer_'):
      params[name] = value | {kernel: jnp.zeros_like(value[kernel]) for kernel in ('out', 'down')}
  return params


def init_local(recipe: CorrectorRecipe, near: Params | None) -> Params:
  """Returns the initial parameters of a local network.

  It begins with the embedding and the first layer of `near`, a neighbours network of the same
  tokens, as far as its own is as wide.
  """
  assert isinstance(recipe.drafter, local.LocalConfig)
  params = local.init(recipe.drafter, jax.random.key(recipe.seed))
  if near is not None:
    shared = lambda value, start: value.at[tuple(slice(size) for size in start.shape)].set(
        start[tuple(slice(size) for size in value.shape)])
    for name in ('embedding', 'hidden_0'):
      params[name] = jax.tree.map(shared, params[name], near[name])
  return params


class Lessons(NamedTuple):
  """What a network learns from.

  Attributes:
    target_params: the parameters of the target.
    teacher: its functions; a local network reads only its head and its grammar.
    sampling: sampling options of the distributions, without those that do nothing.
    windows: recorded windows by split, 'train' and 'held_out'.
    conditions: by split, the condition of every image.
    images: whole images to begin with, as tokens `[N, T]`, an array `[N, ...]` of labels, and the
      function from labels of a batch to its conditions; None begins with windows.
  """

  target_params: Params
  teacher: Teacher
  sampling: SamplingParams
  windows: Mapping[str, Windows]
  conditions: Mapping[str, Any]
  images: tuple[np.ndarray, np.ndarray, Callable[[Any], Any]] | None


def lessons(recipe: CorrectorRecipe, model: Model, workdir: pathlib.Path) -> Lessons:
  """Returns what the network of a recipe learns from; samples what `workdir` does not hold."""
  splits = {split: recorded(recipe, model, split, workdir) for split in ('train', 'held_out')}
  windows = {split: result for split, (result, _) in splits.items()}
  of_prompts = model.condition(samples.prompts_of(model, recipe.prompts))
  images = None
  if recipe.plain is not None and recipe.kind == 'local':
    images = of_windows(windows['train'])
  elif recipe.plain is not None:
    images = *_plain_images(recipe, model, workdir), functools.partial(batches.select, of_prompts)
  return Lessons(
      model.params, drafter_lib.teacher(model),
      model.engine.drop_inactive(samples.sampling(recipe, model)), windows,
      {split: batches.select(of_prompts, indices) for split, (_, indices) in splits.items()},
      images)


def of_windows(windows: Windows) -> tuple[np.ndarray, np.ndarray, Callable[[Any], Any]]:
  """Returns the images of windows as those of `Lessons`, with their features as conditions."""
  return windows.tokens, along(windows), lambda features: features


def train_plain(recipe: CorrectorRecipe, given: Lessons, params: Params, workdir: pathlib.Path
                ) -> Params:
  """Trains on whole images in `workdir` or continues; returns the average of the parameters."""
  optimizer = recipe.plain
  if optimizer is None or given.images is None:
    return params
  tokens, labels, of_labels = given.images

  def batch(index):
    images, chosen = loop.batch_of(tokens, labels, optimizer.seed, index, optimizer.batch_size)
    return images, of_labels(chosen)

  return drafter_lib.fit(
      given.target_params, optimizer_lib.start(params, optimizer),
      lambda state, batch, frozen: plain_step(
          state, batch, frozen, recipe.drafter, optimizer, given.teacher, given.sampling),
      batch, optimizer, recipe, workdir, 'plain').result


def train(recipe: CorrectorRecipe, model: Model, workdir: pathlib.Path
          ) -> tuple[Params, dict[str, float]]:
  """Trains the corrector in `workdir` or continues; samples and returns as `lessons` and `learn`.
  """
  return learn(recipe, lessons(recipe, model, workdir), init(recipe, model), workdir)


def learn(recipe: CorrectorRecipe, given: Lessons, params: Params, workdir: pathlib.Path
          ) -> tuple[Params, dict[str, float]]:
  """Trains a network in `workdir` or continues; `params` are the initial parameters.

  Returns the moving average of the parameters, and its held-out metrics; the names of those before
  the training begin with 'before_'.
  """
  config, train_config, teacher, sampling = (
      recipe.drafter, recipe.train, given.teacher, given.sampling)
  optimizer = train_config.optimizer
  is_local = isinstance(config, local.LocalConfig)
  features = {split: along(windows) if is_local else None
              for split, windows in given.windows.items()}
  batch = lambda split, index, **order: batch_of(
      given.windows[split], given.conditions[split], train_config, index, features=features[split],
      **order)
  evaluate = drafter_lib.evaluation(
      given.target_params, lambda params, frozen, batch: measure(
          params, frozen, batch, config, train_config, teacher, sampling),
      lambda: (batch('held_out', index, in_order=True)
               for index in range(recipe.num_held_out_images // optimizer.batch_size)))
  before = {f'before_{name}': value for name, value in evaluate(params).items()}
  params = train_plain(recipe, given, params, workdir)
  average = drafter_lib.fit(
      given.target_params, optimizer_lib.start(params, optimizer),
      lambda state, batch, frozen: step(
          state, batch, frozen, config, train_config, teacher, sampling),
      lambda index: batch('train', index), optimizer, recipe, workdir, 'corrector',
      lambda state: evaluate(state.result)).result
  return average, before | evaluate(average)


class _Recorded(NamedTuple):
  """A drafter's state and the last round; the fields are those of `Windows`, per round."""

  inner: Any
  first: jax.Array
  accepted: jax.Array
  nodes: jax.Array
  features: jax.Array


def recording(decoder: Decoder) -> Decoder:
  """Returns the decoder with a state that also holds the last round; it has a static tree."""
  drafter = decoder.drafter
  assert isinstance(drafter.tree, Tree), 'a static tree'
  slots = drafter.tree.main_length + 1

  def recorded(inner: Any, outcome: RoundResult) -> _Recorded:
    # The outcome of the prefill has one node.
    fill = lambda x: jnp.pad(
        x[:, :slots], ((0, 0), (0, max(slots - x.shape[1], 0))) + ((0, 0),) * (x.ndim - 2))
    return _Recorded(
        inner, outcome.root, outcome.accepted, fill(outcome.nodes)[:, 1:],
        fill(jnp.moveaxis(outcome.features, 0, 2)).astype(jnp.float16))

  def init(env, condition, rng, outcome):
    assert outcome.features is not None, 'what a corrector learns from'
    rng, inner = drafter.init(env, condition, rng, outcome)
    return rng, recorded(inner, outcome)

  def propose(env, state, rng, root, start):
    rng, inner, draft = drafter.propose(env, state.inner, rng, root, start)
    return rng, state._replace(inner=inner), draft

  def update(env, state, rng, outcome):
    rng, inner = drafter.update(env, state.inner, rng, outcome)
    return rng, recorded(inner, outcome)

  return dataclasses.replace(
      decoder, drafter=drafter._replace(init=init, propose=propose, update=update))


def recorder(decoder: Decoder) -> Callable[..., Windows]:
  """Returns a function of a decoder's arguments that decodes images and records all rounds."""
  recorded = recording(decoder)
  jit = functools.partial(programs.jit, short_sums=True)
  start, next_round = jit(recorded.start), jit(recorded.round, donate_argnums=1)

  def record(params, condition, key, sampling, draft_params):
    batch = jax.tree.leaves(condition)[0].shape[0]
    state, rounds = start(params, condition, row_keys(key, batch), sampling, draft_params), []
    while np.any(np.asarray(state.count) < decoder.target.num_tokens):
      state = next_round(params, state, sampling, draft_params)
      rounds.append([np.asarray(getattr(state.drafter, name)) for name in Windows._fields[1:]])
    return Windows(np.asarray(decoder.finish(state).tokens),
                   *(np.stack(part, axis=1) for part in zip(*rounds)))

  return record


def concatenate(windows: list[Windows]) -> Windows:
  """Concatenates recordings, padded by rounds with -1 accepted drafts, as of complete images."""
  most = max(part.first.shape[1] for part in windows)

  def padded(name: str, x: np.ndarray) -> np.ndarray:
    widths = ((0, 0), (0, most - x.shape[1])) + ((0, 0),) * (x.ndim - 2)
    return x if name == 'tokens' else np.pad(
        x, widths, constant_values=-1 if name == 'accepted' else 0)

  return Windows(*(np.concatenate([padded(name, getattr(part, name)) for part in windows])
                   for name in Windows._fields))
