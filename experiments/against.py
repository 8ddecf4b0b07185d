"""Compares other people's code with ours, on the same weights: what it generates, and how fast.

  git clone https://github.com/tyshiwo1/Accelerating-T2I-AR-with-SJD SJD
  pip install torch transformers==4.48.1
  python -m experiments.against --repo=SJD --method=sjd
  python -m experiments.against --repo=SJD --method=sjd --official
  python -m experiments.against --repo=LANTERN --method=eagle --model=demo
  python -m experiments.against --repo=LlamaGen --method=llamagen --model=c2i_b_256

The network of the clone loads the weights; the difference of its first outputs is printed.

With the trained weights of a model, the unchanged loop of the clone decodes the prompts one by one,
as its own programs do, and as its baseline one token per pass. The same prompts are decoded here
with the same sampling options by the baseline, by the decoders of the same method, and by
`--decoder`. Use one core, `taskset -c 0`, to compare seconds.

For an exact sampler the mean of `NLL - entropy` is 0; see cspd_jax.metrics.likelihood. The energy
distance is that between the images and those of the baseline here with other seeds, of pixels, or
of tokens that are continuous; `p` is its p-value, see cspd_jax.metrics.energy. With fewer than some
hundred images it shows gross differences only. Passes and head calls are those of the target; a
pass with guidance is one. Seconds and speed-ups are medians over the images.

At a published size, such as c2i_b_256, mar_b or nextstep_184m, weights are random, and only times
are compared: of whole images of discrete tokens, on the device that JAX uses, and of passes of
continuous ones on a CPU. Decoders commit as many tokens per pass as `--accepted` measured; see
experiments.released.sizes. Both programs use all cores and run in turns; times are medians, without
compilation.

The code of other projects is not part of this repository. What is changed of it, in memory only, is
in the modules of experiments.released. Writes report.json to --workdir.
"""

import dataclasses
import hashlib
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import cspd_jax
from cspd_jax import cli, families
from cspd_jax.cli import groups, inputs
from cspd_jax.core import batches, fields
from cspd_jax.files import paths, store
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import prompts as prompts_lib
from cspd_jax.measure import tables
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import base, energy, likelihood, requests, scenes
from experiments import measured
from experiments.released import (
  Decodes,
  Loops,
  Method,
  Work,
  llamagen,
  lumina,
  mar,
  nextstep,
  sizes,
)

METHODS = lumina.METHODS | llamagen.METHODS | mar.METHODS | nextstep.METHODS
# The largest accepted difference of the first outputs, in float32.
_TOLERANCE = 1e-3
# Options that only models with trained weights read, and only sizes with random ones.
_OF_TRAINED = ('images', 'guidance_scale', 'official')
_OF_SIZES = ('accepted', 'tokens_per_round', 'repeats', 'compiled')
_MOST_REPEATS = 64  # So many tokens remain in an image whose middle is timed.
_COLUMNS = {
    'decoder': '{decoder}', 'code': '{code}', 'window': '{window}',
    'tokens per pass': '{tokens_per_pass:.2f} +- {tokens_per_pass_error:.2f}',
    'passes': '{passes:.1f}', 'head calls': '{head_calls:.0f}',
    's/image': '{seconds_per_image:.2f}', 'speed-up': '{speedup:.2f}x',
    'NLL - entropy': '{gap:.3f} +- {gap_error:.3f}', 'asked': '{asked:.2f}',
    'energy distance': '{energy:.4f} +- {energy_error:.4f}',
    'p': '{energy_p:.4f}'}


