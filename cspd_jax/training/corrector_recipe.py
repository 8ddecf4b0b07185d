"""How the shipped corrector is made: it learns from whole images, then from windows.

`train` continues what its folder already holds and does nothing if it is complete. `model` is the
`generation.Model` that the corrector is for.
"""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax.checkpoints import files, reading
from cspd_jax.core import fields
from cspd_jax.decoding.warp import Warp
from cspd_jax.generation import batches
from cspd_jax.models import eagle
from cspd_jax.training import (
  corrector as corrector_lib,
  drafter_recipe,
  loop,
  plain,
  samples,
  state as state_lib,
  windows,
)
from cspd_jax.training.corrector import CorrectorTrainConfig
from cspd_jax.training.optimizer import OptimizerConfig
from cspd_jax.training.windows import Windows

Params = Any
# Images that are decoded together.
_DECODED = 64


@dataclasses.dataclass(frozen=True)
class CorrectorRecipe:
  """Everything that determines a shipped corrector.

  Attributes:
    drafter: sizes of the network.
    plain: its optimisation on whole images.
    train: that on windows.
    target: the model that it corrects for: a shipped name or a folder.
    prompts: file with a prompt per line for the images; None takes the prompts that the target has
      itself.
    decoder: what the windows are met with: a corrected decoder whose drafts are a chain.
    num_plain_images: whole images to learn from.
    num_train_images: images whose windows are learned from.
    num_held_out_images: images to measure on.
    guidance_scale: of these images.
    seed: of the images.
    log_every: steps between lines of the log.
    checkpoint_every: steps between checkpoints.
    evaluate_every: steps between held-out measurements.
  """

  drafter: eagle.EagleConfig
  plain: OptimizerConfig
  train: CorrectorTrainConfig
  target: str = 'demo'
  prompts: str | None = None
  decoder: str = 'corrected(by=eagle, window=32, passes=2, tree=chain())'
  num_plain_images: int = 4096
  num_train_images: int = 1152
  num_held_out_images: int = 128
  guidance_scale: float = 2.0
  seed: int = 500
  log_every: int = 50
  checkpoint_every: int = 250
  evaluate_every: int = 250

  def __post_init__(self):
    fields.check(self, guidance_scale=fields.FINITE, seed=fields.SEEDS)

  @property
  def kind(self) -> str:
    """The kind of checkpoint that it is stored as."""
    return 'eagle'


def check(recipe: CorrectorRecipe, model: Any) -> None:
  """Checks that the corrector fits the model.

  Args:
    recipe: the recipe.
    model: a `generation.Model`, with parameters in float32.

  Raises:
    ValueError: if the model is none that correctors are trained for, or the sizes differ.
  """
  drafter_recipe.check_target(recipe, model, (
      'vocab_size', 'num_tokens', 'row_width', 'dim', 'family', 'num_outputs'))
  decoder = model.decoder(recipe.decoder)
  if not decoder.drafter.layout.tree.is_chain:
    raise ValueError(f'decoder is {recipe.decoder!r}; its drafts must be a chain, such as with '
                     'tree=chain().')
  fewest = min(recipe.num_train_images, recipe.num_held_out_images)
  for name, size, most in (
      ('train.optimizer', recipe.train.optimizer.batch_size, fewest),
      ('plain', recipe.plain.batch_size, recipe.num_plain_images)):
    if size > most:
      raise ValueError(f'{name}.batch_size is {size}; with these numbers of images it must be from '
                       f'1 to {most}.')


def recorded(recipe: CorrectorRecipe, model: Any, split: str, workdir: pathlib.Path
             ) -> tuple[Windows, np.ndarray]:
  """Windows of images, and the number of every image's prompt; kept in `workdir`."""
  count = recipe.num_train_images if split == 'train' else recipe.num_held_out_images
  prompts = samples.prompts_of(model, recipe.prompts)
  numbers = np.arange(count) % len(prompts)
  path = workdir / f'windows_{split}.npz'
  if path.exists():
    stored = reading.arrays(path, files.REMAKE, needed=Windows._fields)
    return Windows(*(stored[name] for name in Windows._fields)), numbers
  decoder, conditions = model.decoder(recipe.decoder), model.condition(prompts)
  key = jax.random.key(recipe.seed + (split != 'train'))
  parts: list[Windows] = []
  programs: dict = {}
  for index, kept in batches.filled(count, min(_DECODED, count)):
    found = windows.record(
        decoder, model.params, samples.pick(conditions, numbers[index]),
        jax.random.fold_in(key, index[0]), Warp(guidance_scale=recipe.guidance_scale),
        model.draft_params(recipe.decoder), programs)
    parts.append(Windows(*(part[:kept] for part in found)))
    logging.info('windows of %s: %d of %d images', split, index[kept - 1] + 1, count)
  found = windows.joined(parts)
  files.write_arrays(path, found._asdict())
  return found, numbers


