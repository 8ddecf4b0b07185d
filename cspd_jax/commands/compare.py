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
import pathlib
import re
import sys
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import cspd_jax
from cspd_jax import cli, metrics
from cspd_jax.cli import groups, inputs
from cspd_jax.core import compilations, fields, progress
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.files import atomic, locks
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import defaults
from cspd_jax.generation.model import Request
from cspd_jax.generation.results import Generated
from cspd_jax.measure import tables, timing
from cspd_jax.measure.timing import Compared
from cspd_jax.metrics import acceptance, paired as paired_lib, scenes
from cspd_jax.plots import charts, grid

# The pictures: the forward pass that committed each token, next to the images.
_MAPS, _ACCEPTED, _SPEED = 'acceptance.png', 'accepted.png', 'speed.png'
_MAPPED = 4  # With more images the maps are too wide to read.
_TIMES = ('ms_per_round', 'seconds_per_image', 'speedup', 'speedup_error')  # Of a row.
_REPEATS = 3  # Timed runs per image and decoder, at most.
# `Compared.noise` below which no more runs are timed, and above which times support no conclusion.
_STEADY, _BUSY = 0.03, 0.05
_ACCELERATOR = types.SimpleNamespace(device_kind='gpu', platform='gpu')
_HIDDEN = ('accepted_length', 'one_token_rounds', 'step_compression')  # Numbers without columns.
# Windows that need the fewest passes, with a corrector and without one.
_WINDOWS = ('corrected_seed_exact', 'corrected'), ('seed_exact',)
_LONG = 64  # Their length on an accelerator.
# The time of a pass over that of `vanilla`, for one image of LlamaGen-XL with random weights.
_PASS_ON_H100 = {
    **dict.fromkeys(('corrected_seed_exact(iterations=4, window=64)',
                     'corrected(iterations=4, window=64)'), 2.14),
    **dict.fromkeys(('seed_exact(window=64)', 'mc_sjd(window=64)'), 1.48)}


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


class CompareJob(NamedTuple):
  """A checked comparison."""

  config: Config
  model: cspd_jax.Model
  requests: dict[str, Request]  # Of the same images, by name of the decoder.
  left_out: dict[str, str]  # Reasons why other decoders cannot run, by name.
  prompts: list[Any]
  sampling: Any
  captions: list[str] | None = None  # The prompts as text, if what images show of them is scored.
  untimed: str | None = None  # The decoder that only shows its forward passes.
  first: Generated | None = None  # What the model's prior drew, once for all decoders.

  @property
  def files(self) -> dict[str, str]:
    """The names of the grids of images by decoder; empty if another program draws the pixels."""
    names: dict[str, str] = {}
    for decoder in self.requests if self.model.handover is None else ():
      word = re.sub(r'\W+', '_', decoder).strip('_')
      same = sum(name.startswith(f'images_{word}.') for name in names.values())
      names[decoder] = f'images_{word}.{same + 1}.png' if same else f'images_{word}.png'
    return names

  @property
  def folder(self) -> pathlib.Path:
    """The folder of the results."""
    return pathlib.Path(self.config.output or f'runs/{inputs.run_name(self.config.loading.model)}')

  def report(self) -> Report:
    """Opens the report."""
    more = [] if self.model.engine.seed_exact else [_ACCEPTED]
    return Report(self.folder, [*self.files.values(), _MAPS, *more, _SPEED], program='cspd-compare')


