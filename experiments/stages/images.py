"""Whole images of the embedded models: their time, and whether seed-exact ones are the same."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import cspd_jax
from cspd_jax.core import kernels, programs, spec
from cspd_jax.files import atomic
from cspd_jax.generation.images import Images
from cspd_jax.measure import timing
from experiments.stages.piece import Piece

_WINDOWS = ('corrected_seed_exact(iterations=4, window=64)', 'corrected(iterations=4, window=64)',
            'seed_exact(window=64)', 'mc_sjd(window=64)')
_CHAINS = ('exact_head', 'windows(window=8)')
DECODERS: Mapping[str, Sequence[str]] = {
    'demo': (*_WINDOWS, 'corrected(corrector=neighbours, iterations=3, window=64)'),
    'emoji': _WINDOWS,
    'emoji_continuous': _CHAINS, 'mar_demo': _CHAINS}
_BASELINE, _SHAPES = 'vanilla', 'vanilla(window=16)'
# The last one's side branches are the first suspect where images differ.
_SEED_EXACT = ('seed_exact(window=16)', 'corrected_seed_exact(window=16)',
               'seed_exact(tree=caterpillar(3, 1), window=16)')
_TIMED = {
    'decoder': '{decoder}', 'forward passes': '{passes}', 'of the baseline': '{baseline_passes}',
    'ms/pass': '{ms:.3f}', 's/image': '{seconds:.4f}', 'speed-up': '{speedup:.2f}x +- {error:.2f}'}
_SAME = {'decoder': '{decoder}', 'dtype': '{dtype}', 'images': '{images}',
         'of vanilla(window=N)': '{in_window:.2%}', 'of vanilla': '{plain:.2%}',
         'other kernels': '{other_kernels} of {products}', 'guarantee': '{guarantee}'}
_REPEATS, _THREADS = 3, 3


def speed(piece: Piece, name: str, count: int) -> None:
  """Times `count` whole images of a model, one at a time, in turns with the baseline."""
  title = f'{name}, {count} images, one at a time'
  texts = [str(spec.parse(text)) for text in DECODERS[name]][:1 if piece.rehearses else None]
  missing = [text for text in texts if not piece.has(title, decoder=text)]
  if not missing:
    return
  model = cspd_jax.load(name, dtype='bfloat16')
  baseline, first = model.table.baseline, None

  def prepared(text: str) -> Images:
    images = model.images(_prompts(model, count), seed=0, decoder=text, batch_size=1)
    images.sampler.compile(images, 1)
    return images

  for group in piece.in_groups(title, {text: functools.partial(prepared, text)
                                       for text in (baseline, *missing)}, _THREADS):
    first = group.pop(baseline, first)
    for text, images in group.items() if first else ():
      piece.measure(title, _TIMED, dict(decoder=text), functools.partial(
          _compared, first, images, piece.repeats(_REPEATS)))


def _prompts(model: cspd_jax.Model, count: int) -> list[Any]:
  return [model.prompts[i % len(model.prompts)] for i in range(count)]


def _compared(first: Images, images: Images, repeats: int) -> dict[str, Any]:
  """Times images of a decoder in turns with those of the baseline."""
  numbers, both = range(len(images)), (first, images)
  runs = {(i, k): each.sampler.bound(each, np.array([i]))
          for i in numbers for k, each in enumerate(both)}
  timed = timing.measure(runs, repeats)
  before, after = (sum(int(runs[i, k]().rounds.sum()) for i in numbers) for k in range(2))
  slow, fast = (np.array([timed[i, k].median for i in numbers]) for k in range(2))
  ratios = slow / fast
  return dict(
      images=len(numbers), passes=after, baseline_passes=before, seconds=float(fast.mean()),
      baseline_seconds=float(slow.mean()), ms=1e3 * float(fast.sum()) / after,
      speedup=float(slow.sum() / fast.sum()),
      error=float(ratios.std(ddof=1) / np.sqrt(len(numbers))))


def seeds(piece: Piece, name: str, count: int) -> None:
  """Compares tokens and kernels of seed-exact decoders with those of `vanilla(window=N)`.

  The optimised programs are written to the folder `programs` of the stage.
  """
  title, folder = f'{name}, images of the same seeds', piece.folder / 'programs'
  for dtype in ('float32',) if piece.rehearses else ('bfloat16', 'float32'):
    missing = [text for text in _SEED_EXACT if not piece.has(title, decoder=text, dtype=dtype)]
    if not missing or piece.is_over:
      continue
    model = cspd_jax.load(name, dtype=dtype)

    def decoded(text: str, model=model, dtype=dtype) -> dict[str, Any]:
      images = model.images(_prompts(model, count), seed=1, decoder=text, batch_size=count)
      arguments = images.sampler.arguments(images, np.arange(count))
      run = programs.compiled_for(images.sampler.jitted(), *arguments).run
      file = re.sub(r'\W+', '_', f'{name}_{dtype}_{text}').strip('_')
      folder.mkdir(exist_ok=True)
      atomic.write(folder / f'{file}.hlo', run.as_text().encode())
      return dict(
          tokens=np.asarray(jax.device_get(run(*arguments).tokens)), sampler=images.sampler,
          kernels=kernels.chosen(run.as_text()))

    made = piece.all(f'{title}, {dtype}', {text: functools.partial(decoded, text)
                                           for text in (_SHAPES, _BASELINE, *missing)})
    for text in missing:
      if {text, _BASELINE, _SHAPES} <= made.keys():
        own, in_window, plain = (made[each] for each in (text, _SHAPES, _BASELINE))
        same = lambda other, own=own: float((own['tokens'] == other['tokens']).all(axis=1).mean())
        piece.add(title, _SAME, dict(
            decoder=text, dtype=dtype, images=count, in_window=same(in_window), plain=same(plain),
            other_kernels=len(in_window['kernels'] - own['kernels']),
            products=len(in_window['kernels']), guarantee=own['sampler'].guarantee))
