"""Training of drafters that read a target's features: EAGLE (arXiv:2401.15077) and Medusa heads
(arXiv:2401.10774).

The target is frozen and its features are computed in the step. With features `f_0, f_1, ...`, where
`f_k` predicts image token `x_k`, EAGLE reads `(x_k, f_k)` and predicts `f_{k+1}`, and Medusa's head
`h` reads `f_k` and predicts `x_{k+1+h}`, both starting at the first token. For some images the
features are the null condition's, because a guided decoder drafts for both streams. The
result of the training is the moving average of the parameters.

`images` and `train` continue the work in their folder and do nothing if that is complete;
`model` is the target with its tokenizer.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cspd_jax.core import batches, fields, programs
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Teacher
from cspd_jax.models import eagle, medusa
from cspd_jax.models.conditions import Prompt
from cspd_jax.models.ends import Ends
from cspd_jax.training import loop, optimizer as optimizer_lib, samples
from cspd_jax.training.optimizer import OptimizerConfig, TrainState

Params = Any
DrafterConfig = eagle.EagleConfig | medusa.MedusaConfig
_MEASURE_BATCH = 16


@dataclasses.dataclass(frozen=True)
class DrafterTrainConfig:
  """Configuration of a drafter's training.

  Attributes:
    drop_rate: probability that an image's features are the null condition's.
    distribution_weight: EAGLE: weight of the cross-entropy of the distributions, relative to the
      regression of the features.
    noise: EAGLE: half the width of the uniform noise on the input features, which simulates the
      errors of predicted features.
    head_decay: Medusa: weight of a head relative to the head before.
    labels: Medusa: 'probs' for the target's distributions along the images, 'tokens' for their
      tokens.
  """

  optimizer: OptimizerConfig = OptimizerConfig()
  drop_rate: float = 0.1
  distribution_weight: float = 0.1
  noise: float = 0.1
  head_decay: float = 0.8
  labels: Literal['probs', 'tokens'] = 'probs'

  def __post_init__(self):
    fields.check(
        self, drop_rate=fields.SHARES, distribution_weight=fields.NOT_NEGATIVE,
        noise=fields.NOT_NEGATIVE, head_decay=fields.NOT_NEGATIVE)


@dataclasses.dataclass(frozen=True)
class DrafterRecipe(samples.Sampled, loop.Intervals):
  """Configuration of a drafter, its training data and its training.

  Attributes:
    drafter: its class determines the kind.
    images: file of images to train on, see `samples.stored`; None samples them from the target.
    num_train_images: images to train on, the first ones of the file.
    num_held_out_images: images to measure on.
    num_depths: depths to measure.
  """

  drafter: DrafterConfig
  train: DrafterTrainConfig
  images: str | None = None
  num_train_images: int = 4096
  num_held_out_images: int = 64
  num_depths: int = 4

  def __post_init__(self):
    super().__post_init__()
    limit = getattr(self.drafter, 'num_tokens', None) or self.drafter.num_heads + 1
    fields.require(1 <= self.num_depths < limit, 'num_depths', self.num_depths,
                   f'1 to {limit - 1} with this drafter')
    samples.check_batch_size('train.optimizer', self.train.optimizer, self.num_train_images)

  @property
  def kind(self) -> str:
    """The kind of the checkpoint, and its role in a model."""
    return 'medusa' if isinstance(self.drafter, medusa.MedusaConfig) else 'eagle'


def init(config: DrafterConfig, train: DrafterTrainConfig, ends: Ends, target_params: Params,
         ) -> TrainState:
  """Returns the state before the first step; `ends` are the target's embedding and head."""
  if isinstance(config, medusa.MedusaConfig):
    params = medusa.from_target(ends, target_params, config)
  else:
    params = eagle.init(config, jax.random.key(train.optimizer.seed))
    # Features are around 1 and embeddings far smaller; scale them to the same influence.
    embedding = eagle.embed(
        eagle.attach(target_params, params), config, ends, jnp.arange(config.vocab_size))
    kernel = params['fc']['kernel']
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(embedding)))
    params['fc']['kernel'] = kernel.at[:config.dim].multiply(scale)
  return optimizer_lib.start(params, train.optimizer)


