"""Trains `emoji` to draw what prompts ask for: GRPO in plain JAX, in few passes.

A step of Group Relative Policy Optimization (arXiv:2402.03300) generates groups of images, each of
one prompt, scores them, and moves the parameters towards the images that are better than the mean
of their group. Most of its time goes into generating. A decoder that is *seed-exact* generates the
tokens of `vanilla(window=N)` and their log-probabilities, bit for bit, in fewer forward passes; so
these two runs have the same images, rewards, gradients and parameters:

    python examples/rl.py --decoder='vanilla(window=16)' --workdir=runs/rl_vanilla
    python examples/rl.py --decoder='corrected_seed_exact(window=16)' --workdir=runs/rl

Each writes report.json, with the reward, the passes and a digest of all parameters after every
step, and the trained target: cspd_jax.load('emoji', target='runs/rl/target'). A run that was
stopped continues if you repeat its command, to the same parameters. See docs/rollouts.md.
"""

import dataclasses
import hashlib
import math
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cspd_jax
from cspd_jax import cli, families
from cspd_jax.core import fields
from cspd_jax.files import atomic, reading, run_folder, store
from cspd_jax.generation.prompts import of_file
from cspd_jax.generation.results import Generated
from cspd_jax.generation.sampler import Sampler
from cspd_jax.metrics import likelihood, scenes
from cspd_jax.training import loop

# Captions of which `emoji` leaves out a part in most images.
PROMPTS = ('an orange cat and a green cactus flat on blue',
           'a yellow star and a purple moon flat on orange')
# What is sampled: the model's distribution at temperature 1 and without cuts. A token that top-k or
# top-p cut under later parameters would have no finite ratio.
SAMPLING = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
CLIP = 0.2  # A ratio of probabilities counts up to this distance from 1.
PENALTY = 0.04  # Weight of the divergence from the shipped parameters, nats per token.

Params = Any


@dataclasses.dataclass(frozen=True)
class Config:
  """A run.

  Attributes:
    decoder: specification of the decoder that generates the images.
    guidance_scale: classifier-free guidance; None for the model's own.
    prompts: file with one caption of a scene per line; None for a few that `emoji` often misses.
    num_steps: steps of the training.
    num_groups: prompts of a step, each of one group of images.
    num_images: images of a group.
    num_updates: updates on the images of a step.
    learning_rate: step size of Adam.
    workdir: folder of the run.
  """

  decoder: str = 'corrected_seed_exact(window=16)'
  guidance_scale: float | None = None
  prompts: str | None = None
  num_steps: int = 24
  num_groups: int = 2
  num_images: int = 8
  num_updates: int = 2
  learning_rate: float = 2e-5
  workdir: str = 'runs/rl'

  def __post_init__(self):
    fields.check(self, guidance_scale=fields.NOT_NEGATIVE, num_images=(2, fields.MOST))


class State(NamedTuple):
  """The state after some steps of a training."""

  step: jax.Array  # The number of steps, `[]`.
  params: Params
  opt_state: optax.OptState


class Batch(NamedTuple):
  """The images of a step, `B`, with `T` tokens each."""

  condition: Any  # Of the prompts, a pytree with a leading axis `B`.
  tokens: np.ndarray  # `[B, T]`.
  old: np.ndarray  # `[B, T]` log-probabilities, recorded when the tokens were sampled.
  shipped: jax.Array  # `[B, T]` log-probabilities under the parameters before the training.
  advantages: np.ndarray  # `[B]`.


def advantages(rewards: np.ndarray, num_groups: int) -> np.ndarray:
  """Returns by how many standard deviations rewards `[B]` exceed the mean of their group."""
  groups = rewards.reshape(num_groups, -1)
  centred = groups - groups.mean(axis=1, keepdims=True)
  return np.float32(centred / (groups.std(axis=1, keepdims=True) + 1e-4)).reshape(-1)


def loss(log_probs: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
  """Computes the loss of new log-probabilities `[B, T]`; returns it and the divergence, both `[]`.

  Tokens that the grammar forces have log-probability 0 under all parameters, and so no gradient.
  """
  ratio = jnp.exp(log_probs - batch.old)
  gain = batch.advantages[:, None]
  gain = jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * gain)
  # Never negative, and without bias for tokens that were sampled from the new parameters.
  divergence = jnp.mean(jnp.expm1(batch.shipped - log_probs) - (batch.shipped - log_probs))
  return PENALTY * divergence - jnp.mean(gain), divergence


def compiled(sampler: Sampler, optimizer: optax.GradientTransformation
             ) -> tuple[Callable[..., jax.Array], Callable[..., Any]]:
  """Returns the compiled functions of a training on what a sampler draws.

  They are `(params, condition, tokens) -> log-probabilities [B, T]` and `(params, opt_state, Batch)
  -> (params, opt_state, divergence from the shipped parameters)`. Each is compiled once, because
  parameters are arguments.
  """
  # The distribution of the loss is the one that is sampled, after guidance: otherwise the ratio of
  # a token would not be 1 at first. With guidance, gradients flow through both of its streams.
  target, sampling = sampler.model.target(sampler.guided), sampler.active

  def log_probs(params, condition, tokens):
    return likelihood.log_probs(target, params, condition, tokens, sampling)

  def update(params, opt_state, batch):
    new = lambda params: loss(log_probs(params, batch.condition, batch.tokens), batch)
    grads, divergence = jax.grad(new, has_aux=True)(params)
    changes, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, changes), opt_state, divergence

  # On a CPU, `jax.jit` alone would compute some sums of products wrongly with jax 0.10.
  return cspd_jax.jit(log_probs), cspd_jax.jit(update)


