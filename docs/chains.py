"""Draws how the chains of a window of continuous tokens move in a round and meet them again.

    python -m docs.chains    # rewrites docs/pictures/chains.png
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.colors import LogNorm

import cspd_jax
from cspd_jax.core.random import row_keys
from cspd_jax.plots import canvas

_WINDOW, _ROUNDS, _FIRST = 8, 4, 6


def main() -> None:
  """Draws a panel per round: a line per token, coloured where its state is not the old one."""
  model = cspd_jax.load('mar_demo')
  decoder, sampling = model.decoder(f'windows(window={_WINDOW})'), model.sampling()
  state = jax.jit(decoder.start)(
      model.params, model.condition(['cat']), row_keys(jax.random.key(0), 1), sampling)
  advance = jax.jit(decoder.round)
  for _ in range(_FIRST):
    state = advance(model.params, state, sampling)
  figure = canvas.figure(8, 1.35 * _ROUNDS)
  axes = figure.subplots(_ROUNDS, 1, sharex=True)
  for number, axis in enumerate(axes, _FIRST + 1):
    before, state = state, advance(model.params, state, sampling)
    old, new, committed = before.memory.left(), state.memory.chains, state.memory.committed[0]
    # Of the state after every kernel from the old one, in units of the kernel's deviation.
    distance = np.asarray(jnp.where(old.exist[..., None], jnp.linalg.norm(
        (new.states - old.states) / new.kernels.std, axis=-1), jnp.nan)[0, :_WINDOW])
    axis.set_facecolor('#eef1f4')
    image = axis.imshow(np.where(distance > 0, distance, np.nan), cmap='viridis_r',
                        norm=LogNorm(0.3, 30), aspect='auto', interpolation='nearest')
    for line in np.flatnonzero(np.isnan(distance[:, 0])):
      axis.text(1, line, 'new', va='center', fontsize=6, color=canvas.FAINT)
    axis.axhline(committed - 0.5, color=canvas.ACCENT, linewidth=1.5)
    axis.set_yticks(range(_WINDOW), range(1, _WINDOW + 1), fontsize=6)
    axis.set_ylabel(f'round {number}', fontsize=8)
    axis.set_title(f'{committed} tokens committed', fontsize=8, loc='right')
  axes[-1].set_xlabel('kernel; the state after the last one is the token', fontsize=8)
  figure.colorbar(image, ax=axes, label='distance to the old chain, deviations of the kernel')
  canvas.save(figure, pathlib.Path(__file__).parent / 'pictures' / 'chains.png')


if __name__ == '__main__':
  main()
