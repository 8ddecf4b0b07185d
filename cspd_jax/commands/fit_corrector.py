"""Fits the neighbours corrector to a model, so that `corrected` windows can decode it.

  cspd-fit-corrector --model=checkpoints/c2i_xl_384
  cspd-fit-corrector --model=checkpoints/lumina_7b_768 --num_images=512 --batch_size=2
  cspd-fit-corrector --model=demo --output=runs/neighbours --tokens=images.npz

The corrector is a small network on the tokens to the left and above. It learns from images that the
model has sampled: those of --tokens, an .npz file with an array `tokens` `[N, T]`, or --num_images
that are sampled first, of --prompts, the model's own prompts, or a built-in list for models of
words. Fitting takes a minute or two on two cores; sampling takes --num_images times what the model
needs for an image, with the model's default decoder. Sampled batches are stored in --workdir: a
stopped command resumes when it is repeated.

The network is stored in the model's folder, or in --output for `cspd_jax.load(model,
neighbours=output)`. It changes speed only: `decoder='corrected(by=neighbours)'` samples the model's
distribution with any corrector. Prints tokens per forward pass, and how often a draft is accepted
by its distance from the last committed token, before (`mc_sjd` with the same window) and after.
"""

import dataclasses
import pathlib
import sys
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

import cspd_jax
from cspd_jax import cli, families
from cspd_jax.cli import groups, inputs, training
from cspd_jax.core import compiling, fields, progress
from cspd_jax.files import locks, npz, paths, store
from cspd_jax.generation import run as run_lib
from cspd_jax.generation.request import Request
from cspd_jax.metrics import acceptance
from cspd_jax.models import neighbours
from cspd_jax.training import neighbours as training_lib, samples
from cspd_jax.training.neighbours import NeighboursTrainConfig

# Decoders that are measured before and after, and distances that are printed.
_BEFORE = 'mc_sjd(window={window})'
_AFTER = 'corrected(by=neighbours, window={window}, tree=chain())'
_DISTANCES = (1, 2, 3, 4, 6, 8, 12)
# Images sampled together, if memory suffices and nothing else is specified.
_MOST_AT_ONCE = 16
# Images that are sampled if nothing else is specified.
_IMAGES = 3072
# Fewer images are not worth fitting to; a sixteenth of them, and at least 16, is held out.
_FEWEST = 64


@dataclasses.dataclass(frozen=True)
class Config:
  """The corrector to fit, and its images.

  Attributes:
    model: a shipped model of discrete tokens, or a folder.
    tokens: .npz file of images that the model has sampled; None samples them.
    num_images: number of images to sample. None samples 3072.
    prompt: prompts of the sampled images; may be repeated. None uses the model's own prompts, or
      a built-in list for models of words.
    prompts: a file with one prompt per line, or of JSON lines, in place of `prompt`.
    seed: seed of the images, the parameters and the order of training.
    sampling: sampling options.
    decoder: samples the images; None uses the model's default decoder, if that is exact.
    batch_size: images sampled together; None for as many as fit in memory, at most 16.
    dtype: dtype of the model's parameters; None keeps that of the files.
    quantize: int8 stores the matrices of the target's layers as int8.
    cache_dtype: int8 stores the target's keys and values as int8.
    mesh: several devices to sample with, such as 2x4: two groups, each of which samples images of
      its own with four devices that the model is sharded over. None uses one device.
    num_steps: optimiser steps at most.
    num_measured: images to measure on, before and after; 0 measures nothing.
    window: window of the measured decoders.
    output: folder of the network; None adds it to the model's folder.
    workdir: folder of the sampled images; None uses runs/fit_corrector/ and the name of the model.
  """

  model: str = 'demo'
  tokens: str | None = None
  num_images: int | None = None
  prompt: str | tuple[str, ...] | None = None
  prompts: str | None = None
  seed: int = 0
  sampling: groups.Sampling = groups.Sampling()
  decoder: str | None = None
  batch_size: int | None = None
  dtype: Literal['float32', 'bfloat16'] | None = None
  quantize: Literal['int8'] | None = None
  cache_dtype: Literal['int8'] | None = None
  mesh: str | None = None
  num_steps: int = 1500
  num_measured: int = 16
  window: int = 32
  output: str | None = None
  workdir: str | None = None

  def __post_init__(self):
    fields.check(self, num_images=(_FEWEST, groups.MOST_IMAGES), num_measured=(0, fields.MOST),
                 seed=fields.SEEDS)


