"""Measures decoders on the accelerator of this machine within a time budget.

  python -m experiments.accelerator --plan
  python -m experiments.accelerator --minutes=9 --repo=LlamaGen
  python -m experiments.accelerator --stages=images,xl --workdir=runs/h100
  python -m experiments.accelerator --rehearse

Needs no network; --repo is a clone of https://github.com/FoundationVision/LlamaGen, for the stage
that compares with it, which also needs PyTorch. The stages run in the order of
their worth, first those that were not or hardly measured yet, each in a process of its own, which
ends at the stage's limit at the latest. A report in --workdir is written after every row; the same
command continues, and measures only what is missing. Failures are noted, and the remaining
measurements continue.

Published sizes have random weights: their decoders commit as many tokens as measured with a trained
model, and everything else is computed. The embedded models generate real images.
"""

import dataclasses
import functools
import multiprocessing
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cspd_jax
from cspd_jax import cli
from cspd_jax.cli import compiled, exits, groups
from cspd_jax.core import fields, spec
from cspd_jax.files import paths
from cspd_jax.measure import measurements, tables
from cspd_jax.measure.bench import Bench
from experiments import against, serving
from experiments.stages import checks, continuous, rounds
from experiments.stages.piece import Piece, stored

_LEAST = 15.0  # Seconds without which no stage starts.
_LLAMAGEN = 'c2i_xl_256'
_IMAGES = {'': '{name}', 's/image': '{seconds:.3f}', 'ms/token': '{ms:.2f}',
           'over PyTorch': '{over_pytorch:.1f}x', 'over vanilla': '{over_vanilla:.2f}x'}
# The decoders of which whole images of embedded models are timed.
_WINDOWS = ('corrected_seed_exact(iterations=4, window=64)', 'corrected(iterations=4, window=64)',
            'seed_exact(window=64)', 'mc_sjd(window=64)')
_CHAINS = ('exact_head', 'windows(window=8)')
_SHIPPED = {
    'demo': (*_WINDOWS, 'corrected(corrector=neighbours, iterations=3, window=64)'),
    'emoji': _WINDOWS, 'emoji_continuous': _CHAINS, 'mar_demo': _CHAINS}
_TIMED = {'decoder': '{decoder}', 'forward passes': '{rounds:.1f}',
          'ms/pass': '{ms_per_round:.3f}', 's/image': '{seconds_per_image:.4f}',
          'speed-up': '{speedup:.2f}x'}
