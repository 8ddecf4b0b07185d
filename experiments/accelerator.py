"""What decoders cost on the accelerator at hand, in one go.

  python -m experiments.accelerator
  python -m experiments.accelerator --minutes=20 --batch=1,8,32

Needs no network. In this order, until the minutes are over: the memory's bandwidth and the peak
rate of matrix products; the shipped models for real, with the decoders that suit them and token by
token; then published sizes with weights that are made up: rounds in the middle of an image, where
decoders commit as many tokens as a trained model has been measured to (`--accepted`), beside what
bytes and products of the compiled round predict at the rates measured. If PyTorch is installed it
decodes the same sizes token by token, eagerly and compiled. What fails is noted, and the rest goes
on. Into --workdir go report.json and the roofline of all rounds (roofline.png).

Then, on NVIDIA GPUs, rounds that are a CUDA graph each and the same rounds as one graph (see
`core.programs`) take turns, and their tokens are compared: in graphs/report.json, so that nothing
is lost if that ends the process.
"""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import cspd_jax
from configs import accelerator as default
from cspd_jax import families
from cspd_jax.core import programs, random
from cspd_jax.generation import report as report_lib
from cspd_jax.measure import tables, timing
from cspd_jax.measure.bench import Bench
from experiments import cli
from experiments.cli import inputs
from experiments.costs import (
  accepted,
  devices,
  forced,
  rates,
  roofline,
  timed_rounds,
  torch_decoder,
)

_PICTURE = 'roofline.png'
_GPU_LAUNCH = 1.5e-6  # Seconds, as `devices.ACCELERATORS` has them.
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
  """What has been measured so far, and what failed."""

  def __init__(self, minutes: float):
    self._end = time.monotonic() + 60 * minutes
    self.rows: list[dict[str, Any]] = []
    self.notes: list[dict[str, str]] = []

  def attempt(self, what: str, function: Callable[[], Any]) -> Any:
    """What `function` gives; None, with a note, if the minutes are over or it fails."""
    try:
      if time.monotonic() > self._end:
        raise TimeoutError('the minutes were over')
      print(f'... {what}', file=sys.stderr, flush=True)
      return function()
    except Exception as error:  # Whatever a device that nobody has tried may raise.
      words = ' '.join(str(error).split())[:500]
      self.notes.append(dict(what=what, error=f'{type(error).__name__}: {words}'))
      print(f'{what}: {self.notes[-1]["error"]}', file=sys.stderr, flush=True)
      return None

  def add(self, columns: Mapping[str, str], row: dict[str, Any]) -> None:
    """Keeps a row and shows it."""
    self.rows.append(row)
    print('  '.join(f'{name} {cell}' for name, cell in zip(columns, tables.cells(columns, row))),
          flush=True)


def device_rates(session: Session) -> devices.Accelerator:
  """The device at hand, with rates as measured; 1 where that failed."""
  bandwidth = session.attempt('bandwidth of the memory', rates.copy_bandwidth)
  flops = session.attempt('rate of matrix products', rates.matrix_rate)
  on_gpu = jax.default_backend() == 'gpu'
  found = devices.Accelerator(bandwidth or 1.0, flops or 1.0, _GPU_LAUNCH if on_gpu else 0.0, 0,
                              0, jax.default_backend(), '', ())
  print(f'{jax.devices()[0].device_kind}: {1e-9 * found.bandwidth:.0f} GB/s copied, '
        f'{1e-12 * found.flops:.1f} TFLOP/s', flush=True)
  return found


def images(session: Session, config: Any, name: str) -> None:
  """A shipped model for real, with every batch."""
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
    found = timing.measure(runs, config.repeats) if runs else {}
    for text, times in found.items():
      decoded = bench.sample(text).decoded
      first = found.get(texts[0])
      session.add(_IMAGES, dict(
          kind='images', model=name, batch=batch, decoder=text,
          rounds=float(np.mean(decoded.rounds)) if hasattr(decoded, 'rounds') else None,
          seconds_per_image=times.median / batch,
          quartiles=[one / batch for one in times.quartiles],
          speedup=None if first is None else first.median / times.median))


def _made_up(session: Session, config: Any, name: str) -> Any:
  """A published size with weights that are made up; None if they do not fit."""
  model = families.describe(name, dtype=config.dtype)
  params = session.attempt(f'weights of {name}', lambda: jax.block_until_ready(
      timed_rounds.made_up(model.params)))
  return None if params is None else dataclasses.replace(model, params=params)


