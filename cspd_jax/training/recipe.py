"""How the shipped models are made: tokenizer, tokens, target and draft model, one after another.

Each function continues what its folder already holds and does nothing if it is complete.
"""

import dataclasses
import pathlib
from typing import Any

from absl import logging
import jax
import numpy as np

from cspd_jax.data import photos as photos_lib
from cspd_jax.models import llamagen
from cspd_jax.models import vq
from cspd_jax.training import autoregressive
from cspd_jax.training import loop
from cspd_jax.training import vq as vq_training
from cspd_jax.training.autoregressive import ARTrainConfig
from cspd_jax.training.vq import VQTrainConfig

# Crops that the encoder reads at once.
_ENCODE_BATCH = 32


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Everything that determines the shipped models.

  Attributes:
    tokenizer: sizes of the tokenizer.
    tokenizer_train: its optimisation.
    target: sizes of the target.
    target_train: its optimisation.
    draft: sizes of the draft model; the same tokens and classes as the target.
    draft_train: its optimisation.
    image_size: side of a crop in pixels.
    num_train_images: crops that are tokenised for training.
    num_held_out_images: crops of the held-out parts to evaluate on.
    guidance_scale: for the guided samples and their entropy.
    seed: of the crops that are tokenised.
    log_every: steps between lines of the log.
    checkpoint_every: steps between checkpoints.
    evaluate_every: steps between held-out evaluations.
  """

  tokenizer: vq.VQConfig
  tokenizer_train: VQTrainConfig
  target: llamagen.LlamaGenConfig
  target_train: ARTrainConfig
  draft: llamagen.LlamaGenConfig
  draft_train: ARTrainConfig
  image_size: int = 64
  num_train_images: int = 16384
  num_held_out_images: int = 256
  guidance_scale: float = 2.0
  seed: int = 0
  log_every: int = 50
  checkpoint_every: int = 250
  evaluate_every: int = 250

  def __post_init__(self):
    if self.image_size % self.tokenizer.factor:
      raise ValueError(f'image_size is {self.image_size}; it must be a multiple of the '
                       f"tokenizer's {self.tokenizer.factor} pixels per token.")
    side = self.image_size // self.tokenizer.factor
    wanted = {'conditioning': 'class', 'height': side, 'width': side,
              'vocab_size': self.tokenizer.codebook_size,
              'num_classes': len(photos_lib.NAMES)}
    for model in ('target', 'draft'):
      for name, value in wanted.items():
        found = getattr(getattr(self, model), name)
        if found != value:
          raise ValueError(f'{model}.{name} is {found!r}; with this tokenizer, image size and '
                           f'set of photographs it must be {value!r}.')


def train_tokenizer(recipe: Recipe, workdir: pathlib.Path) -> Any:
  """Trains the tokenizer in `workdir` or continues; returns its parameters."""
  config, train = recipe.tokenizer, recipe.tokenizer_train
  photos = photos_lib.load()

  def batch(index):
    return photos_lib.crop_batch(
        photos, train.seed, index, 'train', train.batch_size, recipe.image_size)[0]

  held_out = [photos_lib.crop_batch(photos, recipe.seed, index, 'held_out', train.batch_size,
                                    recipe.image_size)[0] for index in range(4)]
  compiled_loss = jax.jit(lambda params, images: vq_training.loss(params, config, train, images)[1])

  def evaluate(state):
    parts = [compiled_loss(state.params, images) for images in held_out]
    return loop.mean_metrics([
        {f'held_out_{key}': part[key] for key in ('l1', 'psnr')} for part in parts])

  state = loop.run(
      vq_training.init(config, train), loop.jit_step(vq_training.step, config, train), batch,
      num_steps=train.num_steps, batch_size=train.batch_size, workdir=workdir, name='vq',
      log_every=recipe.log_every, checkpoint_every=recipe.checkpoint_every,
      evaluate=evaluate, evaluate_every=recipe.evaluate_every)
  return state.params


def tokenize(
    recipe: Recipe,
    params: Any,
    split: str,
    workdir: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray]:
  """Tokens `[N, T]` and labels `[N]`, int32, of random crops; kept in `workdir`.

  The crops are not those that the tokenizer was trained on: those of the held-out split lie in
  other parts of the photographs, those of the training split are drawn anew.
  """
  count = recipe.num_train_images if split == 'train' else recipe.num_held_out_images
  path = workdir / f'tokens_{split}.npz'
  if path.exists():
    with np.load(path) as stored:
      if stored['tokens'].shape[0] == count:
        return stored['tokens'], stored['labels']
  photos = photos_lib.load()
  encode = jax.jit(lambda images: vq.encode(params, recipe.tokenizer, images))
  tokens, labels = [], []
  for index in range(-(-count // _ENCODE_BATCH)):
    # One more than the tokenizer's seed, so that the training crops differ.
    images, batch_labels = photos_lib.crop_batch(
        photos, recipe.seed + 1, index, split, _ENCODE_BATCH, recipe.image_size)
    tokens.append(np.asarray(encode(images)).reshape(_ENCODE_BATCH, -1))
    labels.append(batch_labels)
    if index % 50 == 0:
      logging.info('tokens of %s: %d of %d crops', split, index * _ENCODE_BATCH, count)
  tokens, labels = np.concatenate(tokens)[:count], np.concatenate(labels)[:count]
  np.savez(path, tokens=tokens, labels=labels)
  return tokens, labels


def train_model(
    name: str,
    config: llamagen.LlamaGenConfig,
    train: ARTrainConfig,
    recipe: Recipe,
    data: dict[str, tuple[np.ndarray, np.ndarray]],
    workdir: pathlib.Path,
) -> Any:
  """Trains the model `name` in `workdir` or continues; returns its averaged parameters.

  Args:
    name: 'target' or 'draft'; names the files.
    config: sizes of the model.
    train: its optimisation.
    recipe: what both models share.
    data: tokens and labels of the splits 'train' and 'held_out'.
    workdir: the folder of the run.

  Returns:
    The moving average of the parameters.
  """
  tokens, labels = data['train']
  held_out = [tuple(part[i:i + train.batch_size] for part in data['held_out'])
              for i in range(0, 4 * train.batch_size, train.batch_size)]
  nll = jax.jit(lambda params, tokens, labels: autoregressive.nll(
      params, config, tokens, labels).mean())

  def evaluate(state):
    return loop.mean_metrics([
        {'held_out_nll': nll(state.average, *batch)} for batch in held_out])

  state = loop.run(
      autoregressive.init(config, train), loop.jit_step(autoregressive.step, config, train),
      lambda index: autoregressive.batch_of(tokens, labels, train.seed, index, train.batch_size),
      num_steps=train.num_steps, batch_size=train.batch_size, workdir=workdir, name=name,
      log_every=recipe.log_every, checkpoint_every=recipe.checkpoint_every,
      evaluate=evaluate, evaluate_every=recipe.evaluate_every)
  return state.average


def exports(recipe: Recipe, tokenizer: Any, models: dict[str, Any], data: Any) -> list[tuple]:
  """Name, kind, sizes and parameters of every checkpoint that a run makes."""
  del data
  return [('demo_vq', 'vq', recipe.tokenizer, tokenizer),
          ('demo_target', 'llamagen', recipe.target, models['target']),
          ('demo_draft', 'llamagen', recipe.draft, models['draft'])]
