"""Recipe of a drafter: images to train on, then training.

Every function with a folder continues the work that it holds and does nothing if that is complete.
`model` is the target with its tokenizer.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from cspd_jax.core import batches
from cspd_jax.files import npz
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Teacher
from cspd_jax.models import eagle, medusa
from cspd_jax.training import drafter as drafter_lib, loop, samples
from cspd_jax.training.drafter import DrafterTrainConfig

# Images per measured batch.
_MEASURE_BATCH = 16


@dataclasses.dataclass(frozen=True)
class DrafterRecipe(samples.Sampled):
  """Configuration of a drafter, its training data and its training.

  Attributes:
    drafter: configuration of the drafter; its class determines the kind.
    train: configuration of the training.
    data: 'generated' for images sampled from the target, the distribution that a drafter is used
      on; 'given' for those of the file `tokens`.
    tokens: .npz file for 'given': `tokens` `[N, T]`, and `labels` `[N]`, the index of every image's
      prompt, from 0. The last images are held out.
    num_train_images: images to train on.
    num_held_out_images: images to measure on.
    num_depths: depths to measure.
    log_every: steps between log lines.
    checkpoint_every: steps between checkpoints.
    evaluate_every: steps between held-out measurements.
  """

  drafter: eagle.EagleConfig | medusa.MedusaConfig
  train: DrafterTrainConfig
  data: Literal['generated', 'given'] = 'generated'
  tokens: str | None = None
  num_train_images: int = 4096
  num_held_out_images: int = 64
  num_depths: int = 4
  log_every: int = 50
  checkpoint_every: int = 250
  evaluate_every: int = 250

  def __post_init__(self):
    super().__post_init__()
    if (self.data == 'given') != (self.tokens is not None):
      raise ValueError(f"tokens is {self.tokens!r} with data {self.data!r}; provide a file for "
                       "'given' and None for 'generated'.")
    limit = getattr(self.drafter, 'num_tokens', None) or self.drafter.num_heads + 1
    if not 1 <= self.num_depths < limit:
      raise ValueError(
          f'num_depths is {self.num_depths}; with this drafter it must be 1 to {limit - 1}.')

  @property
  def kind(self) -> str:
    """Kind of the checkpoint, and its role in a model."""
    return 'medusa' if isinstance(self.drafter, medusa.MedusaConfig) else 'eagle'


def check(recipe: DrafterRecipe, model: Model) -> None:
  """Raises ValueError unless the drafter fits the model, whose parameters are in float32."""
  sizes: tuple[str, ...] = ('dim', 'vocab_size')
  if recipe.kind == 'eagle':
    sizes += ('family', 'num_tokens', 'row_width', 'num_outputs')
  check_fit(recipe.drafter, model, recipe.prompts, sizes)


def check_fit(drafter: Any, model: Model, prompts: str | None, names: Sequence[str]) -> None:
  """Raises ValueError unless a drafter can learn from a model and the fields `names` fit it."""
  eagle_layer = teacher(model).eagle_layer
  texts, target = samples.prompts_of(model, prompts), model.target(guided=False)
  sizes = {'dim': lambda: _width(model, texts, target),
           'family': lambda: eagle_layer,
           'vocab_size': lambda: getattr(model.config, 'vocab_size', target.vocab_size),
           'num_outputs': lambda: target.vocab_size}
  for name in names:
    expected = sizes[name]() if name in sizes else getattr(target, name)
    value = getattr(drafter, name)
    if value != expected:
      raise ValueError(
          f'drafter.{name} is {value!r}; for the target {model.name!r} it must be {expected!r}.')


def images(
    recipe: DrafterRecipe,
    model: Model,
    split: str,
    workdir: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the images of a split, 'train' or 'held_out'; generated ones are cached in `workdir`.

  Returns:
    Tokens `[N, T]` and the index `[N]` of every image's prompt in `samples.prompts_of`, int32; for
    classes the index is the label.

  Raises:
    ValueError: if the file `tokens` does not hold images of the model.
  """
  count = recipe.num_train_images if split == 'train' else recipe.num_held_out_images
  if recipe.data == 'given':
    tokens, labels = _read(recipe, model, len(samples.prompts_of(model, recipe.prompts)))
    part = slice(count) if split == 'train' else slice(len(tokens) - count, None)
    return tokens[part], labels[part]
  key = jax.random.fold_in(jax.random.key(recipe.seed), int(split != 'train'))
  return samples.sampled(model, recipe.prompts, count, key, samples.sampling(recipe, model),
                         workdir / f'tokens_{split}')


