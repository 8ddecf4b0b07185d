"""Generates the same images with several decoders and shows what each of them costs.

  python -m experiments.compare
  python -m experiments.compare --all
  python -m experiments.compare --prompt=cat,rocket --num_images=2 --seed=7
  python -m experiments.compare --decoder='vanilla,mc_sjd(window=16),eagle+cool(delta=1.1)'
  python -m experiments.compare --model=checkpoints/c2i_b_256 --prompt=207,360 \\
      --guidance_scale=4 --dtype=bfloat16 --workdir=runs/llamagen
  python -m experiments.compare --config=configs/compare/mar_demo.py

Without --decoder there are three: ordinary sampling, seed_exact, and the decoder that the model
takes by default; --all compares every decoder that the model can run.

Into --workdir go a grid of images per decoder (images_*.png), in which round each token was
fixed (acceptance.png), for continuous tokens what was accepted (accepted.png), bars of the work and
the wall-clock (speed.png), and all figures (report.json). The first images are there as soon as the
first decoder is done, the bars at the end. Times are for one image at a time, without compilation.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import cspd_jax
from configs.compare import demo
from cspd_jax.checkpoints import locks
from cspd_jax.core import progress
from cspd_jax.generation import batches, report as report_lib
from cspd_jax.generation.engines import Options
from cspd_jax.measure import comparison
from experiments import cli, compare_report
from experiments.cli import inputs

# Sizes of decoders that are numbers of tokens.
_TOKENS = ('window', 'length', 'draft_length', 'block_length')
# Compared by default, where the engine has them, besides the baseline and the model's own choice.
_FEW = ('seed_exact',)
_FEW_IMAGES, _IMAGES = 2, 4


class Job(NamedTuple):
  """What is to be compared, checked.

  Attributes:
    model: the model.
    programs: the decoders by name.
    left_out: decoders that cannot run, with the reason.
    prompts: one per image.
    seed: of all images, or one of each.
    sampling: the sampling options.
  """

  model: cspd_jax.Model
  programs: dict[str, batches.BatchDecoder]
  left_out: dict[str, str]
  prompts: list[Any]
  seed: Any
  sampling: Options


def prepare(config: Any) -> Job:
  """Loads the model and checks all options.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  _check_choice(config)
  model = inputs.model(config)
  inputs.tokens_at_most(config.sizes, model, *[
      name for name in _TOKENS if hasattr(config.sizes, name)])
  few = config.decoder is None and not config.all
  prompts, seed = inputs.images(config.images, model, _FEW_IMAGES if few else _IMAGES)
  sampling = model.sampling(**inputs.given(config.sampling))
  specifications, left_out = _specifications(config, model)
  programs = {}
  condition = model.condition(prompts)
  for name, specification in specifications.items():
    programs[name] = batches.BatchDecoder(model, specification, sampling)
    programs[name].check(condition, sampling)
  return Job(model, programs, left_out, prompts, seed, sampling)


def _check_choice(config: Any) -> None:
  """Raises ValueError unless at most one of `decoder` and `all` says which decoders to run."""
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
  """The decoders to run, complete, and why others are left out."""
  engine = model.engine
  names = (config.decoder if config.decoder is not None else engine.decoders if config.all else
           [engine.baseline, *(name for name in _FEW if name in engine.decoders)])
  reasons = {name: f'it drafts with the {engine.needs(name)!r} part, which model {model.name!r} '
             'does not have' for name in names
             if engine.needs(name) not in (None, *model.drafts)}
  if reasons and config.decoder is not None:
    name, reason = next(iter(reasons.items()))
    raise ValueError(f'decoder {name} cannot run: {reason}.')
  complete = lambda name: engine.complete(name, **inputs.given(config.sizes))
  specifications = {name: complete(name) for name in names if name not in reasons}
  if config.decoder is None:
    try:
      own = complete(model.specification())
    except ValueError as error:  # It names one that nobody knows any more.
      return specifications, reasons | {'what the model takes': str(error)}
    if own not in specifications.values():
      specifications[str(own)] = own
  return specifications, reasons


def _write(config: Any, job: Job, compared: Mapping[str, comparison.Compared]) -> list[dict]:
  """Writes a report of the decoders that are done, in place of the last one; returns its rows."""
  report = report_lib.Report(config.workdir, compare_report.files(job.model, job.programs))
  rows = compare_report.rows(job.model, job.programs, compared)
  captions = job.model.conditions.titles(job.prompts)
  compare_report.draw(report, job.model, rows, compared, captions)
  report.write(
      settings=dataclasses.asdict(config), rows=rows, model=job.model.name,
      engine=job.model.engine.name, num_images=len(captions), captions=captions,
      tokens_per_image=job.model.num_tokens, left_out=job.left_out)
  return rows


def _look(config: Any, job: Job, compared: Mapping[str, comparison.Compared]) -> None:
  """Writes what there is before the times, and says where to look."""
  rows = _write(config, job, compared)
  name = compare_report.MAPS if len(rows) == len(job.programs) else rows[0]['images']
  progress.say(f'look at {config.workdir}/{name}')


@cli.program(config='configs/compare/demo.py', expected=demo.Config)
def main(config: demo.Config) -> None:
  job = prepare(config)
  # Refuses a folder that cannot take the files before anything is compiled.
  folder = report_lib.Report(config.workdir, compare_report.files(job.model, job.programs)).folder
  with locks.hold(folder):
    print(compare_report.headline(job.model, job.programs, job.prompts, job.sampling), flush=True)
    for name, reason in job.left_out.items():
      print(f'{name} is left out: {reason}', flush=True)
    with progress.bar('decoding') as show:
      compared = comparison.compare(
          job.model, job.programs, job.prompts, seed=job.seed, sampling=job.sampling,
          repeats=config.repeats, budget=config.budget, show=progress.say, progress=show,
          look=functools.partial(_look, config, job))
    rows = _write(config, job, compared)
  print(f'\n{compare_report.table(job.model, rows)}\n\n'
        f'Pictures and report.json are in {folder}.')
  if config.decoder is None and not config.all:
    print('--all compares every decoder.')


if __name__ == '__main__':
  sys.exit(main())