def eagle_loss(params: Params, config: eagle.EagleConfig, train: DrafterTrainConfig, ends: Ends,
               target_params: Params, tokens: jax.Array, features: jax.Array, probs: jax.Array,
               key: jax.Array, prompt: Any = None) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes smooth L1 of the next features and cross-entropy with the target's distributions.

  `params` are the drafter's alone; `ends` are the embedding and head of the frozen target.
  Images are tokens `[B, T]`, features `[B, C + T - 1, F]` of the target, the condition's
  first, and its probabilities `[B, T, V]` for tokens `0 .. T - 1`; `key` draws the noise, and
  the prompt belongs to these features. Returns the loss and its parts, 'regression' and
  'cross_entropy' in nats per token.
  """
  noise = jax.random.uniform(key, features.shape, minval=-train.noise, maxval=train.noise)
  logits, predicted = eagle.predict(
      eagle.attach(target_params, params), config, ends, tokens[:, :-1],
      (features + noise)[:, :-1], prompt)
  labels = features[:, features.shape[1] - predicted.shape[1]:]
  regression = jnp.mean(optax.huber_loss(predicted, labels))
  cross_entropy = jnp.mean(optax.softmax_cross_entropy(logits, probs[:, 1:]))
  parts = {'regression': regression, 'cross_entropy': cross_entropy}
  return regression + train.distribution_weight * cross_entropy, parts


def medusa_loss(params: Params, config: medusa.MedusaConfig, train: DrafterTrainConfig,
                tokens: jax.Array, features: jax.Array, probs: jax.Array
                ) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the weighted cross-entropy of all heads; arguments as for `eagle_loss`.

  Its metrics are 'cross_entropy' and 'cross_entropy_last' of the first and the last head, in nats
  per token.
  """
  labels = probs if train.labels == 'probs' else jax.nn.one_hot(tokens, config.vocab_size)
  logits = medusa.heads(params, features[:, -tokens.shape[1]:])
  entropies = [
      jnp.mean(optax.softmax_cross_entropy(logits[:, :-1 - h, h], labels[:, 1 + h:]))
      for h in range(config.num_heads)]
  total = sum(train.head_decay**h * entropy for h, entropy in enumerate(entropies))
  return total, {'cross_entropy': entropies[0], 'cross_entropy_last': entropies[-1]}


def step(state: TrainState, batch: tuple[jax.Array, Any], target_params: Params,
         config: DrafterConfig, train: DrafterTrainConfig, teacher: Teacher
         ) -> tuple[TrainState, dict[str, jax.Array]]:
  """Does one optimiser step; jit with the configurations and `teacher` static.

  `batch` is tokens `[B, T]` int32 and the condition of every image. Returns as `optimizer.step`.
  """
  tokens, condition = batch
  drop_key, noise_key = jax.random.split(
      jax.random.fold_in(jax.random.key(train.optimizer.seed + 1), state.step))
  drop = jax.random.bernoulli(drop_key, train.drop_rate, tokens.shape[:1])
  logits, features = teacher.forward(target_params, condition, tokens, drop)
  probs = jax.nn.softmax(logits)

  def loss(params):
    if isinstance(config, medusa.MedusaConfig):
      return medusa_loss(params, config, train, tokens, features, probs)
    return eagle_loss(params, config, train, teacher.ends, target_params, tokens, features, probs,
                      noise_key, eagle.prompt(config, condition, drop))

  return optimizer_lib.step(state, loss, train.optimizer)


