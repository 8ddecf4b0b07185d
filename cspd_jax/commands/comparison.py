"""What cspd-compare shows of decoders: rows, tables and pictures."""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import cspd_jax
from cspd_jax import metrics
from cspd_jax.cli import inputs
from cspd_jax.continuous import result as continuous
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.table import Table
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import pixels
from cspd_jax.generation.images import Images
from cspd_jax.generation.results import Generated
from cspd_jax.measure import tables
from cspd_jax.measure.timing import Compared
from cspd_jax.metrics import acceptance, paired as paired_lib, scenes
from cspd_jax.plots import charts, grid

# The pictures: the forward pass that committed each token, next to the images.
MAPS, _ACCEPTED, _SPEED = 'acceptance.png', 'accepted.png', 'speed.png'
MAPPED = 4  # With more images the maps are too wide to read.
_TIMES = ('ms_per_round', 'seconds_per_image', 'speedup', 'speedup_error')  # Of a row.
_HIDDEN = ('accepted_length', 'one_token_rounds', 'step_compression')  # Numbers without columns.
# The time of a pass relative to `vanilla`, for one image of LlamaGen-XL with random weights.
PASS_ON_H100 = {
    **dict.fromkeys(('corrected_seed_exact(iterations=4, window=64)',
                     'corrected(iterations=4, window=64)'), 2.14),
    **dict.fromkeys(('seed_exact(window=64)', 'mc_sjd(window=64)'), 1.48)}


class CompareJob(NamedTuple):
  """A checked comparison."""

  config: Any  # Of the command.
  model: cspd_jax.Model
  images: dict[str, Images]  # The same ones, by name of the decoder.
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
    for decoder in self.images if self.model.handover is None else ():
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
    more = [] if self.model.table.seed_exact else [_ACCEPTED]
    names = [*self.files.values(), MAPS, *more, _SPEED, tables.PAGE]
    return Report(self.folder, names, program='cspd-compare')


def find_baseline(table: Table, specifications: Mapping[str, Any]) -> str | None:
  """Returns the name of the table's baseline among complete specifications; None without it."""
  # `vanilla` in windows costs as much as a window, so it is not the baseline.
  return next((name for name, specification in specifications.items()
               if specification.parts[0].name == table.baseline
               and 'window' not in specification.parts[0].arguments), None)