def prepare(config: Config) -> CompareJob:
  """Loads the model and checks all options; raises ValueError for the first that cannot work."""
  _check_choice(config)
  model = inputs.model(config.loading, one_group='images are decoded one at a time')
  prompts, seed = inputs.images(config.images, model, default=_MAPPED)
  sampling = model.sampling(**inputs.overrides(config.sampling))
  specifications, left_out = _specifications(config, model)
  untimed = None
  if config.decoder is None and not config.all and model.device.platform == 'cpu':
    long = _long_window(model)
    if long is not None and long not in specifications.values():
      specifications[untimed := str(long)] = long
  if config.paired and _baseline(model.engine, specifications) is None:
    raise ValueError(f'paired is True, and decoder is {",".join(specifications)!r}; add '
                     f'{model.engine.baseline}, which the others are compared with.')
  if config.paired and model.handover is not None:
    raise ValueError('paired is True, but another program draws the pixels; leave it out.')
  captions = scenes.captions(model, prompts) if config.asked else None
  # The prior draws the same condition for all decoders.
  first = None if model.prior is None else model.prior.generate(prompts, progress=False)
  condition = model.condition(prompts if first is None else first.tokens)
  requests = {name: model.request(
      prompts, seed=seed, decoder=specification, batch_size=1, pixels=False,
      sampling=sampling, condition=condition) for name, specification in specifications.items()}
  return CompareJob(config, model, requests, left_out, prompts, sampling, captions, untimed, first)


def _check_choice(config: Config) -> None:
  if config.decoder is None:
    return
  if config.all:
    raise ValueError(f'decoder is {",".join(config.decoder)!r} and all is True; give only one of '
                     'them.')
  if not config.decoder:
    raise ValueError('decoder is empty; name some, such as vanilla,seed_exact, or leave it out.')
  if 'all' in config.decoder:
    raise ValueError(f'decoder is {",".join(config.decoder)!r}, and no decoder is called all; '
                     'give --all in its place to compare every decoder.')


