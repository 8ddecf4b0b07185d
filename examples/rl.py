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
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cspd_jax
from cspd_jax import cli, families
from cspd_jax.files import atomic, reading, run_folder, store
from cspd_jax.generation.prompts import of_file
from cspd_jax.generation.results import Generated
from cspd_jax.generation.sampler import Sampler
from cspd_jax.metrics import likelihood, scenes
from cspd_jax.training import loop

# Captions of which `emoji` leaves out a part in most images.
PROMPTS = ('an orange cat and a green cactus flat on blue',
           'a yellow star and a purple moon flat on orange')
GROUPS, IMAGES = 2, 8  # Groups of a step, and images of a group, which have one prompt.
# What is sampled: the model's distribution with its own guidance, at temperature 1 and without
# cuts. A token that top-k or top-p cut under later parameters would have no finite ratio.
SAMPLING = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
UPDATES = 2  # Updates on the images of a step.
CLIP = 0.2  # A ratio of probabilities counts up to this distance from 1.
PENALTY = 0.04  # Weight of the divergence from the shipped parameters, nats per token.
LEARNING_RATE = 2e-5
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(LEARNING_RATE))

Params = Any


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


def advantages(rewards: np.ndarray) -> np.ndarray:
  """Returns by how many standard deviations rewards `[B]` exceed the mean of their group."""
  groups = rewards.reshape(-1, IMAGES)
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


def compiled(sampler: Sampler) -> tuple[Callable[..., jax.Array], Callable[..., Any]]:
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
    changes, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, changes), opt_state, divergence

  # On a CPU, `jax.jit` alone would compute some sums of products wrongly with jax 0.10.
  return cspd_jax.jit(log_probs), cspd_jax.jit(update)


def prompts_of(step: int, prompts: Sequence[str]) -> list[str]:
  """Returns the prompts of a step's images; all prompts have their turn before one has another."""
  chosen = []
  for number in range(step * GROUPS, (step + 1) * GROUPS):
    turn, place = divmod(number, len(prompts))
    order = np.random.default_rng(turn).permutation(len(prompts))
    chosen += [prompts[order[place]]] * IMAGES
  return chosen


def digest(params: Params) -> str:
  """Returns a digest of parameters, which changes with every bit."""
  result = hashlib.sha256()
  for leaf in jax.tree.leaves(params):
    result.update(np.asarray(leaf).tobytes())
  return result.hexdigest()[:16]


def train(model: cspd_jax.Model, prompts: Sequence[str], reward: Callable[[Generated], np.ndarray],
          decoder: str, num_steps: int, workdir: str | pathlib.Path) -> Params:
  """Trains a model, and returns its parameters.

  Args:
    model: the model.
    prompts: prompts, `GROUPS` of which are used in a step.
    reward: `images -> rewards [B]`, larger ones for better images.
    decoder: specification of the decoder that generates the images.
    num_steps: steps, of which a stopped run in `workdir` has done some.
    workdir: folder of the last two states and of report.json, written after every step.

  Raises:
    ValueError: for a decoder that the model does not support, or another run in `workdir`.
  """
  sampler = lambda params: model.with_params(params).sampler(
      decoder, batch_size=GROUPS * IMAGES, **SAMPLING)
  log_probs, update = compiled(sampler(model.params))
  settings = dict(
      decoder=decoder, prompts=list(prompts), groups=GROUPS, images=IMAGES, updates=UPDATES,
      clip=CLIP, penalty=PENALTY, learning_rate=LEARNING_RATE, **sampler(model.params).recorded)
  with run_folder.Run(workdir, settings, name='workdir') as run:
    states, report = loop.manager(run.folder / 'states'), run.folder / 'report.json'
    state = State(jnp.int32(0), model.params, OPTIMIZER.init(model.params))
    state = loop.restore(states, state) or state
    done = int(state.step)
    # The report, which is written first, may be a step ahead.
    rows = reading.json(report, 'use another folder')['rows'][:done] if done else []
    for step in range(done, num_steps):
      images = sampler(state.params)(prompts_of(step, prompts), seed=step, progress=False)
      rewards, condition = reward(images), model.condition(images.prompts)
      batch = Batch(condition, images.tokens, images.log_probs,
                    log_probs(model.params, condition, images.tokens), advantages(rewards))
      params, opt_state, divergences = state.params, state.opt_state, []
      for _ in range(UPDATES):
        params, opt_state, divergence = update(params, opt_state, batch)
        divergences.append(float(divergence))
      state = State(state.step + 1, params, opt_state)
      # Rewards, divergence and passes are of the parameters before the step, the digest of those
      # after it. A batch takes as many passes as its slowest image.
      rounds = np.asarray(images.decoded.rounds)
      rows.append(dict(
          step=step + 1, reward=float(np.mean(rewards)), divergence=divergences[0],
          nll=-float(np.mean(images.log_probs)), passes=int(rounds.max()),
          passes_per_image=float(rounds.mean()), digest=digest(params)))
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


@dataclasses.dataclass(frozen=True)
class Config:
  """A run.

  Attributes:
    decoder: specification of the decoder that generates the images.
    prompts: file with one caption of a scene per line; None for a few that `emoji` often misses.
    num_steps: steps of the training.
    workdir: folder of the run.
  """

  decoder: str = 'corrected_seed_exact(window=16)'
  prompts: str | None = None
  num_steps: int = 24
  workdir: str = 'runs/rl'


@cli.command(Config)
def main(config: Config) -> None:
  model = cspd_jax.load('emoji')
  prompts = PROMPTS if config.prompts is None else of_file(config.prompts)
  scenes.check(prompts)
  params = train(model, prompts, asked, config.decoder, config.num_steps, config.workdir)
  target = store.describe(families.part_folder('emoji', 'target'))
  store.save(pathlib.Path(config.workdir, 'target'), target.kind, target.config, params,
             extra=target.metadata)


if __name__ == '__main__':
  sys.exit(main())
