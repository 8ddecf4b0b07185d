"""Chooses the decoder, window and tree that are fastest on this machine, and stores them.

  cspd-tune --model=checkpoints/c2i_b_256
  cspd-tune --model=demo --store=models/demo
  cspd-tune --dry_run --batch_size=1,4,16 --window=4,8,16 --minutes=5

A short run of every candidate measures its rounds per image and the cost of a round; bare forward
passes measure how that cost grows with the batch size. They predict seconds per image and images
per hour for every batch size, and the few best candidates are measured. The fastest are stored in
the model's `model.json` for this kind of device: from then on they are the default decoders of
`model.generate` and `cspd-generate` there. Only exact decoders are chosen, unless `--guarantee`
says otherwise. Writes all figures to --output (rows.csv, report.json); if stopped, it resumes.
"""

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

import cspd_jax
from cspd_jax import cli, sharding
from cspd_jax.cli import groups, inputs
from cspd_jax.core import compilations, fields
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.families import folder as folder_lib
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.files.store import CheckpointError
from cspd_jax.generation import defaults, stored_run
from cspd_jax.generation.cascade import Cascade
from cspd_jax.measure import measurements, tables, tuning
from cspd_jax.measure.bench import Bench

# The most promising first, in case the time runs out.
DECODERS = (
    'vanilla', 'eagle', 'eagle(tree=chain(4))', 'corrected', 'mc_sjd', 'corrected(corrector=eagle)',
    'corrected(corrector=local)', 'corrected(corrector=neighbours)', 'corrected(corrector=layers)',
    'speculative', 'medusa')
SEED_EXACT = (
    'vanilla', 'corrected_seed_exact', 'seed_exact', 'corrected_seed_exact(corrector=eagle)',
    'corrected_seed_exact(corrector=local)', 'corrected_seed_exact(corrector=neighbours)',
    'corrected_seed_exact(corrector=layers)', 'eagle2')

# Passes of a corrector where a candidate leaves them open: the first are used to find the window,
# the others are tried at the best window.
_PASSES = (2, 1, 3, 4)


@dataclasses.dataclass(frozen=True)
class Config:
  """The candidates, and what they are chosen for.

  Attributes:
    loading: the model, of discrete tokens, and how it is loaded. The first number of a mesh is 1,
      because the groups of other meshes use the decoder that is chosen for one of them, by its
      number of images.
    decoder: candidates. Those that need a network that the model does not have, or do not fit it,
      are left out. None tries all that satisfy `guarantee`.
    window: tokens per round, tried in ascending order where a candidate leaves its size open.
    guarantee: the weakest guarantee that a chosen decoder may have.
    batch_size: images decoded together; a decoder is chosen for each, up to the next one.
    images: the images of the short runs and of the measurements.
    minutes: time of the whole command, about: after half of it no more candidates are tried, and
      the best three so far are measured, for every batch size.
    store: folder of the model that stores the choice; None uses the model's own. If it holds no
      model, it becomes one with the same networks.
    dry_run: stores nothing.
    output: folder of the results.
  """

  loading: groups.ModelFlags = groups.ModelFlags()
  decoder: tuple[str, ...] | None = None
  window: tuple[int, ...] = (4, 8, 16, 32, 64)
  guarantee: Literal[
      'seed-exact', 'seed-exact up to rounding', 'exact', 'bounded', 'biased'] = 'exact'
  batch_size: tuple[int, ...] = (1, 8)
  images: groups.Images = groups.Images(num_images=8)
  sampling: groups.SamplingFlags = groups.SamplingFlags()
  minutes: float = 15.0
  store: str | None = None
  dry_run: bool = False
  output: str = 'runs/tune'

  def __post_init__(self):
    fields.check(self)


_COLUMNS = {
    'decoder': '{decoder}', 'tokens': '{tokens}', 'accepted': '{accepted:.2f}',
    'ms per round': '{ms_per_round:.2f}', 's/image, predicted': '{predicted_seconds:.4f}',
    'measured': '{measured_seconds:.4f}', 'images/hour': '{images_per_hour:.0f}',
    'speed-up': '{speedup:.2f}x', 'chosen': '{chosen}'}
# Candidates that are measured for a batch size, and timed runs of each, of which the median counts.
_BEST, _REPEATS = 3, 3
_RUNS = 'runs'  # Short runs, in the report.
_SHOWN = 8  # Rows of a table, apart from measured ones.