@dataclasses.dataclass(frozen=True)
class Config:
  """The other code, the weights, and what is compared.

  Attributes:
    repo: folder of a clone of the code; none if it is an installed package.
    method: the method, one of `METHODS`.
    loading: a model with trained weights, or a published size of the method.
    decoder: further decoders of ours, or all that are timed at a published size; those that suit
      the method if None.
    images: the images, the same for all decoders.
    guidance_scale: the only sampling option of both; the model's if None.
    official: decodes with the guidance scale of the released programs, whose loops then draft the
      positions that these programs do: not the last ones of an image.
    accepted: report.json of a program that measured tokens per pass; that of the method if None.
    tokens_per_round: those of every decoder, in place of the report's.
    repeats: timed runs at a published size, whose median is reported.
    compiled: has `torch.compile` compile the other network.
    workdir: folder of report.json.
  """

  repo: str | None = None
  method: str = 'sjd'
  loading: groups.LoadFlags = groups.LoadFlags(model='emoji', dtype='float32')
  decoder: tuple[str, ...] | None = None
  images: groups.Images = groups.Images(num_images=32)
  guidance_scale: float | None = None
  official: bool = False
  accepted: str | None = None
  tokens_per_round: float | None = None
  repeats: int = 5
  compiled: bool = False
  workdir: str = 'runs/against'

  def __post_init__(self):
    fields.check(self, guidance_scale=fields.FINITE, repeats=(1, _MOST_REPEATS))


def check(config: Config) -> tuple[Method, bool]:
  """Checks options that depend on each other; returns the method, and whether weights are random.
  """
  fields.check_choice('method', config.method, METHODS)
  method, name = METHODS[config.method], config.loading.model
  is_random = name in method.sizes.models
  for option in _OF_TRAINED if is_random else _OF_SIZES:
    if (value := getattr(config, option)) != getattr(Config, option):
      raise ValueError(f'{option} is {value!r}, but the weights of model, {name!r}, are '
                       f'{"random" if is_random else "trained"}, for which it has no meaning; '
                       'leave it out.')
  if config.official and method.guidance_scale is None:
    raise ValueError(f'official is set, but {config.method} has no options of its programs; leave '
                     'it out, or choose a method of: ' + ', '.join(
                         name for name, other in METHODS.items() if other.guidance_scale) + '.')
  if config.official and config.guidance_scale is not None:
    raise ValueError(f'guidance_scale is {config.guidance_scale:g} and official is set, which '
                     'determines it; leave one of them out.')
  for option in ('parts', 'grid', 'quantize', 'cache_dtype', 'mesh'):
    if (value := getattr(config.loading, option)) is not None:
      raise ValueError(f'{option} is {value!r}, but the other code reads the networks of the model '
                       'as they are stored; leave it out.')
  return method, is_random


def clone(repo: str | None, method: Method) -> pathlib.Path | None:
  """Returns the folder of the clone of a method, None for a package; ValueError for another."""
  if method.file is None:
    if repo is not None:
      raise ValueError(f'repo is {repo!r}, but {method.url} is a package here; leave it out.')
    return None
  if repo is None:
    raise ValueError(f'repo is none; give the folder of a clone of {method.url}.')
  folder = paths.find('repo', repo).absolute()
  if not (folder / method.file).exists():
    raise ValueError(f'repo is {repo!r}, which does not contain {method.file}; give a clone of '
                     f'{method.url}.')
  if hashlib.sha256((folder / method.file).read_bytes()).hexdigest() != method.sha256:
    raise ValueError(f'repo is {repo!r}, whose {method.file} is not that of commit '
                     f'{method.commit}; check that commit out.')
  return folder


def loaded(method: Method, folder: pathlib.Path | None, work: Work) -> Loops:
  """Imports the other code with its weights; ValueError if its first outputs are others."""
  loops, torch = method.load(folder, work), _torch()
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  print(f'the first outputs differ by {loops.difference:.1e} at most', flush=True)
  if jax.tree.leaves(work.model.params)[0].dtype == np.float32 and not (
      loops.difference <= _TOLERANCE):
    raise ValueError(f'the first outputs differ by {loops.difference:.1e}; they must agree within '
                     f'{_TOLERANCE:.0e}, so use another clone or a model in float32.')
  return loops


def _torch() -> Any:
  return sys.modules['torch']  # Every method imports it.