class Job(NamedTuple):
  """Checked settings.

  Attributes:
    config: the configuration.
    model: the model.
    prompts: prompts of the sampled images, one per image.
    sampling: the sampling options.
    request: of the sampled images; None if `tokens` holds the images.
    batch_size: images sampled or measured together, at most.
  """

  config: Config
  model: cspd_jax.Model
  prompts: list[Any]
  sampling: Any
  request: Request | None
  batch_size: int


def prepare(config: Config) -> Job:
  """Loads the model and checks all options.

  Raises:
    ValueError: for the first option that cannot work.
  """
  model = _load(config)
  if model.engine.name != 'discrete':
    raise ValueError(f'model is {config.model!r}, whose tokens are continuous; give one of '
                     'discrete tokens.')
  _check_output(config)
  store.check_place(_output(config))
  if config.output is None:
    families.check_place(config.model, model.family, {'neighbours': 'neighbours'})
  inputs.tokens_at_most(config, model, 'window')
  for name in ('num_images', 'decoder'):
    if config.tokens is not None and (value := getattr(config, name)) is not None:
      raise ValueError(f'{name} is {value!r} and tokens is {config.tokens!r}, which holds the '
                       'images; leave one of them out.')
  images = groups.Images(config.prompt, config.prompts, config.num_images or _IMAGES, config.seed)
  prompts, _ = inputs.images(images, model, general=True)
  sampling = model.sampling(**inputs.overrides(config.sampling))
  if config.decoder is not None:
    guarantee = model.engine.guarantee(model.decoder(config.decoder))
    if not guarantee.is_exact:
      raise ValueError(f'decoder is {config.decoder!r}, which is {guarantee}: a corrector learns '
                       "from images of the model's own distribution; give an exact decoder.")
  if config.tokens is not None:
    return Job(config, model, prompts, sampling, None, config.batch_size or _MOST_AT_ONCE)
  request = samples.request(
      model, prompts, sampling, seed=config.seed, decoder=config.decoder,
      batch_size=config.batch_size, max_batch_size=_MOST_AT_ONCE, folder=_shards(config))
  return Job(config, model, prompts, sampling, request, request.batch_size)


def _load(config: Config, **parts: Any) -> cspd_jax.Model:
  """Loads the model with the options of a configuration."""
  return cspd_jax.load(config.model, dtype=config.dtype, quantize=config.quantize,
                       cache_dtype=config.cache_dtype, sharding=inputs.mesh(config.mesh),
                       **parts)


def _check_output(config: Config) -> None:
  """Raises ValueError unless the network can be stored where it should be."""
  if config.output is not None:
    if paths.folder('output', config.output).exists():
      raise ValueError(f'output is {config.output!r}, which exists; give another folder.')
    return
  if config.model in cspd_jax.shipped():
    raise ValueError(f'output is none, but {config.model!r} is part of the package, which is not '
                     'changed; give a folder.')
  if families.part_folder(config.model, 'target') == paths.find('model', config.model):
    raise ValueError(f'output is none, but {config.model!r} is the folder of a target alone, which '
                     'has no other parts; give a folder.')


def _output(config: Config) -> pathlib.Path:
  """The folder of the network."""
  return paths.folder('output', config.output or pathlib.Path(config.model) / 'neighbours')


def _workdir(config: Config) -> pathlib.Path:
  """The folder of the sampled images."""
  name = pathlib.Path(config.model).name or 'model'
  return paths.folder('workdir', config.workdir or pathlib.Path('runs', 'fit_corrector', name))


def _shards(config: Config) -> pathlib.Path:
  """The folder of finished batches."""
  return _workdir(config) / 'tokens'