class Plan(NamedTuple):
  """Checked candidates."""

  bench: Bench
  lines: list[list[str]]  # Each of ascending tokens per round.
  variants: dict[str, list[str]]  # By candidate, those that differ from it in passes.
  current: dict[int, str]  # The model's default decoders by batch size that can be chosen.
  left_out: dict[str, str]  # Reasons by candidate.
  place: folder_lib.Place | None  # Where the choice is stored; None to store nothing.


def prepare(config: Config) -> Plan:
  """Loads the model and checks all options; raises ValueError for the first that cannot work."""
  fields.check_lists(config, 'window', 'batch_size', 'decoder')
  place = _place(config)
  model = inputs.model(config.loading, tokens='discrete',
                       one_group='a decoder is chosen for the images of one group')
  prompts, seed = inputs.images(config.images, model)
  if isinstance(model, Cascade):
    model = model.drawing(prompts)
  bench = Bench(model, prompts, seed=seed,
                sampling=model.sampling(**inputs.overrides(config.sampling)))
  # Candidates need hardly more memory than the baseline: a cache with a few more slots.
  bench.images(bench.baseline, batch_size=max(config.batch_size), count=max(config.batch_size))
  return _candidates(config, bench)._replace(place=place)


def _place(config: Config) -> folder_lib.Place | None:
  if config.dry_run:
    return None
  try:
    return folder_lib.place(config.loading.model, config.store)
  except CheckpointError:
    raise
  except ValueError as error:
    raise ValueError(f'{error} Or give --dry_run, which stores nothing.') from error


def _candidates(config: Config, bench: Bench) -> Plan:
  """The candidates that can run and may be chosen; raises ValueError without any."""
  model, names = bench.model, config.decoder
  weakest = Guarantee(config.guarantee)
  if names is None:
    names = SEED_EXACT if weakest.satisfies(Guarantee.UP_TO_ROUNDING) else DECODERS
  lines, variants = [], {}
  for name in names:
    line = []
    for window in sorted(config.window):
      first, *others = (_sized(model, name, window, passes) for passes in _PASSES)
      line.append(first)
      variants[first] = [other for other in dict.fromkeys(others) if other != first]
    lines.append(line)
  current, left_out = _current(model, config.batch_size)
  kept: list[list[str]] = []
  for line in [*lines, *([text] for text in (*current.values(), bench.baseline))]:
    runnable, refused = measurements.supported_decoders(bench, line)
    guarantees = {text: bench.check(text).guarantee for text in runnable}
    weak = {text: f'it is {guarantee}, and guarantee is {config.guarantee}'
            for text, guarantee in guarantees.items() if not guarantee.satisfies(weakest)}
    left_out |= refused | weak
    before = {text for earlier in kept for text in earlier}
    kept.append([text for text in runnable if text not in weak and text not in before])
  if not any(kept[:len(names)]):  # The current default and the baseline alone are no choice.
    raise ValueError('nothing can run; ' + '; '.join(f'{k}: {v}' for k, v in left_out.items()))
  candidates = {text for line in kept for text in line}
  return Plan(bench, [line for line in kept if line], variants,
              {size: text for size, text in current.items() if text in candidates}, left_out, None)


def _sized(model: cspd_jax.Model, name: str, window: int, iterations: int) -> str:
  spec = model.specification(name)
  if 'iterations' in model.table.parameters(spec) and 'iterations' not in spec.parts[0].arguments:
    spec = model.specification(spec, iterations=iterations)
  return str(model.table.complete(spec, window=window, length=max(window - 1, 1)))


def _current(model: cspd_jax.Model, batch_sizes: Sequence[int]
              ) -> tuple[dict[int, str], dict[str, str]]:
  """Default decoders by batch size, without those that are not registered any more."""
  try:
    return {size: str(model.specification(batch_size=size)) for size in batch_sizes}, {}
  except ValueError as error:
    return {}, {'the stored decoder': str(error)}


def _settings(config: Config, plan: Plan) -> dict[str, Any]:
  bench, settings = plan.bench, dataclasses.asdict(config)
  for name in ('minutes', 'store', 'dry_run', 'output'):
    del settings[name]
  return settings | dict(
      config=repr(bench.model.config), weights=stored_run.weights(bench.model),
      prompts=[str(prompt) for prompt in bench.prompts], device=bench.model.devices[0].device_kind)