def sample(recipe: DrafterRecipe, model: Model, workdir: pathlib.Path) -> None:
  """Samples the images of all splits that `workdir` does not hold yet."""
  workdir.mkdir(parents=True, exist_ok=True)
  for split in ('train', 'held_out'):
    images(recipe, model, split, workdir)


def _read(recipe: DrafterRecipe, model: Model, num_prompts: int) -> tuple[np.ndarray, np.ndarray]:
  """Reads images and the indices of their prompts from a file; raises ValueError if they differ."""
  count = recipe.num_train_images + recipe.num_held_out_images
  arrays = npz.arrays(str(recipe.tokens), 'provide a file of images', 'tokens',
                          needed=('tokens', 'labels'))
  tokens, labels = arrays['tokens'], arrays['labels']
  target = model.target(guided=False)
  if (tokens.ndim != 2 or tokens.shape[1] != target.num_tokens or len(tokens) < count
      or labels.shape != tokens.shape[:1]
      or not all(np.issubdtype(part.dtype, np.integer) for part in (tokens, labels))
      or not 0 <= tokens.min() <= tokens.max() < target.vocab_size
      or not 0 <= labels.min() <= labels.max() < num_prompts):
    raise ValueError(
        f'tokens is {recipe.tokens!r}, with tokens {tokens.dtype}{list(tokens.shape)} and labels '
        f'{labels.dtype}{list(labels.shape)}; it must hold at least {count} images of '
        f'{target.num_tokens} integers below {target.vocab_size}, each with a label below '
        f'{num_prompts}, the number of prompts.')
  return tokens.astype(np.int32), labels.astype(np.int32)


def teacher(model: Model) -> Teacher:
  """Returns what a drafter of a model learns from; raises ValueError if its family supports none.
  """
  if model.teacher is None:
    raise ValueError(f'target is {model.name!r}, a {model.family!r} model, which does not support '
                     'drafters; use a model of discrete tokens.')
  return model.teacher


def _width(model: Model, prompts: Sequence[Any], target: Any) -> int:
  """Returns the width of the target's features."""
  condition = model.condition(prompts[:1])
  _, features, _ = jax.eval_shape(
      lambda *args: target.prefill(*args, target.num_tokens), model.params, condition)
  return features.shape[-1]


def train(
    recipe: DrafterRecipe,
    model: Model,
    workdir: pathlib.Path,
) -> tuple[Any, dict[str, float]]:
  """Trains the drafter in `workdir` or continues; returns the average parameters and their metrics.
  """
  workdir.mkdir(parents=True, exist_ok=True)
  tokens, labels = images(recipe, model, 'train', workdir)
  held_out = images(recipe, model, 'held_out', workdir)
  conditions = model.condition(samples.prompts_of(model, recipe.prompts))
  with_conditions = lambda batch: (batch[0], batches.select(conditions, batch[1]))
  config, train_config, target = recipe.drafter, recipe.train, teacher(model)
  optimizer = train_config.optimizer
  warp = model.engine.settled(samples.sampling(recipe, model))
  # The target is an argument: as a constant it would be compiled into the program.
  compiled_step = jax.jit(
      lambda state, batch, frozen: drafter_lib.step(
          state, batch, frozen, config, train_config, target), donate_argnums=0)
  compiled_measure = jax.jit(
      lambda params, frozen, batch: drafter_lib.measure(
          params, frozen, batch, config, target, warp, recipe.num_depths))

  def evaluate(state):
    parts = [
        compiled_measure(state.average, model.params,
                         with_conditions([part[i:i + _MEASURE_BATCH] for part in held_out]))
        for i in range(0, held_out[0].shape[0], _MEASURE_BATCH)]
    return loop.mean_metrics(parts)

  state = loop.run(
      drafter_lib.init(config, train_config, target.ends, model.params),
      lambda state, batch: compiled_step(state, with_conditions(batch), model.params),
      lambda index: loop.batch_of(tokens, labels, optimizer.seed, index, optimizer.batch_size),
      num_steps=optimizer.num_steps, batch_size=optimizer.batch_size, workdir=workdir,
      name=recipe.kind, log_every=recipe.log_every, checkpoint_every=recipe.checkpoint_every,
      evaluate=evaluate, evaluate_every=recipe.evaluate_every)
  return state.average, evaluate(state)