def released_images(loops: Loops, name: str, num_tokens: int, seeds: list[tuple[int, int]],
                    progress: Callable[[str], None]) -> Decodes:
  """Decodes every image with a released loop; the first one also before time counts."""
  states = [int(np.random.SeedSequence(pair).generate_state(1)[0]) for pair in seeds]
  loops.decode(name, 0, states[0])
  images = []
  for number, state in enumerate(states):
    images.append(loops.decode(name, number, state))
    progress(f'{name}, image {number}: {images[-1][1]} passes, {images[-1][2]:.1f} s')
    if len(images[-1][0]) != num_tokens or not np.isfinite(images[-1][0]).all():
      raise ValueError(f'{name} returned tokens of shape {images[-1][0].shape} for image {number}; '
                       f'they must be {num_tokens} finite ones, so use another clone.')
  return Decodes(*map(np.stack, zip(*images)))


def our_images(model: cspd_jax.Model, prompts: list[Any], condition: Any, seed: Any, sampling: Any,
               decoder: str) -> Decodes:
  """Decodes every prompt with a decoder of ours; compilation is not timed."""
  sampler = model.sampler(decoder, batch_size=1, sampling=sampling)
  ours = sampler.images(prompts, seed=seed, condition=condition, pixels=False)
  sampler.compile(ours, 1)
  sampler.bound(ours, np.zeros(1, int))()
  images: list[tuple[Any, ...]] = []
  for number in range(len(ours)):
    start = time.perf_counter()
    decoded = jax.device_get(sampler.bound(ours, np.array([number]))())
    seconds = time.perf_counter() - start
    sampler.check_result(ours.pick([number]), decoded)
    if _is_discrete(model):
      images.append((decoded.tokens[0], decoded.rounds[0], seconds))
    else:
      images.append((decoded.tokens[0], decoded.costs.target_passes[0], seconds,
                     decoded.costs.head_calls.sum()))
  return Decodes(*map(np.stack, zip(*images)))


def _is_discrete(model: cspd_jax.Model) -> bool:
  return model.table.tokens == 'discrete'


def _captions(model: cspd_jax.Model, prompts: list[Any]) -> list[str] | None:
  """Returns the captions of scenes of emoji, whose images can be scored; None for other prompts."""
  titles = list(model.prompt_kind.titles(prompts))
  return titles if _is_discrete(model) and all(map(requests.parse, titles)) else None


def row_of(name: str, code: str, window: int | None, sample: base.Sample, baseline: Decodes,
           model: cspd_jax.Model) -> dict[str, Any]:
  """Returns the figures of a decoder's images; `baseline` are those of its code's baseline."""
  decodes = sample.decoded
  count = decodes.tokens.shape[1]
  per_pass = base.ratio(np.full(len(decodes.passes), count), decodes.passes)
  row = dict(
      decoder=name, code=code, window=window, tokens_per_pass=per_pass.mean,
      tokens_per_pass_error=per_pass.standard_error, passes=float(decodes.passes.mean()),
      seconds_per_image=float(np.median(decodes.seconds)),
      speedup=float(np.median(baseline.seconds / decodes.seconds)))
  if decodes.head_calls is not None:
    row |= dict(head_calls=float(decodes.head_calls.mean()))
  if _is_discrete(model):
    of = likelihood.measured(sample, model)
    gap = base.mean(np.asarray(of.nll, np.float64) - np.asarray(of.entropy, np.float64))
    row |= dict(gap=gap.mean, gap_error=gap.standard_error)
  if sample.captions is not None:
    row |= dict(asked=scenes.sample_scores(sample, model)['asked'].mean)
  # Of pixels, or of tokens that are continuous.
  compared = (part.images(model) if _is_discrete(model) else part.tokens
              for part in (sample, sample.reference))
  return row | base.finite(dict(zip(('energy', 'energy_error', 'energy_p'),
                                    energy.energy(*compared))))


