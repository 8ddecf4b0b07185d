"""Rules of the heads of MAR (arXiv 2406.11838) and NextStep-1 (arXiv 2508.10711)."""

import numpy as np

from checkpoints_conversion.rules import base
from checkpoints_conversion.rules.base import MATRIX, Rule

_LAYERS = {
    'time_embed.mlp.0': 'time_in', 'time_embed.mlp.2': 'time_out', 'cond_embed': 'condition',
    'input_proj': 'state', 'res_blocks.{i}.mlp.0': 'mlp_in_{i}',
    'res_blocks.{i}.mlp.2': 'mlp_out_{i}', 'final_layer.linear': 'out',
}


def rules(prefix: str, width: int, num_blocks: int) -> list[Rule]:
  """Returns the rule table of a head.

  Args:
    prefix: of the published names, with a point at its end.
    width: of the head.
    num_blocks: its residual blocks.
  """
  table = _modulation(prefix, width, num_blocks)
  for published, ours in _LAYERS.items():
    table += base.layer(f'{prefix}{published}', f'head/{ours}', MATRIX)
  return table + base.norm(f'{prefix}res_blocks.{{i}}.in_ln', 'head/norm_{i}')


def _modulation(prefix: str, width: int, num_blocks: int) -> list[Rule]:
  """Returns the rules of the modulations of all blocks and the output, which are one layer here."""
  names = [f'{prefix}{part}.adaLN_modulation.1' for part in (
      *(f'res_blocks.{i}' for i in range(num_blocks)), 'final_layer')]
  bounds = [3 * i for i in range(num_blocks + 1)] + [3 * num_blocks + 2]
  spans = list(zip(bounds, bounds[1:]))

  def kernel(*parts):
    return (np.concatenate(parts).T.reshape(width, -1, width),)

  def weights(whole):
    return tuple(whole[:, first:stop].reshape(width, -1).T for first, stop in spans)

  def bias(*parts):
    return (np.concatenate(parts).reshape(-1, width),)

  def biases(whole):
    return tuple(whole[first:stop].reshape(-1) for first, stop in spans)

  return [
      Rule(tuple(f'{name}.{published}' for name in names), (f'head/modulation/{ours}',), transform)
      for published, ours, transform in (('weight', 'kernel', base.Transform(kernel, weights)),
                                         ('bias', 'bias', base.Transform(bias, biases)))]
