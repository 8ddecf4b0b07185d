"""Measures the cost of decoders on the accelerator of this machine.

  python -m experiments.accelerator
  python -m experiments.accelerator --minutes=20 --batch=1,8,32

Needs no network. Measures until the time limit the bandwidth of the memory and the peak rate of
matrix products; then rounds of published model sizes with random weights, in the middle of an
image. Decoders commit as many tokens as measured with a trained model (`--accepted`), and the times
are shown next to those predicted from bytes and FLOPs of the compiled round at the measured rates.
Failures are noted, and the remaining measurements continue. Writes report.json to --workdir.

Then, on NVIDIA GPUs, compares times and tokens of rounds that are one CUDA graph each with those of
rounds as a single graph (see `core.programs`). Writes graphs/report.json, in case this crashes.
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
from cspd_jax.core import programs
from cspd_jax.files import run_folder
from cspd_jax.measure.tables import Table
from experiments import measured
from experiments.costs import devices, predicted, timed_rounds


@dataclasses.dataclass(frozen=True)
class Config(predicted.Accepted):
  """The measurements, in this order until the time limit.

  Attributes:
    minutes: time limit, after which no measurement starts.
    shapes: published sizes of models of discrete tokens, with random weights. On NVIDIA GPUs,
      rounds of the first are then timed as one CUDA graph, for up to a quarter of `minutes` more.
    decoder: their decoders in addition to `vanilla`, which commit the tokens of `accepted`.
    batch: numbers of images decoded together.
    guided: whether the null condition runs as well.
    dtype: of the parameters of `shapes`.
    repeats: timed runs of each measurement, whose median is reported.
    rounds: rounds of a timed run.
    workdir: folder of the results.
  """

  minutes: float = 8.0
  shapes: tuple[str, ...] = ('c2i_xl_256', 'lumina_mgpt_7b_768')
  decoder: tuple[str, ...] = (
      'corrected(passes=4, window=64)', 'mc_sjd(window=64)', 'mc_sjd(window=16)')
  batch: tuple[int, ...] = (1, 8)
  guided: bool = True
  dtype: Literal['float32', 'bfloat16'] = 'bfloat16'
  repeats: int = 5
  rounds: int = 16
  workdir: str = 'runs/accelerator'


_GPU_LAUNCH = 1.5e-6  # Seconds, as in `devices.ACCELERATORS`.
_ROUNDS = {
    'model': '{model}', 'batch': '{batch}', 'decoder': '{decoder}', 'tokens': '{tokens:.2f}',
    'ms/round': '{ms:.2f}', 'predicted': '{predicted_ms:.2f}', 'GB/s': '{gigabytes:.0f}',
    's/image': '{seconds_per_image:.2f}', 'speed-up': '{speedup:.2f}x'}
_COMPARED = {
    'model': '{model}', 'batch': '{batch}', 'decoder': '{decoder}', 'a graph per round': '{ms:.2f}',
    'one graph': '{one_graph_ms:.2f}', 'other tokens': '{other_tokens}'}


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

  def write(self, report: run_folder.Report, config: Config, columns: Mapping[str, str],
            **more: Any) -> None:
    """Writes the rows with their columns, and prints what failed."""
    tables = [Table(self.rows[0]['kind'], columns, self.rows)] if self.rows else []
    measured.write(report, config, tables, notes=self.notes, **more)
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


def _described(config: Config, name: str) -> tuple[cspd_jax.Model, dict[str, float]]:
  """Returns a published size with shapes for weights, and the tokens that its decoders commit."""
  model = families.describe(name, dtype=config.dtype)
  if model.engine.name != 'discrete':
    raise ValueError(f'shapes holds {name!r}, whose tokens are continuous; give sizes of models of '
                     'discrete tokens.')
  return model, timed_rounds.committed(model, config.decoder, config, config.guided)


def _with_random_weights(session: Session, config: Config, name: str
                         ) -> tuple[cspd_jax.Model, dict[str, float]]:
  """As `_described`, with weights; without decoders if they do not fit in memory."""
  model, committed = _described(config, name)
  params = session.attempt(f'weights of {name}', lambda: jax.block_until_ready(
      timed_rounds.random_like(model.params)))
  return dataclasses.replace(model, params=params), {} if params is None else committed


def _program(config: Config, model: cspd_jax.Model, text: str, tokens: float, batch: int,
             accelerator: devices.Accelerator, graphs: str | None = None
             ) -> timed_rounds.TimedRound:
  """Compiles rounds of a decoder that commit `tokens` tokens on average."""
  decoder = timed_rounds.with_acceptance(model.decoder(text, guided=config.guided), tokens)
  condition = families.FAMILIES[model.family].published.condition(model.config, batch)
  return timed_rounds.program(
      decoder, model.params, timed_rounds.random_like(condition),
      model.engine.settled(model.sampling()), timed_rounds.random_like(model.draft_params(text)),
      accelerator, graphs)


def rounds(session: Session, config: Config, name: str, accelerator: devices.Accelerator) -> None:
  """Times rounds of a published size."""
  model, committed = _with_random_weights(session, config, name)
  for batch in config.batch:
    where = f'{name}, {batch} at once'
    compiled = session.each(where, {
        text: functools.partial(_program, config, model, text, tokens, batch, accelerator)
        for text, tokens in committed.items()})
    timed = session.attempt(f'{where}: rounds', functools.partial(
        timed_rounds.measure, compiled, config.rounds, config.repeats)) if compiled else None
    vanilla = (timed or {}).get('vanilla')
    for text, times in (timed or {}).items():
      figures, tokens = compiled[text].figures, committed[text]
      session.add(_ROUNDS, dict(
          kind='rounds', model=name, batch=batch, decoder=text, tokens=tokens,
          ms=1e3 * times.median, quartiles=[1e3 * quartile for quartile in times.quartiles],
          predicted_ms=1e3 * figures.total_seconds, bytes=figures.total_bytes,
          flops=figures.flops, kernels=figures.total_kernels, conditionals=figures.conditionals,
          gigabytes=1e-9 * figures.total_bytes / times.median,
          compile_seconds=compiled[text].seconds,
          seconds_per_image=times.median * model.num_tokens / tokens / batch,
          speedup=None if vanilla is None else vanilla.median * tokens / times.median))


def graphs(session: Session, config: Config, name: str, accelerator: devices.Accelerator) -> None:
  """Compares times and tokens of rounds that are a CUDA graph each with rounds as one graph."""
  model, committed = _with_random_weights(session, config, name)

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


@cli.command(Config)
def main(config: Config) -> None:
  measured.check_lists(config, 'batch')
  for name in config.shapes:
    _described(config, name)  # Raises its errors before anything runs.
  folder = pathlib.Path(config.workdir) / 'graphs'
  run_folder.check(folder)
  report, session = run_folder.Report(config.workdir), Session(config.minutes)
  accelerator = device_rates(session)
  for name in config.shapes:
    session.attempt(name, lambda name=name: rounds(session, config, name, accelerator))
  session.write(report, config, _ROUNDS,
                rates=dict(bandwidth=accelerator.bandwidth, flops=accelerator.flops))
  if config.shapes and programs.on_cuda():
    report, session = run_folder.Report(folder), Session(config.minutes / 4)
    graphs(session, config, config.shapes[0], accelerator)
    session.write(report, config, _COMPARED)


if __name__ == '__main__':
  sys.exit(main())
