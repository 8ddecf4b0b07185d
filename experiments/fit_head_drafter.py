"""Fits the drafter of the diffusion head to a MAR checkpoint and stores it there.

  python -m experiments.fit_head_drafter --model=checkpoints/mar_b --guidance_scale=2.9

The drafter of `exact_head` guesses the head's next outputs from its last one; one number per noise
level says how. They are fitted by least squares on a few hundred ordinary chains of the model, to
outputs one or several levels away. Of these fits and the default numbers, the ones that take fewest
head calls on other images go into the checkpoint's metadata, where `experiments.generate` finds
them. They decide about speed only: the distribution of the images is the same with any numbers.
"""

import sys

from absl import app
from absl import flags
from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import checkpoint
from cspd_jax.continuous import blend
from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.decoders import exact_head
from cspd_jax.continuous.decoders import mar as mar_decoder
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.models import mar

_MODEL = flags.DEFINE_string('model', 'mar_demo/target', 'Checkpoint: a shipped name or a folder.')
_SCALE = flags.DEFINE_float('guidance_scale', 2.0, 'Scale of the fit with guidance.')
_CHAINS = flags.DEFINE_integer('num_chains', 256, 'Chains to fit on.', lower_bound=32)
_LENGTH = flags.DEFINE_integer('length', 8, 'Kernels per head call to fit for.', lower_bound=2)
_ITER = flags.DEFINE_integer(
    'num_iter', 16, 'Autoregressive steps of the images that the chains are taken from.')
_SEED = flags.DEFINE_integer('seed', 0, 'Of the chains.')


def main(argv: list[str]) -> int:
  if not flags.FLAGS['verbosity'].present:
    logging.set_verbosity(logging.WARNING)  # Loading a checkpoint logs a page.
  try:
    if len(argv) > 1:
      raise ValueError(f'{" ".join(argv[1:])!r} is not a flag; see --help.')
    loaded = checkpoint.load(_MODEL.value, dtype=jnp.float32)
    if loaded.kind != 'mar':
      raise ValueError(f"model is a {loaded.kind!r} checkpoint; it must be 'mar'.")
    # Building checks num_iter and length.
    plain = mar.target(loaded.config, guided=False)
    mar_decoder(plain, _ITER.value)
    exact_head(plain, _LENGTH.value)
    if not (np.isfinite(_SCALE.value) and _SCALE.value != 1):
      raise ValueError(f'guidance_scale is {_SCALE.value}; it must be finite and not 1.')
  except ValueError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  schedule = schedule_lib.make()
  best = []
  for guided in (False, True):
    blends, calls = fit(loaded, schedule, guided)
    best.append(blends[min(calls, key=calls.get)])
    print(f'{"with" if guided else "without"} guidance, head calls per token at batch 1: '
          + ', '.join(f'{name} {value:.1f}' for name, value in calls.items())
          + '; rho at steps '
          + ', '.join(f'{schedule.steps[i]}: {best[-1][i]:.2f}' for i in range(0, 100, 11)),
          flush=True)
  checkpoint.annotate(_MODEL.value, blend.describe_rho(schedule, *best))
  print(f'stored in {_MODEL.value}')
  return 0


def fit(loaded: checkpoint.Loaded, schedule: schedule_lib.Schedule, guided: bool
        ) -> tuple[dict[str, np.ndarray], dict[str, float]]:
  """By name, blends to choose from and the head calls per token with each of them."""
  target = mar.target(loaded.config, guided=guided)
  sampling = Sampling(_SCALE.value if guided else 1.0)
  decoder = mar_decoder(target, _ITER.value, schedule)
  labels = lambda num: jnp.arange(num) % loaded.config.num_classes
  record = jax.jit(lambda params, labels, key: blend.record(decoder, params, labels, key, sampling))
  num = min(_CHAINS.value, 64)
  parts = [record(loaded.params, labels(num), jax.random.key(_SEED.value + i))
           for i in range(-(-_CHAINS.value // num))]
  chains = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)
  reaches = sorted({1, 2, 4, _LENGTH.value})
  blends = {'default': blend.default_rho(schedule)} | {
      f'fitted to {reach} levels': blend.fit_rho(schedule, chains, reach) for reach in reaches}
  # One token per row and step: calls of a row by itself. Other images than those of the fit.
  calls = {}
  for name, rho in blends.items():
    speculative = jax.jit(exact_head(target, _LENGTH.value, None, schedule, rho=rho))
    generated = speculative(
        loaded.params, labels(8), jax.random.key(_SEED.value + 2**20), sampling)
    calls[name] = float(generated.costs.head_calls.sum() / generated.tokens[..., 0].size)
  return blends, calls


if __name__ == '__main__':
  app.run(main)
