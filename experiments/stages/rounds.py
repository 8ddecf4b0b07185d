"""Rounds of published sizes at random weights, and what their compiled programs predict."""

import dataclasses
import functools
import glob
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import cspd_jax
from cspd_jax import families
from cspd_jax.core import programs, spec
from cspd_jax.decoding import warp
from cspd_jax.files import store
from cspd_jax.models import vq
from experiments.costs import devices, predicted, timed_rounds
from experiments.stages.piece import Piece

DECODERS = ('corrected(iterations=4, window=64)', 'mc_sjd(window=16)', 'mc_sjd(window=64)',
            'corrected(corrector=neighbours, iterations=3, window=64)')
_COLUMNS = {
    'decoder': '{decoder}', 'tokens': '{tokens:.2f}', 'ms/round': '{ms:.3f}',
    'predicted': '{predicted_ms:.3f}', 'of prediction': '{of_prediction:.2f}x',
    'kernels': '{kernels:.0f}', 'GB/s': '{gigabytes:.0f}', 'of a copy': '{of_copy:.0%}',
    's/image': '{seconds_per_image:.3f}', 'speed-up': '{speedup:.2f}x'}
_GRAPHS = {
    'decoder': '{decoder}', 'a graph per round, ms': '{ms:.3f}',
    'one graph, ms': '{one_graph_ms:.3f}', 'other tokens': '{other_tokens}'}
_KERNELS = {'decoder': '{decoder}', 'us/round': '{us:.1f}', 'share': '{share:.0%}',
            'calls/round': '{calls:.1f}', 'kernel': '{kernel}'}
_REPEATS, _ROUNDS = 5, 32
_THREADS = 3  # Programs that compile together.
_TRACED, _SHOWN = 8, 16  # Rounds of a trace, and the kernels of it that are kept.
_NAME = 90  # Characters of a kernel's name.
_BASELINE = 'vanilla'


def described(piece: Piece, name: str, quantize: bool = False) -> cspd_jax.Model:
  """Returns a published size in bfloat16 with random weights; int8 matrices if `quantize`.

  A rehearsal keeps one layer.
  """
  model = families.describe(name, dtype='bfloat16', layers=1 if piece.rehearses else None)
  if quantize:
    model = timed_rounds.with_int8_matrices(model)
  params = timed_rounds.random_like(model.params)
  return dataclasses.replace(model, params=jax.block_until_ready(params))


def saved(piece: Piece, name: str) -> pathlib.Path | None:
  """Saves such a size of LlamaGen with a tokenizer; returns the folder, None if it fails."""
  folder = piece.folder / 'random' / name

  def create() -> pathlib.Path:
    model = described(piece, name)
    sizes = vq.VQConfig(codebook_size=model.config.vocab_size)
    networks = {'target': (model.family, model.config, model.params), 'tokenizer': (
        'vq', sizes, timed_rounds.random_like(store.sketch('vq', sizes).params))}
    for role, network in networks.items():
      store.save(folder / role, *network)
    families.save(folder, model.family, {role: role for role in networks})
    return folder

  return folder if (folder / 'model.json').exists() else piece.attempt(
      f'{name}: random weights', create)


def measure(piece: Piece, name: str, texts: Sequence[str] = DECODERS, batch: int = 1,
            quantize: bool = False, traced: Sequence[str] = ()) -> None:
  """Times rounds of decoders of a published size, each in turn with `vanilla`.

  `batch` images are decoded together. Of the decoders in `traced` the kernels are listed.
  """
  title = f'{name}{", int8 matrices" if quantize else ""}, {batch} at once'
  texts = [str(spec.parse(text)) for text in texts]
  missing = [text for text in (_BASELINE, *texts) if not piece.has(title, decoder=text)]
  if not missing:
    return
  model = piece.attempt(f'{title}: weights', lambda: described(piece, name, quantize))
  if model is None:
    return
  tokens = timed_rounds.committed(model, texts, predicted.Accepted())
  builds = {text: functools.partial(program, model, text, tokens[text], batch)
            for text in dict.fromkeys((_BASELINE, *missing))}
  vanilla = None
  for group in piece.in_groups(title, builds, _THREADS):
    vanilla = vanilla or group.get(_BASELINE)
    for text, compiled in group.items():
      piece.measure(title, _COLUMNS, dict(decoder=text), functools.partial(
          _times, piece, model, text, tokens[text], batch, compiled, vanilla))
      if text in traced:
        _trace(piece, title, text, compiled)