def _specifications(config: Config, model: cspd_jax.Model) -> tuple[dict[str, Any], dict[str, str]]:
  """Complete specifications of the decoders to run, and why others are left out."""
  engine = model.engine
  names = config.decoder if config.decoder is not None else engine.decoders
  if config.decoder is None and not config.all:
    on_cpu = model.device.platform == 'cpu'
    names = engine.baseline, *(() if on_cpu else _windows(model))
  reasons = {name: f'it drafts with the {engine.needs(name)!r} part, which model {model.name!r} '
             'does not have' for name in names if model.lacks(name)}
  target = model.target(guided=False)
  reasons |= {name: reason for name in names if (reason := engine.unsupported(name, target))}
  if reasons and config.decoder is not None:
    name, reason = next(iter(reasons.items()))
    advice = model.lacks(name)  # With the model's folder, which no report holds.
    raise ValueError(f'decoder {name} cannot run: {f"it {advice}" if advice else reason}.')
  # A CPU pays for every token of a window. Other sizes are those of the engine.
  window = 8 if model.device.platform == 'cpu' else _LONG
  sizes = dict(window=min(window, model.num_tokens // 2), length=4) if engine.windows else {}
  complete = lambda name: engine.complete(name, **sizes)
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
  engine = model.engine
  runs = lambda name: name in engine.decoders and engine.needs(name) in (None, *model.drafts)
  return next((names for names in _WINDOWS if all(map(runs, names))), ())


def _long_window(model: cspd_jax.Model) -> Any:
  """Returns the specification of the model's default on an accelerator, or of such a window.

  None for a model that has neither.
  """
  engine = model.engine
  try:
    text = defaults.find(model.defaults.get('decoder'), _ACCELERATOR, 1)
    if text is not None and engine.needs(text) in (None, *model.drafts):
      return engine.complete(text)
  except ValueError:  # It names a decoder that is not registered any more.
    pass
  names = _windows(model)
  return engine.complete(names[0], window=min(_LONG, model.num_tokens // 2)) if names else None


def _headline(job: CompareJob) -> str:
  model, usual = job.model, SamplingParams._field_defaults
  options = ', '.join(
      f'{name.replace("_", " ")} {np.asarray(value).item():g}'
      for name, value in model.engine.named(job.sampling).items()
      if value != usual[name] or name in ('guidance_scale', 'temperature'))
  count = len(job.prompts)
  return (f'{count} image{"s"[:count != 1]} of {model.num_tokens} {model.engine.name} tokens with '
          f'{len(job.requests)} decoders; model {model.name} on {model.where}, {options}')


def _baseline(engine: Any, specifications: Mapping[str, Any]) -> str | None:
  """Returns the name of the engine's baseline among complete specifications; None without it."""
  # `vanilla` in windows costs as much as a window, so it is not the baseline.
  return next((name for name, specification in specifications.items()
               if specification.parts[0].name == engine.baseline
               and 'window' not in specification.parts[0].arguments), None)


def _rows(job: CompareJob, compared: Mapping[str, Compared]) -> list[dict[str, Any]]:
  """Returns a row per decoder; times are None before they are measured."""
  model, images, entries = job.model, job.files, []
  name = _baseline(model.engine, {
      name: program.sampler.specification for name, program in job.requests.items()})
  first = None if name is None else compared.get(name)
  for name, result in compared.items():
    sampler, decoded = job.requests[name].sampler, result.sample.decoded
    row = dict(
        decoder=name, specification=str(sampler.specification),
        guarantee=sampler.guarantee,
        **metrics.entries(metrics.measure(
            metrics.select(model.engine.name, 'work', 'bound'), result.sample, model)),
        **_times(result, first),
        **({} if job.first is None else dict(
            prior_decoder=job.first.decoder, prior_tokens=job.first.tokens.shape[1],
            prior_passes=float(job.first.decoded.rounds.mean()))),
        tokens_equal_baseline=first and bool(
            np.array_equal(decoded.tokens, first.sample.decoded.tokens)),
        compile_seconds=result.compile_seconds, images=images.get(name))
    if name == job.untimed and first is not None and name in _PASS_ON_H100:
      row['projected'] = first.sample.decoded.rounds.sum() / (
          decoded.rounds.sum() * _PASS_ON_H100[name])
    if hasattr(decoded, 'tests'):  # Of continuous tokens.
      tested = 'drafts' if decoded.kernels is None else 'denoising kernels'
      decoder: Any = sampler.decoder
      row |= dict(
          distribution=decoder.distribution, guarantee_in_words=decoder.guarantee,
          tested=tested if decoded.tests.tested.any() else None,
          **acceptance.details(result.sample, model))
    if result.sample.captions is not None:
      row |= metrics.entries(scenes.sample_scores(result.sample, model))
    if job.config.paired and first is not None and result is not first:
      row |= paired_lib.entries(paired_lib.differences(result.sample, first.sample, model))
    entries.append(row)
  return entries


def _times(result: Compared, baseline: Compared | None) -> dict[str, Any]:
  seconds = result.seconds
  if seconds is None:
    return dict.fromkeys((*_TIMES, 'noise')) | dict(timed_runs=0)
  speedup = error = None
  if baseline is not None and baseline.seconds is not None:
    speedup = float(baseline.seconds.mean() / seconds.mean())
    if len(seconds) > 1 and baseline is not result:  # The standard error over the same images.
      deviations = (baseline.seconds - speedup * seconds) / seconds.mean()
      error = float(deviations.std(ddof=1) / np.sqrt(len(seconds)))
  ms_per_round = 1e3 * float(seconds.sum() / result.sample.decoded.rounds.sum())
  return dict(zip(_TIMES, (ms_per_round, float(seconds.mean()), speedup, error)),
              timed_runs=result.timed_runs, noise=result.noise)


def _table(model: cspd_jax.Model, entries: Sequence[Mapping[str, Any]]) -> str:
  """Formats rows as text; for continuous tokens with each decoder's distribution and acceptance."""
  columns = {'decoder': '{specification}', 'guarantee': '{guarantee}',
             **metrics.columns([
                 metric for metric in metrics.select(model.engine.name, 'work')
                 if metric.name not in _HIDDEN])}
  if of_prior := [row for row in entries if 'prior_passes' in row][:1]:
    columns['of the prior'] = '{prior_passes:.1f}'
  if any(row['guarantee'] is Guarantee.BOUNDED for row in entries):
    columns |= metrics.columns(metrics.select(model.engine.name, 'bound'))
  if 'asked' in entries[0]:
    columns |= {'asked': '{asked:.3f}', 'error': '{asked_error:.3f}'}
  columns |= {'ms/pass': '{ms_per_round:.2f}', 's/image': '{seconds_per_image:.3f}',
              'speed-up': '{speedup:.2f}x', '+-': '{speedup_error:.2f}'}
  if projected := [row for row in entries if 'projected' in row]:
    columns['projected'] = '{projected:.1f}x'
  if model.engine.seed_exact:
    columns[f'= {model.engine.baseline}'] = '{equal}'
  columns['compile s'] = '{compile_seconds:.1f}'
  equal = {True: 'yes', False: 'no', None: None}
  text = tables.text(columns, [
      dict(row, equal=equal[row['tokens_equal_baseline']]) for row in entries])
  sentences = [acceptance.sentence(row) for row in entries if 'distribution' in row]
  sentences += [
      f'The prior drew its {row["prior_tokens"]} tokens once for all decoders, with '
      f'{row["prior_decoder"]} in {row["prior_passes"]:.1f} passes, which the times do not include.'
      for row in of_prior]
  sentences += [
      f'Projected for LlamaGen-XL on an NVIDIA H100 with as many tokens per pass: a pass of\n'
      f'{row["specification"]} takes {_PASS_ON_H100[row["specification"]]} times as long there as '
      f'one of {model.engine.baseline}, measured with random weights.' for row in projected]
  return '\n'.join([text, *_paired_tables(model, entries), *[''][:len(sentences)], *sentences])


def _same(compared: Mapping[str, Compared]) -> list[str]:
  """Returns a sentence for every decoder that another one equals: tokens, and rounds of tokens."""
  lines, different = [], dict[str, Compared]()
  for name, result in compared.items():
    decoded = result.sample.decoded
    other = next((other for other, first in different.items() if all(
        np.array_equal(getattr(decoded, field), getattr(first.sample.decoded, field))
        for field in ('tokens', 'round_of_token'))), None)
    if other is None:
      different[name] = result
    else:
      lines.append(f'{name} committed the same tokens in the same passes as {other}: with these '
                   'sizes they are one decoder.')
  return lines


def _paired_tables(model: cspd_jax.Model, entries: Sequence[Mapping[str, Any]]) -> list[str]:
  """The differences to the baseline's images of the same seeds, if they were measured."""
  shown = [dict(decoder=row['decoder'], statistic=statistic.title,
                **{name.removeprefix(f'{key}_'): value for name, value in row.items()
                   if name.startswith(f'{key}_change')})
           for row in entries for key, statistic in paired_lib.STATISTICS.items()
           if f'{key}_change' in row]
  if not shown:
    return []
  return ['', f'Minus {model.engine.baseline}, from the same seeds:', tables.text({
      'decoder': '{decoder}', 'statistic': '{statistic}', 'difference': '{change:+.4f}',
      'paired error': '{change_error:.4f}', 'unpaired error': '{change_error_unpaired:.4f}'},
      shown)]


def _draw(report: Report, job: CompareJob, entries: Sequence[Mapping[str, Any]],
          compared: Mapping[str, Compared], captions: Sequence[str]) -> None:
  """Writes the pictures; the bars once times are measured."""
  model = job.model
  images = {name: result.sample.images(model) for name, result in compared.items() if job.files}
  work = metrics.select(model.engine.name, 'work')
  for row in entries:
    phrases = [metric.phrase.format(row[metric.name]) for metric in work if metric.phrase]
    if row['seconds_per_image'] is not None:
      phrases.append(f'{row["seconds_per_image"]:.2f} s')
    if (name := row['decoder']) in images:
      grid.save_grid(report.path(row['images']), images[name], captions=captions,
                     title=f'{name}: {", ".join(phrases)}')
  if len(compared) < len(job.requests) and images:  # The grid is enough to look at.
    return
  shown = {name: value[:_MAPPED] for name, value in images.items()}
  on_grid = lambda values: model.cells(values)[:_MAPPED]
  rounds, = (metric for metric in work if metric.name == 'rounds')
  atomic.write(report.path(_MAPS), grid.acceptance_map(
      {name: on_grid(result.sample.decoded.round_of_token) for name, result in compared.items()},
      images=shown, captions=captions[:_MAPPED],
      notes={row['decoder']: f'{rounds.form.format(row["rounds"])} passes' for row in entries},
      title='The forward pass that committed each token'))
  decoded = {name: result.sample.decoded for name, result in compared.items()}
  if tests := {name: result.tests for name, result in decoded.items()
               if hasattr(result, 'tests') and result.tests.tested.any()}:
    grid.save_replaced_map(
        report.path(_ACCEPTED), {name: shown[name] for name in tests},
        {name: on_grid(test.tested) for name, test in tests.items()},
        {name: on_grid(test.accepted) for name, test in tests.items()},
        captions=captions[:_MAPPED],
        title='Accepted: tokens, or kernels of the head')
  if all(row['seconds_per_image'] is not None or row['decoder'] == job.untimed for row in entries):
    _draw_bars(report, model, entries)


def _draw_bars(report: Report, model: cspd_jax.Model, entries: Sequence[Mapping[str, Any]]) -> None:
  main, values = metrics.MAIN[model.engine.name], lambda key: {
      row['decoder']: row[key] for row in entries}
  charts.save_bars(
      report.path(_SPEED),
      [charts.BarPanel(main.name.replace('_', ' ').capitalize(), values(main.name), main.form,
                       f'{main.meaning}; {main.better} is better'),
       charts.BarPanel('Seconds per image', values('seconds_per_image'), '{:.3f} s',
                       'wall-clock at batch 1 without compilation; lower is better')],
      baseline=model.engine.baseline, title=f'{model.name} on {jax.devices()[0].device_kind}')


def _write(job: CompareJob, compared: Mapping[str, Compared]) -> list[dict[str, Any]]:
  report, rows, model = job.report(), _rows(job, compared), job.model
  captions = model.conditions.titles(job.prompts)
  _draw(report, job, rows, compared, captions)
  report.write(settings=dataclasses.asdict(job.config), rows=rows, model=model.name,
               engine=model.engine.name, num_images=len(captions), captions=captions,
               tokens_per_image=model.num_tokens, left_out=job.left_out)
  return rows


def _look(job: CompareJob, start: float, compared: Mapping[str, Compared]) -> None:
  """Writes the report before times are measured, and prints where the pictures are."""
  rows = _write(job, compared)
  if job.config.all and len(rows) == 1:
    seconds = (time.monotonic() - start) * len(job.requests) + job.config.budget
    progress.say(f'{len(job.requests)} decoders take about {seconds / 60:.0f} minutes at this pace')
  name = _MAPS if len(rows) == len(job.requests) or not job.files else rows[0]['images']
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
    others, count = 1 + (config.paired and job.model.engine.seed_exact), len(job.prompts)
    counted = f'image{"s"[:count != 1]} x {len(job.requests)} decoders'
    with (compilations.reported(len(job.requests) + others),
          progress.bar(f'{count} {counted}') as show):
      compared = timing.compare(
          job.requests, captions=job.captions, repeats=_REPEATS, budget=config.budget,
          steady=_STEADY, untimed=() if job.untimed is None else (job.untimed,),
          show=progress.say, progress=show, look=functools.partial(_look, job, time.monotonic()))
    rows = _write(job, compared)
  print('\n' + '\n'.join([_table(job.model, rows), *_same(compared)])
        + f'\n\nPictures and report.json are in {folder}.')
  if config.decoder is None and not config.all:
    print('--all compares every decoder.')
  print(_next_step(job, rows))


def _next_step(job: CompareJob, rows: Sequence[Mapping[str, Any]]) -> str:
  """Says what was gained, and the command that generates images with the fastest exact decoder."""
  config, baseline = job.config, job.model.engine.baseline
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
  baseline = model.engine.baseline
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
  return (f'On this {"CPU" if model.device.platform == "cpu" else model.device.device_kind}, '
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
      f'The default of {model.name} on {model.device.device_kind} is {default}'
      f'{", which model.json names" if "decoder" in model.defaults else ""}; '
      '--decoder replaces it.\n')


if __name__ == '__main__':
  sys.exit(main())
