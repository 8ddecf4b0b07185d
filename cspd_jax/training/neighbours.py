"""The neighbours corrector: its recipe, and its training on images sampled from a target.

The training takes about a minute on two CPU cores. `train` continues with the images that its
folder holds.
"""

import dataclasses
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax.core import fields, programs, progress
from cspd_jax.files import atomic, reading
from cspd_jax.generation import stored_run
from cspd_jax.generation.model import Model
from cspd_jax.metrics import acceptance
from cspd_jax.models import neighbours
from cspd_jax.training import optimizer as optimizer_lib, samples
from cspd_jax.training.loop import batch_of

Params = Any

# If no number of images is specified, as many are sampled as this time allows, between two numbers.
_SECONDS = 600.0
_MIN_IMAGES, _MAX_IMAGES = 64, 3072
# The number of images that were sampled, in the folder of the run.
_SAMPLED = 'num_images.json'


@dataclasses.dataclass(frozen=True)
class NeighboursTrainConfig:
  """Configuration of the training.

  Attributes:
    optimizer: configuration of the optimiser; `num_steps` is an upper bound.
    evaluate_every: steps between evaluations on the held-out images; the first ones are earlier.
    patience: number of these intervals without a better result after which training stops.
  """

  optimizer: optimizer_lib.OptimizerConfig = optimizer_lib.OptimizerConfig(
      num_steps=1500, learning_rate=2e-3, warmup_steps=50, weight_decay=0.05)
  evaluate_every: int = 50
  patience: int = 4

  def __post_init__(self):
    fields.check(self)


@dataclasses.dataclass(frozen=True)
class NeighboursRecipe(samples.Sampled):
  """Configuration of a neighbours corrector, its training data and its training.

  Attributes:
    num_train_images: images to train on; None for as many as ten minutes allow.
    num_held_out_images: images that decide when the training stops.
    num_measured_images: further images, which decide whether the network is better than others.
  """

  drafter: neighbours.NeighboursConfig
  train: NeighboursTrainConfig = NeighboursTrainConfig()
  num_train_images: int | None = None
  num_held_out_images: int = 64
  num_measured_images: int = 16

  def __post_init__(self):
    super().__post_init__()
    samples.check_batch_size(
        'train.optimizer', self.train.optimizer, self.num_train_images or _MIN_IMAGES)

  kind = 'neighbours'  # Of the checkpoint, and its role in a model.


def sizes(model: Model) -> neighbours.NeighboursConfig:
  """Returns the configuration of the network for a model of discrete tokens."""
  target = model.target(guided=False)
  small = getattr(model.config, 'small', (0, 0))
  return neighbours.NeighboursConfig(
      target.vocab_size, target.num_tokens, target.row_width, small)


def shared(model: Model) -> dict[str, Any]:
  """Returns the sizes of the network that the model determines, by name."""
  return {name: getattr(sizes(model), name)
          for name in ('vocab_size', 'num_tokens', 'row_width', 'small')}


def check(recipe: NeighboursRecipe, model: Model) -> None:
  """Raises ValueError unless the network fits the model and the prompts can be read."""
  samples.prompts_of(model, recipe.prompts)
  samples.check_sizes(recipe.drafter, model, shared(model))


def sample(recipe: NeighboursRecipe, model: Model, workdir: pathlib.Path) -> np.ndarray:
  """Samples what is not in `workdir`; returns all tokens `[N, T]`, the held-out ones first."""
  folder, record = workdir / 'tokens', workdir / _SAMPLED
  held_out, count = recipe.num_held_out_images, recipe.num_train_images
  if count is None and record.exists():
    count = reading.json(record, atomic.REMAKE).get('num_images')
    if not isinstance(count, int) or not _MIN_IMAGES <= count <= _MAX_IMAGES:
      raise ValueError(f'{record} holds {count!r} in place of a number of images; {atomic.REMAKE}.')
  images = samples.images(
      model, samples.prompts_of(model, recipe.prompts),
      (recipe.num_train_images or _MAX_IMAGES) + held_out, samples.sampling(recipe, model),
      seed=recipe.seed, folder=folder)
  parts: list[np.ndarray] = []
  total, done, end = (count or _MAX_IMAGES) + held_out, 0, None
  with progress.bar('sampling') as show:
    for _, decoded in stored_run.run(images, folder):
      parts.append(np.asarray(decoded.tokens, np.int32))
      done += len(parts[-1])
      end = end or time.perf_counter() + _SECONDS
      if count is None and time.perf_counter() > end and done >= held_out + _MIN_IMAGES:
        total = done
      show(done, total)
      if done >= total:
        break
  if count is None:
    atomic.write_json(record, dict(num_images=total - held_out))
  return np.concatenate(parts)


