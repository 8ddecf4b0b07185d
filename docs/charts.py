"""Draws charts of pages from the kept reports.

    python -m docs.charts    # rewrites bias.png and gains.png of docs/pictures

They show how far relaxed decoders are from the model's distribution, and what decoders gain in time
by their tokens per pass and by batch size.
"""

import json
import pathlib
import re
from typing import Any

from cspd_jax.plots import canvas, charts

_DOCS = pathlib.Path(__file__).parent
# Verifiers on the same EAGLE tree, by report.
_TREE, _VERIFIERS = 'eagle(tree=EAGLE)', ('lantern', 'cool_sd')
# Reports on passes of LlamaGen, one image at a time.
_PASSES = {
    'H100, LlamaGen-XL': ('accelerator_xl',),
    'two CPU cores, LlamaGen-XL': ('against_llamagen_xl', 'against_llamagen_xl_local'),
    'two CPU cores, LlamaGen-B': ('against_llamagen', 'against_llamagen_local')}
# Reports on the same passes by batch size.
_BATCHES = {1: 'compiled_7b', 8: 'compiled_7b_batch', 32: 'compiled_7b_batch32',
            128: 'compiled_7b_batch128'}
_TEXT: dict[str, Any] = dict(fontsize=8, color=canvas.INK)
_SMALL: dict[str, Any] = dict(fontsize=7.5, textcoords='offset points')
_LEGEND: dict[str, Any] = dict(fontsize=7.5, frameon=False, labelcolor=canvas.INK)


def _rows(*names: str) -> list[dict[str, Any]]:
  """The rows of kept reports."""
  return [row for name in names for row in json.loads(
      (_DOCS / 'reports' / f'{name}.json').read_text(encoding='utf-8'))['rows']]


def draw_bias(path: pathlib.Path) -> None:
  """Writes the distances of `vanilla` and of the verifiers of the tree, exact ones first."""
  found: dict[str, dict[str, Any]] = {}
  for row in _rows(*_VERIFIERS):
    drafter, _, verifier = row['decoder'].partition('+')
    # Ours, not with residuals or limits of released code.
    if 'nll_excess' in row and drafter in ('vanilla', _TREE) and not re.search(
        'residual=|clamp=', verifier):
      found.setdefault(verifier or drafter, row)
  order = lambda name: (found[name]['guarantee'] == 'bounded', found[name]['nll_excess'])
  names = sorted(found, key=order)
  bars = [found[name] for name in names]
  figure = canvas.figure(6.6, 0.9 + 0.26 * len(bars))
  axes = figure.subplots()
  axes.barh(
      range(len(bars)), [row['nll_excess'] for row in bars], height=0.66,
      color=[canvas.ACCENT if row['guarantee'] == 'bounded' else canvas.NEUTRAL for row in bars],
      xerr=[row['nll_excess_error'] for row in bars],
      error_kw=dict(ecolor=canvas.INK, elinewidth=0.8, capsize=2))
  axes.axvline(0, color=canvas.INK, linewidth=0.8)
  axes.set_yticks(range(len(bars)), map(canvas.plain, names), **_TEXT)
  axes.set_ylim(len(bars) - 0.4, -0.6)
  axes.tick_params(axis='x', labelsize=8, colors=canvas.INK)
  axes.tick_params(axis='y', length=0)
  axes.spines[['top', 'right', 'left']].set_visible(False)
  axes.set_xlabel('NLL - entropy, nats per token, with standard errors (grey: exact)', **_TEXT)
  canvas.save(figure, path)


def _draw_single(axes) -> None:
  """Draws the speed-up over vanilla by tokens per pass."""
  axes.axline((1, 1), slope=1, color=canvas.NEUTRAL, linewidth=1)
  axes.annotate('if passes cost the same', (4.6, 4.6), xytext=(-4, 0), ha='right',
                color=canvas.FAINT, **_SMALL)
  for (name, reports), color, marker in zip(_PASSES.items(), charts.COLORS, charts.MARKERS):
    points = []
    for row in _rows(*reports):
      length = re.search(r'window=(\d+)|chain\((\d+)\)', row.get('decoder', ''))
      if length and row.get('speedup'):  # A chain of drafts follows a committed token.
        points.append((row['tokens'], row['speedup']))
        axes.annotate(f'{int(length[1] or int(length[2]) + 1)}', points[-1], xytext=(5, -2.5),
                      color=canvas.INK, **_SMALL)
    axes.scatter(*zip(*points), s=28, color=color, marker=marker, label=name, zorder=3)
  axes.set(xlim=(1, 11.3), ylim=(0.8, 5.4))
  axes.set_ylabel('speed-up over vanilla', **_TEXT)
  axes.legend(loc='lower right', **_LEGEND)


def _draw_several(axes) -> None:
  """Draws the speed-up over vanilla by batch size, of decoders that all reports have."""
  tables = [{row['decoder']: row['speedup'] for row in _rows(name)} for name in _BATCHES.values()]
  shown = [name for name in tables[0] if name != 'vanilla' and all(
      table.get(name) for table in tables)]
  for name, color, shift in zip(shown, charts.COLORS, (-0.2, 0.2)):
    bars = axes.bar([place + shift for place in range(len(tables))], [
        table[name] for table in tables], 0.36, color=color, label=canvas.plain(name))
    axes.bar_label(bars, fmt='%.1f', fontsize=7.5, padding=2, color=canvas.INK)
  axes.axhline(1, color=canvas.INK, linewidth=0.9, linestyle=':')
  axes.annotate('vanilla', (len(tables) - 0.58, 1), xytext=(0, 3), color=canvas.INK, **_SMALL)
  axes.set(ylim=(0, 4.1), xlim=(-0.5, len(tables) - 0.15))
  axes.set_xticks(range(len(tables)), map(str, _BATCHES))
  axes.legend(loc='upper right', **_LEGEND)


def draw_gains(path: pathlib.Path) -> None:
  """Writes the gains of single images, and of one and several at once."""
  figure = canvas.figure(8.2, 3.7)
  for axes, draw, title, xlabel in zip(
      figure.subplots(1, 2, width_ratios=(1.7, 1)), (_draw_single, _draw_several),
      ('One image; numbers: tokens in a pass', 'Predicted on an H200, 7B'),
      ('tokens committed per pass', 'images decoded at once')):
    draw(axes)
    axes.set_title(title, fontsize=9, color=canvas.INK, loc='left')
    axes.set_xlabel(xlabel, **_TEXT)
    axes.tick_params(labelsize=8, colors=canvas.INK)
    axes.spines[['top', 'right']].set_visible(False)
  canvas.save(figure, path)


if __name__ == '__main__':
  draw_bias(_DOCS / 'pictures' / 'bias.png')
  draw_gains(_DOCS / 'pictures' / 'gains.png')
