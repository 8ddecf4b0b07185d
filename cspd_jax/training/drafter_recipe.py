"""How the shipped drafters are made: images to learn from, then training.

Each function continues what its folder already holds and does nothing if it is complete.
"""

import dataclasses
import pathlib
from typing import Any

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import checkpoint
from cspd_jax.data import photos as photos_lib
from cspd_jax.decoding import decoders
from cspd_jax.decoding.warp import Warp
from cspd_jax.models import eagle
from cspd_jax.models import llamagen
from cspd_jax.models import medusa
from cspd_jax.training import drafter as drafter_lib
from cspd_jax.training import loop
from cspd_jax.training import recipe as recipe_lib
from cspd_jax.training.autoregressive import ARTrainConfig
from cspd_jax.training.autoregressive import batch_of
from cspd_jax.training.drafter import DrafterTrainConfig
from cspd_jax.training.vq import VQTrainConfig

# Images that the target samples at once, and that are measured at once.
_SAMPLE_BATCH = 64
_MEASURE_BATCH = 16


@dataclasses.dataclass(frozen=True)
class DrafterRecipe:
  """Everything that determines a shipped drafter.

  Attributes:
    drafter: sizes of the drafter; its class says which drafter it is.
    train: its optimisation.
    target: checkpoint of the frozen target: a shipped name or a folder.
    tokenizer: checkpoint of the target's tokenizer; for 'photos' only.
    data: 'generated', images sampled from the target, which is what a drafter meets; or 'photos',
      tokenised crops of the embedded photographs.
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
  target: str = 'demo/target'
  tokenizer: str = 'demo/tokenizer'
  data: str = 'generated'
  num_train_images: int = 4096
  num_held_out_images: int = 64
  guidance_scale: float = 2.0
  num_depths: int = 4
  seed: int = 0
  log_every: int = 50
  checkpoint_every: int = 250
  evaluate_every: int = 250

  def __post_init__(self):
    if self.data not in ('generated', 'photos'):
      raise ValueError(f"data is {self.data!r}; it must be 'generated' or 'photos'.")
    limit = getattr(self.drafter, 'num_tokens', None) or self.drafter.num_heads + 1
    if not 1 <= self.num_depths < limit:
      raise ValueError(
          f'num_depths is {self.num_depths}; with this drafter it must be 1 to {limit - 1}.')

  @property
  def kind(self) -> str:
    """The kind of checkpoint, a key of `checkpoint.KINDS`."""
    return 'medusa' if isinstance(self.drafter, medusa.MedusaConfig) else 'eagle'


def load_target(recipe: DrafterRecipe) -> checkpoint.Loaded:
  """The target in float32.

  Raises:
    ValueError: if it is not a class-conditional LlamaGen model that the drafter fits.
  """
  target = checkpoint.load(recipe.target, dtype=jnp.float32)
  if target.kind != 'llamagen' or target.config.conditioning != 'class':
    raise ValueError(f'target is {recipe.target!r}, which is not a class-conditional llamagen '
                     'checkpoint; drafters are trained for those.')
  wanted = {'dim': target.config.dim, 'vocab_size': target.config.vocab_size}
  if recipe.kind == 'eagle':
    wanted |= {'family': 'llamagen', 'num_tokens': target.config.num_tokens,
               'row_width': target.config.width}
  for name, value in wanted.items():
    found = getattr(recipe.drafter, name)
    if found != value:
      raise ValueError(
          f'drafter.{name} is {found!r}; for the target {recipe.target!r} it must be {value!r}.')
  return target


def images(
    recipe: DrafterRecipe,
    target: checkpoint.Loaded,
    split: str,
    workdir: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray]:
  """Tokens `[N, T]` and labels `[N]`, int32, of a split; kept in `workdir`."""
  if recipe.data == 'photos':
    tokenizer = checkpoint.load(recipe.tokenizer, dtype=jnp.float32)
    # A recipe for both checks that the target belongs to the tokenizer.
    made = recipe_lib.Recipe(
        tokenizer=tokenizer.config, tokenizer_train=VQTrainConfig(),
        target=target.config, target_train=ARTrainConfig(),
        draft=target.config, draft_train=ARTrainConfig(),
        image_size=target.config.width * tokenizer.config.factor, seed=recipe.seed,
        num_train_images=recipe.num_train_images,
        num_held_out_images=recipe.num_held_out_images)
    return recipe_lib.tokenize(made, tokenizer.params, split, workdir)
  count = recipe.num_train_images if split == 'train' else recipe.num_held_out_images
  path = workdir / f'tokens_{split}.npz'
  if path.exists():
    with np.load(path) as stored:
      if stored['tokens'].shape[0] == count:
        return stored['tokens'], stored['labels']
  labels = np.arange(count, dtype=np.int32) % target.config.num_classes
  decode = jax.jit(decoders.vanilla(llamagen.target(target.config, guided=True)))
  key = jax.random.fold_in(jax.random.key(recipe.seed), photos_lib.SPLITS.index(split))
  tokens = []
  for start in range(0, count, _SAMPLE_BATCH):
    # The last batch is filled up, so that one compiled program serves all.
    batch = np.resize(labels[start:start + _SAMPLE_BATCH], min(_SAMPLE_BATCH, count))
    tokens.append(np.asarray(decode(
        target.params, batch, jax.random.fold_in(key, start),
        Warp(guidance_scale=recipe.guidance_scale)).tokens))
    logging.info('images of %s: %d of %d', split, min(start + _SAMPLE_BATCH, count), count)
  tokens = np.concatenate(tokens)[:count]
  np.savez(path, tokens=tokens, labels=labels)
  return tokens, labels


def train(
    recipe: DrafterRecipe,
    target: checkpoint.Loaded,
    workdir: pathlib.Path,
) -> tuple[Any, dict[str, float]]:
  """Trains the drafter in `workdir` or continues.

  Returns:
    The moving average of the parameters, and its held-out figures, see `drafter.measure`.
  """
  workdir.mkdir(parents=True, exist_ok=True)
  tokens, labels = images(recipe, target, 'train', workdir)
  held_out = images(recipe, target, 'held_out', workdir)
  config, train_config = recipe.drafter, recipe.train
  # The target is an argument: as a constant it would be compiled into the program.
  compiled_step = jax.jit(
      lambda state, batch, frozen: drafter_lib.step(
          state, batch, frozen, config, train_config, target.config), donate_argnums=0)
  compiled_measure = jax.jit(
      lambda params, frozen, batch: drafter_lib.measure(
          params, frozen, batch, config, target.config, recipe.guidance_scale, recipe.num_depths))

  def evaluate(state):
    parts = [
        compiled_measure(state.average, target.params,
                         tuple(part[i:i + _MEASURE_BATCH] for part in held_out))
        for i in range(0, held_out[0].shape[0], _MEASURE_BATCH)]
    return loop.mean_metrics(parts)

  state = loop.run(
      drafter_lib.init(config, train_config, target.params),
      lambda state, batch: compiled_step(state, batch, target.params),
      lambda index: batch_of(tokens, labels, train_config.seed, index, train_config.batch_size),
      num_steps=train_config.num_steps, batch_size=train_config.batch_size, workdir=workdir,
      name=recipe.kind, log_every=recipe.log_every, checkpoint_every=recipe.checkpoint_every,
      evaluate=evaluate, evaluate_every=recipe.evaluate_every)
  return state.average, evaluate(state)
