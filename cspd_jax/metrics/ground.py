"""Tokens per forward pass on the plain ground of scenes and inside their things, apart.

Windows commit many tokens per pass where an image is plain. A pass that commits `n` tokens counts
as `1 / n` pass for each of them, so that the passes of an image are divided among its tokens, and
tokens per pass can be stated for any part of it. Tokens of a grammar, such as the ends of rows,
belong to neither part.
"""

import numpy as np

from cspd_jax.generation.model import Model
from cspd_jax.generation.results import to_bytes
from cspd_jax.metrics import base, scenes
from cspd_jax.metrics.base import Metric

# The most that a patch of the ground differs from its colour, root mean square over pixels and
# channels, of 255: several times the error of a tokenizer on plain grounds.
_TOLERANCE = 16.0


def is_ground(images: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
  """Finds the tokens whose patches have the colour of the ground, the median of the border.

  Images are `[N, H, W, 3]` uint8, and rows and columns of the grid divide `H` and `W`. Returns `[N,
  rows, columns]` bool.
  """
  grounds = np.stack([scenes.border(image) for image in images]).astype(np.float32)
  squares = (images - grounds[:, None, None]) ** 2
  count, height, width, channels = squares.shape
  rows, columns = grid
  patches = squares.reshape(count, rows, height // rows, columns, width // columns, channels)
  return np.sqrt(patches.mean(axis=(2, 4, 5))) <= _TOLERANCE


def shares_of_passes(rounds: np.ndarray) -> np.ndarray:
  """Divides the forward passes of images among their tokens, by the round `[N, T]` of each.

  Returns `[N, T]` float64, for each token one over the number of tokens of its round.
  """
  counts = [np.unique(row, return_inverse=True, return_counts=True) for row in rounds]
  return np.stack([1 / sizes[inverse.reshape(-1)] for _, inverse, sizes in counts])


def _ground(sample: base.Sample, model: Model) -> np.ndarray:
  """Returns the tokens of a sample that are ground, `[N, rows, columns]` bool; computed once."""
  return sample.once('ground', lambda: is_ground(to_bytes(sample.images(model)), model.grid))


def _per_pass(sample: base.Sample, model: Model, of_ground: bool) -> base.Value:
  """Returns tokens per forward pass of the tokens that are ground, or of those that are not."""
  shares = model.cells(shares_of_passes(np.asarray(sample.decoded.round_of_token)))
  chosen = _ground(sample, model) == of_ground
  return base.ratio(chosen.sum(axis=(1, 2)), (chosen * shares).sum(axis=(1, 2)))


INSIDE = Metric(
    'tokens_per_pass_inside', 'inside things', '{:.2f}x',
    lambda sample, model: _per_pass(sample, model, False),
    meaning='tokens per forward pass of the tokens of things')
ON_GROUND = Metric(
    'tokens_per_pass_ground', 'on plain ground', '{:.2f}x',
    lambda sample, model: _per_pass(sample, model, True),
    meaning='tokens per forward pass of the tokens of plain grounds')
SHARE = Metric(
    'ground_share', 'ground', '{:.0%}',
    lambda *args: base.mean(_ground(*args).mean(axis=(1, 2))),
    meaning='share of the tokens that have the colour of the ground')