def rounds(session: Session, config: Any, name: str, accelerator: devices.Accelerator) -> None:
  """A published size with weights that are made up, with every batch."""
  model = _made_up(session, config, name)
  if model is None:
    return
  if model.engine.name != 'discrete':
    for batch in config.batch:
      continuous(session, config, model, batch)
    return
  texts = list(dict.fromkeys(str(model.specification(text))
                             for text in ('vanilla', *config.decoder)))
  known = {text: _committed(config, text) for text in texts}
  for batch in config.batch:
    programs = {}
    for text in texts:
      found = session.attempt(f'{name}, {batch} at once: {text}', lambda text=text, batch=batch: (
          _program(config, model, text, known[text], batch, accelerator)))
      if found is not None:
        programs[text] = found
    _time_rounds(session, config, model, batch, programs, known)
    if config.torch:
      _torch(session, config, model, batch)


def _committed(config: Any, text: str) -> float:
  """Tokens that a decoder commits per round."""
  return accepted.required(config.accepted, text, config.tokens_per_round)


def _program(config: Any, model: cspd_jax.Model, text: str, tokens: float, batch: int,
             accelerator: devices.Accelerator, graphs: str | None = None
             ) -> timed_rounds.TimedRound:
  decoder = forced.forced(model.decoder(text, guided=config.guided), tokens)
  condition = families.FAMILIES[model.family].published.condition(model.config, batch)
  made_up = timed_rounds.made_up
  return timed_rounds.program(
      decoder, model.params, made_up(condition), model.engine.settled(model.sampling()),
      made_up(model.draft_params(text)), accelerator, graphs)


def _time_rounds(session: Session, config: Any, model: cspd_jax.Model, batch: int,
                 programs: Mapping[str, timed_rounds.TimedRound], known: Mapping[str, float]
                 ) -> None:
  found = session.attempt(f'{model.name}, {batch} at once: rounds', lambda: (
      timed_rounds.measure(programs, config.rounds, config.repeats))) if programs else None
  vanilla = (found or {}).get('vanilla')
  for text, times in (found or {}).items():
    figures, tokens = programs[text].figures, known[text]
    session.add(_ROUNDS, dict(
        kind='rounds', model=model.name, batch=batch, decoder=text, tokens=tokens,
        ms=1e3 * times.median, quartiles=[1e3 * one for one in times.quartiles],
        predicted_ms=1e3 * figures.total_seconds, bytes=figures.total_bytes, flops=figures.flops,
        kernels=figures.total_kernels, conditionals=figures.conditionals,
        gigabytes=1e-9 * figures.total_bytes / times.median,
        compile_seconds=programs[text].seconds,
        seconds_per_image=times.median * model.num_tokens / tokens / batch,
        speedup=None if vanilla is None else vanilla.median * tokens / times.median))


def graphs(session: Session, config: Any, name: str, accelerator: devices.Accelerator) -> None:
  """Rounds that are a CUDA graph each beside the same rounds as one graph, with their tokens."""
  model = _made_up(session, config, name)
  if model is None:
    return
  texts = [str(model.specification(text)) for text in ('vanilla', *config.decoder)]
  for text in dict.fromkeys(texts):
    def compare(text=text):
      made = {kind: _program(config, model, text, _committed(config, text), config.batch[0],
                             accelerator, kind) for kind in programs.GRAPHS}
      times = timed_rounds.measure(made, config.rounds, config.repeats)
      one, other = (np.asarray(made[kind].run(config.rounds)[1]) for kind in programs.GRAPHS)
      return dict(
          kind='graphs', model=name, batch=config.batch[0], decoder=text,
          other_tokens=int((one != other).sum()),
          **{key: 1e3 * times[kind].median
             for key, kind in zip(('ms', 'one_graph_ms'), programs.GRAPHS)})
    found = session.attempt(f'{name} as one graph: {text}', compare)
    if found is not None:
      session.add(_COMPARED, found)


def _torch(session: Session, config: Any, model: cspd_jax.Model, batch: int) -> None:
  """Tokens of the same transformer in PyTorch, one by one."""
  for compiled in (False, True):
    text = f'PyTorch, {"compiled" if compiled else "eager"}'
    seconds = session.attempt(f'{model.name}, {batch} at once: {text}', lambda compiled=compiled: (
        torch_decoder.seconds_per_token(
            model.config.transformer, rows=batch * (2 if config.guided else 1),
            slots=model.num_tokens, dtype=config.dtype, compiled=compiled,
            tokens=config.rounds, repeats=config.repeats)))
    if seconds is not None:
      session.add(_ROUNDS, dict(
          kind='torch', model=model.name, batch=batch, decoder=text, tokens=1.0, ms=1e3 * seconds,
          seconds_per_image=seconds * model.num_tokens / batch))


