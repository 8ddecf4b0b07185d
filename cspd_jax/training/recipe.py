"""How the shipped models are made: tokenizer, tokens, target and draft model, one after another.

Each function continues what its folder already holds and does nothing if it is complete.
"""

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np

from cspd_jax.data import photos as photos_lib
from cspd_jax.models import llamagen
from cspd_jax.models import vq
from cspd_jax.training import autoregressive
from cspd_jax.training import loop
from cspd_jax.training import stages
from cspd_jax.training import vq as vq_training
from cspd_jax.training.autoregressive import ARTrainConfig
from cspd_jax.training.vq import VQTrainConfig


@dataclasses.dataclass(frozen=True)
class Recipe(stages.Stages):
  """Everything that determines the shipped models; more in `stages.Stages`.

  Attributes:
    tokenizer: sizes of the tokenizer.
    tokenizer_train: its optimisation.
    target: sizes of the target.
    target_train: its optimisation.
    draft: sizes of the draft model; the same tokens and classes as the target.
    draft_train: its optimisation.
  """

  tokenizer: vq.VQConfig
  tokenizer_train: VQTrainConfig
  target: llamagen.LlamaGenConfig
  target_train: ARTrainConfig
  draft: llamagen.LlamaGenConfig
  draft_train: ARTrainConfig

  def __post_init__(self):
    side = self.side(self.tokenizer.factor)
    wanted = {'conditioning': 'class', 'height': side, 'width': side,
              'vocab_size': self.tokenizer.codebook_size,
              'num_classes': len(photos_lib.NAMES)}
    stages.check_model('target', self.target, wanted)
    stages.check_model('draft', self.draft, wanted)


def train_tokenizer(recipe: Recipe, workdir: pathlib.Path) -> Any:
  """Trains the tokenizer in `workdir` or continues; returns its parameters."""
  config, train = recipe.tokenizer, recipe.tokenizer_train
  crops = lambda seed, index, split: recipe.crops(seed, index, split, train.batch_size)[0]
  held_out = [crops(recipe.seed, index, 'held_out') for index in range(4)]
  compiled_loss = jax.jit(lambda params, images: vq_training.loss(params, config, train, images)[1])

  def evaluate(state):
    parts = [compiled_loss(state.params, images) for images in held_out]
    return [{key: part[key] for key in ('l1', 'psnr')} for part in parts]

  state = recipe.train(
      'vq', vq_training.init(config, train), loop.jit_step(vq_training.step, config, train),
      lambda index: crops(train.seed, index, 'train'), train.num_steps, train.batch_size, workdir,
      evaluate)
  return state.params


def tokenize(
    recipe: Recipe,
    params: Any,
    split: str,
    workdir: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray]:
  """Tokens `[N, T]` and labels `[N]`, int32, of random crops; kept in `workdir`."""
  encode = jax.jit(lambda images: vq.encode(params, recipe.tokenizer, images))
  return recipe.encoded(workdir / f'tokens_{split}.npz', 'tokens', split,
                        lambda images: np.asarray(encode(images)).reshape(len(images), -1))


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

  state = recipe.train(
      name, autoregressive.init(config, train),
      loop.jit_step(autoregressive.step, config, train),
      lambda index: autoregressive.batch_of(tokens, labels, train.seed, index, train.batch_size),
      train.num_steps, train.batch_size, workdir,
      lambda state: [{'nll': nll(state.average, *batch)} for batch in held_out])
  return state.average


def exports(recipe: Recipe, tokenizer: Any, models: dict[str, Any], data: Any) -> list[tuple]:
  """Name, kind, sizes and parameters of every checkpoint that a run makes."""
  del data
  return [('demo/tokenizer', 'vq', recipe.tokenizer, tokenizer),
          ('demo/target', 'llamagen', recipe.target, models['target']),
          ('demo/draft', 'llamagen', recipe.draft, models['draft'])]