def images(job: Job) -> tuple[np.ndarray, np.ndarray]:
  """Returns the images to fit to, tokens `[N, T]`, and held-out ones.

  Raises:
    ValueError: for a file that does not hold images of the model.
  """
  tokens = _sampled(job) if job.config.tokens is None else _read(job.config.tokens, job.model)
  held_out = max(len(tokens) // 16, 16)
  return tokens[held_out:], tokens[:held_out]


def _sampled(job: Job) -> np.ndarray:
  """Samples the images that `workdir` does not hold yet."""
  folder = _workdir(job.config)
  assert job.request is not None
  print(f'sampling {len(job.prompts)} images with {job.request.specification}, {job.batch_size} at '
        f'a time, into {folder}', flush=True)
  with locks.hold(folder), progress.bar('sampling') as show:
    decoded = run_lib.decode(job.request, show, _shards(job.config))
  return np.asarray(decoded.tokens, np.int32)


def _read(path: str, model: cspd_jax.Model) -> np.ndarray:
  """Reads the array `tokens` of a file; raises ValueError unless it holds images of the model."""
  tokens = npz.arrays(path, 'give an .npz file with an array of that name', 'tokens',
                          needed=('tokens',))['tokens']
  vocab = model.target(guided=False).vocab_size
  if (tokens.ndim != 2 or tokens.shape[1] != model.num_tokens or len(tokens) < _FEWEST
      or not np.issubdtype(tokens.dtype, np.integer)
      or tokens.min() < 0 or tokens.max() >= vocab):
    raise ValueError(
        f'tokens is {path!r}, which holds {tokens.dtype}{list(tokens.shape)}; it must hold at '
        f'least {_FEWEST} images of {model.num_tokens} whole numbers from 0 to {vocab - 1}.')
  return tokens.astype(np.int32)


def measure(job: Job, model: cspd_jax.Model, decoder: str) -> str:
  """Returns a decoder's tokens per forward pass and acceptance by distance, on other images."""
  config = job.config
  prompts = [job.prompts[i % len(job.prompts)] for i in range(config.num_measured)]
  # The batch size of the sampler may be too large for this decoder.
  decoded = run_lib.decode(samples.request(
      model, prompts, job.sampling, seed=config.seed + 1,
      decoder=decoder.format(window=config.window), max_batch_size=job.batch_size))
  rates = acceptance.by_place(decoded)
  return (f'{acceptance.summarise(decoded).step_compression:.2f} tokens per forward pass; accepted '
          'at distance ' + ', '.join(f'{distance}: {rates[distance - 1]:.2f}'
                                     for distance in _DISTANCES if distance <= len(rates)))


def _num_programs(job: Job) -> int:
  """The most programs that are compiled: a training step, and the decoders that sample and that are
  measured."""
  return 1 + (job.config.tokens is None) + 2 * (job.config.num_measured > 0)


@cli.command(Config)
def main(config: Config) -> None:
  job = prepare(config)
  training.log_progress()
  with compiling.reported(_num_programs(job), at_most=True):
    run(job)


def run(job: Job) -> None:
  """Fits, stores and measures the corrector."""
  config = job.config
  tokens, held_out = images(job)
  target, folder = job.model.target(guided=False), _output(config)
  sizes = neighbours.NeighboursConfig(target.vocab_size, target.num_tokens, target.row_width)
  optimizer = dataclasses.replace(
      training_lib.OPTIMIZER, num_steps=config.num_steps, seed=config.seed)
  params, losses = training_lib.fit(
      sizes, NeighboursTrainConfig(optimizer), tokens, held_out)
  print(f'{min(losses):.3f} nats per token of held-out images; {np.log(target.vocab_size):.3f} '
        'before', flush=True)
  store.save(folder, 'neighbours', sizes, params, dtype=jnp.dtype('bfloat16'),
             extra={'target': job.model.name})
  if config.output is None:
    families.save(config.model, job.model.family, {'neighbours': 'neighbours'})
  if config.num_measured:
    print('before:', measure(job, job.model, _BEFORE), flush=True)
    fitted = _load(config, neighbours=folder)
    print('after: ', measure(job, fitted, _AFTER), flush=True)
  part = f', neighbours={str(folder)!r}' if config.output else ''
  print(f'Stored in {folder}. Next: cspd_jax.load({config.model!r}{part})'
        ".generate(decoder='corrected(by=neighbours)'), or cspd-tune for the best decoder.")


if __name__ == '__main__':
  sys.exit(main())
