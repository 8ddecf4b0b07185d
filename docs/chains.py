"""Draws the chains of a window that part from those of the last round and meet them again.

    python -m docs.chains    # rewrites docs/pictures/chains.png
"""

import pathlib
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.colors import LogNorm

import cspd_jax
from cspd_jax.core.random import row_keys
from cspd_jax.plots import canvas

PICTURE = pathlib.Path(__file__).parent / 'pictures' / 'chains.png'
_WINDOW, _ROUNDS, _FIRST = 8, 4, 6


class Round(NamedTuple):
  """A round of one image.

  Attributes:
    distance: `[W, K]` distance of the new state after every kernel from the old one, in units of
      the kernel's deviation; NaN for tokens without an old chain.
    committed: number of tokens that the round committed.
  """

  distance: np.ndarray
  committed: int


def observe(model: cspd_jax.Model, prompt: str, count: int) -> list[Round]:
  """Returns the rounds `_FIRST .. _FIRST + count - 1` of an image."""
  decoder, sampling = model.decoder(f'windows(window={_WINDOW})'), model.sampling()
  state = jax.jit(decoder.start)(
      model.params, model.condition([prompt]), row_keys(jax.random.key(0), 1), sampling)
  advance, rounds = jax.jit(decoder.round), []
  for number in range(_FIRST + count):
    before, state = state, advance(model.params, state, sampling)
    if number < _FIRST:
      continue
    old, new = before.memory.left(), state.memory.chains
    distance = jnp.linalg.norm((new.states - old.states) / new.kernels.std, axis=-1)
    distance = jnp.where(old.exist[..., None], distance, jnp.nan)
    rounds.append(Round(np.asarray(distance[0, :_WINDOW]), int(state.memory.committed[0])))
  return rounds


def draw(rounds: list[Round], path: pathlib.Path) -> None:
  """Draws a panel per round: a line per token, coloured where its state is not the old one."""
  figure = canvas.figure(8, 1.35 * len(rounds))
  axes = figure.subplots(len(rounds), 1, sharex=True)
  for number, (axis, one) in enumerate(zip(axes, rounds), _FIRST + 1):
    apart = np.where(one.distance > 0, one.distance, np.nan)
    axis.set_facecolor('#eef1f4')
    image = axis.imshow(apart, cmap='viridis_r', norm=LogNorm(0.3, 30), aspect='auto',
                        interpolation='nearest')
    fresh = np.isnan(one.distance[:, 0])
    for line in np.flatnonzero(fresh):
      axis.text(1, line, 'new', va='center', fontsize=6, color=canvas.FAINT)
    axis.axhline(one.committed - 0.5, color=canvas.ACCENT, linewidth=1.5)
    axis.set_yticks(range(_WINDOW), range(1, _WINDOW + 1), fontsize=6)
    axis.set_ylabel(f'round {number}', fontsize=8)
    axis.set_title(f'{one.committed} tokens committed', fontsize=8, loc='right')
  axes[-1].set_xlabel('kernel; the state after the last one is the token', fontsize=8)
  figure.colorbar(image, ax=axes, label='distance to the old chain, deviations of the kernel')
  canvas.save(figure, path)


if __name__ == '__main__':
  model = cspd_jax.load('mar_demo')
  draw(observe(model, 'cat', _ROUNDS), PICTURE)
  sys.exit()
