"""Rounds over continuous tokens of published sizes at random weights."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from cspd_jax import families
from cspd_jax.core.sampling import SamplingParams
from experiments.costs import forced_rounds, timed_rounds
from experiments.stages.piece import Piece

DECODERS = ('exact_head', 'exact_head(kernels_per_call=32)', 'windows(window=8)')
_ACCEPTED, _SCALE = 'docs/reports/continuous_windows.json', 2.9
_COLUMNS = {
    'decoder': '{name}', 'tokens': '{tokens:.2f}', 'transformer ms': '{transformer_ms:.2f}',
    'head calls': '{head_calls:.1f}', 'head ms': '{head_ms:.2f}', 'ms/round': '{round_ms:.2f}',
    'ms/token': '{token_ms:.2f}', 'over mar': '{speedup_over_mar:.2f}x'}
_REPEATS, _THREADS = 10, 2


def measure(piece: Piece, name: str, accepted: str, texts: Sequence[str] = DECODERS) -> None:
  """Times rounds of a size in turns with `mar`, at the calls and tokens of a shipped model."""
  title = f'{name}, one image with guidance'
  texts = texts[:1 if piece.rehearses else None]
  missing = [text for text in texts if not piece.has(title, name=text)]
  if not missing:
    return
  model = families.describe(name, dtype='bfloat16')
  target = model.target(guided=True)
  decoders = forced_rounds.check(target, missing, _ACCEPTED, accepted)
  params = piece.attempt(f'{title}: weights', lambda: jax.block_until_ready(
      timed_rounds.random_like(model.params)))
  if params is None:
    return
  condition = timed_rounds.random_like(
      families.FAMILIES[model.family].published.condition(model.config, 1))
  sampling = SamplingParams(guidance_scale=np.float32(_SCALE))
  first = None
  for group in piece.in_groups(title, {text: functools.partial(
      forced_rounds.prepare, *each, params, condition, sampling, 3 * model.num_tokens // 8)
                                       for text, each in decoders.items()}, _THREADS):
    first = group.pop(forced_rounds.BASELINE, first)
    for text, prepared in group.items() if first else ():
      both = {forced_rounds.BASELINE: first, text: prepared}
      rows = piece.attempt(f'{title}: {text}, measured', lambda both=both: forced_rounds.rows(
          both, forced_rounds.measure(both, {}, piece.repeats(_REPEATS))))
      for row in rows or ():
        if not piece.has(title, name=row['name']):
          piece.add(title, _COLUMNS, row)