def make_rows(job: CompareJob, compared: Mapping[str, Compared]) -> list[dict[str, Any]]:
  """Returns a row per decoder; times are None before they are measured."""
  model, images, entries = job.model, job.files, []
  name = find_baseline(model.table, {
      name: program.sampler.specification for name, program in job.images.items()})
  first = None if name is None else compared.get(name)
  for name, result in compared.items():
    sampler, decoded = job.images[name].sampler, result.sample.decoded
    row = dict(
        decoder=name, specification=str(sampler.specification),
        guarantee=sampler.guarantee,
        **metrics.entries(metrics.measure(
            metrics.select(model.table.tokens, 'work', 'bound'), result.sample, model)),
        **_times(result, first),
        **({} if job.first is None else dict(
            prior_decoder=job.first.decoder, prior_tokens=job.first.tokens.shape[1],
            prior_passes=float(job.first.decoded.rounds.mean()))),
        tokens_equal_baseline=first and bool(
            np.array_equal(decoded.tokens, first.sample.decoded.tokens)),
        compile_seconds=result.compile_seconds, images=images.get(name))
    if name == job.untimed and first is not None and name in PASS_ON_H100:
      row['projected'] = first.sample.decoded.rounds.sum() / (
          decoded.rounds.sum() * PASS_ON_H100[name])
    if isinstance(decoded, continuous.Decoded):
      tested = 'drafts' if decoded.kernels is None else 'denoising kernels'
      decoder: Any = sampler.decoder
      row |= dict(
          distribution=decoder.distribution, guarantee_in_words=decoder.verifier.guarantee,
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


def table(model: cspd_jax.Model, entries: Sequence[Mapping[str, Any]]) -> tables.Table:
  """Returns the table of some rows."""
  columns = {'decoder': '{specification}', 'guarantee': '{guarantee}',
             **metrics.columns([
                 metric for metric in metrics.select(model.table.tokens, 'work')
                 if metric.name not in _HIDDEN])}
  if any('prior_passes' in row for row in entries):
    columns['of the prior'] = '{prior_passes:.1f}'
  if any(row['guarantee'] is Guarantee.BOUNDED for row in entries):
    columns |= metrics.columns(metrics.select(model.table.tokens, 'bound'))
  if 'asked' in entries[0]:
    columns |= {'asked': '{asked:.3f}', 'error': '{asked_error:.3f}'}
  columns |= {'ms/pass': '{ms_per_round:.2f}', 's/image': '{seconds_per_image:.3f}',
              'speed-up': '{speedup:.2f}x', '+-': '{speedup_error:.2f}'}
  if any('projected' in row for row in entries):
    columns['projected'] = '{projected:.1f}x'
  if model.table.seed_exact:
    columns[f'= {model.table.baseline}'] = '{equal}'
  columns['compile s'] = '{compile_seconds:.1f}'
  equal = {True: 'yes', False: 'no', None: None}
  return tables.Table('', columns, [
      dict(row, equal=equal[row['tokens_equal_baseline']]) for row in entries])


def format_table(model: cspd_jax.Model, entries: Sequence[Mapping[str, Any]]) -> str:
  """Formats rows as text; for continuous tokens with each decoder's distribution and acceptance."""
  _, columns, rows = table(model, entries)
  text = tables.text(columns, rows)
  of_prior = [row for row in entries if 'prior_passes' in row][:1]
  projected = [row for row in entries if 'projected' in row]
  sentences = [acceptance.sentence(row) for row in entries if 'distribution' in row]
  sentences += [
      f'The prior drew its {row["prior_tokens"]} tokens once for all decoders, with '
      f'{row["prior_decoder"]} in {row["prior_passes"]:.1f} passes, which the times do not include.'
      for row in of_prior]
  sentences += [
      f'Projected for LlamaGen-XL on an NVIDIA H100 with as many tokens per pass: a pass of\n'
      f'{row["specification"]} takes {PASS_ON_H100[row["specification"]]} times as long there as '
      f'one of {model.table.baseline}, measured with random weights.' for row in projected]
  return '\n'.join([text, *_paired_tables(model, entries), *[''][:len(sentences)], *sentences])


def same_decoders(compared: Mapping[str, Compared]) -> list[str]:
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
  return ['', f'Minus {model.table.baseline}, from the same seeds:', tables.text({
      'decoder': '{decoder}', 'statistic': '{statistic}', 'difference': '{change:+.4f}',
      'paired error': '{change_error:.4f}', 'unpaired error': '{change_error_unpaired:.4f}'},
      shown)]


def draw(report: Report, job: CompareJob, entries: Sequence[Mapping[str, Any]],
         compared: Mapping[str, Compared], captions: Sequence[str]) -> None:
  """Writes the pictures; the bars once times are measured."""
  model = job.model
  images = {name: result.sample.images(model) for name, result in compared.items() if job.files}
  work = metrics.select(model.table.tokens, 'work')
  for row in entries:
    phrases = [metric.phrase.format(row[metric.name]) for metric in work if metric.phrase]
    if row['seconds_per_image'] is not None:
      phrases.append(f'{row["seconds_per_image"]:.2f} s')
    if (name := row['decoder']) in images:
      grid.save_grid(report.path(row['images']), images[name], captions=captions,
                     title=f'{name}: {", ".join(phrases)}')
  if len(compared) < len(job.images) and images:  # The grid is enough to look at.
    return
  shown = {name: value[:MAPPED] for name, value in images.items()}
  on_grid = lambda values: pixels.cells(model, values)[:MAPPED]
  rounds, = (metric for metric in work if metric.name == 'rounds')
  atomic.write(report.path(MAPS), grid.acceptance_map(
      {name: on_grid(result.sample.decoded.round_of_token) for name, result in compared.items()},
      images=shown, captions=captions[:MAPPED],
      notes={row['decoder']: f'{rounds.form.format(row["rounds"])} passes' for row in entries},
      title='The forward pass that committed each token'))
  decoded = {name: result.sample.decoded for name, result in compared.items()}
  if tests := {name: result.tests for name, result in decoded.items()
               if isinstance(result, continuous.Decoded) and result.tests.tested.any()}:
    grid.save_replaced_map(
        report.path(_ACCEPTED), {name: shown[name] for name in tests},
        {name: on_grid(test.tested) for name, test in tests.items()},
        {name: on_grid(test.accepted) for name, test in tests.items()},
        captions=captions[:MAPPED],
        title='Accepted: tokens, or kernels of the head')
  if all(row['seconds_per_image'] is not None or row['decoder'] == job.untimed for row in entries):
    _draw_bars(report, model, entries)


def _draw_bars(report: Report, model: cspd_jax.Model, entries: Sequence[Mapping[str, Any]]) -> None:
  main, values = metrics.MAIN[model.table.tokens], lambda key: {
      row['decoder']: row[key] for row in entries}
  charts.save_bars(
      report.path(_SPEED),
      [charts.BarPanel(main.name.replace('_', ' ').capitalize(), values(main.name), main.form,
                       f'{main.meaning}; {main.better} is better'),
       charts.BarPanel('Seconds per image', values('seconds_per_image'), '{:.3f} s',
                       'wall-clock at batch 1 without compilation; lower is better')],
      baseline=model.table.baseline, title=f'{model.name} on {jax.devices()[0].device_kind}')
