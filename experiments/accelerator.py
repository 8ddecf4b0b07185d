"""Measures the cost of decoders on the accelerator of this machine.

  python -m experiments.accelerator
  python -m experiments.accelerator --minutes=20 --batch=1,8,32

Needs no network. Measures, in this order and until the time limit: the bandwidth of the memory and
the peak rate of matrix products; then rounds of published model sizes with random weights, in the
middle of an image. Decoders commit as many tokens as measured with a trained model (`--accepted`),
and the times are shown next to those predicted from bytes and FLOPs of the compiled round at the
measured rates. Failures are noted, and the remaining measurements continue. Writes report.json to
--workdir. `cspd-compare` times whole images of the shipped models.

Then, on NVIDIA GPUs, compares rounds that are one CUDA graph each with the same rounds as a single
graph (see `core.programs`): their times and their tokens. Writes graphs/report.json, so that the
other results are safe if this crashes the process.
"""

import dataclasses
import functools
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np

import cspd_jax
from cspd_jax import cli, families
from cspd_jax.core import fields, programs, random
from cspd_jax.files import run_folder
from cspd_jax.measure import timing
from cspd_jax.measure.tables import Table
from experiments import measured
from experiments.costs import devices, predicted, timed_rounds


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements, in this order until the time limit.

  Attributes:
    minutes: time limit, after which no measurement starts.
    shapes: published model sizes, with random weights. On NVIDIA GPUs, the rounds of the first are
      also timed as one CUDA graph, at the end, for up to a quarter of `minutes` more.
    decoder: their decoders in addition to `vanilla`; rounds commit as many tokens as the report
      `accepted` states.
    batch: numbers of images decoded together.
    guided: whether the null condition runs as well.
    dtype: of the parameters of `shapes`.
    repeats: timed runs of each measurement, whose median is reported.
    rounds: rounds of a timed run.
    tokens_per_round: tokens that every decoder commits per round; by default those of the report
      `accepted`.
    accepted: report.json of a program that measured step compression.
    workdir: folder of the results.
  """

  minutes: float = 8.0
  shapes: tuple[str, ...] = ('c2i_xl_256', 'lumina_mgpt_7b_768', 'mar_b')
  decoder: tuple[str, ...] = (
      'corrected(passes=4, window=64)', 'mc_sjd(window=64)', 'mc_sjd(window=16)')
  batch: tuple[int, ...] = (1, 8)
  guided: bool = True
  dtype: Literal['float32', 'bfloat16'] = 'bfloat16'
  repeats: int = 5
  rounds: int = 16
  tokens_per_round: float | None = None
  accepted: str = 'docs/reports/corrected.json'
  workdir: str = 'runs/accelerator'

  def __post_init__(self):
    fields.check(self, tokens_per_round=(1, fields.MOST))


_GPU_LAUNCH = 1.5e-6  # Seconds, as in `devices.ACCELERATORS`.
_SLOW = 10.0  # Seconds of a run that is timed only once.
_ROUNDS = {
    'model': '{model}', 'batch': '{batch}', 'decoder': '{decoder}', 'tokens': '{tokens:.2f}',
    'ms/round': '{ms:.2f}', 'predicted': '{predicted_ms:.2f}', 'GB/s': '{gigabytes:.0f}',
    's/image': '{seconds_per_image:.2f}', 'speed-up': '{speedup:.2f}x'}
_COMPARED = {
    'model': '{model}', 'batch': '{batch}', 'decoder': '{decoder}', 'a graph per round': '{ms:.2f}',
    'one graph': '{one_graph_ms:.2f}', 'other tokens': '{other_tokens}'}
_IMAGES = {
    'model': '{model}', 'batch': '{batch}', 'decoder': '{decoder}',
    's/image': '{seconds_per_image:.3f}', 'speed-up': '{speedup:.2f}x'}


class Session:
  """The results so far: rows, and notes with the name and the error of what failed."""

  def __init__(self, minutes: float):
    self._end = time.monotonic() + 60 * minutes
    self.rows: list[dict[str, Any]] = []
    self.notes: list[dict[str, str]] = []

  def attempt(self, name: str, function: Callable[[], Any]) -> Any:
    """Returns `function()`; None, with a note, if the time limit is reached or the call fails."""
    try:
      if time.monotonic() > self._end:
        raise TimeoutError('the time limit was reached')
      print(f'... {name}', file=sys.stderr, flush=True)
      return function()
    except Exception as error:  # An untested device may raise anything.
      words = ' '.join(str(error).split())[:500]
      self.notes.append(dict(what=name, error=f'{type(error).__name__}: {words}'))
      print(f'{name}: {self.notes[-1]["error"]}', file=sys.stderr, flush=True)
      return None

  def each(self, where: str, functions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Returns what functions return, by decoder, without those that fail."""
    results = {text: self.attempt(f'{where}: {text}', function)
               for text, function in functions.items()}
    return {text: result for text, result in results.items() if result is not None}

  def add(self, columns: Mapping[str, str], row: dict[str, Any]) -> None:
    """Appends a row and prints it."""
    self.rows.append(row)
    measured.show(columns, row)

  def write(self, report: run_folder.Report, config: Config, columns: Mapping[str, Any],
            **more: Any) -> None:
    """Writes a table per kind of rows with its columns, and prints what failed."""
    measured.write(report, config, [
        Table(kind, columns[kind], [row for row in self.rows if row['kind'] == kind])
        for kind in columns], notes=self.notes, **more)
    for note in self.notes:
      print(f'not measured: {note["what"]} ({note["error"]})')


