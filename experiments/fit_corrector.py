"""Fits the neighbours corrector to a model: a minute, and every checkpoint can have one.

  python -m experiments.fit_corrector --model=checkpoints/c2i_xl_384
  python -m experiments.fit_corrector --model=demo --output=runs/neighbours
  python -m experiments.fit_corrector --model=demo --output=runs/neighbours --tokens=images.npz

The corrector is a small network on the tokens to the left and above. It learns from images that the
model has sampled: the array `tokens` `[N, T]` in the .npz file --tokens, such as
`experiments.train_drafter` keeps, or --num_images that are sampled first. It is stored in the
model's folder, or in --output, for `cspd_jax.load(model, neighbours=output)`. It decides about
speed only: `decoder='corrected(by=neighbours)'` samples the model's distribution in any case.

Printed are tokens per forward pass, and how often a draft is accepted by its place behind the last
committed token, before (`mc_sjd`, the same window with stale answers) and after.
"""

import dataclasses
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import cspd_jax
from cspd_jax import families
from cspd_jax.checkpoints import paths, reading, store
from cspd_jax.core import fields
from cspd_jax.metrics import acceptance
from cspd_jax.models import neighbours
from cspd_jax.training import neighbours as training_lib, samples
from cspd_jax.training.neighbours import NeighboursTrainConfig
from experiments import cli
from experiments.cli import inputs, training

# Decoders before and after, and places to print.
_BEFORE = 'mc_sjd(window={window})'
_AFTER = 'corrected(by=neighbours, window={window}, tree=chain())'
_PLACES = (1, 2, 3, 4, 6, 8, 12)


@dataclasses.dataclass(frozen=True)
class Flags:
  """What to fit.

  Attributes:
    model: a shipped model of discrete tokens, or a folder.
    output: folder for the network; it becomes a part of the model if none is given.
    tokens: file of images that the model has sampled; if none, they are sampled.
    num_images: images to sample.
    num_measured: images to measure on, before and after; 0 measures nothing.
    window: of the decoders that are measured.
    guidance_scale: of the sampled images; the model's own if none.
    num_steps: optimiser steps at most.
    seed: of the images, the parameters and their order.
  """

  model: str = 'demo'
  output: str | None = None
  tokens: str | None = None
  num_images: int = 3072
  num_measured: int = 16
  window: int = 32
  guidance_scale: float | None = None
  num_steps: int = 1500
  seed: int = 0

  def __post_init__(self):
    fields.check(self, num_images=(64, fields.MOST), num_measured=(0, fields.MOST),
                 guidance_scale=fields.FINITE, seed=fields.SEEDS)


def check(flags: Flags) -> cspd_jax.Model:
  """Checks all flags.

  Returns:
    The model.

  Raises:
    ValueError: for anything that cannot work.
  """
  model = cspd_jax.load(flags.model)
  if model.engine.name != 'discrete':
    raise ValueError(f'model is {flags.model!r}, whose tokens are continuous; give one of discrete '
                     'tokens.')
  if flags.tokens is None and not len(model.prompts):
    raise ValueError(f'tokens is none, and model {flags.model!r} has no prompts of its own to '
                     'sample; give a file of images that it has sampled.')
  if flags.output is None and flags.model in cspd_jax.shipped():
    raise ValueError(f'output is none, but {flags.model!r} comes with the package, which stays as '
                     'it is; give a folder.')
  folder = paths.find('model', flags.model)
  if flags.output is None and families.part_folder(flags.model, 'target') == folder:
    raise ValueError(f'output is none, but {flags.model!r} is the folder of a target alone, which '
                     'takes no parts; give a folder.')
  if flags.output is not None and paths.folder('output', flags.output).exists():
    raise ValueError(f'output is {flags.output!r}, which exists; give another folder.')
  store.check_place(_output(flags))
  if flags.output is None:
    families.check_place(flags.model, model.family, {'neighbours': 'neighbours'})
  inputs.tokens_at_most(flags, model, 'window')
  model.sampling(guidance_scale=flags.guidance_scale)
  return model