def measure(params: Params, target_params: Params, batch: tuple[jax.Array, Any],
            config: DrafterConfig, teacher: Teacher, sampling: SamplingParams, num_depths: int,
            stride: int = 7) -> dict[str, jax.Array]:
  """Measures by depth how well a drafter's distributions agree with the target's along images.

  Depth 1 is the token after the last committed one. EAGLE's deeper distributions continue with
  predicted features and the image's own tokens, as if all drafts before had been accepted; a chain
  of drafts starts every `stride` tokens. The arguments of `step`, the parameters of the drafter
  alone, the sampling options of both distributions, and the depths to measure, at most the number
  of heads.

  Returns for every depth `d`: 'top1_d' and 'top3_d', the rates at which the image's token is the
  drafter's most probable one or among its three most probable ones, and 'overlap_d', the mean of
  `sum min(p, q)`: the acceptance rate of a draft.
  """
  tokens, condition = batch
  logits, features = target_outputs(target_params, teacher, tokens, condition)
  probs = teacher.probs(logits, sampling, jnp.arange(tokens.shape[1])[None])
  if isinstance(config, medusa.MedusaConfig):
    drafts = medusa.heads(params, features[:, :, -tokens.shape[1]:])
    positions = [jnp.arange(tokens.shape[1] - 1 - h) for h in range(num_depths)]
    drafts = [drafts[:, :, where, h] for h, where in enumerate(positions)]
  else:
    starts = jnp.arange(0, tokens.shape[1] - num_depths, stride)
    positions = [starts] * num_depths
    drafts = _eagle_drafts(
        eagle.attach(target_params, params), config, teacher.ends, batch, features, starts,
        num_depths)
  metrics: dict[str, jax.Array] = {}
  for depth, (where, draft_logits) in enumerate(zip(positions, drafts), start=1):
    distribution, ranked = (  # Tokens that are cut tie.
        teacher.probs(draft_logits, options, (where + depth)[None])
        for options in (sampling, warp_lib.guidance_only(sampling)))
    rank = jnp.sum(ranked > jnp.take_along_axis(
        ranked, tokens[:, where + depth, None], axis=-1), axis=-1)
    metrics |= {
        f'top1_{depth}': jnp.mean(rank < 1), f'top3_{depth}': jnp.mean(rank < 3),
        f'overlap_{depth}': jnp.mean(
            jnp.sum(jnp.minimum(distribution, probs[:, where + depth]), axis=-1))}
  return metrics


def target_outputs(target_params: Params, teacher: Teacher, tokens: jax.Array, condition: Any
                   ) -> tuple[jax.Array, jax.Array]:
  """Returns the target's logits `[S, B, T, V]` and features `[S, B, C + T - 1, F]`."""
  # Prompts of a model without a null condition have one stream.
  drops = (False,) if isinstance(condition, Prompt) and condition.tokens.shape[1] == 1 else (
      False, True)
  both = [teacher.forward(target_params, condition, tokens, jnp.full(tokens.shape[:1], drop))
          for drop in drops]
  return jax.tree.map(lambda *parts: jnp.stack(parts), *both)


def _eagle_drafts(
    params: Params, config: eagle.EagleConfig, ends: Ends, images: tuple[jax.Array, Any],
    features: jax.Array, starts: jax.Array, num_depths: int) -> list[jax.Array]:
  """Returns the logits `[S, B, len(starts), V]` of every depth, drafting after tokens `starts`."""
  tokens, condition = images
  network, (batch, length) = eagle.network(config, ends), tokens.shape
  count = features.shape[2] - length + 1
  cache = network.prefill(params, condition, features[:, :, :count], length + num_depths)
  inputs = features[:, :, count - 1:]
  _, cache = network.step(params, cache, tokens, inputs, jnp.zeros(batch, jnp.int32),
                          np.arange(length), np.tri(length, dtype=bool))

  def draft(start):
    roots, logits = jnp.full((batch,), start), []
    feature = jax.lax.dynamic_slice_in_dim(inputs, start, 1, axis=2)
    chain_cache = cache
    for depth in range(num_depths):
      token = jax.lax.dynamic_slice_in_dim(tokens, start + depth, 1, axis=1)
      feature, chain_cache = network.step(
          params, chain_cache, token, feature, roots, np.array([depth]),
          np.ones((1, depth + 1), bool))
      logits.append(network.logits(params, feature)[:, :, 0])
    return logits

  return [jnp.moveaxis(logits, 0, 2) for logits in jax.lax.map(draft, starts)]


def feature_dim(recipe: samples.Sampled, model: Model) -> int:
  """Returns the width of the features of a model that teaches; ValueError if its family does not.
  """
  teacher(model)
  target = model.target(guided=False)
  condition = model.condition(samples.prompts_of(model, recipe.prompts)[:1])
  _, features, _ = jax.eval_shape(
      lambda *args: target.prefill(*args, target.num_tokens), model.params, condition)
  return features.shape[-1]


def check(recipe: Any, model: Model) -> None:
  """Raises ValueError unless the drafter fits the model, whose parameters are in float32."""
  eagle_layer, target = teacher(model).eagle_layer, model.target(guided=False)
  sizes = dict(dim=feature_dim(recipe, model), vocab_size=target.vocab_size)
  if isinstance(recipe.drafter, eagle.EagleConfig):
    sizes |= dict(vocab_size=getattr(model.config, 'vocab_size', target.vocab_size),
                  family=eagle_layer, num_tokens=target.num_tokens, row_width=target.row_width,
                  num_outputs=target.vocab_size)
  samples.check_sizes(recipe.drafter, model, sizes)
  if isinstance(recipe.drafter, medusa.MedusaConfig):
    jax.eval_shape(functools.partial(
        medusa.from_target, teacher(model).ends, config=recipe.drafter), model.params)


