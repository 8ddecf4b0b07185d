"""Decodes the same prompts with released decoders and with ours, on the same trained weights.

  git clone https://github.com/tyshiwo1/Accelerating-T2I-AR-with-SJD SJD
  pip install torch transformers==4.48.1
  python -m experiments.against_released --repo=SJD --method=sjd
  python -m experiments.against_released --repo=SJD --method=sjd --official
  python -m experiments.against_released --repo=LANTERN --method=eagle --model=demo --noasked

The weights of the model are written in the published format of its family, and the network of the
clone loads them: the difference of its first outputs is printed. Then the unchanged loop of the
clone decodes the prompts one by one, with the window that its own programs use, and as its baseline
one token per pass. The same prompts are decoded here with the same sampling options by the
baseline, by the decoders of the same method, and by `--best`. Use one core, `taskset -c 0`, to
compare seconds.

For an exact sampler the mean of `NLL - entropy` is 0; see cspd_jax.metrics.likelihood. The energy
distance is that between the images and those of the baseline here with other seeds, of pixels, or
of tokens that are continuous; `p` is its p-value, see cspd_jax.metrics.energy. With fewer than some
hundred images it shows gross differences only. Passes and head calls are those of the target; a
pass with guidance is one. Seconds and speed-ups are medians over the images.

The code of other projects is not part of this repository. What is changed of it, in memory only, is
in the modules of experiments.released. Writes report.json to --workdir.
"""

import dataclasses
import hashlib
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import cspd_jax
from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import batches, fields
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import prompts as prompts_lib
from cspd_jax.measure import tables
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import base, energy, likelihood, scenes
from experiments import against, measured
from experiments.released import Decodes, Loops, Method, Work, generate, llamagen, lumina, mar

METHODS = lumina.METHODS | llamagen.METHODS | generate.METHODS | mar.METHODS
# The largest accepted difference of the first outputs, in float32.
_TOLERANCE = 1e-3
_COLUMNS = {
    'decoder': '{decoder}', 'code': '{code}', 'window': '{window}',
    'tokens per pass': '{tokens_per_pass:.2f} +- {tokens_per_pass_error:.2f}',
    'passes': '{passes:.1f}', 'head calls': '{head_calls:.0f}',
    's/image': '{seconds_per_image:.2f}', 'speed-up': '{speedup:.2f}x',
    'NLL - entropy': '{gap:.3f} +- {gap_error:.3f}', 'asked': '{asked:.2f}',
    'energy distance': '{energy:.4f} +- {energy_error:.4f}',
    'p': '{energy_p:.4f}'}


@dataclasses.dataclass(frozen=True)
class Config(measured.ModelImages):
  """The released code, the images and our decoders.

  Attributes:
    repo: folder of a clone of the released code; none if it is an installed package.
    method: the released decoder, one of `METHODS`.
    guidance_scale: the only sampling option of both; the model's if None.
    official: decodes with the guidance scale of the released programs, whose loops then draft the
      positions that these programs do: not the last ones of an image.
    window: tokens that a pass scores; what the released programs recommend if None.
    best: further decoders of ours; those that suit the method if None.
    asked: scores whether the images show what was asked for, for models of scenes of emoji with
      discrete tokens.
  """

  loading: groups.LoadFlags = groups.LoadFlags(model='emoji', dtype='float32')
  images: groups.Images = groups.Images(num_images=32)
  batch_size: int | None = 1
  repo: str | None = None
  method: str = 'sjd'
  guidance_scale: float | None = None
  official: bool = False
  window: int | None = None
  best: tuple[str, ...] | None = None
  asked: bool = True
  workdir: str = 'runs/against_released'

  def __post_init__(self):
    fields.check(self, window=(2, fields.MOST), batch_size=(1, 1), guidance_scale=fields.FINITE)


