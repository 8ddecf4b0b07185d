"""The report of `cspd-compare` for either engine: rows, a table and pictures."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import cspd_jax
from cspd_jax import continuous, metrics
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.files.run_folder import Report
from cspd_jax.generation.request import Request
from cspd_jax.measure import tables
from cspd_jax.measure.timing import Compared
from cspd_jax.metrics import paired as paired_lib, passes, scenes
from cspd_jax.plots import charts, grid

Requests = Mapping[str, Request]

# With more images the maps are too wide to read.
_MAPPED = 4
# The round in which each token was fixed, next to the images.
MAPS = 'acceptance.png'
_PICTURES = (MAPS, 'accepted.png', 'speed.png')


def files(model: cspd_jax.Model, requests: Requests) -> list[str]:
  """Returns the names of all files that a report may have."""
  is_continuous = model.engine.name == 'continuous'
  pictures = [name for name in _PICTURES if is_continuous or name != 'accepted.png']
  return [*_files(requests).values(), *pictures]


def _files(requests: Requests) -> dict[str, str]:
  names: dict[str, str] = {}
  for decoder in requests:
    word = re.sub(r'\W+', '_', decoder).strip('_')
    same = sum(name.startswith(f'images_{word}.') for name in names.values())
    names[decoder] = f'images_{word}.{same + 1}.png' if same else f'images_{word}.png'
  return names


def headline(model: cspd_jax.Model, requests: Requests, prompts: Sequence[Any],
             sampling: Any) -> str:
  """Describes the run in one line."""
  usual = type(sampling)()._asdict()
  options = ', '.join(
      f'{name.replace("_", " ")} {np.asarray(value).item():g}'
      for name, value in sampling._asdict().items()
      if value != usual[name] or name in ('guidance_scale', 'temperature'))
  count = len(prompts)
  return (f'{count} image{"s"[:count != 1]} of {model.num_tokens} {model.engine.name} tokens with '
          f'{len(requests)} decoders; model {model.name} on {model.where}, {options}')


def baseline(engine: Any, specifications: Mapping[str, Any]) -> str | None:
  """Returns the name of the engine's baseline among complete specifications; None without it."""
  # `vanilla` in windows costs as much as a window, so it is not the baseline.
  return next((name for name, specification in specifications.items()
               if specification.parts[0].name == engine.baseline
               and 'window' not in specification.parts[0].arguments), None)


def rows(model: cspd_jax.Model, requests: Requests, compared: Mapping[str, Compared],
         paired: bool = False) -> list[dict[str, Any]]:
  """Returns a row per decoder.

  Times are None before they are measured, speed-ups unless the engine's baseline ran as well.
  With `paired`, rows have the differences to the baseline's images, once those are decoded; with
  captions, the scores of what was asked for.
  """
  name = baseline(model.engine, {
      name: program.specification for name, program in requests.items()})
  first = None if name is None else compared.get(name)
  images, entries = _files(requests), []
  for name, result in compared.items():
    program, decoded = requests[name], result.sample.decoded
    row = dict(
        decoder=name, specification=str(program.specification),
        guarantee=model.engine.guarantee(program.decoder),
        **metrics.entries(metrics.measure(
            metrics.select(model.engine.name, 'work', 'bound'), result.sample, model)),
        **_times(result, first),
        tokens_equal_baseline=first and bool(
            np.array_equal(decoded.tokens, first.sample.decoded.tokens)),
        compile_seconds=result.compile_seconds, images=images[name])
    if isinstance(program.decoder, continuous.Decoder):
      tested = 'drafts' if decoded.kernels is None else 'denoising kernels'
      row |= dict(
          distribution=program.decoder.distribution, guarantee_in_words=program.decoder.guarantee,
          tested=tested if decoded.tests.tested.any() else None,
          **passes.details(result.sample, model))
    if result.sample.captions is not None:
      row |= metrics.entries(scenes.of_sample(result.sample, model))
    if paired and first is not None and result is not first:
      row |= paired_lib.entries(paired_lib.differences(result.sample, first.sample, model))
    entries.append(row)
  return entries


def _times(result: Compared, baseline: Compared | None) -> dict[str, Any]:
  seconds = result.seconds
  if seconds is None:
    return dict(ms_per_round=None, seconds_per_image=None, speedup=None, timed_runs=0)
  speedup = None
  if baseline is not None and baseline.seconds is not None:
    speedup = float(baseline.seconds.mean() / seconds.mean())
  return dict(
      ms_per_round=1e3 * float(seconds.sum() / result.sample.decoded.rounds.sum()),
      seconds_per_image=float(seconds.mean()), speedup=speedup, timed_runs=result.timed_runs)


