"""What a network for corrected windows learns: agreement with the target in recorded windows.

A batch has windows that a corrected decoder scored, see `windows.Windows`: the old main chain with
the target's stale features, and the image's final tokens as the new context. The network reads the
old window once, and the new window in a few passes, each with the corrected features of the pass
before, as `drafters.from_network` does. A draft that is reached is accepted with probability
`a = sum_x min(p(x), q(x))`, so the mean accepted length of a chain is `a_1 + a_1 a_2 + ...`: the
objective. `plain_loss` is the cheaper one of whole images.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.drafters import correctors
from cspd_jax.generation.parts import Teacher
from cspd_jax.models import eagle, local
from cspd_jax.training import drafter as drafter_lib
from cspd_jax.training.optimizer import OptimizerConfig
from cspd_jax.training.windows import Windows

Params = Any
CorrectorConfig = eagle.EagleConfig | local.LocalConfig
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


class CorrectorBatch(NamedTuple):
  """A batch of images with `W` windows each: tokens `[B, T]`, condition and guidance scale `[]`.

  `first` `[B, W]`, `accepted` `[B, W]`, `nodes` `[B, W, L]` and `features` `[B, W, L + 1, S, F]`
  are of `Windows`; `along` is None, or for a local network the features of `windows.along`.
  """

  tokens: jax.Array
  condition: Any
  first: jax.Array
  accepted: jax.Array
  nodes: jax.Array
  features: jax.Array
  guidance_scale: jax.Array
  along: jax.Array | None = None


def batch_of(windows: Windows, conditions: Any, train: CorrectorTrainConfig, index: int,
             in_order: bool = False, features: np.ndarray | None = None) -> CorrectorBatch:
  """Returns the batch of step `index`, of images drawn at random or `in_order`.

  `conditions` has one row per image, and so has `features`, the result of `windows.along`.
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
    divergence: per pass, `[B, W, L]` KL divergence from the target's distributions to them.
    inside: `[B, W, L]` bool, whether the position is inside the image.
    plain: `[B, T - 1]` KL divergence from the target's distributions to the network's on the whole
      image, both without cuts; for a local network `[B, W, L]` on the old window.
  """

  overlap: list[jax.Array]
  divergence: list[jax.Array]
  inside: jax.Array
  plain: jax.Array


def agreement(params: Params, config: CorrectorConfig, train: CorrectorTrainConfig,
              target_params: Params, teacher: Teacher, batch: CorrectorBatch,
              sampling: SamplingParams) -> Agreement:
  """Compares the corrected distributions of every pass with the target's, with the same options.

  `params` are the network's, without the frozen target's; `teacher` has the target's functions.
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
      lambda x: _window_entries(x, jnp.minimum(entries - 1, length - 1)), reading.old)
  stale = _window_entries(reading.stale, jnp.minimum(entries, length))
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
    correct: maps `(new, old, stale, has_stale [B, W, L])` to corrected features.
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
      teacher.probs(x, warp_lib.without_cuts(sampling), jnp.arange(1, count)[None])
      for x in (logits[:, :, 1:], network.logits(params, outputs[:, :, :-1]))))
  start = batch.first + batch.accepted + 1
  root = _entries(jnp.moveaxis(outputs, 0, 2), jnp.minimum(start, count - 1))
  return _Reading(
      lambda positions: _entries(probs, positions), stale, old,
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
    return read(flat(_entries(along, jnp.clip(at, 0, count - 1))))

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
  plain = kl_divergence(*(probs(x, old_positions, warp_lib.without_cuts(sampling))
                          for x in (features[:, :, 1:], old.features)))
  inside = old_positions < count
  return _Reading(
      lambda positions: probs(_entries(along, positions), positions, sampling), features, old,
      lambda corrected: predict(tokens, new_row, read(flat(corrected)), start),
      functools.partial(local.correct, params, config), logits,
      plain * inside / jnp.maximum(jnp.mean(inside), _TINY))


# Entries of each row at its own indices; `_window_entries` of each window of each row.
_entries = jax.vmap(lambda row, index: row[index])
_window_entries = jax.vmap(_entries)


def _reader(network: correctors.Network, params: Params, batch: CorrectorBatch, features: jax.Array,
            window_features: jax.Array,
            ) -> tuple[jax.Array, jax.Array, Callable[[jax.Array], jax.Array]]:
  """Applies the network to the images and the old windows, and prepares it for the new windows.

  Slots of its cache are for the image, then the old windows, then the new ones. Returns features
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
  tokens = _entries(batch.tokens, positions)
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
  sampling = warp_lib.without_cuts(sampling._replace(guidance_scale=batch.guidance_scale))
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

  Images `[B, T]` are whole; the condition of a local network is the features of `windows.along`.
  Both distributions have the options of `sampling`, as in `loss`. Returns the mean divergence in
  nats per token, and the metric 'overlap', the mean of `sum min(p, q)`.
  """
  sampling = warp_lib.without_cuts(sampling)
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


def kl_divergence(p: jax.Array, q: jax.Array) -> jax.Array:
  """Computes the Kullback-Leibler divergence `KL(p || q)` `[...]` of distributions `[..., V]`."""
  ratio = jnp.log(jnp.maximum(p, _TINY)) - jnp.log(jnp.maximum(q, _TINY))
  return jnp.sum(p * ratio, axis=-1)