class _Timings:
  """What is measured of candidates, relative to the pace of the first run; a report keeps it."""

  def __init__(self, bench: Bench, sizes: Sequence[int], report: Report):
    pace = tuning.pace(bench, sizes[0])
    self._pace = pace._replace(seconds=report.measured('pace', 'seconds', lambda: pace.seconds))
    self._bench, self._sizes, self._report = bench, sizes, report
    self.runs: dict[str, tuning.TimedRun] = {}

  def run(self, text: str) -> Mapping[int, float]:
    """Runs a candidate for a short time; returns its predicted seconds per image by batch size."""
    measured = self._report.measured(_RUNS, text, lambda: tuning.short_run(
        self._bench, text, self._sizes[0], self._pace)._asdict())
    run = tuning.TimedRun(**measured)._replace(rounds=np.asarray(measured['rounds']))
    self.runs[text] = run
    predicted = {size: self.predict(text, size).seconds for size in self._sizes}
    print(f'{text}: {run.accepted:.2f} tokens per round; seconds per image '
          + ', '.join(f'{value:.4f} ({size} at once)' for size, value in predicted.items()),
          flush=True)
    return predicted

  def predict(self, text: str, size: int) -> tuning.PredictedSpeed:
    """Predicts the speed of a candidate that has run, for a batch size."""
    bench, report, run = self._bench, self._report, self.runs[text]
    growth = report.measured('growth', str(run.tokens), lambda: tuning.growth(
        bench, run.tokens, self._sizes, _REPEATS))
    count = tuning.queue_length(bench, text, size)
    prefill = report.measured('prefill', str(size), lambda: tuning.prefill(
        bench, size, self._pace, _REPEATS)) if count else 0.0
    return tuning.predict(run, size, growth[str(size)], count, prefill)

  def measure(self, texts: Sequence[str], size: int) -> Mapping[str, float]:
    """Measures the seconds per image of candidates with a batch size."""
    return self._report.measured('measured', f'{size}: {", ".join(texts)}', lambda: tuning.measure(
        self._bench, list(texts), size, _REPEATS))


def tune(plan: Plan, config: Config, report: Report) -> tuple[list[dict[str, Any]], dict[str, str]]:
  """Returns a row per candidate and batch size, the fastest first, and why others are left out."""
  bench, sizes = plan.bench, sorted(set(config.batch_size))
  until = time.perf_counter() + 60 * config.minutes / 2  # The rest is for measurements.
  timings = _Timings(bench, sizes, report)

  def seconds(text: str) -> Mapping[int, float] | None:
    is_late = timings.runs and time.perf_counter() > until
    return None if is_late and text not in report.names(_RUNS) else timings.run(text)

  searched = tuning.search(plan.lines, lambda text: plan.variants.get(text, []), seconds)
  rows = []
  for size in sizes:
    ranked = tuning.ranked(searched.seconds, size)
    # The current default must be beaten, and the baseline is the reference of speed-ups.
    few = dict.fromkeys([*ranked[:_BEST], *(
        text for text in (plan.current.get(size), bench.baseline) if text in searched.seconds)])
    measured = timings.measure([*few], size)
    chosen = min(measured, key=lambda text: measured[text])
    rows += [_row(bench, timings.runs[text], size, timings.predict(text, size), measured,
                  text == chosen) for text in ranked]
  return rows, plan.left_out | searched.left_out


def _num_programs(plan: Plan, config: Config) -> int:
  """The most programs that `tune` may compile: the search ends lines that become slower."""
  bench, sizes = plan.bench, set(config.batch_size)
  candidates = {text for line in plan.lines for text in line}
  # Variants are tried of one candidate per line and batch size.
  variants = sum(len(sizes) * max(len(plan.variants.get(text, ())) for text in line)
                 for line in plan.lines)
  lengths = {bench.tokens_per_round(text) for text in candidates}
  passes = len(lengths) * len(sizes) if len(sizes) > 1 else 0
  prefills = sum(any(tuning.queue_length(bench, text, size) for text in candidates)
                 for size in sizes)
  # The best, the current default and the baseline are measured for every batch size.
  measured = len(sizes) * (_BEST + 2)
  return 1 + len(candidates) + variants + passes + prefills + measured


def _row(bench: Bench, run: tuning.TimedRun, size: int, predicted: tuning.PredictedSpeed,
         measured: Mapping[str, float], chosen: bool) -> dict[str, Any]:
  seconds, baseline = measured.get(run.decoder), measured.get(bench.baseline)
  return dict(
      batch_size=size, decoder=run.decoder,
      guarantee=bench.images(run.decoder).sampler.guarantee, tokens=run.tokens,
      accepted=run.accepted, rounds=float(run.rounds.mean()), rounds_of_batch=predicted.rounds,
      ms_per_round=1e3 * predicted.round_seconds, predicted_seconds=predicted.seconds,
      measured_seconds=seconds, images_per_hour=3600 / (seconds or predicted.seconds),
      speedup=baseline / seconds if baseline and seconds else None,
      chosen='yes' if chosen else None)