def device_rates(session: Session) -> devices.Accelerator:
  """Returns the current device with its measured rates; 1 for a rate whose measurement failed."""
  bandwidth = session.attempt('bandwidth of the memory', timed_rounds.copy_bandwidth)
  flops = session.attempt('rate of matrix products', timed_rounds.matrix_rate)
  on_gpu = jax.default_backend() == 'gpu'
  # Of products in other arithmetic, relative to the measured rate.
  rates = devices.ACCELERATORS['h200'].rates if on_gpu else {}
  accelerator = devices.Accelerator(
      bandwidth or 1.0, flops or 1.0, _GPU_LAUNCH if on_gpu else 0.0, 0, 0, jax.default_backend(),
      '', (), rates)
  print(f'{jax.devices()[0].device_kind}: {1e-9 * accelerator.bandwidth:.0f} GB/s copied, '
        f'{1e-12 * accelerator.flops:.1f} TFLOP/s', flush=True)
  return accelerator


def _with_random_weights(session: Session, config: Config, name: str
                         ) -> tuple[cspd_jax.Model, dict[str, float]] | None:
  """Returns a published size with random weights, and the tokens that its decoders commit.

  These are empty for continuous tokens; None if the weights do not fit in memory.
  """
  model, committed = _described(config, name)
  params = session.attempt(f'weights of {name}', lambda: jax.block_until_ready(
      timed_rounds.random_like(model.params)))
  return None if params is None else (dataclasses.replace(model, params=params), committed)


def _described(config: Config, name: str) -> tuple[cspd_jax.Model, dict[str, float]]:
  """As `_with_random_weights`, with the shapes of the weights; raises ValueError."""
  model = families.describe(name, dtype=config.dtype)
  texts = ('vanilla', *config.decoder) if model.engine.name == 'discrete' else ()
  return model, {text: predicted.required_tokens_per_round(
      config.accepted, text, config.tokens_per_round)
                 for text in (str(model.specification(text)) for text in texts)}


def rounds(session: Session, config: Config, name: str,
           accelerator: devices.Accelerator) -> None:
  """Times rounds of a published size, or whole images if its tokens are continuous."""
  if (described := _with_random_weights(session, config, name)) is None:
    return
  model, committed = described
  for batch in config.batch:
    if not committed:
      continuous(session, config, model, batch)
      continue
    programs = session.each(f'{name}, {batch} at once', {
        text: functools.partial(_program, config, model, text, tokens, batch, accelerator)
        for text, tokens in committed.items()})
    _time_rounds(session, config, model, batch, programs, committed)


def _program(config: Config, model: cspd_jax.Model, text: str, tokens: float, batch: int,
             accelerator: devices.Accelerator, graphs: str | None = None
             ) -> timed_rounds.TimedRound:
  """Compiles rounds of a decoder that commit `tokens` tokens on average."""
  decoder = timed_rounds.with_acceptance(model.decoder(text, guided=config.guided), tokens)
  return timed_rounds.program(
      decoder, model.params, _condition(model, batch), model.engine.settled(model.sampling()),
      timed_rounds.random_like(model.draft_params(text)), accelerator, graphs)


def _condition(model: cspd_jax.Model, batch: int) -> Any:
  return timed_rounds.random_like(
      families.FAMILIES[model.family].published.condition(model.config, batch))


