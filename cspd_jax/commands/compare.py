"""Generates the same images with several decoders and shows what each of them costs.

  cspd-compare
  cspd-compare --all
  cspd-compare --prompt='a fox on white' --prompt='a castle on yellow' --seed=7
  cspd-compare --decoder='vanilla,mc_sjd(window=16),eagle+cool(delta=1.1)'
  cspd-compare --model=checkpoints/c2i_b_256 --prompt=207,360 \\
      --guidance_scale=4 --dtype=bfloat16 --output=runs/llamagen
  cspd-compare --model=mar_demo
  cspd-compare --paired --num_images=100 --budget=1

Compares ordinary sampling, seed_exact and the model's default decoder; --decoder names others, and
--all compares every decoder that the model can run.

Writes to --output a grid of images per decoder (images_*.png), the round in which each token was
fixed (acceptance.png), for continuous tokens what was accepted (accepted.png), bars of the work and
the wall-clock time (speed.png), and all figures (report.json). The first images are written as soon
as the first decoder has run, the bars at the end. Times are for one image at a time, without
compilation.
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

import cspd_jax
from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.commands import compare_report
from cspd_jax.core import fields, programs, progress
from cspd_jax.files import locks, run_folder
from cspd_jax.generation.request import Request, prepare as prepare_request
from cspd_jax.measure import timing
from cspd_jax.metrics import scenes

_PROGRAM = 'cspd-compare'
# Compared by default if the engine has it, with the baseline and the model's default decoder.
_FEW = ('seed_exact',)
_FEW_IMAGES, _IMAGES = 2, 4
# Timed runs per image and decoder, at most.
_REPEATS = 3


@dataclasses.dataclass(frozen=True)
class Config:
  """A comparison of decoders.

  Attributes:
    loading: the model, and how it is loaded. The first number of a mesh is 1, because images are
      decoded one at a time.
    parts: networks in place of the model's own, by their roles, separated by commas, such as
      eagle=runs/eagle,tokenizer=checkpoints/vq; the roles are those of `cspd_jax.load`.
    decoder: specifications separated by commas, such as vanilla,mc_sjd(window=32). None
      compares ordinary sampling, seed_exact and the model's default decoder.
    all: compares every named decoder that the model can run, and its default one.
    paired: also shows the differences between a decoder's images and the baseline's of the same
      seeds, in likelihood, brightness, contrast and detail, with their standard errors. The
      likelihood requires a forward pass over each image.
    asked: scores whether the images show what was asked for, as `cspd-evaluate --asked` does, for
      models of scenes of emoji; with `paired` the differences too.
    images: which images, the same with every decoder.
    sampling: sampling options.
    budget: seconds of all timed runs together: each image is timed at least once with every
      decoder, and at most three times; the median counts.
    output: folder of the results; None uses runs/ and the name of the model.
  """

  loading: groups.Loading = groups.Loading()
  parts: tuple[str, ...] = ()
  decoder: tuple[str, ...] | None = None
  all: bool = False
  paired: bool = False
  asked: bool = False
  images: groups.Images = groups.Images()
  sampling: groups.Sampling = groups.Sampling()
  budget: float = 60.0
  output: str | None = None

  def __post_init__(self):
    fields.check(self)


class Job(NamedTuple):
  """A checked comparison."""

  model: cspd_jax.Model
  requests: dict[str, Request]  # Of the same images, by name of the decoder.
  left_out: dict[str, str]  # Reasons why other decoders cannot run, by name.
  prompts: list[Any]
  sampling: Any
  captions: list[str] | None = None  # The prompts as text, if what images show of them is scored.


def prepare(config: Any) -> Job:
  """Loads the model and checks all options; raises ValueError for the first that cannot work."""
  _check_choice(config)
  model = inputs.model(config.loading, config.parts, one_group='images are decoded one at a time')
  few = config.decoder is None and not config.all
  prompts, seed = inputs.images(config.images, model, _FEW_IMAGES if few else _IMAGES)
  sampling = model.sampling(**inputs.overrides(config.sampling))
  specifications, left_out = _specifications(config, model)
  if config.paired and compare_report.baseline(model.engine, specifications) is None:
    raise ValueError(f'paired is True, and decoder is {",".join(specifications)!r}; add '
                     f'{model.engine.baseline}, which the others are compared with.')
  captions = scenes.captions(model, prompts) if config.asked else None
  condition = model.condition(prompts)
  requests = {name: prepare_request(
      model, prompts, seed=seed, decoder=specification, batch_size=1, pixels=False,
      sampling=sampling, condition=condition) for name, specification in specifications.items()}
  return Job(model, requests, left_out, prompts, sampling, captions)


def _check_choice(config: Any) -> None:
  if config.decoder is None:
    return
  if config.all:
    raise ValueError(f'decoder is {",".join(config.decoder)!r} and all is True; give only one of '
                     'them.')
  if not config.decoder:
    raise ValueError('decoder is empty; name decoders, such as vanilla,seed_exact, or leave it '
                     'out.')
  if 'all' in config.decoder:
    raise ValueError(f'decoder is {",".join(config.decoder)!r}, and no decoder is called all; '
                     'give --all in its place to compare every decoder.')


def _specifications(config: Any, model: cspd_jax.Model) -> tuple[dict[str, Any], dict[str, str]]:
  """Complete specifications of the decoders to run, and why others are left out."""
  engine = model.engine
  names = (config.decoder if config.decoder is not None else engine.decoders if config.all else
           [engine.baseline, *(name for name in _FEW if name in engine.decoders)])
  reasons = {name: f'it drafts with the {engine.needs(name)!r} part, which model {model.name!r} '
             'does not have' for name in names
             if engine.needs(name) not in (None, *model.drafts)}
  target = model.target(guided=False)
  reasons |= {name: reason for name in names if (reason := engine.unsupported(name, target))}
  if reasons and config.decoder is not None:
    name, reason = next(iter(reasons.items()))
    raise ValueError(f'decoder {name} cannot run: {reason}.')
  # A CPU pays for every token of a window. Other sizes are those of the engine.
  sizes = {} if engine.name == 'continuous' else dict(
      window=8 if jax.default_backend() == 'cpu' else 64, length=4)
  complete = lambda name: engine.complete(name, **sizes)
  specifications = {name: complete(name) for name in names if name not in reasons}
  if config.decoder is None:
    try:
      default = complete(model.specification())
    except ValueError as error:  # It names a decoder that is not registered any more.
      return specifications, reasons | {"the model's default decoder": str(error)}
    if default not in specifications.values():
      specifications[str(default)] = default
  return specifications, reasons


def _output(config: Config) -> pathlib.Path:
  name = pathlib.Path(config.loading.model).name
  return pathlib.Path(config.output or f'runs/{name or "compare"}')


def _report(config: Any, job: Job) -> run_folder.Report:
  return run_folder.Report(
      _output(config), compare_report.files(job.model, job.requests), program=_PROGRAM)


def _write(config: Any, job: Job, compared: Mapping[str, timing.Compared]) -> list[dict]:
  report = _report(config, job)
  rows = compare_report.rows(
      job.model, job.requests, compared, paired=config.paired)
  captions = job.model.conditions.titles(job.prompts)
  compare_report.draw(report, job.model, rows, compared, captions)
  report.write(
      settings=dataclasses.asdict(config), rows=rows, model=job.model.name,
      engine=job.model.engine.name, num_images=len(captions), captions=captions,
      tokens_per_image=job.model.num_tokens, left_out=job.left_out)
  return rows


def _look(config: Any, job: Job, compared: Mapping[str, timing.Compared]) -> None:
  """Writes the report before times are measured, and prints where the pictures are."""
  rows = _write(config, job, compared)
  name = compare_report.MAPS if len(rows) == len(job.requests) else rows[0]['images']
  progress.say(f'look at {_output(config)}/{name}')


@cli.command(Config, kept='the pictures of decoders that have run are kept', resumes=False)
def main(config: Config) -> None:
  job = prepare(config)
  # Rejects a folder that cannot hold the files before anything compiles.
  folder = _report(config, job).folder
  with locks.hold(folder):
    print(compare_report.headline(job.model, job.requests, job.prompts, job.sampling), flush=True)
    for name, reason in job.left_out.items():
      print(f'{name} is left out: {reason}', flush=True)
    # The decoders, the image tokenizer for the pictures, and the likelihood of discrete tokens.
    others = 1 + (config.paired and job.model.engine.name == 'discrete')
    count = len(job.prompts)
    counted = (f'{count} image{"s"[:count != 1]} x {len(job.requests)} decoders x '
               f'{1 + _REPEATS} runs')
    with programs.reported(len(job.requests) + others), progress.bar(counted) as show:
      compared = timing.compare(
          job.requests, captions=job.captions, repeats=_REPEATS, budget=config.budget,
          show=progress.say, progress=show, look=functools.partial(_look, config, job))
    rows = _write(config, job, compared)
  print('\n' + '\n'.join([compare_report.table(job.model, rows), *compare_report.same(compared)])
        + f'\n\nPictures and report.json are in {folder}.')
  if config.decoder is None and not config.all:
    print('--all compares every decoder.')
  print(_next_step(config, job, rows))


def _next_step(config: Config, job: Job, rows: Sequence[Mapping[str, Any]]) -> str:
  """The command that generates images with the fastest exact decoder."""
  exact = [row for row in rows if row['guarantee'].is_exact]
  if not exact:
    return (f'None of these decoders is exact; {job.model.engine.baseline} is, and --all finds the '
            'fastest one.')
  fastest = min(exact, key=lambda row: row['seconds_per_image'])['specification']
  command = lambda program, **flags: inputs.next_command(
      program, config.loading, job.model, job.prompts, config.sampling,
      parts=config.parts or None, **flags)
  if fastest.partition('(')[0] != job.model.engine.baseline:
    return f'{_default(job.model, fastest)}Next: {command("cspd-generate", decoder=fastest)}'
  line = f'No exact decoder of these is faster than {job.model.engine.baseline} on this machine.'
  return line if config.all else f'{line} Next: {command("cspd-compare", all=True)}'


def _default(model: cspd_jax.Model, fastest: str) -> str:
  """Says that the model's default decoder is another one than the fastest, if it is."""
  try:
    default = str(model.specification(batch_size=1))
  except ValueError:  # It names a decoder that is not registered any more.
    return ''
  return '' if default == fastest else (
      f'The default of {model.name} on {model.device.device_kind} is {default}, which model.json '
      'names; --decoder replaces it.\n')


if __name__ == '__main__':
  sys.exit(main())