def race(config: Config, method: Method) -> tuple[tables.Table, dict[str, Any]]:
  """Decodes the same prompts with both; returns a table with every row, and further entries."""
  model = inputs.model(config.loading, one_group=inputs.MEASURED)
  method.check(model)
  folder = clone(config.repo, method)
  prompts, seed = inputs.images(config.images, model, default=32)
  if len(prompts) < 2:
    raise ValueError('num_images is 1; it must be at least 2, for a standard error.')
  scale = method.guidance_scale if config.official else config.guidance_scale
  sampling = model.sampling(**({} if scale is None else dict(guidance_scale=scale)))
  condition, captions = model.condition(prompts), _captions(model, prompts)
  same, best = method.ours(model), method.best if config.decoder is None else config.decoder
  # Refuses what the model cannot run.
  ours: dict[str, Any] = {
      name: model.decoder(name) for name in (model.table.baseline, *same, *best)}
  loops = loaded(method, folder, Work(
      model, store.load(families.part_folder(config.loading.model, 'target')),
      config.loading.model, [batches.select(condition, np.array([i])) for i in range(len(prompts))],
      sampling, config.official))
  show = lambda line: print(line, file=sys.stderr, flush=True)
  seeds = prompts_lib.seeds(seed, len(prompts))
  theirs = {name: released_images(loops, name, model.num_tokens, seeds, show)
            for name in loops.windows}
  mine = {name: our_images(model, prompts, condition, seed, sampling, name) for name in ours}
  reference = Bench(model, prompts, seed=seed, sampling=sampling).redrawn()

  def window_of(name: str) -> int | None:
    if name == model.table.baseline:
      return 1
    if _is_discrete(model):
      return ours[name].drafter.tree.num_nodes + 1
    return max(loops.windows.values()) if name in same else None

  by_code: tuple[tuple[str, Mapping[str, Decodes], Mapping[str, int | None]], ...] = (
      ('released', theirs, loops.windows),
      ('cspd_jax', mine, {name: window_of(name) for name in ours}))
  rows = [row_of(name, code, windows[name], base.Sample(
      images, condition, sampling, reference, captions=captions), next(iter(decodes.values())),
                 model)
          for code, decodes, windows in by_code for name, images in decodes.items()]
  cells = zip(_COLUMNS, *(tables.cells(_COLUMNS, row) for row in rows))
  columns = {name: _COLUMNS[name] for name, *column in cells if set(column) != {'-'}}
  return tables.Table('released code and ours', columns, rows), dict(
      num_images=len(prompts), outputs_differ=loops.difference)


def timed(config: Config, method: Method) -> tuple[tables.Table, dict[str, Any]]:
  """Times both at a published size; returns the table, and further entries of the report."""
  own = method.sizes
  model = own.models[config.loading.model](dtype=config.loading.dtype or 'float32')
  texts = own.decoders if config.decoder is None else config.decoder
  fields.require(bool(texts), 'decoder', texts, 'at least one specification')
  table_of = sizes.prepare(own, model, texts, config.accepted or own.accepted,
                           config.tokens_per_round)
  folder = clone(config.repo, method)
  if config.compiled and not _is_discrete(model):
    raise ValueError('compiled is set, but only official code of discrete tokens is compiled; '
                     'leave it out.')
  work = sizes.work(model, config.compiled)
  loops = loaded(method, folder, work)
  return table_of(work, loops, config.repeats), dict(
      batch=1, dtype=config.loading.dtype, guidance_scale=float(work.sampling.guidance_scale),
      difference=loops.difference, parameters=sum(
          leaf.size for leaf in jax.tree.leaves(work.target.params)))


@cli.command(Config)
def main(config: Config) -> None:
  method, is_random = check(config)
  if not (is_random and config.method in llamagen.METHODS):
    jax.config.update('jax_platforms', 'cpu')
  table, more = (timed if is_random else race)(config, method)
  measured.write(Report(config.workdir), config, [table], method=config.method, url=method.url,
                 commit=method.commit, model=config.loading.model,
                 threads=_torch().get_num_threads(), **more,
                 **{f'{name}_version': str(sys.modules[name].__version__)
                    for name in ('torch', 'transformers') if name in sys.modules})


if __name__ == '__main__':
  sys.exit(main())
