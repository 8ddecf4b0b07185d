"""Training of a network for corrected windows: an EAGLE network, or one that reads what is near.

It begins on whole images with the target's guided distributions, because a step without windows is
cheap, and goes on with windows recorded while decoding (`windows`, `corrector_loss`). All that a
local network (`models.local`) reads of its images was recorded along with their windows, so that
the target is not run at all.

`train` continues the run in its folder and does nothing if that run is complete. `model` is
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

from cspd_jax.core import batches, matrices
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp
from cspd_jax.decoding.loop import Decoder
from cspd_jax.files import atomic, npz, run_folder
from cspd_jax.generation import memory, stored_run
from cspd_jax.generation.images import Images
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Teacher
from cspd_jax.models import eagle, local
from cspd_jax.training import (
  drafter as drafter_lib,
  loop,
  neighbours,
  optimizer as optimizer_lib,
  samples,
)
from cspd_jax.training.corrector_loss import (
  CorrectorConfig,
  CorrectorTrainConfig,
  batch_of,
  loss,
  measure,
  plain_loss,
)
from cspd_jax.training.optimizer import OptimizerConfig
from cspd_jax.training.windows import Windows, along, concatenate, recorder, recording

Params = Any
_DECODE_BATCH = 64
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
    plain: configuration of the optimiser on whole images, for a local network on the images of the
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
  images = samples.images(model, prompts, count, sampling, seed=key, decoder=recipe.decoder,
                          batch_size=1)
  settings = stored_run.settings(images)
  path = run_folder.Run(workdir / f'windows_{split}', settings).folder / 'windows.npz'
  if path.exists():
    arrays = npz.arrays(path, atomic.REMAKE, needed=Windows._fields)
    return Windows(*(arrays[name] for name in Windows._fields)), indices
  memory.check_host(name, count, _least_bytes(decoder, images), 'windows')
  sampler = images.sampler
  needs = dataclasses.replace(
      sampler, decoder=recording(decoder),
      names=(f'windows of {sampler.specification}',)).estimate(images)
  size = needs.most(min(_DECODE_BATCH, count))
  memory.check(model, recipe.decoder, needs, size)
  record = recorder(decoder)
  result = concatenate(list(batches.each(
      lambda index: record(*sampler.arguments(images, index)), count, size,
      lambda done, total: logging.info('windows of %s: %d of %d images', split, done, total))))
  atomic.write_arrays(path, result._asdict())
  return result, indices


def _least_bytes(decoder: Decoder, images: Images) -> float:
  """Returns the bytes of host memory that the windows of an image need at the least.

  That is if every round accepts all drafts. They are held twice while those of all images are
  joined.
  """
  watched = recording(decoder)
  state = jax.eval_shape(
      lambda params, condition, key, *rest: watched.start(
          params, condition, row_keys(key, 1), *rest),
      *images.sampler.arguments(images, np.zeros(1, int)))
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
  """Samples the images that are not in `workdir` yet, and records their windows."""
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
  """Returns the initial parameters: the model's EAGLE network's of the same name and shape.

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
  """Returns what the network of a recipe learns from; samples what is not in `workdir`."""
  splits = {split: recorded(recipe, model, split, workdir) for split in ('train', 'held_out')}
  windows = {split: result for split, (result, _) in splits.items()}
  of_prompts = model.condition(samples.prompts_of(model, recipe.prompts))
  images = None
  if recipe.plain is not None and recipe.kind == 'local':
    images = window_images(windows['train'])
  elif recipe.plain is not None:
    images = *_plain_images(recipe, model, workdir), functools.partial(batches.select, of_prompts)
  return Lessons(
      model.params, drafter_lib.teacher(model),
      warp.drop_inactive(samples.sampling(recipe, model)), windows,
      {split: batches.select(of_prompts, indices) for split, (_, indices) in splits.items()},
      images)


def window_images(windows: Windows) -> tuple[np.ndarray, np.ndarray, Callable[[Any], Any]]:
  """Returns the images of windows, for `Lessons`, with their features as conditions."""
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

  def step(state, batch, frozen):
    images, condition = batch
    return optimizer_lib.step(state, lambda params: plain_loss(
        params, recipe.drafter, frozen, given.teacher, images, condition, given.sampling),
                              optimizer)

  return drafter_lib.fit(given.target_params, optimizer_lib.start(params, optimizer), step, batch,
                         optimizer, recipe, workdir, 'plain').result


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
      lambda state, batch, frozen: optimizer_lib.step(
          state, lambda params: loss(
              params, config, train_config, frozen, teacher, batch, sampling), optimizer),
      lambda index: batch('train', index), optimizer, recipe, workdir, 'corrector',
      lambda state: evaluate(state.result)).result
  return average, before | evaluate(average)