def _time_rounds(session: Session, config: Config, model: cspd_jax.Model, batch: int,
                 programs: Mapping[str, timed_rounds.TimedRound],
                 committed: Mapping[str, float]) -> None:
  timed = session.attempt(f'{model.name}, {batch} at once: rounds', lambda: (
      timed_rounds.measure(programs, config.rounds, config.repeats))) if programs else None
  vanilla = (timed or {}).get('vanilla')
  for text, times in (timed or {}).items():
    figures, tokens = programs[text].figures, committed[text]
    session.add(_ROUNDS, dict(
        kind='rounds', model=model.name, batch=batch, decoder=text, tokens=tokens,
        ms=1e3 * times.median, quartiles=[1e3 * quartile for quartile in times.quartiles],
        predicted_ms=1e3 * figures.total_seconds, bytes=figures.total_bytes, flops=figures.flops,
        kernels=figures.total_kernels, conditionals=figures.conditionals,
        gigabytes=1e-9 * figures.total_bytes / times.median,
        compile_seconds=programs[text].seconds,
        seconds_per_image=times.median * model.num_tokens / tokens / batch,
        speedup=None if vanilla is None else vanilla.median * tokens / times.median))


def graphs(session: Session, config: Config, name: str,
           accelerator: devices.Accelerator) -> None:
  """Compares times and tokens of rounds that are a CUDA graph each with rounds as one graph."""
  if (described := _with_random_weights(session, config, name)) is None:
    return
  model, committed = described

  def compare(text: str) -> dict[str, Any]:
    compiled = {kind: _program(config, model, text, committed[text], config.batch[0], accelerator,
                               kind) for kind in programs.GRAPHS}
    times = timed_rounds.measure(compiled, config.rounds, config.repeats)
    tokens, other_tokens = (
        np.asarray(compiled[kind].run(config.rounds)[1]) for kind in programs.GRAPHS)
    return dict(
        kind='graphs', model=name, batch=config.batch[0], decoder=text,
        other_tokens=int((tokens != other_tokens).sum()),
        **{key: 1e3 * times[kind].median
           for key, kind in zip(('ms', 'one_graph_ms'), programs.GRAPHS)})

  for row in session.each(f'{name} as one graph', {
      text: functools.partial(compare, text) for text in committed}).values():
    session.add(_COMPARED, row)


def continuous(session: Session, config: Config, model: cspd_jax.Model, batch: int) -> None:
  """Times whole images of a model of continuous tokens with random weights."""
  keys, sampling = random.row_keys(jax.random.key(0), batch), model.engine.settled(model.sampling())

  def compiled(text: str) -> Callable[[], Any]:
    arguments = (model.params, _condition(model, batch), keys, sampling, model.draft_params(text))
    decoder = model.decoder(text, guided=config.guided)
    return functools.partial(programs.compiled(decoder, *arguments).run, *arguments)

  runs = session.each(f'{model.name}, {batch} at once', {
      text: functools.partial(compiled, text) for text in (model.engine.baseline, 'exact_head')})
  timed = session.attempt(f'{model.name}, {batch} at once: images', lambda: timing.measure(
      runs, config.repeats, enough=_SLOW)) if runs else None
  first = (timed or {}).get(model.engine.baseline)
  for text, times in (timed or {}).items():
    session.add(_IMAGES, dict(
        kind='images', model=model.name, batch=batch, decoder=text,
        seconds_per_image=times.median / batch,
        quartiles=[quartile / batch for quartile in times.quartiles],
        speedup=None if first is None else first.median / times.median))


def check(config: Config) -> list[str]:
  """Returns the published sizes of discrete tokens; raises ValueError before anything runs."""
  measured.check_lists(config, 'batch')
  names = []
  for name in config.shapes:
    model, committed = _described(config, name)
    for text, tokens in committed.items():
      timed_rounds.with_acceptance(model.decoder(text, guided=config.guided), tokens)
    names += [name] * bool(committed)
  return names


@cli.command(Config)
def main(config: Config) -> None:
  discrete, folder = check(config), pathlib.Path(config.workdir) / 'graphs'
  run_folder.check(folder)
  report, session = run_folder.Report(config.workdir), Session(config.minutes)
  accelerator = device_rates(session)
  for name in config.shapes:
    session.attempt(name, lambda name=name: rounds(session, config, name, accelerator))
  session.write(report, config, dict(images=_IMAGES, rounds=_ROUNDS),
                rates=dict(bandwidth=accelerator.bandwidth, flops=accelerator.flops))
  if discrete and programs.on_cuda():
    report, session = run_folder.Report(folder), Session(config.minutes / 4)
    graphs(session, config, discrete[0], accelerator)
    session.write(report, config, dict(graphs=_COMPARED))


if __name__ == '__main__':
  sys.exit(main())