def continuous(session: Session, config: Any, model: cspd_jax.Model, batch: int) -> None:
  """Whole images of continuous tokens, from weights that are made up."""
  condition = timed_rounds.made_up(
      families.FAMILIES[model.family].published.condition(model.config, batch))
  sampling, runs = model.engine.settled(model.sampling()), {}
  keys = random.row_keys(jax.random.key(0), batch)
  for text in dict.fromkeys((model.engine.baseline, 'exact_head')):
    made = session.attempt(f'{model.name}, {batch} at once: {text}', lambda text=text: (
        programs.compiled(model.decoder(text, guided=config.guided), model.params, condition, keys,
                        sampling, model.draft_params(text)).run))
    if made is not None:
      runs[text] = lambda made=made, text=text: made(
          model.params, condition, keys, sampling, model.draft_params(text))
  found = session.attempt(f'{model.name}, {batch} at once: images', lambda: (
      timing.measure(runs, config.repeats, enough=10.0))) if runs else None
  first = (found or {}).get(model.engine.baseline)
  for text, times in (found or {}).items():
    session.add(_IMAGES, dict(
        kind='images', model=model.name, batch=batch, decoder=text, rounds=None,
        seconds_per_image=times.median / batch, quartiles=[one / batch for one in times.quartiles],
        speedup=None if first is None else first.median / times.median))


def draw(path: Any, session: Session, accelerator: devices.Accelerator) -> bool:
  """The roofline of all rounds; whether there were any."""
  works: dict[str, dict[str, roofline.Work]] = {}
  for row in session.rows:
    if row['kind'] == 'rounds':
      name = f'{row["decoder"]}, {row["batch"]}' if row['batch'] > 1 else row['decoder']
      works.setdefault(row['model'], {})[name] = roofline.Work(
          row['bytes'], row['flops'], 1e-3 * row['ms'])
  if works:
    roofline.save_roofline(path, works, bandwidth=accelerator.bandwidth, flops=accelerator.flops,
                           title=f'Rounds on {jax.devices()[0].device_kind}')
  return bool(works)


def check(config: Any) -> None:
  """Raises ValueError for what cannot work, before anything runs."""
  inputs.check_dtype(config)
  if not config.batch:
    raise ValueError('batch is empty; give at least one.')
  for name in config.shapes:
    model = families.describe(name, dtype=config.dtype)
    if model.engine.name == 'discrete':
      for text in config.decoder:
        text = str(model.specification(text))
        forced.forced(model.decoder(text, guided=config.guided), _committed(config, text))


def _graphs(config: Any) -> pathlib.Path:
  """The folder of the report on graphs."""
  return pathlib.Path(config.workdir) / 'graphs'


@cli.program(config='configs/accelerator.py', expected=default.Config)
def main(config: Any) -> None:
  check(config)
  report_lib.check(_graphs(config))
  report, session = report_lib.Report(config.workdir, [_PICTURE]), Session(config.minutes)
  accelerator = device_rates(session)
  for name in config.shipped:
    session.attempt(name, lambda name=name: images(session, config, name))
  for name in config.shapes:
    session.attempt(name, lambda name=name: rounds(session, config, name, accelerator))
  session.attempt('picture', lambda: draw(report.path(_PICTURE), session, accelerator))
  kinds = {'images': _IMAGES, 'rounds': _ROUNDS, 'torch': _ROUNDS}
  report.write(
      settings=dataclasses.asdict(config), rows=session.rows, notes=session.notes,
      rates=dict(bandwidth=accelerator.bandwidth, flops=accelerator.flops),
      tables=[dict(title=title, columns=columns, rows=[
          i for i, row in enumerate(session.rows) if kinds[row['kind']] is columns])
              for title, columns in (('images', _IMAGES), ('rounds', _ROUNDS))])
  _show_notes(session)
  discrete = [name for name in config.shapes if families.describe(name).engine.name == 'discrete']
  if config.graphs and discrete and programs.on_cuda():
    report, session = report_lib.Report(_graphs(config)), Session(config.minutes / 4)
    graphs(session, config, discrete[0], accelerator)
    report.write(
        settings=dataclasses.asdict(config), rows=session.rows, notes=session.notes,
        tables=[dict(title='graphs', columns=_COMPARED, rows=list(range(len(session.rows))))])
    _show_notes(session)


def _show_notes(session: Session) -> None:
  for note in session.notes:
    print(f'not measured: {note["what"]} ({note["error"]})')


if __name__ == '__main__':
  sys.exit(main())