def prompts_of(step: int, prompts: Sequence[str], num_groups: int, num_images: int) -> list[str]:
  """Returns the prompts of a step's images; all prompts have their turn before one has another."""
  chosen = []
  for number in range(step * num_groups, (step + 1) * num_groups):
    turn, place = divmod(number, len(prompts))
    order = np.random.default_rng(turn).permutation(len(prompts))
    chosen += [prompts[order[place]]] * num_images
  return chosen


def digest(params: Params) -> str:
  """Returns a digest of parameters, which changes with every bit."""
  result = hashlib.sha256()
  for leaf in jax.tree.leaves(params):
    result.update(np.asarray(leaf).tobytes())
  return result.hexdigest()[:16]


def train(model: cspd_jax.Model, prompts: Sequence[str], reward: Callable[[Generated], np.ndarray],
          config: Config) -> Params:
  """Trains a model, and returns its parameters.

  A stopped run in `config.workdir` is continued. The folder holds the last two states, and
  report.json, which is written after every step.

  Args:
    model: the model.
    prompts: prompts, some of which are used in a step.
    reward: `images -> rewards [B]`, larger ones for better images.
    config: the settings; its `prompts` are not read.

  Raises:
    ValueError: for a decoder that the model does not support, or another run in the folder.
  """
  options = SAMPLING if config.guidance_scale is None else dict(
      SAMPLING, guidance_scale=config.guidance_scale)
  size = config.num_groups, config.num_images
  sampler = lambda params: model.with_params(params).sampler(
      config.decoder, batch_size=math.prod(size), **options)
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(config.learning_rate))
  log_probs, update = compiled(sampler(model.params), optimizer)
  settings = dict(dataclasses.asdict(config), prompts=list(prompts), clip=CLIP, penalty=PENALTY,
                  **sampler(model.params).recorded)
  for name in ('num_steps', 'workdir'):
    del settings[name]
  with run_folder.Run(config.workdir, settings, name='workdir') as run:
    states, report = loop.manager(run.folder / 'states'), run.folder / 'report.json'
    state = State(jnp.int32(0), model.params, optimizer.init(model.params))
    state = loop.restore(states, state) or state
    done = int(state.step)
    # The report, which is written first, may be a step ahead.
    rows = reading.json(report, 'use another folder')['rows'][:done] if done else []
    for step in range(done, config.num_steps):
      start = time.perf_counter()
      images = sampler(state.params)(prompts_of(step, prompts, *size), seed=step, progress=False)
      generated = time.perf_counter()
      rewards, condition = reward(images), model.condition(images.prompts)
      batch = Batch(condition, images.tokens, images.log_probs,
                    log_probs(model.params, condition, images.tokens),
                    advantages(rewards, config.num_groups))
      params, opt_state, divergences = state.params, state.opt_state, []
      for _ in range(config.num_updates):
        params, opt_state, divergence = update(params, opt_state, batch)
        divergences.append(float(divergence))
      state = State(state.step + 1, params, opt_state)
      # Rewards, divergence and passes are of the parameters before the step, the digest of those
      # after it. A batch takes as many passes as its slowest image. Both times are in seconds; they
      # include compiling in the first step of a process.
      rounds = np.asarray(images.decoded.rounds)
      rows.append(dict(
          step=step + 1, reward=float(np.mean(rewards)), divergence=divergences[0],
          nll=-float(np.mean(images.log_probs)), passes=int(rounds.max()),
          passes_per_image=float(rounds.mean()), digest=digest(params),
          generating=generated - start, learning=time.perf_counter() - generated))
      print(rows[-1], flush=True)
      atomic.write_json(report, dict(
          settings=settings, precision=images.precision, guarantee=images.guarantee, rows=rows,
          device=jax.devices()[0].device_kind, versions=dict(jax=jax.__version__)))
      loop.save(states, step + 1, state)
    states.close()
  return state.params


def asked(images: Generated) -> np.ndarray:
  """Returns the share of what its prompt asks for that every image shows, `[B]`."""
  marks = scenes.score(images.images, images.prompts)
  return np.nanmean([marks[kind] for kind in scenes.KINDS], axis=0)


@cli.command(Config)
def main(config: Config) -> None:
  model = cspd_jax.load('emoji')
  prompts = PROMPTS if config.prompts is None else of_file(config.prompts)
  scenes.check(prompts)
  params = train(model, prompts, asked, config)
  target = store.describe(families.part_folder('emoji', 'target'))
  store.save(pathlib.Path(config.workdir, 'target'), target.kind, target.config, params,
             extra=target.metadata)


if __name__ == '__main__':
  sys.exit(main())
