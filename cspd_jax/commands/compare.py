"""Generates the same images with several decoders and shows what each of them costs.

  cspd-compare --all
  cspd-compare --prompt='a fox on white' --prompt='a castle on yellow' --seed=7
  cspd-compare --decoder='vanilla,mc_sjd(window=16),eagle+cool(delta=1.1)'
  cspd-compare --model=checkpoints/c2i_b_256 --prompt=207,360 --guidance_scale=4 --dtype=bfloat16
  cspd-compare --model=mar_demo
  cspd-compare --paired --num_images=100 --budget=1

Compares ordinary sampling, the model's default decoder and, on an accelerator, long windows with
and without the same images; --decoder names others, and --all compares every decoder that the model
can run. A CPU computes every token of a window, so there one long window is not timed: its forward
passes are counted, and what it would gain on an accelerator is projected.

Writes to --output a grid of images per decoder (images_*.png), the forward pass that committed each
token (acceptance.png), for continuous tokens what was accepted (accepted.png), bars of the work and
the wall-clock time (speed.png), and all figures (report.json). The first images are written as soon
as the first decoder has run, the bars at the end. Times are for one image at a time, without
compilation; timing stops once their error is small. If the model has a prior, it draws once for all
decoders, which are decoders of the second model; its passes are shown too.
"""

import dataclasses
import functools
import sys
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import cspd_jax
from cspd_jax import cli, sharding
from cspd_jax.cli import groups, inputs
from cspd_jax.commands import comparison
from cspd_jax.commands.comparison import CompareJob
from cspd_jax.core import compilations, fields, progress
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.files import locks
from cspd_jax.generation import defaults, options
from cspd_jax.generation.cascade import Cascade
from cspd_jax.generation.images import fitted
from cspd_jax.measure import tables, timing
from cspd_jax.measure.timing import Compared
from cspd_jax.metrics import scenes

_REPEATS = 3  # Timed runs per image and decoder, at most.
# `Compared.noise` below which no more runs are timed, and above which times support no conclusion.
_STEADY, _BUSY = 0.03, 0.05
_ACCELERATOR = types.SimpleNamespace(device_kind='gpu', platform='gpu')
# Windows that need the fewest passes, with a corrector and without one.
_WINDOWS = ('corrected_seed_exact', 'corrected'), ('seed_exact',)
_LONG = 64  # Their length on an accelerator.


@dataclasses.dataclass(frozen=True)
class Config:
  """A comparison of decoders.

  Attributes:
    loading: the model, and how it is loaded. The first number of a mesh is 1, because images are
      decoded one at a time.
    decoder: specifications separated by commas, such as vanilla,mc_sjd(window=32). None
      compares ordinary sampling, the model's default decoder and corrected windows (without a
      corrector, seed_exact); on a CPU one of these, which is not timed.
    all: compares every named decoder that the model can run, and its default one.
    paired: also shows the differences between a decoder's images and the baseline's of the same
      seeds, in likelihood, brightness, contrast and detail, with their standard errors. The
      likelihood requires a forward pass over each image.
    asked: scores whether the images show what was asked for, as `cspd-evaluate --asked` does, for
      models of scenes of emoji; with `paired` the differences too.
    images: which images, the same with every decoder.
    budget: seconds of all timed runs together: each image is timed at least once with every
      decoder, and at most three times, as long as the error of the times is large; the median
      counts.
    output: folder of the results; None uses runs/ and the name of the model.
  """

  loading: groups.LoadFlags = groups.LoadFlags()
  decoder: tuple[str, ...] | None = None
  all: bool = False
  paired: bool = False
  asked: bool = False
  images: groups.Images = groups.Images(seed=4)
  sampling: groups.SamplingFlags = groups.SamplingFlags()
  budget: float = 20.0
  output: str | None = None

  def __post_init__(self):
    fields.check(self)


def prepare(config: Config) -> CompareJob:
  """Loads the model and checks all options; raises ValueError for the first that cannot work."""
  _check_choice(config)
  model = inputs.model(config.loading, one_group='images are decoded one at a time')
  prompts, seed = inputs.images(config.images, model, default=comparison.MAPPED)
  sampling = model.sampling(**inputs.overrides(config.sampling))
  specifications, left_out = _specifications(config, model)
  untimed = None
  if config.decoder is None and not config.all and model.devices[0].platform == 'cpu':
    long = _long_window(model)
    if long is not None and long not in specifications.values():
      specifications[untimed := str(long)] = long
  if config.paired and comparison.find_baseline(model.table, specifications) is None:
    raise ValueError(f'paired is True, and decoder is {",".join(specifications)!r}; add '
                     f'{model.table.baseline}, which the others are compared with.')
  if config.paired and model.handover is not None:
    raise ValueError('paired is True, but another program draws the pixels; leave it out.')
  captions = scenes.captions(model, prompts) if config.asked else None
  # The prior draws the same condition for all decoders.
  first = model.prior.generate(prompts, progress=False) if isinstance(model, Cascade) else None
  drawing = model.second if isinstance(model, Cascade) else model
  condition = drawing.condition(prompts if first is None else first.tokens)
  images = {name: fitted(
      drawing.sampler(specification, batch_size=1, sampling=sampling).images(
          prompts, seed=seed, condition=condition, pixels=False))
            for name, specification in specifications.items()}
  return CompareJob(config, model, images, left_out, prompts, sampling, captions, untimed, first)


