"""Recipe of a drafter: images to train on, then training.

Every function with a folder continues the work that it holds and does nothing if that is complete.
`model` is the target with its tokenizer.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from cspd_jax.core import batches, programs
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Teacher
from cspd_jax.models import eagle, medusa
from cspd_jax.training import drafter as drafter_lib, loop, samples
from cspd_jax.training.optimizer import OptimizerConfig, TrainState

_MEASURE_BATCH = 16


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

  drafter: eagle.EagleConfig | medusa.MedusaConfig
  train: drafter_lib.DrafterTrainConfig
  images: str | None = None
  num_train_images: int = 4096
  num_held_out_images: int = 64
  num_depths: int = 4

  def __post_init__(self):
    super().__post_init__()
    limit = getattr(self.drafter, 'num_tokens', None) or self.drafter.num_heads + 1
    if not 1 <= self.num_depths < limit:
      raise ValueError(
          f'num_depths is {self.num_depths}; with this drafter it must be 1 to {limit - 1}.')
    samples.check_batch_size('train.optimizer', self.train.optimizer, self.num_train_images)

  @property
  def kind(self) -> str:
    """The kind of the checkpoint, and its role in a model."""
    return 'medusa' if isinstance(self.drafter, medusa.MedusaConfig) else 'eagle'


def check(recipe: Any, model: Model) -> None:
  """Raises ValueError unless the drafter fits the model, whose parameters are in float32."""
  eagle_layer, target = teacher(model).eagle_layer, model.target(guided=False)
  condition = model.condition(samples.prompts_of(model, recipe.prompts)[:1])
  _, features, _ = jax.eval_shape(
      lambda *args: target.prefill(*args, target.num_tokens), model.params, condition)
  sizes = dict(dim=features.shape[-1], vocab_size=target.vocab_size)
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


def sample(recipe: DrafterRecipe, model: Model, workdir: pathlib.Path) -> None:
  """Samples the images of all splits that `workdir` does not hold yet."""
  for split in ('train', 'held_out'):
    images(recipe, model, split, workdir)


def teacher(model: Model) -> Teacher:
  """Returns what drafters of a model learn from; raises ValueError if its family has none."""
  if model.teacher is None:
    raise ValueError(f'target is {model.name!r}, a {model.family!r} model, which does not support '
                     'drafters; use a model of discrete tokens.')
  return model.teacher


def fit(model: Model, state: TrainState, step: Callable, batch_of: Callable[[int], Any],
        optimizer: OptimizerConfig, *arguments: Any) -> TrainState:
  """Runs `loop.run` with a `step` of the state, the batch and the target's parameters."""
  # The target is an argument: as a constant it would be compiled into the program.
  compiled = programs.jit(step, donate_argnums=0)
  return loop.run(state, lambda state, batch: compiled(state, batch, model.params), batch_of,
                  optimizer, *arguments)


def evaluation(model: Model, measure: Callable, batches: Callable[[], Iterable[Any]]
               ) -> Callable[[Any], dict[str, float]]:
  """Returns the mean over batches of `measure(params, the target's, batch)`, by params."""
  compiled = programs.jit(measure)
  return lambda params: loop.mean_metrics(*zip(*(
      (compiled(params, model.params, batch), len(batch[0])) for batch in batches())))


def train(recipe: DrafterRecipe, model: Model, workdir: pathlib.Path
          ) -> tuple[Any, dict[str, float]]:
  """Trains the drafter in `workdir` or continues; returns average parameters and their metrics."""
  tokens, labels = images(recipe, model, 'train', workdir)
  held_out = images(recipe, model, 'held_out', workdir)
  conditions = model.condition(samples.prompts_of(model, recipe.prompts))
  with_conditions = lambda batch: (batch[0], batches.select(conditions, batch[1]))
  config, train_config, target = recipe.drafter, recipe.train, teacher(model)
  optimizer = train_config.optimizer
  sampling = model.engine.drop_inactive(samples.sampling(recipe, model))
  evaluate = evaluation(
      model, lambda params, frozen, batch: drafter_lib.measure(
          params, frozen, batch, config, target, sampling, recipe.num_depths),
      lambda: (with_conditions([part[i:i + _MEASURE_BATCH] for part in held_out])
               for i in range(0, len(held_out[0]), _MEASURE_BATCH)))
  average = fit(
      model, drafter_lib.init(config, train_config, target.ends, model.params),
      lambda state, batch, frozen: drafter_lib.step(
          state, batch, frozen, config, train_config, target),
      lambda index: with_conditions(
          loop.batch_of(tokens, labels, optimizer.seed, index, optimizer.batch_size)),
      optimizer, recipe, workdir, recipe.kind, lambda state: evaluate(state.result)).result
  return average, evaluate(average)
