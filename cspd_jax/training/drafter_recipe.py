"""How the shipped drafters are made: images to learn from, then training.

Every function that has a folder continues what it already holds and does nothing if it is
complete. `model` is the `generation.Model` that the drafter is for.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from cspd_jax.checkpoints import reading
from cspd_jax.core import fields
from cspd_jax.decoding.warp import Warp
from cspd_jax.models import eagle, medusa
from cspd_jax.training import drafter as drafter_lib, loop, samples
from cspd_jax.training.drafter import DrafterTrainConfig, Teacher

# Images that are measured at once.
_MEASURE_BATCH = 16


@dataclasses.dataclass(frozen=True)
class DrafterRecipe:
  """Everything that determines a shipped drafter.

  Attributes:
    drafter: sizes of the drafter; its class says which drafter it is.
    train: its optimisation.
    target: the model that it drafts for: a shipped name or a folder.
    data: 'generated', images sampled from the target, which is what a drafter meets; or 'given',
      those of the file `tokens`.
    prompts: file with a prompt per line for the sampled or given images; None takes the prompts
      that the target has itself.
    tokens: file of given images, .npz: `tokens` `[N, T]`, and `labels` `[N]`, the number of every
      image's prompt from 0 on. The last ones are held out.
    num_train_images: images to learn from.
    num_held_out_images: images to measure on.
    guidance_scale: of the generated images and of the distributions that are measured.
    num_depths: depths to measure.
    seed: of the images.
    log_every: steps between lines of the log.
    checkpoint_every: steps between checkpoints.
    evaluate_every: steps between held-out measurements.
  """

  drafter: eagle.EagleConfig | medusa.MedusaConfig
  train: DrafterTrainConfig
  target: str = 'demo'
  data: Literal['generated', 'given'] = 'generated'
  prompts: str | None = None
  tokens: str | None = None
  num_train_images: int = 4096
  num_held_out_images: int = 64
  guidance_scale: float = 2.0
  num_depths: int = 4
  seed: int = 0
  log_every: int = 50
  checkpoint_every: int = 250
  evaluate_every: int = 250

  def __post_init__(self):
    fields.check(self, guidance_scale=fields.FINITE, seed=fields.SEEDS)
    if (self.data == 'given') != (self.tokens is not None):
      raise ValueError(f"tokens is {self.tokens!r} with data {self.data!r}; a file is needed with "
                       "'given', and read with 'given' only.")
    limit = getattr(self.drafter, 'num_tokens', None) or self.drafter.num_heads + 1
    if not 1 <= self.num_depths < limit:
      raise ValueError(
          f'num_depths is {self.num_depths}; with this drafter it must be 1 to {limit - 1}.')

  @property
  def kind(self) -> str:
    """The kind of checkpoint that it is stored as, and its role in a model."""
    return 'medusa' if isinstance(self.drafter, medusa.MedusaConfig) else 'eagle'


def check(recipe: DrafterRecipe, model: Any) -> None:
  """Checks that the drafter fits the model.

  Args:
    recipe: the recipe.
    model: a `generation.Model`, with parameters in float32.

  Raises:
    ValueError: if the model is none that drafters are trained for, or the sizes differ.
  """
  sizes = ('dim', 'vocab_size')
  check_target(recipe, model, sizes if recipe.kind == 'medusa' else (
      *sizes, 'family', 'num_tokens', 'row_width', 'num_outputs'))


def check_target(recipe: Any, model: Any, names: Sequence[str]) -> None:
  """Raises ValueError unless the model can be learned from, and these fields of the drafter fit."""
  if model.forward is None or model.ends is None:
    raise ValueError(f'target is {recipe.target!r}, a {model.family!r} model that drafters are not '
                     'trained for; give a model of discrete tokens.')
  prompts, target = samples.prompts_of(model, recipe.prompts), model.target(guided=False)
  known = {'dim': lambda: _width(model, prompts, target),
           'family': lambda: model.eagle_layer,
           'vocab_size': lambda: getattr(model.config, 'vocab_size', target.vocab_size),
           'num_outputs': lambda: target.vocab_size}
  for name in names:
    wanted = known[name]() if name in known else getattr(target, name)
    found = getattr(recipe.drafter, name)
    if found != wanted:
      raise ValueError(
          f'drafter.{name} is {found!r}; for the target {recipe.target!r} it must be {wanted!r}.')


def images(
    recipe: DrafterRecipe,
    model: Any,
    split: str,
    workdir: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray]:
  """Tokens `[N, T]` and the number of every image's prompt `[N]`, int32; kept in `workdir`.

  A prompt's number is its place in `samples.prompts_of`, for a class its label.

  Raises:
    ValueError: if the given images are none of the model's.
  """
  count = recipe.num_train_images if split == 'train' else recipe.num_held_out_images
  if recipe.data == 'given':
    tokens, labels = _given(recipe, model, len(samples.prompts_of(model, recipe.prompts)))
    part = slice(count) if split == 'train' else slice(len(tokens) - count, None)
    return tokens[part], labels[part]
  key = jax.random.fold_in(jax.random.key(recipe.seed), int(split != 'train'))
  return samples.kept(workdir / f'tokens_{split}.npz', model, recipe.prompts, count, key,
                      Warp(guidance_scale=recipe.guidance_scale))


def _given(recipe: DrafterRecipe, model: Any, num_prompts: int) -> tuple[np.ndarray, np.ndarray]:
  """The images of a file, and the numbers of their prompts; raises ValueError for others."""
  wanted = recipe.num_train_images + recipe.num_held_out_images
  stored = reading.arrays(str(recipe.tokens), 'give a file of given images', 'tokens',
                          needed=('tokens', 'labels'))
  tokens, labels = stored['tokens'], stored['labels']
  target = model.target(guided=False)
  if (tokens.ndim != 2 or tokens.shape[1] != target.num_tokens or len(tokens) < wanted
      or labels.shape != tokens.shape[:1]
      or not all(np.issubdtype(part.dtype, np.integer) for part in (tokens, labels))
      or not 0 <= tokens.min() <= tokens.max() < target.vocab_size
      or not 0 <= labels.min() <= labels.max() < num_prompts):
    raise ValueError(
        f'tokens is {recipe.tokens!r}, with tokens {tokens.dtype}{list(tokens.shape)} and labels '
        f'{labels.dtype}{list(labels.shape)}; it must hold at least {wanted} images of '
        f'{target.num_tokens} whole numbers below {target.vocab_size}, each with a label below '
        f'{num_prompts}, the number of prompts.')
  return tokens.astype(np.int32), labels.astype(np.int32)


def teacher(model: Any) -> Teacher:
  """What a drafter learns from, of a `generation.Model`."""
  return Teacher(model.forward, model.ends)


def _width(model: Any, prompts: Sequence[Any], target: Any) -> int:
  """The width of the target's features."""
  condition = model.condition(prompts[:1])
  _, features, _ = jax.eval_shape(
      lambda *args: target.prefill(*args, target.num_tokens), model.params, condition)
  return features.shape[-1]