def _output(flags: Flags) -> pathlib.Path:
  """The folder of the network."""
  return paths.folder('output', flags.output or pathlib.Path(flags.model) / 'neighbours')


def images(flags: Flags, model: cspd_jax.Model) -> tuple[np.ndarray, np.ndarray]:
  """Tokens `[N, T]` to learn from, and a sixteenth of them to stop by.

  Raises:
    ValueError: for a file that holds no images of the model.
  """
  if flags.tokens is None:
    sampling = model.sampling(guidance_scale=flags.guidance_scale)
    tokens, _ = samples.sampled(
        model, None, flags.num_images, jax.random.key(flags.seed), sampling)
  else:
    tokens = _read(flags.tokens, model)
  held_out = max(len(tokens) // 16, 16)
  return tokens[held_out:], tokens[:held_out]


def _read(path: str, model: cspd_jax.Model) -> np.ndarray:
  """The array `tokens` of a file; raises ValueError unless it holds images of the model."""
  tokens = reading.arrays(path, 'give an .npz file with an array of that name', 'tokens',
                          needed=('tokens',))['tokens']
  vocab = model.target(guided=False).vocab_size
  if (tokens.ndim != 2 or tokens.shape[1] != model.num_tokens or len(tokens) < 64
      or not np.issubdtype(tokens.dtype, np.integer)
      or tokens.min() < 0 or tokens.max() >= vocab):
    raise ValueError(
        f'tokens is {path!r}, which holds {tokens.dtype}{list(tokens.shape)}; it must hold at '
        f'least 64 images of {model.num_tokens} whole numbers from 0 to {vocab - 1}.')
  return tokens.astype(np.int32)


def measure(flags: Flags, model: cspd_jax.Model, decoder: str) -> str:
  """Tokens per forward pass, and acceptance by place, of a decoder on other images."""
  prompts = [model.prompts[i % len(model.prompts)] for i in range(flags.num_measured)]
  decoded = model.generate(
      prompts, seed=flags.seed + 1, decoder=decoder.format(window=flags.window), batch_size=16,
      guidance_scale=flags.guidance_scale).decoded
  rates = acceptance.by_place(decoded)
  return (f'{acceptance.summarise(decoded).step_compression:.2f} tokens per forward pass; accepted '
          'at place ' + ', '.join(
              f'{place}: {rates[place - 1]:.2f}' for place in _PLACES if place <= len(rates)))


@cli.program(flags=Flags())
def main(flags: Any) -> None:
  model = check(flags)
  training.log_progress()
  tokens, held_out = images(flags, model)
  target = model.target(guided=False)
  config = neighbours.NeighboursConfig(target.vocab_size, target.num_tokens, target.row_width)
  params, losses = training_lib.fit(
      config, NeighboursTrainConfig(dataclasses.replace(
          training_lib.OPTIMIZER, num_steps=flags.num_steps, seed=flags.seed)), tokens, held_out)
  print(f'{min(losses):.3f} nats per token of other images; {np.log(target.vocab_size):.3f} before',
        flush=True)
  folder = _output(flags)
  store.save(folder, 'neighbours', config, params, dtype=jnp.dtype('bfloat16'),
                  extra={'target': model.name})
  if flags.output is None:
    families.save(flags.model, model.family, {'neighbours': 'neighbours'})
  if flags.num_measured and len(model.prompts):
    print('before:', measure(flags, model, _BEFORE), flush=True)
    model = cspd_jax.load(flags.model, neighbours=folder)
    print('after: ', measure(flags, model, _AFTER), flush=True)
  how = f"{flags.model!r}, neighbours={str(folder)!r}" if flags.output else repr(flags.model)
  print(f"stored in {folder}: cspd_jax.load({how}).generate(decoder='corrected(by=neighbours)')")


if __name__ == '__main__':
  sys.exit(main())