def train(recipe: NeighboursRecipe, model: Model, workdir: pathlib.Path
          ) -> tuple[Params, dict[str, float]]:
  """Trains on the images in `workdir`, sampled if missing; returns parameters and measurements."""
  tokens = sample(recipe, model, workdir)
  held_out, tokens = np.split(tokens, [recipe.num_held_out_images])
  params, losses = fit(recipe.drafter, recipe.train, tokens, held_out)
  return params, dict(nats_per_token=float(np.nanmin(losses)), num_train_images=len(tokens),
                      nats_per_token_without=float(np.log(recipe.drafter.vocab_size)))


def tokens_per_pass(recipe: NeighboursRecipe, model: Model, decoder: str) -> float:
  """Returns the tokens per forward pass of a decoder on images of other seeds."""
  decoded = samples.decoded(recipe, model, decoder, recipe.num_measured_images)
  return acceptance.tokens_per_pass(decoded).mean


def fit(config: neighbours.NeighboursConfig, train: NeighboursTrainConfig, tokens: np.ndarray,
        held_out: np.ndarray) -> tuple[Params, list[float]]:
  """Trains the network with early stopping on images of the target, `[N, T]` and held out `[M, T]`.

  Returns the parameters with the lowest loss on the held-out images, and that loss in nats per
  token at every evaluation. A loss that is never finite raises ValueError.
  """
  optimizer = train.optimizer
  state = optimizer_lib.start(neighbours.init(config, jax.random.key(optimizer.seed)), optimizer)
  step = programs.jit(
      lambda state, batch: optimizer_lib.step(
          state, lambda params: (nll(params, config, batch), {}), optimizer)[0],
      label='a training step', donate_argnums=0)
  loss = programs.jit(lambda params, batch: nll(params, config, batch))
  best, best_step, lowest, losses = None, 0, np.inf, list[float]()
  size = optimizer.batch_size
  parts = [held_out[i:i + size] for i in range(0, len(held_out), size)]
  with progress.bar('fitting', 'step') as show:
    for done in range(1, optimizer.num_steps + 1):
      batch, _ = batch_of(tokens, tokens, optimizer.seed, done - 1, size)
      state = step(state, batch)
      show(done, optimizer.num_steps)
      # With few images the best network is an early one.
      is_early = done < train.evaluate_every and done & (done - 1) == 0
      if done % train.evaluate_every and not is_early and done < optimizer.num_steps:
        continue
      losses.append(sum(float(loss(state.result, x)) * len(x) for x in parts) / len(held_out))
      logging.info('step %d: %.4f nats per token of the held-out images', done, losses[-1])
      if np.isfinite(losses[-1]) and losses[-1] <= lowest:
        best, best_step, lowest = jax.tree.map(jnp.copy, state.result), done, losses[-1]
      elif done - best_step >= train.patience * train.evaluate_every:
        break
  if best is None:
    raise ValueError(f'train.optimizer.learning_rate is {optimizer.learning_rate}, with which the '
                     f'loss on the held-out images was never finite in {done} steps; use a lower '
                     'one.')
  return best, losses


def nll(params: Params, config: neighbours.NeighboursConfig, tokens: jax.Array) -> jax.Array:
  """Computes the mean negative log-likelihood of images `[B, T]` in nats per token."""
  positions = jnp.broadcast_to(jnp.arange(config.num_tokens), tokens.shape)
  log_probs = jax.nn.log_softmax(neighbours.logits(params, config, tokens, positions))
  return -jnp.mean(jnp.take_along_axis(log_probs, tokens[..., None], axis=-1))