def init(recipe: CorrectorRecipe, model: Any) -> Params:
  """Parameters to start from: the model's EAGLE network as far as it goes.

  What goes beyond it adds nothing at first.
  """
  params = eagle.init(recipe.drafter, jax.random.key(recipe.seed))
  if 'eagle' not in model.drafts:
    return params
  known = model.drafts['eagle'].params
  if recipe.drafter.own_embedding:  # A table of its own begins as the target's embedding.
    known = {'token_embedding': model.ends.embed(
        model.params, jnp.arange(recipe.drafter.vocab_size)), **known}
  for name, value in params.items():
    if name in known and _shapes(known[name]) == _shapes(value):
      # A training step gives its input's memory away.
      params[name] = jax.tree.map(jnp.copy, known[name])
    elif name.startswith('layer_'):
      params[name] = value | {kernel: jnp.zeros_like(value[kernel]) for kernel in ('out', 'down')}
  return params


def _shapes(tree: Any) -> Any:
  return jax.tree.map(jnp.shape, tree)


def train_plain(recipe: CorrectorRecipe, model: Any, params: Params, workdir: pathlib.Path
                ) -> Params:
  """Trains on whole images in `workdir` or continues; the moving average of the parameters."""
  settings, teacher = recipe.plain, drafter_recipe.teacher(model)
  sampling = Warp(guidance_scale=recipe.guidance_scale)
  tokens, numbers = samples.kept(
      workdir / 'tokens.npz', model, recipe.prompts, recipe.num_plain_images,
      jax.random.key(recipe.seed + 2), sampling)
  conditions = model.condition(samples.prompts_of(model, recipe.prompts))

  def batch_of(index):
    taken, of = loop.batch_of(tokens, numbers, settings.seed, index, settings.batch_size)
    return taken, samples.pick(conditions, of), np.float32(recipe.guidance_scale)

  step = jax.jit(
      lambda state, batch, frozen: plain.step(
          state, batch, frozen, recipe.drafter, settings, teacher), donate_argnums=0)
  return loop.run(
      state_lib.start(params, settings),
      lambda state, batch: step(state, batch, model.params), batch_of,
      num_steps=settings.num_steps, batch_size=settings.batch_size, workdir=workdir, name='plain',
      log_every=recipe.log_every, checkpoint_every=recipe.checkpoint_every).average


def train(recipe: CorrectorRecipe, model: Any, workdir: pathlib.Path
          ) -> tuple[Params, dict[str, float]]:
  """Trains the corrector in `workdir` or continues.

  Returns:
    The moving average of the parameters, and its held-out figures, see `corrector.measure`; those
    before the training begin with 'before_'.
  """
  workdir.mkdir(parents=True, exist_ok=True)
  splits = {split: recorded(recipe, model, split, workdir) for split in ('train', 'held_out')}
  every = model.condition(samples.prompts_of(model, recipe.prompts))
  conditions = {split: samples.pick(every, numbers) for split, (_, numbers) in splits.items()}
  config, settings, teacher = recipe.drafter, recipe.train, drafter_recipe.teacher(model)
  # The target is an argument: as a constant it would be compiled into the program.
  compiled_step = jax.jit(
      lambda state, batch, frozen: corrector_lib.step(
          state, batch, frozen, config, settings, teacher), donate_argnums=0)
  compiled_measure = jax.jit(
      lambda params, frozen, batch: corrector_lib.measure(
          params, frozen, batch, config, settings, teacher))
  batch_of = lambda split, index: corrector_lib.batch_of(
      splits[split][0], conditions[split], settings, index)

  def evaluate(params):
    count = max(1, recipe.num_held_out_images // settings.optimizer.batch_size)
    return loop.mean_metrics([
        compiled_measure(params, model.params, batch_of('held_out', i)) for i in range(count)])

  params = init(recipe, model)
  before = {f'before_{name}': value for name, value in evaluate(params).items()}
  params = train_plain(recipe, model, params, workdir)
  state = loop.run(
      state_lib.start(params, settings.optimizer),
      lambda state, batch: compiled_step(state, batch, model.params),
      lambda index: batch_of('train', index), num_steps=settings.optimizer.num_steps,
      batch_size=settings.optimizer.batch_size, workdir=workdir, name='corrector',
      log_every=recipe.log_every, checkpoint_every=recipe.checkpoint_every,
      evaluate=lambda state: evaluate(state.average), evaluate_every=recipe.evaluate_every)
  return state.average, before | evaluate(state.average)
