"""The table of the README: a decoder of every kind, with what its tokens per pass are worth."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cspd_jax.measure import tables

Row = Mapping[str, Any]

_TOKENS = 'tokens per forward pass'
_OF_SCENES, _OF_PHOTOGRAPHS = {f'{_TOKENS} of `emoji`': '{tokens_per_pass:.2f}'}, {
    f'{_TOKENS} of `demo`': '{photographs:.2f}'}
_GAIN = {'speed-up on an H100': '{gain:.2f}x', 'guarantee': '{guarantee}'}


def markdown(scenes: Sequence[Row], photographs: Sequence[Row], timed: Sequence[Row]) -> str:
  """Formats the table, with the decoders by their tokens per forward pass of photographs.

  Args:
    scenes: the decoders with scenes of emoji; without them the table has fewer columns.
    photographs: the decoders with photographs.
    timed: rounds of a large model that were timed in turns with those of the baseline. Where they
      have the decoder, its speed-up is the tokens per pass of photographs over the time of its
      round, in rounds of the baseline.
  """
  of_photographs = {row['decoder']: row['tokens_per_pass'] for row in photographs}
  costs = {row['decoder']: row['ms'] / row['vanilla_ms'] for row in timed if 'vanilla_ms' in row}
  rows = []
  for row in {row['decoder']: row for row in (*photographs, *scenes)}.values():
    decoder, tokens = row['decoder'], of_photographs.get(row['decoder'])
    rows.append(dict(
        {} if row in photographs else row, decoder=decoder, guarantee=row['guarantee'],
        photographs=tokens,
        gain=tokens / costs[decoder] if tokens and decoder in costs else None))
  columns = {**_OF_SCENES, **_OF_PHOTOGRAPHS} if scenes else {
      _TOKENS: '{photographs:.2f}'}
  return tables.markdown({'decoder': '`{decoder}`', **columns, **_GAIN},
                         sorted(rows, key=lambda row: row['photographs'] or math.inf))