def table(model: cspd_jax.Model, entries: Sequence[Mapping[str, Any]]) -> str:
  """Formats rows as text; for continuous tokens with each decoder's distribution and acceptance."""
  columns = {'decoder': '{specification}', 'guarantee': '{guarantee}',
             **metrics.columns(metrics.select(model.engine.name, 'work'))}
  if any(row['guarantee'] is Guarantee.BOUNDED for row in entries):
    columns |= metrics.columns(metrics.select(model.engine.name, 'bound'))
  if 'asked' in entries[0]:
    columns |= {'asked': '{asked:.3f}', 'error': '{asked_error:.3f}'}
  columns |= {'ms/round': '{ms_per_round:.2f}', 's/image': '{seconds_per_image:.3f}',
              'speed-up': '{speedup:.2f}x'}
  if model.engine.name == 'discrete':
    columns[f'= {model.engine.baseline}'] = '{equal}'
  columns['compile s'] = '{compile_seconds:.1f}'
  equal = {True: 'yes', False: 'no', None: None}
  text = tables.text(columns, [
      dict(row, equal=equal[row['tokens_equal_baseline']]) for row in entries])
  sentences = [_sentence(row) for row in entries if 'distribution' in row]
  parts = [text, *_paired_tables(model, entries)]
  return '\n'.join([*parts, '', *sentences] if sentences else parts)


def same(compared: Mapping[str, Compared]) -> list[str]:
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
      lines.append(f'{name} fixed the same tokens in the same rounds as {other}: with these sizes '
                   'they are one decoder.')
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


def _sentence(row: Mapping[str, Any]) -> str:
  """A decoder's distribution and acceptance.

  Decoders test different things, so their rates do not share a column.
  """
  text = f'{row["decoder"]}: {row["distribution"]}; {row["guarantee_in_words"]}'
  if row['acceptance'] is not None:
    text += f'; accepts {row["acceptance"]:.1%} of its {row["tested"]}'
  if row['squared_error_bound'] is not None:
    text += (f'; squared distance {row["squared_error"]:.4f}, bound '
             f'{row["squared_error_bound"]:.4f}')
  if row['residual_missed']:
    text += f'; {row["residual_missed"]:.2f} residual draws per image failed'
  return text


def draw(report: Report, model: cspd_jax.Model, entries: Sequence[Mapping[str, Any]],
         compared: Mapping[str, Compared], captions: Sequence[str]) -> None:
  """Writes the pictures; the bars once times are measured."""
  images = {name: result.sample.images(model) for name, result in compared.items()}
  work = metrics.select(model.engine.name, 'work')
  phrased = [metric for metric in work if metric.phrase]
  for row in entries:
    phrases = [metric.phrase.format(row[metric.name]) for metric in phrased]
    if row['seconds_per_image'] is not None:
      phrases.append(f'{row["seconds_per_image"]:.2f} s')
    grid.save_grid(report.path(row['images']), images[row['decoder']], captions=captions,
                   title=f'{row["decoder"]}: {", ".join(phrases)}')
  shown = {name: value[:_MAPPED] for name, value in images.items()}
  on_grid = lambda values: model.cells(values)[:_MAPPED]
  rounds, = (metric for metric in work if metric.name == 'rounds')
  grid.save_acceptance_map(
      report.path(MAPS),
      {name: on_grid(result.sample.decoded.round_of_token) for name, result in compared.items()},
      images=shown, captions=captions[:_MAPPED],
      notes={row['decoder']: f'{rounds.form.format(row["rounds"])} rounds' for row in entries},
      title='The round in which each token was fixed')
  decoded = {name: result.sample.decoded for name, result in compared.items()}
  tests = {name: result.tests for name, result in decoded.items()
           if hasattr(result, 'tests') and result.tests.tested.any()}
  if tests:
    grid.save_replaced_map(
        report.path('accepted.png'), {name: shown[name] for name in tests},
        {name: on_grid(test.tested) for name, test in tests.items()},
        {name: on_grid(test.accepted) for name, test in tests.items()},
        captions=captions[:_MAPPED],
        title='Accepted: tokens, or kernels of the head')
  if all(row['seconds_per_image'] is not None for row in entries):
    _draw_bars(report, model, entries)


def _draw_bars(report: Report, model: cspd_jax.Model,
               entries: Sequence[Mapping[str, Any]]) -> None:
  main = metrics.MAIN[model.engine.name]
  values = lambda key: {row['decoder']: row[key] for row in entries}
  charts.save_bars(
      report.path('speed.png'),
      [charts.BarPanel(main.name.replace('_', ' ').capitalize(), values(main.name), main.form,
                       f'{main.meaning}; {main.better} is better'),
       charts.BarPanel('Seconds per image', values('seconds_per_image'), '{:.3f} s',
                       'wall-clock at batch 1 without compilation; lower is better')],
      baseline=model.engine.baseline,
      title=f'{model.name} on {jax.devices()[0].device_kind}')
