"""Whole images of LlamaGen by the official PyTorch code, and tokens of `generate`, on this GPU."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import families
from cspd_jax.core import programs
from cspd_jax.measure import timing
from experiments import against, against_llamagen
from experiments.costs import predicted, timed_rounds
from experiments.stages.piece import Piece

DECODERS = ('mc_sjd(window=16)', 'corrected(iterations=4, window=64)')
_COLUMNS = {'': '{name}', 's/image': '{seconds:.3f}', 'ms/token': '{ms:.2f}',
            'over PyTorch': '{over_pytorch:.1f}x', 'over vanilla': '{over_vanilla:.2f}x'}
_TOKENS = {'model': '{model}', 'ms/token': '{ms:.2f}', 'streams': '{streams}'}
_REPEATS, _THREADS = 3, 3
_ENOUGH = 5.0  # Seconds of an image beyond which it is timed once.


def llamagen(piece: Piece, size: str, repo: str) -> None:
  """Times whole images in bfloat16: officially, as `torch.compile` makes it, and by decoders.

  `repo` is the official code. A rehearsal keeps one layer.
  """
  title = f'{size}, one image with guidance'
  texts = DECODERS[:1 if piece.rehearses else None]
  names = ('PyTorch', *texts, *(() if piece.rehearses else ('PyTorch, compiled',)))
  if all(piece.has(title, name=name) for name in names):
    return
  flags = against_llamagen.Flags(size=size, repo=repo)
  model = families.describe(size, dtype='bfloat16', layers=1 if piece.rehearses else None)
  device = 'cuda' if programs.on_cuda() else 'cpu'
  prepared = piece.attempt('the official code', lambda: against_llamagen.official_runs(
      flags, model.config, device, 'bfloat16'))
  if prepared is None:
    return
  official, image, expected, torch = prepared
  params = against.converted('llamagen', model.config, official, against_llamagen.LEFT_OUT)
  model = dataclasses.replace(
      model, params=jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params))
  piece.fact('difference of the first logits', lambda: float(
      np.abs(against_llamagen.first_logits(model) - expected).max() / np.abs(expected).max()))
  tokens = timed_rounds.committed(model, texts, predicted.Accepted())
  runs = piece.all(title, {text: functools.partial(
      against_llamagen.decoder_run, model, text, count) for text, count in tokens.items()},
                   _THREADS)
  _add(piece, title, model.num_tokens, {'PyTorch': image}, runs)
  if piece.rehearses:  # Compiling for a CPU takes minutes.
    return
  # As in the official script; it may take a minute, and may fail.
  compiled = torch.compile(official, mode='reduce-overhead', fullgraph=True)
  _add(piece, title, model.num_tokens, {'PyTorch, compiled': lambda: image(compiled)}, runs)


def _add(piece: Piece, title: str, num_tokens: int, official: dict[str, Callable[[], Any]],
         runs: dict[str, Callable[[], Any]]) -> None:
  """Times an official program in turns with decoders; adds the rows that are missing."""
  name, = official
  timed = piece.attempt(f'{title}: {name}', lambda: timing.measure(
      official | runs, piece.repeats(_REPEATS), enough=_ENOUGH))
  for text, times in (timed or {}).items():
    if not piece.has(title, name=text):
      vanilla = timed['vanilla'].median if 'vanilla' in timed else None
      piece.add(title, _COLUMNS, dict(
          name=text, compared_with=name, seconds=times.median, ms=1e3 * times.median / num_tokens,
          quartiles=times.quartiles, over_pytorch=timed[name].median / times.median,
          over_vanilla=None if vanilla is None else vanilla / times.median))


def transformers(piece: Piece, count: int = 64) -> None:
  """Times `generate` of a Chameleon of seven billion random parameters, in bfloat16."""
  title = 'tokens by generate() of transformers'
  for streams in (1, 2):
    piece.measure(title, _TOKENS, dict(model='Chameleon 7B', streams=streams), functools.partial(
        _generate, streams, count, piece.rehearses))


def _generate(streams: int, count: int, small: bool) -> dict[str, Any]:
  """Times `count` tokens of `streams` sequences; two streams cost what guidance costs."""
  torch, model = _chameleon(small)
  prompt = torch.ones((streams, 16), dtype=torch.long, device=model.device)

  def run(length: int) -> float:
    start = time.perf_counter()
    tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True,
                            max_new_tokens=length, min_new_tokens=length)
    tokens.cpu()
    return time.perf_counter() - start

  run(4)
  # The time of the prompt and of the call is subtracted.
  seconds = np.median([(run(count) - run(4)) / (count - 4) for _ in range(2)])
  return dict(ms=1e3 * float(seconds), tokens=count)


@functools.cache
def _chameleon(small: bool) -> tuple[Any, Any]:
  import torch
  from transformers import ChameleonConfig, ChameleonForConditionalGeneration
  sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=4) if small else {}
  config = ChameleonConfig(vocabulary_map={'<image>': 8711, 'IMGIMGAZ': 4}, **sizes)
  with torch.device('cuda' if torch.cuda.is_available() else 'cpu'):
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
      model = ChameleonForConditionalGeneration(config).eval()
    finally:
      torch.set_default_dtype(default)
  return torch, model