def images(recipe: DrafterRecipe, model: Model, split: str, workdir: pathlib.Path
           ) -> tuple[np.ndarray, np.ndarray]:
  """Returns the images of a split, 'train' or 'held_out', as `samples.sampled` does."""
  count = recipe.num_train_images if split == 'train' else recipe.num_held_out_images
  if split == 'train' and recipe.images is not None:
    return samples.stored(recipe.images, model, recipe.prompts, count)
  key = jax.random.fold_in(jax.random.key(recipe.seed), int(split != 'train'))
  return samples.sampled(model, recipe.prompts, count, key, samples.sampling(recipe, model),
                         workdir / f'tokens_{split}')


def measured_by(recipe: DrafterRecipe, model: Model) -> tuple[str, int]:
  """Returns the decoder that `train` predicts the acceptance of, and the length of its chain."""
  length = recipe.num_depths
  return (f'medusa(length={length})' if recipe.kind == 'medusa' else
          f'eagle(tree=chain({length}))'), length


def sample(recipe: DrafterRecipe, model: Model, workdir: pathlib.Path) -> None:
  """Samples the images of all splits that are not in `workdir` yet."""
  for split in ('train', 'held_out'):
    images(recipe, model, split, workdir)


def teacher(model: Model) -> Teacher:
  """Returns what drafters of a model learn from; raises ValueError if its family has none."""
  if model.teacher is None:
    raise ValueError(
        f'target is {model.name!r}, a {model.family!r} model, and this family has no teacher, from '
        'which drafters learn; ' + (
            'give its Model a families.Teacher.' if model.table.tokens == 'discrete' else
            'use a model of discrete tokens.'))
  return model.teacher


def fit(target_params: Params, state: TrainState, step: Callable, batch_of: Callable[[int], Any],
        optimizer: OptimizerConfig, *arguments: Any) -> TrainState:
  """Runs `loop.run` with a `step` of the state, the batch and the target's parameters."""
  # The target is an argument: as a constant it would be compiled into the program.
  compiled = programs.jit(step, donate_argnums=0)
  return loop.run(state, lambda state, batch: compiled(state, batch, target_params), batch_of,
                  optimizer, *arguments)


def evaluation(target_params: Params, measure: Callable, batches: Callable[[], Iterable[Any]]
               ) -> Callable[[Any], dict[str, float]]:
  """Returns the mean over batches of `measure(params, the target's, batch)`, by params."""
  compiled = programs.jit(measure)
  return lambda params: loop.mean_metrics(*zip(*(
      (compiled(params, target_params, batch), len(batch[0])) for batch in batches())))


def train(recipe: DrafterRecipe, model: Model, workdir: pathlib.Path
          ) -> tuple[Any, dict[str, float]]:
  """Trains the drafter in `workdir` or continues; returns average parameters and their metrics."""
  tokens, labels = images(recipe, model, 'train', workdir)
  held_out = images(recipe, model, 'held_out', workdir)
  conditions = model.condition(samples.prompts_of(model, recipe.prompts))
  with_conditions = lambda batch: (batch[0], batches.select(conditions, batch[1]))
  config, train_config, target = recipe.drafter, recipe.train, teacher(model)
  optimizer = train_config.optimizer
  sampling = warp_lib.drop_inactive(samples.sampling(recipe, model))
  evaluate = evaluation(
      model.params, lambda params, frozen, batch: measure(
          params, frozen, batch, config, target, sampling, recipe.num_depths),
      lambda: (with_conditions([part[i:i + _MEASURE_BATCH] for part in held_out])
               for i in range(0, len(held_out[0]), _MEASURE_BATCH)))
  average = fit(
      model.params, init(config, train_config, target.ends, model.params),
      lambda state, batch, frozen: step(
          state, batch, frozen, config, train_config, target),
      lambda index: with_conditions(
          loop.batch_of(tokens, labels, optimizer.seed, index, optimizer.batch_size)),
      optimizer, recipe, workdir, recipe.kind, lambda state: evaluate(state.result)).result
  return average, evaluate(average)
