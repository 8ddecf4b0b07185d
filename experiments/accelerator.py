"""Measures the cost of decoders on the accelerator of this machine.

  python -m experiments.accelerator
  python -m experiments.accelerator --minutes=20 --batch=1,8,32

Needs no network. Measures, in this order and until the time limit: the bandwidth of the memory and
the peak rate of matrix products; whole images of the shipped models, with their default decoders
and the baseline; then rounds of published model sizes with random weights, in the middle of an
image. There, decoders commit as many tokens as measured with a trained model (`--accepted`), and
the times are shown next to those predicted from bytes and FLOPs of the compiled round at the
measured rates. If PyTorch is installed, it decodes the same sizes token by token, eagerly and
compiled. Failures are noted, and the remaining measurements continue. Writes report.json to
--workdir.

Then, on NVIDIA GPUs, compares rounds that are one CUDA graph each with the same rounds as a single
graph (see `core.programs`): their times and their tokens. Writes graphs/report.json, so that the
other results are safe if this crashes the process.
"""

import dataclasses
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
from cspd_jax.measure import tables, timing
from cspd_jax.measure.bench import Bench
from experiments.costs import devices, predicted, pytorch, timed_rounds
from experiments.measured import check_lists


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements, in this order until the time limit.

  Attributes:
    minutes: time limit, after which no measurement starts.
    shipped: shipped models, with which whole images are timed.
    shapes: published model sizes, with random weights. On NVIDIA GPUs, the rounds of the first are
      also timed as one CUDA graph, at the end, for up to a quarter of `minutes` more.
    decoder: their decoders in addition to `vanilla`; rounds commit as many tokens as the report
      `accepted` states.
    batch: numbers of images decoded together.
    guided: whether the null condition runs as well.
    dtype: of the parameters of `shapes`.
    torch: whether to time the same sizes token by token in PyTorch, if it is installed.
    repeats: timed runs of each measurement, whose median is reported.
    rounds: rounds of a timed run.
    tokens_per_round: tokens that every decoder commits per round; by default those of the report
      `accepted`.
    accepted: report.json of a program that measured step compression.
    workdir: folder of the results.
  """

  minutes: float = 8.0
  shipped: tuple[str, ...] = ('demo', 'mar_demo')
  shapes: tuple[str, ...] = ('c2i_xl_256', 'lumina_mgpt_7b_768', 'mar_b')
  decoder: tuple[str, ...] = (
      'corrected(passes=4, window=64)', 'mc_sjd(window=64)', 'mc_sjd(window=16)')
  batch: tuple[int, ...] = (1, 8)
  guided: bool = True
  dtype: Literal['float32', 'bfloat16'] = 'bfloat16'
  torch: bool = True
  repeats: int = 5
  rounds: int = 16
  tokens_per_round: float | None = None
  accepted: str = 'docs/reports/corrected.json'
  workdir: str = 'runs/accelerator'

  def __post_init__(self):
    fields.check(self, tokens_per_round=(1, fields.MOST))


_GPU_LAUNCH = 1.5e-6  # Seconds, as in `devices.ACCELERATORS`.
_ROUNDS = {
    'model': '{model}', 'batch': '{batch}', 'decoder': '{decoder}', 'tokens': '{tokens:.2f}',
    'ms/round': '{ms:.2f}', 'predicted': '{predicted_ms:.2f}', 'GB/s': '{gigabytes:.0f}',
    's/image': '{seconds_per_image:.2f}', 'speed-up': '{speedup:.2f}x'}
_COMPARED = {
    'model': '{model}', 'batch': '{batch}', 'decoder': '{decoder}', 'a graph per round': '{ms:.2f}',
    'one graph': '{one_graph_ms:.2f}', 'other tokens': '{other_tokens}'}
_IMAGES = {
    'model': '{model}', 'batch': '{batch}', 'decoder': '{decoder}',
    'rounds': '{rounds:.0f}', 's/image': '{seconds_per_image:.3f}', 'speed-up': '{speedup:.2f}x'}


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

  def show_notes(self) -> None:
    """Prints what failed."""
    for note in self.notes:
      print(f'not measured: {note["what"]} ({note["error"]})')

  def add(self, columns: Mapping[str, str], row: dict[str, Any]) -> None:
    """Appends a row and prints it."""
    self.rows.append(row)
    print('  '.join(f'{name} {cell}' for name, cell in zip(columns, tables.cells(columns, row))),
          flush=True)


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


def images(session: Session, config: Config, name: str) -> None:
  """Times whole images of a shipped model, for every number of images."""
  model = cspd_jax.load(name)
  texts = [model.engine.baseline, str(model.specification())]
  if model.engine.name == 'discrete':
    texts += config.decoder
  texts = list(dict.fromkeys(str(model.specification(text)) for text in texts))
  for batch in config.batch:
    prompts = [model.prompts[i % len(model.prompts)] for i in range(batch)]
    bench, runs = Bench(model, prompts, batch_size=batch), {}
    for text in texts:
      run = session.attempt(f'{name}, {batch} at once: {text}',
                            lambda bench=bench, text=text: bench.run(text, bench.batch_size))
      if run is not None:
        runs[text] = run
    timed = timing.measure(runs, config.repeats) if runs else {}
    decoded = {text: bench.sample(text).decoded for text in timed}
    _add_images(session, name, batch, texts[0], timed, {
        text: float(np.mean(images.rounds)) for text, images in decoded.items()
        if hasattr(images, 'rounds')})


def _add_images(session: Session, name: str, batch: int, baseline: str,
                timed: Mapping[str, timing.Timing], rounds: Mapping[str, float]) -> None:
  """Adds the rows of timed images, by decoder."""
  first = timed.get(baseline)
  for text, times in timed.items():
    session.add(_IMAGES, dict(
        kind='images', model=name, batch=batch, decoder=text, rounds=rounds.get(text),
        seconds_per_image=times.median / batch,
        quartiles=[quartile / batch for quartile in times.quartiles],
        speedup=None if first is None else first.median / times.median))


def _with_random_weights(session: Session, config: Config, name: str
                         ) -> cspd_jax.Model | None:
  """Returns a model of a published size with random weights; None if they do not fit in memory."""
  model = families.describe(name, dtype=config.dtype)
  params = session.attempt(f'weights of {name}', lambda: jax.block_until_ready(
      timed_rounds.random_like(model.params)))
  return None if params is None else dataclasses.replace(model, params=params)


def rounds(session: Session, config: Config, name: str,
           accelerator: devices.Accelerator) -> None:
  """Times rounds of a published size with random weights, for every number of images."""
  model = _with_random_weights(session, config, name)
  if model is None:
    return
  if model.engine.name != 'discrete':
    for batch in config.batch:
      continuous(session, config, model, batch)
    return
  texts = list(dict.fromkeys(str(model.specification(text))
                             for text in ('vanilla', *config.decoder)))
  committed = {text: _committed(config, text) for text in texts}
  for batch in config.batch:
    programs = {}
    for text in texts:
      program = session.attempt(
          f'{name}, {batch} at once: {text}', lambda text=text, batch=batch: (
              _program(config, model, text, committed[text], batch, accelerator)))
      if program is not None:
        programs[text] = program
    _time_rounds(session, config, model, batch, programs, committed)
    if config.torch:
      _torch(session, config, model, batch)


def _committed(config: Config, text: str) -> float:
  return predicted.required_tokens_per_round(config.accepted, text, config.tokens_per_round)


def _program(config: Config, model: cspd_jax.Model, text: str, tokens: float, batch: int,
             accelerator: devices.Accelerator, graphs: str | None = None
             ) -> timed_rounds.TimedRound:
  """Compiles rounds of a decoder that commit `tokens` tokens on average."""
  decoder = timed_rounds.with_acceptance(model.decoder(text, guided=config.guided), tokens)
  condition = families.FAMILIES[model.family].published.condition(model.config, batch)
  random_like = timed_rounds.random_like
  return timed_rounds.program(
      decoder, model.params, random_like(condition), model.engine.settled(model.sampling()),
      random_like(model.draft_params(text)), accelerator, graphs)


def _time_rounds(session: Session, config: Config, model: cspd_jax.Model, batch: int,
                 programs: Mapping[str, timed_rounds.TimedRound],
                 committed: Mapping[str, float]) -> None:
  """Times the rounds of all decoders and adds their rows."""
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
  model = _with_random_weights(session, config, name)
  if model is None:
    return
  texts = [str(model.specification(text)) for text in ('vanilla', *config.decoder)]
  for text in dict.fromkeys(texts):
    def compare(text=text):
      compiled = {kind: _program(config, model, text, _committed(config, text), config.batch[0],
                                 accelerator, kind) for kind in programs.GRAPHS}
      times = timed_rounds.measure(compiled, config.rounds, config.repeats)
      tokens, other_tokens = (
          np.asarray(compiled[kind].run(config.rounds)[1]) for kind in programs.GRAPHS)
      return dict(
          kind='graphs', model=name, batch=config.batch[0], decoder=text,
          other_tokens=int((tokens != other_tokens).sum()),
          **{key: 1e3 * times[kind].median
             for key, kind in zip(('ms', 'one_graph_ms'), programs.GRAPHS)})
    row = session.attempt(f'{name} as one graph: {text}', compare)
    if row is not None:
      session.add(_COMPARED, row)


def _torch(session: Session, config: Config, model: cspd_jax.Model, batch: int) -> None:
  for compiled in (False, True):
    text = f'PyTorch, {"compiled" if compiled else "eager"}'
    seconds = session.attempt(f'{model.name}, {batch} at once: {text}', lambda compiled=compiled: (
        pytorch.seconds_per_token(
            model.config.transformer, rows=batch * (2 if config.guided else 1),
            slots=model.num_tokens, dtype=config.dtype, compiled=compiled,
            tokens=config.rounds, repeats=config.repeats)))
    if seconds is not None:
      session.add(_ROUNDS, dict(
          kind='torch', model=model.name, batch=batch, decoder=text, tokens=1.0, ms=1e3 * seconds,
          seconds_per_image=seconds * model.num_tokens / batch))


def continuous(session: Session, config: Config, model: cspd_jax.Model, batch: int
               ) -> None:
  """Times whole images of a model of continuous tokens with random weights."""
  condition = timed_rounds.random_like(
      families.FAMILIES[model.family].published.condition(model.config, batch))
  sampling, runs = model.engine.settled(model.sampling()), {}
  keys = random.row_keys(jax.random.key(0), batch)
  for text in dict.fromkeys((model.engine.baseline, 'exact_head')):
    compiled = session.attempt(f'{model.name}, {batch} at once: {text}', lambda text=text: (
        programs.compiled(model.decoder(text, guided=config.guided), model.params, condition, keys,
                          sampling, model.draft_params(text)).run))
    if compiled is not None:
      runs[text] = lambda compiled=compiled, text=text: compiled(
          model.params, condition, keys, sampling, model.draft_params(text))
  timed = session.attempt(f'{model.name}, {batch} at once: images', lambda: (
      timing.measure(runs, config.repeats, enough=10.0))) if runs else None
  _add_images(session, model.name, batch, model.engine.baseline, timed or {}, {})


def check(config: Config) -> None:
  """Raises ValueError for invalid options, before anything runs."""
  check_lists(config, 'batch')
  for name in config.shapes:
    model = families.describe(name, dtype=config.dtype)
    if model.engine.name == 'discrete':
      for text in config.decoder:
        text = str(model.specification(text))
        timed_rounds.with_acceptance(
            model.decoder(text, guided=config.guided), _committed(config, text))


@cli.command(Config)
def main(config: Config) -> None:
  check(config)
  folder = pathlib.Path(config.workdir) / 'graphs'
  run_folder.check(folder)
  report, session = run_folder.Report(config.workdir), Session(config.minutes)
  accelerator = device_rates(session)
  for name in config.shipped:
    session.attempt(name, lambda name=name: images(session, config, name))
  for name in config.shapes:
    session.attempt(name, lambda name=name: rounds(session, config, name, accelerator))
  kinds = {'images': _IMAGES, 'rounds': _ROUNDS, 'torch': _ROUNDS}
  report.write(
      settings=dataclasses.asdict(config), rows=session.rows, notes=session.notes,
      rates=dict(bandwidth=accelerator.bandwidth, flops=accelerator.flops),
      tables=[dict(title=title, columns=columns, rows=[
          i for i, row in enumerate(session.rows) if kinds[row['kind']] is columns])
              for title, columns in (('images', _IMAGES), ('rounds', _ROUNDS))])
  session.show_notes()
  discrete = [name for name in config.shapes if families.describe(name).engine.name == 'discrete']
  if discrete and programs.on_cuda():
    report, session = run_folder.Report(folder), Session(config.minutes / 4)
    graphs(session, config, discrete[0], accelerator)
    report.write(
        settings=dataclasses.asdict(config), rows=session.rows, notes=session.notes,
        tables=[dict(title='graphs', columns=_COMPARED, rows=list(range(len(session.rows))))])
    session.show_notes()


if __name__ == '__main__':
  sys.exit(main())