def _check_choice(config: Config) -> None:
  if config.decoder is None:
    return
  if config.all:
    raise ValueError(f'decoder is {",".join(config.decoder)!r} and all is True; give only one of '
                     'them.')
  fields.check_lists(config, 'decoder')
  if 'all' in config.decoder:
    raise ValueError(f'decoder is {",".join(config.decoder)!r}, and no decoder is called all; '
                     'give --all in its place to compare every decoder.')


def _specifications(config: Config, model: cspd_jax.Model) -> tuple[dict[str, Any], dict[str, str]]:
  """Complete specifications of the decoders to run, and why others are left out."""
  table = model.table
  names = config.decoder if config.decoder is not None else table.decoders
  if config.decoder is None and not config.all:
    on_cpu = model.devices[0].platform == 'cpu'
    names = table.baseline, *(() if on_cpu else _windows(model))
  reasons = {name: f'it drafts with the {table.needs(name)!r} part, which model {model.name!r} '
             'does not have' for name in names if options.lacks(model, name)}
  target = model.target(guided=False)
  reasons |= {name: reason for name in names if (reason := table.refuses(name, target))}
  if reasons and config.decoder is not None:
    name, reason = next(iter(reasons.items()))
    advice = options.lacks(model, name)  # With the model's folder, which no report holds.
    raise ValueError(f'decoder {name} cannot run: {f"it {advice}" if advice else reason}.')
  # A CPU pays for every token of a window. Decoders of continuous tokens have their own sizes.
  window = 8 if model.devices[0].platform == 'cpu' else _LONG
  sizes = {} if table.tokens == 'continuous' else dict(
      window=min(window, model.num_tokens // 2), length=4)
  complete = lambda name: table.complete(name, **sizes)
  completed = {name: complete(name) for name in names if name not in reasons}
  specifications = completed if config.decoder is not None else {
      str(specification): specification for specification in completed.values()}
  if config.decoder is None:
    try:
      default = complete(model.specification())
    except ValueError as error:  # It names a decoder that is not registered any more.
      return specifications, reasons | {"the model's default decoder": str(error)}
    if default not in specifications.values():
      specifications[str(default)] = default
  return specifications, reasons


def _windows(model: cspd_jax.Model) -> tuple[str, ...]:
  """Returns the windows that need the fewest passes and that the model can run."""
  table = model.table
  runs = lambda name: name in table.decoders and table.needs(name) in (None, *model.drafts)
  return next((names for names in _WINDOWS if all(map(runs, names))), ())


def _long_window(model: cspd_jax.Model) -> Any:
  """Returns the specification of the model's default on an accelerator, or of such a window.

  None for a model that has neither.
  """
  table = model.table
  try:
    text = defaults.find(model.defaults.get('decoder'), _ACCELERATOR, 1)
    if text is not None and table.needs(text) in (None, *model.drafts):
      return table.complete(text)
  except ValueError:  # It names a decoder that is not registered any more.
    pass
  names = _windows(model)
  return table.complete(names[0], window=min(_LONG, model.num_tokens // 2)) if names else None


def _headline(job: CompareJob) -> str:
  model, usual = job.model, SamplingParams._field_defaults
  chosen = ', '.join(
      f'{name.replace("_", " ")} {np.asarray(value).item():g}'
      for name, value in options.named(model.table, job.sampling).items()
      if value != usual[name] or name in ('guidance_scale', 'temperature'))
  count = len(job.prompts)
  return (f'{count} image{"s"[:count != 1]} of {model.num_tokens} {model.table.tokens} tokens with '
          f'{len(job.images)} decoders; model {model.name} on '
          f'{sharding.in_words(model.devices)}, {chosen}')


def _write(job: CompareJob, compared: Mapping[str, Compared]) -> list[dict[str, Any]]:
  report, rows, model = job.report(), comparison.make_rows(job, compared), job.model
  captions = model.prompt_kind.titles(job.prompts)
  comparison.draw(report, job, rows, compared, captions)
  tables.write(report, cli.line(), [comparison.table(model, rows)],
               settings=dataclasses.asdict(job.config), model=model.name,
               engine=model.table.tokens, num_images=len(captions), captions=captions,
               tokens_per_image=model.num_tokens, left_out=job.left_out)
  return rows


def _look(job: CompareJob, start: float, compared: Mapping[str, Compared]) -> None:
  """Writes the report before times are measured, and prints where the pictures are."""
  rows = _write(job, compared)
  if job.config.all and len(rows) == 1:
    seconds = (time.monotonic() - start) * len(job.images) + job.config.budget
    progress.say(f'{len(job.images)} decoders take about {seconds / 60:.0f} minutes at this pace')
  name = comparison.MAPS if len(rows) == len(job.images) or not job.files else rows[0]['images']
  progress.say(f'look at {job.folder}/{name}')


@cli.command(Config, kept='the pictures of decoders that have run are kept', resumes=False)
def main(config: Config) -> None:
  job = prepare(config)
  # Rejects a folder that cannot hold the files before anything compiles.
  folder = job.report().folder
  with locks.hold(folder):
    print(_headline(job), flush=True)
    for name, reason in job.left_out.items():
      print(f'{name} is left out: {reason}', flush=True)
    # The decoders, the image tokenizer for the pictures, and the likelihood of discrete tokens.
    others, count = 1 + (config.paired and job.model.table.seed_exact), len(job.prompts)
    with (compilations.reported(len(job.images) + others), progress.bar(
        f'decoding {count} image{"s"[:count != 1]} with {len(job.images)} decoders, several times',
        ) as show):
      compared = timing.compare(
          job.images, captions=job.captions, repeats=_REPEATS, budget=config.budget,
          steady=_STEADY, untimed=() if job.untimed is None else (job.untimed,),
          show=progress.say, progress=show, look=functools.partial(_look, job, time.monotonic()))
    rows = _write(job, compared)
  untimed = [] if job.untimed is None else [
      f'{job.untimed} is not timed: a window of this size is for accelerators, and a CPU computes '
      'each of its tokens.']
  print('', comparison.format_table(job.model, rows), *untimed, *comparison.same_decoders(compared),
        f'\nPictures and report.json are in {folder}.', sep='\n')
  if config.decoder is None and not config.all:
    print('--all compares every decoder.')
  print(_next_step(job, rows))


def _next_step(job: CompareJob, rows: Sequence[Mapping[str, Any]]) -> str:
  """Says what was gained, and the command that generates images with the fastest exact decoder."""
  config, baseline = job.config, job.model.table.baseline
  exact = [row for row in rows if row['guarantee'].is_exact and row['decoder'] != job.untimed]
  if not exact:
    return f'None of these decoders is exact; {baseline} is, and --all finds the fastest one.'
  command = lambda program, **flags: inputs.next_command(
      program, config.loading, job.model, job.prompts, config.sampling, **flags)
  noise = max(row['noise'] or 0 for row in rows)
  if noise > _BUSY:
    return (f'The machine is busy: equal passes took such different times that speed-ups are '
            f'uncertain by {noise:.0%}. Repeat the command when nothing else runs.\n'
            f'Next: {command("cspd-generate")}')
  row = min(exact, key=lambda row: row['seconds_per_image'])
  fastest, gained = row['specification'], _gained(exact, job.model)
  if fastest.partition('(')[0] != baseline:
    return (f'{gained}{_default(job.model, fastest)}'
            f'Next: {command("cspd-generate", decoder=fastest)}')
  return gained.rstrip() if config.all else f'{gained}Next: {command("cspd-compare", all=True)}'


def _gained(exact: Sequence[Mapping[str, Any]], model: cspd_jax.Model) -> str:
  """Says what the fastest exact decoder gains over the baseline, empty without another one."""
  baseline = model.table.baseline
  first = next((row for row in exact if row['specification'] == baseline), None)
  others = [row for row in exact if row['specification'].partition('(')[0] != baseline]
  if first is None or not others:
    return ''
  best = max(others, key=lambda row: row['speedup'])
  error, fewer = best['speedup_error'], best['rounds'] < first['rounds']
  same = (f'the images of {baseline}' if best['tokens_equal_baseline'] else
          'images of the same distribution')
  few, many = (f'{row["rounds"]:.1f}'.removesuffix('.0') for row in (best, first))
  passes = f' in {few} forward passes instead of {many}'
  device = model.devices[0]
  return (f'On this {"CPU" if device.platform == "cpu" else device.device_kind}, '
          f'{best["specification"]} generates {same}{passes if fewer else ""}, '
          f'{"but " if fewer and best["speedup"] < 1 else ""}{best["speedup"]:.2f}'
          f'{f" +- {error:.2f}" if error else ""} times as fast as {baseline}.\n')


def _default(model: cspd_jax.Model, fastest: str) -> str:
  """Says that the model's default decoder is another one than the fastest, if it is."""
  try:
    default = str(model.specification(batch_size=1))
  except ValueError:  # It names a decoder that is not registered any more.
    return ''
  return '' if default == fastest else (
      f'The default of {model.name} on {model.devices[0].device_kind} is {default}'
      f'{", which model.json names" if "decoder" in model.defaults else ""}; '
      '--decoder replaces it.\n')


if __name__ == '__main__':
  sys.exit(main())