def check(config: Config) -> tuple[cspd_jax.Model, Method, pathlib.Path | None]:
  """Checks the options; returns the model, the method and the folder of its clone, if it has one.
  """
  fields.check_choice('method', config.method, METHODS)
  method = METHODS[config.method]
  if method.window is None and config.window is not None:
    raise ValueError(f'window is {config.window}, but {config.method} has no window; leave it out.')
  if config.official and method.guidance_scale is None:
    raise ValueError(f'official is set, but {config.method} has no options of its programs; leave '
                     'it out, or choose a method of: ' + ', '.join(
                         name for name, other in METHODS.items() if other.guidance_scale) + '.')
  if config.official and config.guidance_scale is not None:
    raise ValueError(f'guidance_scale is {config.guidance_scale:g} and official is set, which '
                     'determines it; leave one of them out.')
  for name in ('parts', 'grid', 'quantize', 'cache_dtype', 'mesh'):
    if (value := getattr(config.loading, name)) is not None:
      raise ValueError(f'{name} is {value!r}, but the released code reads the networks of the '
                       'model as they are stored; leave it out.')
  model = config.model()
  method.check(model)
  window = config.window or method.window
  if window is not None and window > model.num_tokens:
    raise ValueError(f'window is {window}; it must be at most {model.num_tokens}, the number of '
                     'tokens of an image.')
  if method.file is None:
    if config.repo is not None:
      raise ValueError(
          f'repo is {config.repo!r}, but {config.method} is a package; leave it out.')
    return model, method, None
  if config.repo is None:
    raise ValueError(f'repo is none; give the folder of a clone of {method.url}.')
  folder = against.clone(config.repo, method.url, method.file)
  if hashlib.sha256((folder / method.file).read_bytes()).hexdigest() != method.sha256:
    raise ValueError(f'repo is {config.repo!r}, whose {method.file} is not that of commit '
                     f'{method.commit}; check that commit out.')
  return model, method, folder


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


def _compared(sample: base.Sample, model: cspd_jax.Model) -> np.ndarray:
  """Returns what the energy distance is of, `[N, ...]`."""
  return sample.images(model) if _is_discrete(model) else sample.tokens


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
  assert sample.reference is not None  # As `main` calls this.
  of_energy = energy.energy(*(_compared(part, model) for part in (sample, sample.reference)))
  return row | base.finite(dict(zip(('energy', 'energy_error', 'energy_p'), of_energy)))


@cli.command(Config)
def main(config: Config) -> None:
  jax.config.update('jax_platforms', 'cpu')
  model, method, clone = check(config)
  prompts, seed = inputs.images(config.images, model, default=32)
  if len(prompts) < 2:
    raise ValueError('num_images is 1; it must be at least 2, for a standard error.')
  scale = method.guidance_scale if config.official else config.guidance_scale
  sampling = model.sampling(**({} if scale is None else dict(guidance_scale=scale)))
  condition, window = model.condition(prompts), config.window or method.window
  captions = scenes.captions(model, prompts) if config.asked and _is_discrete(model) else None
  # Refuses what the model cannot run.
  numbers = {} if window is None else dict(
      window=window, half=(window - 1) // 2, steps=-(-model.num_tokens // window))
  same = [name.format(**numbers) for name in method.ours]
  best = method.best if config.best is None else config.best
  ours: dict[str, Any] = {
      name: model.decoder(name) for name in (model.table.baseline, *same, *best)}
  loops = method.load(clone, Work(
      model, str(config.loading.model), [
          batches.select(condition, np.array([i])) for i in range(len(prompts))], sampling, window,
      config.official))
  torch: Any = sys.modules['torch']
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  report = Report(config.workdir)
  print(f'the first outputs differ by {loops.difference:.1e} at most', flush=True)
  if not loops.difference <= _TOLERANCE:
    raise ValueError(f'the first outputs differ by {loops.difference:.1e}; they must agree within '
                     f'{_TOLERANCE:.0e}, so use another clone or a model in float32.')
  show = lambda line: print(line, file=sys.stderr, flush=True)
  seeds = prompts_lib.seeds(seed, len(prompts))
  theirs = {name: released_images(loops, name, model.num_tokens, seeds, show)
            for name in loops.windows}
  mine = {name: our_images(model, prompts, condition, seed, sampling, name) for name in ours}
  reference = Bench(model, prompts, seed=seed, sampling=sampling).redrawn()

  def window_of(name):
    if name == model.table.baseline:
      return 1
    if _is_discrete(model):
      return ours[name].drafter.tree.num_nodes + 1
    return window if name in same else None

  windows = {name: window_of(name) for name in ours}
  rows = [row_of(name, code, sizes[name], base.Sample(
      images, condition, sampling, reference, captions=captions), next(iter(decodes.values())),
                 model)
          for code, decodes, sizes in (('released', theirs, loops.windows),
                                       ('cspd_jax', mine, windows))
          for name, images in decodes.items()]
  cells = zip(_COLUMNS, *(tables.cells(_COLUMNS, row) for row in rows))
  columns = {name: _COLUMNS[name] for name, *column in cells if set(column) != {'-'}}
  measured.write(report, config, [tables.Table('released code and ours', columns, rows)],
                 method=config.method, url=method.url, commit=method.commit, model=model.name,
                 num_images=len(prompts), outputs_differ=loops.difference,
                 threads=torch.get_num_threads(),
                 **{f'{name}_version': str(sys.modules[name].__version__)
                    for name in ('torch', 'transformers') if name in sys.modules})


if __name__ == '__main__':
  sys.exit(main())