_GRACE = 15.0  # Seconds that a stage may take longer, for what cannot be interrupted.


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    stages: names of stages, of those that --plan lists; all by default.
    minutes: time limit of all stages together.
    repo: folder of the official code of LlamaGen; without it nothing is compared with that.
    plan: whether to list the stages and their time limits, and to end.
    rehearse: whether to measure a little of every stage, with small models.
    workdir: folder of the results.
  """

  stages: tuple[str, ...] | None = None
  minutes: float = 15.0
  repo: str | None = None
  plan: bool = False
  rehearse: bool = False
  workdir: str = 'runs/accelerator'

  def __post_init__(self):
    fields.check(self)
    if self.stages is not None:
      fields.check_lists(self, 'stages')
    for name in self.stages or ():
      fields.check_choice('stages', name, STAGES)


class Stage(NamedTuple):
  """A stage."""

  run: Callable[[Config, Piece], None]  # Measures, and adds rows to a piece.
  seconds: float  # Its time limit.
  summary: str  # What it measures.


def _size(config: Config, name: str) -> str:
  return 'demo' if config.rehearse else name


def _decoders(config: Config, count: int) -> tuple[str, ...]:
  """Returns the first decoders of which rounds are timed; one short window in a rehearsal."""
  return ('mc_sjd(window=16)',) if config.rehearse else rounds.DECODERS[:count]


def _xl(config: Config, piece: Piece) -> None:
  texts = _decoders(config, len(rounds.DECODERS))
  rounds.measure(piece, _size(config, _LLAMAGEN), texts, traced=('vanilla', texts[0]))


def _images(config: Config, piece: Piece) -> None:
  count = 2 if config.rehearse else 8
  for name, texts in {'demo': _WINDOWS[:1]}.items() if config.rehearse else _SHIPPED.items():
    title = f'{name}, {count} images, one at a time'
    texts = [str(spec.parse(text)) for text in texts]
    if all(piece.has(title, decoder=text) for text in texts):
      continue
    model = cspd_jax.load(name, dtype='bfloat16')
    bench = Bench(model, [model.prompts[i % len(model.prompts)] for i in range(count)],
                  batch_size=1)
    metrics = measurements.choose(model.table.tokens, ['rounds'])
    for text in texts:
      piece.measure(title, _TIMED, dict(decoder=text), functools.partial(
          _timed, measurements.each(bench, [text], metrics, timed_images=count)))


def _timed(rows: Iterator[measurements.Measurement]) -> dict[str, Any]:
  return next(rows).figures


def _official(config: Config, piece: Piece) -> None:
  size = 'c2i_b_256' if config.rehearse else _LLAMAGEN
  title, texts = f'{size}, one image with guidance', _decoders(config, 1)
  texts = texts if config.rehearse else ('mc_sjd(window=16)', 'corrected(iterations=4, window=64)')
  # `torch.compile` may take a minute, and may fail; compiling for a CPU takes minutes.
  for name in ('PyTorch',) if config.rehearse else ('PyTorch', 'PyTorch, compiled'):
    if config.repo is None or piece.has(title, name=name):
      continue
    measured = piece.attempt(f'{title}: {name}', functools.partial(against.timed, against.Config(
        config.repo, 'llamagen', groups.LoadFlags(size, dtype='bfloat16'), texts,
        accepted='docs/reports/corrected.json', repeats=piece.repeats(2),
        compiled='compiled' in name), against.METHODS['llamagen']))
    for row in measured[0].rows if measured else ():
      if not piece.has(title, name=row['decoder']):
        piece.add(title, _IMAGES, dict(
            name=row['decoder'], compared_with=name, seconds=row['seconds_per_image'],
            ms=row['ms'] / row['tokens'], quartiles=row['quartiles'],
            over_pytorch=row['speedup_over_pytorch'], over_vanilla=row['speedup']))


def _exact(config: Config, piece: Piece) -> None:
  checks.kernels(piece)
  for name in ('demo',) if config.rehearse else ('emoji', 'demo'):
    checks.seeds(piece, name, 2 if config.rehearse else 256)
  checks.distributions(piece)


def _large(config: Config, piece: Piece) -> None:
  name = _size(config, 'lumina_mgpt_7b_768')
  texts = _decoders(config, 2)
  rounds.measure(piece, name, texts, traced=texts[:1])
  rounds.measure(piece, name, texts[:1], quantize=True, traced=('vanilla',))


def _batches(config: Config, piece: Piece) -> None:
  name = _size(config, _LLAMAGEN)
  rounds.graphs(piece, name, ('vanilla', *_decoders(config, 1)))
  for batch in (2,) if config.rehearse else (4, 16):
    rounds.measure(piece, name, _decoders(config, 2), batch)


def _continuous(config: Config, piece: Piece) -> None:
  if config.rehearse:
    continuous.measure(piece, 'emoji_continuous', 'emoji_continuous')
  else:
    continuous.measure(piece, 'mar_b', 'mar_demo')
    continuous.measure(piece, 'nextstep_1_512', 'emoji_continuous')


def _served(config: Config, piece: Piece) -> None:
  _serve(config, piece, 'demo', 'demo', 'corrected_seed_exact')
  name = _size(config, _LLAMAGEN)
  if folder := rounds.saved(piece, name):
    _serve(config, piece, f'{name} with random weights', folder, 'seed_exact(window=16)')


def _serve(config: Config, piece: Piece, name: str, model: str | pathlib.Path, decoder: str
           ) -> None:
  """Times a server of a model against the decoding of a list, in a folder of its own."""
  title, workdir = f'serving {name}', piece.folder / name
  if piece.has(title):
    return
  count, slots, clients = (4, 2, '1,2') if config.rehearse else (64, 16, '1,16,64')
  piece.attempt(title, lambda: serving.main([
      'serving', f'--model={model}', '--soak=0', f'--num_images={count}', f'--slots={slots}',
      f'--clients={clients}', f'--decoder={decoder}', f'--workdir={workdir}']))
  for table in tables.read_tables(workdir) if (workdir / 'report.json').exists() else ():
    for row in table.rows:
      piece.add(title, table.columns, dict(row))


STAGES = {
    'exact': Stage(_exact, 200, 'seed-exact images and their kernels, distributions'),
    'batches': Stage(_batches, 150, 'the loop as one CUDA graph; batches'),
    'continuous': Stage(_continuous, 120, 'rounds of MAR-B and NextStep-1'),
    'served': Stage(_served, 150, 'cspd-serve with 1, 16 and 64 clients, also of LlamaGen-XL'),
    'xl': Stage(_xl, 130, 'rounds of LlamaGen-XL, against their predictions'),
    'images': Stage(_images, 150, 'whole images of the embedded models'),
    'official': Stage(_official, 240, 'the official PyTorch code'),
    'large': Stage(_large, 200, 'rounds of Lumina-mGPT 7B, also with int8 matrices'),
}
_STAGES = {'stage': '{stage}', 'limit, s': '{limit:.0f}', 's': '{seconds:.0f}', 'rows': '{rows}',
           'not measured': '{failures}', 'ended': '{ended}'}


def _process(config: Config, name: str, folder: pathlib.Path, seconds: float) -> None:
  """Runs a stage, in a process that it and its children have for themselves."""
  os.setpgrp()  # A server that a stage starts ends with it.
  compiled.enable()
  sys.exit(exits.code_of(
      lambda: STAGES[name].run(config, Piece(folder, seconds, config.rehearse)), False))


def _run(config: Config, name: str, folder: pathlib.Path, seconds: float) -> dict[str, Any]:
  """Runs a stage within its limit; returns its row."""
  start = time.monotonic()
  process = multiprocessing.get_context('spawn').Process(
      target=_process, args=(config, name, folder, seconds))
  process.start()
  try:
    process.join(seconds + _GRACE)
    code = process.exitcode
    ended = {0: 'itself', None: 'at its limit'}.get(code, f'with exit code {code}')
  finally:
    if process.is_alive():
      os.killpg(process.pid, signal.SIGKILL)
    process.join()
  report = stored(folder)
  return dict(stage=name, limit=seconds, seconds=time.monotonic() - start, ended=ended,
              failed=bool(code),
              rows=len(report.get('rows', ())), failures=len(report.get('notes', ())))


@cli.command(Config)
def main(config: Config) -> int | None:
  names = list(STAGES) if config.stages is None else list(config.stages)
  if config.plan:
    print(tables.text({'stage': '{name}', 'limit, s': '{seconds:.0f}', 'what': '{summary}'}, [
        dict(name=name, **STAGES[name]._asdict()) for name in names]))
    return None
  if config.repo is not None:
    against.clone(config.repo, against.METHODS['llamagen'])
  workdir = paths.folder('workdir', config.workdir)
  # Several processes share the device, one of them PyTorch's.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  end, done = time.monotonic() + 60 * config.minutes, []
  for name in names:
    left = end - time.monotonic()
    if left < _LEAST:
      print(f'not started: {name}, since the time is over')
      continue
    print(f'\n== {name}: {STAGES[name].summary}', flush=True)
    done.append(_run(config, name, workdir / name, min(STAGES[name].seconds, left)))
    for table in tables.read_tables(workdir / name) if stored(workdir / name) else ():
      print(f'\n{table.title}\n\n{tables.text(table.columns, table.rows, left=1)}', flush=True)
  print(f'\n{tables.text(_STAGES, done)}')
  for row in done:
    for note in stored(workdir / row['stage']).get('notes', ()):
      print(f'not measured: {note["what"]} ({note["error"]})')
  return int(any(row['failed'] for row in done))


if __name__ == '__main__':
  sys.exit(main())
