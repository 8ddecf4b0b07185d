"""Generates the same images with several decoders and shows what each of them costs.

  python -m experiments.compare
  python -m experiments.compare --prompt=cat,rocket --num_images=2 --seed=7
  python -m experiments.compare --decoder='vanilla,mc_sjd(window=16),eagle+cool(delta=1.1)'
  python -m experiments.compare --model=checkpoints/c2i_b_256 --prompt=207,360 \\
      --guidance_scale=4 --dtype=bfloat16 --workdir=runs/llamagen
  python -m experiments.compare --config=configs/compare/mar_demo.py

Into --workdir go a grid of images per decoder (images_*.png), in which round each token was
fixed (acceptance.png), for continuous tokens what was accepted (accepted.png), bars of the work and
the wall-clock (speed.png), and all figures (report.json). Times are for one image at a time,
without compilation.
"""

import dataclasses
import sys
from typing import Any, NamedTuple

import cspd_jax
from configs.compare import demo
from cspd_jax.core import progress
from cspd_jax.generation import batches, report as report_lib
from cspd_jax.measure import comparison
from experiments import cli, compare_report
from experiments.cli import inputs

# Sizes of decoders that are numbers of tokens.
_TOKENS = ('window', 'length', 'draft_length', 'block_length')


class Job(NamedTuple):
  """What is to be compared, checked.

  Attributes:
    model: the model.
    programs: the decoders by name.
    left_out: named decoders that cannot run, with the reason.
    prompts: one per image.
    seed: of all images, or one of each.
    sampling: the sampling options.
  """

  model: cspd_jax.Model
  programs: dict[str, batches.Program]
  left_out: dict[str, str]
  prompts: list[Any]
  seed: Any
  sampling: Any


def prepare(config: Any) -> Job:
  """Loads the model and checks all options.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  model = inputs.model(config)
  inputs.tokens_at_most(config.sizes, model, *[
      name for name in _TOKENS if hasattr(config.sizes, name)])
  prompts, seed = inputs.images(config.images, model)
  sampling = model.sampling(**inputs.given(config.sampling))
  specifications, left_out = _specifications(config, model)
  programs = {}
  condition = model.condition(prompts)
  for name, specification in specifications.items():
    programs[name] = batches.Program(model, specification, sampling)
    programs[name].check(condition, sampling)
  return Job(model, programs, left_out, prompts, seed, sampling)


def _specifications(config: Any, model: cspd_jax.Model) -> tuple[dict[str, Any], dict[str, str]]:
  """The decoders to run, complete, and why others of `all` are left out."""
  engine = model.engine
  chosen = list(dict.fromkeys(config.decoder))
  if not chosen:
    raise ValueError(f'decoder is empty; it must be all, or any of {", ".join(engine.decoders)}.')
  everything = list(engine.decoders) if chosen == ['all'] else chosen
  reasons = {name: f'it drafts with the {engine.needs(name)!r} part, which model {model.name!r} '
             'does not have' for name in everything
             if engine.needs(name) not in (None, *model.drafts)}
  if reasons and chosen != ['all']:
    name, reason = next(iter(reasons.items()))
    raise ValueError(f'decoder {name} cannot run: {reason}.')
  complete = lambda name: engine.complete(name, **inputs.given(config.sizes))
  found = {name: complete(name) for name in everything if name not in reasons}
  if chosen == ['all']:
    try:
      own = complete(model.specification())
    except ValueError as error:  # It names one that nobody knows any more.
      return found, reasons | {'what the model takes': str(error)}
    if own not in found.values():
      found[str(own)] = own
  return found, reasons


@cli.program(config='configs/compare/demo.py', expected=demo.Config)
def main(config: demo.Config) -> None:
  job = prepare(config)
  report = report_lib.Report(config.workdir, compare_report.files(job.model, job.programs))
  print(compare_report.headline(job.model, job.programs, job.prompts, job.sampling), flush=True)
  for name, reason in job.left_out.items():
    print(f'{name} is left out: {reason}', flush=True)
  with progress.bar('decoding') as show:
    compared = comparison.compare(
        job.model, job.programs, job.prompts, seed=job.seed, sampling=job.sampling,
        repeats=config.repeats, show=progress.say, progress=show)
  rows = compare_report.rows(job.model, job.programs, compared)
  captions = job.model.conditions.captions(job.prompts)
  compare_report.draw(report, job.model, rows, compared, captions)
  report.write(
      settings=dataclasses.asdict(config), rows=rows, model=job.model.name,
      engine=job.model.engine.name, num_images=len(captions), captions=captions,
      tokens_per_image=job.model.num_tokens, left_out=job.left_out)
  print(f'\n{compare_report.table(job.model, rows)}\n\n'
        f'Pictures and report.json are in {report.folder}.')


if __name__ == '__main__':
  sys.exit(main())