def train(
    recipe: DrafterRecipe,
    model: Any,
    workdir: pathlib.Path,
) -> tuple[Any, dict[str, float]]:
  """Trains the drafter in `workdir` or continues.

  Returns:
    The moving average of the parameters, and its held-out figures, see `drafter.measure`.
  """
  workdir.mkdir(parents=True, exist_ok=True)
  tokens, labels = images(recipe, model, 'train', workdir)
  held_out = images(recipe, model, 'held_out', workdir)
  conditions = model.condition(samples.prompts_of(model, recipe.prompts))
  shown = lambda batch: (batch[0], samples.pick(conditions, batch[1]))
  config, train_config, target = recipe.drafter, recipe.train, teacher(model)
  optimizer = train_config.optimizer
  # The target is an argument: as a constant it would be compiled into the program.
  compiled_step = jax.jit(
      lambda state, batch, frozen: drafter_lib.step(
          state, batch, frozen, config, train_config, target), donate_argnums=0)
  compiled_measure = jax.jit(
      lambda params, frozen, batch: drafter_lib.measure(
          params, frozen, batch, config, target, recipe.guidance_scale, recipe.num_depths))

  def evaluate(state):
    parts = [
        compiled_measure(state.average, model.params,
                         shown([part[i:i + _MEASURE_BATCH] for part in held_out]))
        for i in range(0, held_out[0].shape[0], _MEASURE_BATCH)]
    return loop.mean_metrics(parts)

  state = loop.run(
      drafter_lib.init(config, train_config, target.ends, model.params),
      lambda state, batch: compiled_step(state, shown(batch), model.params),
      lambda index: loop.batch_of(tokens, labels, optimizer.seed, index, optimizer.batch_size),
      num_steps=optimizer.num_steps, batch_size=optimizer.batch_size, workdir=workdir,
      name=recipe.kind, log_every=recipe.log_every, checkpoint_every=recipe.checkpoint_every,
      evaluate=evaluate, evaluate_every=recipe.evaluate_every)
  return state.average, evaluate(state)