@cli.command(Config, kept='measured candidates are kept')
def main(config: Config) -> None:
  plan = prepare(config)
  report = Report(config.output, ['rows.csv'], program='cspd-tune', run=_settings(config, plan))
  count, model = sum(map(len, plan.lines)), plan.bench.model
  print(f'{count} candidates for {model.name} on {sharding.in_words(model.devices)}', flush=True)
  if measured := report.names(_RUNS):
    print(f'{len(measured)} candidates are measured already, in {report.folder}', flush=True)
  start = time.perf_counter()
  with compilations.reported(_num_programs(plan, config), at_most=True):
    rows, left_out = tune(plan, config, report)
  shown = {size: _shown(rows, size) for size in dict.fromkeys(row['batch_size'] for row in rows)}
  for size, numbers in shown.items():
    table = tables.text(_COLUMNS, [rows[i] for i in numbers], left=1)
    print(f'\n{_images(size)} at once\n{table}')
  decoders = {row['batch_size']: row['decoder'] for row in rows if row['chosen']}
  kind = plan.bench.model.devices[0].device_kind
  out_of_time = tuning.OUT_OF_TIME in left_out.values()
  if out_of_time:
    print(f'\nNot all candidates were tried: the time limit of {config.minutes:g} minute'
          f'{"s"[:config.minutes != 1]} was reached; give more --minutes.')
  seconds = {row['batch_size']: row['measured_seconds'] for row in rows
             if row['chosen'] and row['measured_seconds']}
  # First, because what was measured is forgotten once the report is complete.
  is_stored = _store(plan, kind, decoders, seconds, out_of_time)
  atomic.write(report.path('rows.csv'), tables.csv(rows).encode())
  report.write(
      settings=dataclasses.asdict(config), rows=rows, left_out=left_out, chosen=decoders,
      device_kind=kind, prompts=plan.bench.prompts,
      minutes=(time.perf_counter() - start) / 60, tables=[
          dict(title=f'{_images(size)} at once', columns=_COLUMNS, rows=numbers)
          for size, numbers in shown.items()])
  print(_next_step(config, plan, decoders, is_stored))


def _store(plan: Plan, kind: str, decoders: Mapping[int, str], seconds: Mapping[int, float],
           out_of_time: bool) -> bool:
  """Stores the fastest decoders if there is a place for them; returns whether they are stored."""
  if plan.place is None:
    return False
  if out_of_time and plan.bench.baseline in decoders.values():
    print(f'Nothing is stored: {plan.bench.baseline} may be the fastest only because there was no '
          'time to try the others.')
    return False
  plan.place.store(kind, decoders, seconds)
  print(f'\nStored in {plan.place.folder} for {kind}: ' + ', '.join(
      f'{text} from {_images(size)} at once on'
      for size, text in defaults.different(decoders).items()) + '.')
  return True


def _next_step(config: Config, plan: Plan, decoders: Mapping[int, str], is_stored: bool) -> str:
  model, prompts = plan.bench.model, plan.bench.prompts
  if plan.place is not None and is_stored:
    own: dict[str, Any] = {'model': str(plan.place.folder)}
  elif faster := {size: decoder for size, decoder in decoders.items()
                  if decoder != plan.bench.baseline}:
    size, decoder = next(iter(faster.items()))
    own = {'decoder': decoder, 'batch_size': size}
  else:
    return 'Next: ' + inputs.next_command(
        'cspd-compare', config.loading, model, prompts, config.sampling) + (
            f' shows the forward passes that other decoders save, although {plan.bench.baseline} '
            'is the fastest here.')
  command = inputs.next_command(
      'cspd-generate', config.loading, model, prompts, config.sampling, **own)
  return f'Next: {command}'


def _shown(rows: Sequence[Mapping[str, Any]], size: int) -> list[int]:
  """Indices of the rows that a table shows; rows.csv has all."""
  numbers = [i for i, row in enumerate(rows) if row['batch_size'] == size]
  return [i for i in numbers if i in numbers[:_SHOWN] or rows[i]['measured_seconds']]


def _images(count: int) -> str:
  return f'{count} image{"s"[:count != 1]}'


if __name__ == '__main__':
  sys.exit(main())
