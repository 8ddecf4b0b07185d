"""Draws the curves of the kept runs of examples/rl.py, and writes the tables of docs/rollouts.md.

    python -m docs.rollouts    # rewrites pictures/rollouts.png, and rollout*.md of docs/reports
"""

import json
import pathlib
from typing import Any

import numpy as np

from cspd_jax.files import atomic
from cspd_jax.measure import tables
from cspd_jax.plots import canvas, charts

_DOCS = pathlib.Path(__file__).parent
# Reports of one training each, by decoder.
REPORTS = ('rl_vanilla', 'rl', 'rl_exact', 'rl_one')
_COLUMNS = {
    'decoder': '`{decoder}`', 'guarantee': '{guarantee}',
    'reward, first and second half': '{first:.3f}, {second:.3f}', 'passes': '{passes}',
    'passes per image, first and second half': '{early:.1f}, {late:.1f}',
    'seconds of a step: images, updates': '{generating:.1f}, {learning:.1f}',
    'parameters as with `vanilla(window=16)`': 'after {equal} of {steps} steps'}
# Reports of trainings that were to make `emoji` better.
_ATTEMPTS = ('rl_pairs', 'rl_colours')
_OF_ATTEMPTS = {
    'prompts': '{prompts}', 'steps': '{steps}', 'images': '{images}', 'hours': '{hours:.1f}',
    'reward, first and last quarter': '{first:.3f}, {last:.3f}',
    'divergence at last, nats per token': '{divergence:.3f}',
    '-log p per token, first and last quarter': '{first_nll:.3f}, {last_nll:.3f}'}
# Reports on passes of Lumina-mGPT 7B compiled for an H200, by the number of images.
_COMPILED = {1: 'compiled_7b', 8: 'compiled_7b_batch', 32: 'compiled_7b_batch32',
             128: 'compiled_7b_batch128'}
_GAINS = {'images at once': '{images}', 'pass of 16 tokens over a pass of one': '{cost:.2f}x',
          'gain of rollouts': '{gain:.1f}x'}
_TEXT: dict[str, Any] = dict(fontsize=8, color=canvas.INK)


def _report(name: str) -> dict[str, Any]:
  return json.loads((_DOCS / 'reports' / f'{name}.json').read_text(encoding='utf-8'))


def reports() -> list[dict[str, Any]]:
  """Returns the kept reports of trainings."""
  return [_report(name) for name in REPORTS]


def _column(run: dict[str, Any], name: str) -> np.ndarray:
  """Returns a value of every step."""
  return np.asarray([row[name] for row in run['rows']])


def _ends(values: np.ndarray, parts: int) -> tuple[float, float]:
  """Returns the means of the first and the last of so many parts."""
  first, *_, last = np.array_split(values, parts)
  return float(first.mean()), float(last.mean())


def compared() -> str:
  """Returns the table of the trainings."""
  runs, rows = reports(), []
  digests = _column(runs[0], 'digest')
  for run in runs:
    first, second = _ends(_column(run, 'reward'), 2)
    early, late = _ends(_column(run, 'passes_per_image'), 2)
    rows.append(dict(
        decoder=run['settings']['decoder'], guarantee=run['guarantee'], first=first, second=second,
        passes=_column(run, 'passes').sum(), early=early, late=late,
        generating=np.median(_column(run, 'generating')),
        learning=np.median(_column(run, 'learning')), steps=len(digests),
        equal=(_column(run, 'digest') == digests).sum()))
  return (f'{tables.markdown(_COLUMNS, rows)}\n\n*`python examples/rl.py --decoder=DECODER '
          f'--num_steps={len(digests)}`: 16 images per step, {runs[0]["device"]}, '
          f'jax {runs[0]["versions"]["jax"]}.*')


def attempts() -> str:
  """Returns the table of the trainings that were to make `emoji` better."""
  rows = []
  for name in _ATTEMPTS:
    run = _report(name)
    settings, steps = run['settings'], len(run['rows'])
    (first, last), (first_nll, last_nll) = (
        _ends(_column(run, value), 4) for value in ('reward', 'nll'))
    rows.append(dict(
        prompts=len(settings['prompts']), steps=steps,
        images=steps * settings['num_groups'] * settings['num_images'],
        hours=(_column(run, 'generating') + _column(run, 'learning')).sum() / 3600,
        first=first, last=last, first_nll=first_nll, last_nll=last_nll,
        divergence=run['rows'][-1]['divergence']))
  return tables.markdown(_OF_ATTEMPTS, rows)


def gains() -> str:
  """Returns the table of predicted gains over `vanilla`, by the number of images at once."""
  vanilla, fast, *_ = (_column(run, 'passes').sum() for run in reports())
  rows = []
  for images, name in _COMPILED.items():
    ms = {row['decoder']: row['ms'] for row in _report(name)['rows']}
    cost = ms['mc_sjd(window=16)'] / ms['vanilla']
    rows.append(dict(images=images, cost=cost, gain=vanilla / fast / cost))
  return tables.markdown(_GAINS, rows)


def draw(path: pathlib.Path) -> None:
  """Writes the reward against steps and against passes."""
  figure = canvas.figure(8.2, 3.2)
  steps, passes = figure.subplots(1, 2, sharey=True)
  # The last run, of one token per pass, has the rewards of the first: it would hide the others.
  drawn, widths, markers = reports()[:3], (5, 1.2, 1.2), charts.MARKERS
  for run, color, width, marker in zip(drawn, charts.COLORS, widths, markers):
    rewards, total = _column(run, 'reward'), _column(run, 'passes').cumsum()
    style = dict(color=color, linewidth=width, marker=marker, markersize=4, alpha=0.8,
                 label=canvas.plain(run['settings']['decoder']))
    for axes, x in ((steps, range(1, len(total) + 1)), (passes, total)):
      axes.plot(x, rewards, **style)
  steps.set_ylabel('mean reward', **_TEXT)
  steps.legend(fontsize=7.5, frameon=False, labelcolor=canvas.INK, loc='lower right')
  for axes, label in ((steps, 'steps'), (passes, 'forward passes of the rollouts')):
    axes.set_xlabel(label, **_TEXT)
    axes.tick_params(labelsize=8, colors=canvas.INK)
    axes.spines[['top', 'right']].set_visible(False)
  canvas.save(figure, path)


# Parts of the page by name.
TABLES = {'rollouts': compared, 'rollout_gains': gains, 'rl_attempts': attempts}

if __name__ == '__main__':
  for part, write in TABLES.items():
    atomic.write(_DOCS / 'reports' / f'{part}.md', f'{write()}\n'.encode())
  draw(_DOCS / 'pictures' / 'rollouts.png')