def graphs(piece: Piece, name: str, texts: Sequence[str]) -> None:
  """Compares times and tokens of rounds that are a CUDA graph each with those of one graph."""
  title = f'{name}, rounds as CUDA graphs'
  missing = [text for text in texts if not piece.has(title, decoder=text)]
  model = piece.attempt(f'{title}: weights', lambda: described(piece, name)) if missing else None
  if model is None:
    return
  tokens = timed_rounds.committed(model, texts, predicted.Accepted())
  for text in missing:
    compiled = piece.all(f'{title}: {text}', {
        kind: functools.partial(program, model, text, tokens[text], 1, kind)
        for kind in programs.GRAPHS}, _THREADS)
    if len(compiled) < len(programs.GRAPHS):
      continue

    def compare(compiled=compiled) -> dict[str, Any]:
      times = timed_rounds.measure(compiled, _ROUNDS, piece.repeats(_REPEATS))
      first, second = (np.asarray(compiled[kind].run(_ROUNDS)[1]) for kind in programs.GRAPHS)
      return dict(other_tokens=int((first != second).sum()), **{
          key: 1e3 * times[kind].median
          for key, kind in zip(('ms', 'one_graph_ms'), programs.GRAPHS)})

    piece.measure(title, _GRAPHS, dict(decoder=text), compare)


def program(model: cspd_jax.Model, text: str, tokens: float, batch: int,
            graphs: str | None = None) -> timed_rounds.TimedRound:
  """Compiles rounds of a decoder that commit `tokens` tokens on average."""
  decoder = timed_rounds.with_acceptance(model.decoder(text, guided=True), tokens)
  condition = families.FAMILIES[model.family].published.condition(model.config, batch)
  return timed_rounds.program(
      decoder, model.params, timed_rounds.random_like(condition),
      warp.drop_inactive(model.sampling()),
      timed_rounds.random_like(model.draft_params(text)), graphs)


def _times(piece: Piece, model: cspd_jax.Model, text: str, tokens: float, batch: int,
           compiled: timed_rounds.TimedRound, vanilla: timed_rounds.TimedRound | None
           ) -> dict[str, Any]:
  """Times a compiled decoder, in turns with `vanilla` if that compiled."""
  both = {text: compiled} if vanilla is None else {_BASELINE: vanilla, text: compiled}
  timed = timed_rounds.measure(both, _ROUNDS, piece.repeats(_REPEATS))
  seconds = timed[text].median
  baseline = timed[_BASELINE].median if _BASELINE in timed else None
  return dict(
      batch=batch, tokens=tokens, ms=1e3 * seconds,
      quartiles_ms=[1e3 * quartile for quartile in timed[text].quartiles],
      vanilla_ms=None if baseline is None else 1e3 * baseline, compile_seconds=compiled.seconds,
      seconds_per_image=seconds * model.num_tokens / tokens / batch,
      speedup=None if baseline is None else baseline * tokens / seconds,
      **piece.attempt(f'prediction of {text}', functools.partial(
          _predicted, compiled, seconds, piece.accelerator()), is_part=True) or {})


def _predicted(compiled: timed_rounds.TimedRound, seconds: float, accelerator: devices.Accelerator
               ) -> dict[str, Any]:
  """Returns what a program predicts for a round that took `seconds`."""
  cost = compiled.cost(accelerator)
  expected = predicted.seconds(cost, accelerator)
  return dict(
      predicted_ms=1e3 * expected, of_prediction=seconds / expected, bytes=cost.bytes,
      flops=cost.flops, kernels=cost.kernels, conditionals=cost.conditionals,
      gigabytes=1e-9 * cost.bytes / seconds, of_copy=cost.bytes / seconds / accelerator.bandwidth)


def _trace(piece: Piece, title: str, text: str, compiled: timed_rounds.TimedRound) -> None:
  """Lists the kernels of a round, and keeps the trace in the folder of the stage."""
  title = f'kernels of {title}'
  if not piece.has(title, decoder=text):
    name = 'trace_' + ''.join(letter if letter.isalnum() else '_' for letter in f'{title}_{text}')
    for row in piece.attempt(f'{title}: {text}', lambda: kernels(
        lambda: compiled.run(_TRACED), piece.folder / f'{name}.xplane.pb')) or ():
      piece.add(title, _KERNELS, dict(decoder=text, **row))


def kernels(run: Callable[[], Any], path: pathlib.Path) -> list[dict[str, Any]]:
  """Traces `_TRACED` rounds into a file, and returns the kernels that took longest.

  In a trace XLA launches kernels one by one, so that gaps between them are not those of a graph.
  """
  run()
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      jax.block_until_ready(run())
    trace, = glob.glob(f'{folder}/**/*.xplane.pb', recursive=True)
    shutil.copyfile(trace, path)
    data = jax.profiler.ProfileData.from_file(trace)
  totals: dict[str, list[float]] = {}
  for plane in data.planes:
    if plane.name.startswith('/device:'):
      for line in plane.lines:
        if line.name.startswith('Stream'):
          for event in line.events:
            total = totals.setdefault(event.name, [0.0, 0])
            total[0] += event.duration_ns
            total[1] += 1
  whole = sum(duration for duration, _ in totals.values())
  longest = sorted(totals.items(), key=lambda item: -item[1][0])[:_SHOWN]
  rows = [dict(kernel=name[:_NAME], us=1e-3 * duration / _TRACED, share=duration / whole,
               calls=count / _TRACED) for name, (duration, count) in longest]
  return [dict(kernel='all', us=1e-3 * whole / _TRACED, share=1.0,
               calls=sum(count for _, count in totals.values()) / _TRACED), *rows] if rows else []
