"""Draws charts of pages from the kept reports.

    python -m docs.charts    # rewrites bias.png and gains.png of docs/pictures

They show how far relaxed decoders are from the model's distribution, and what decoders gain in time
by their tokens per pass and by batch size.
"""

import pathlib
import re

from cspd_jax.plots import canvas, charts
from docs import kept

# Verifiers on the same EAGLE tree, by report.
_TREE = 'eagle(tree=EAGLE)'
_REPORTS = 'lantern', 'cool_sd'


def verifiers() -> list[dict]:
  """Returns vanilla and the verifiers of the tree, exact ones first, then by distance."""
  found = {}
  for name in _REPORTS:
    for row in kept.rows(name):
      drafter, _, verifier = row['decoder'].partition('+')
      # Ours, not with residuals or limits of released code.
      if 'nll_excess' in row and drafter in ('vanilla', _TREE) and not any(
          word in verifier for word in ('residual=', 'clamp=')):
        found.setdefault(verifier or drafter, row | dict(name=verifier or drafter))
  return sorted(found.values(), key=lambda row: (row['guarantee'] == 'bounded', row['nll_excess']))


def draw_bias(path: pathlib.Path) -> None:
  """Writes the picture of the distances."""
  bars = verifiers()
  colors = [canvas.ACCENT if row['guarantee'] == 'bounded' else canvas.NEUTRAL for row in bars]
  figure = canvas.figure(6.6, 0.9 + 0.26 * len(bars))
  axes = figure.subplots()
  axes.barh(range(len(bars)), [row['nll_excess'] for row in bars], color=colors, height=0.66,
            xerr=[row['nll_excess_error'] for row in bars],
            error_kw=dict(ecolor=canvas.INK, elinewidth=0.8, capsize=2))
  axes.axvline(0, color=canvas.INK, linewidth=0.8)
  axes.set_yticks(range(len(bars)), [canvas.plain(row['name']) for row in bars], fontsize=8,
                  color=canvas.INK)
  axes.set_ylim(len(bars) - 0.4, -0.6)
  axes.tick_params(axis='x', labelsize=8, colors=canvas.INK)
  axes.tick_params(axis='y', length=0)
  axes.spines[['top', 'right', 'left']].set_visible(False)
  axes.set_xlabel('NLL - entropy, nats per token, with standard errors (grey: exact)', fontsize=8,
                  color=canvas.INK)
  canvas.save(figure, path)


# Reports on passes of LlamaGen, one image at a time.
_PASSES = {
    'H100, LlamaGen-XL': ('accelerator_xl',),
    'two CPU cores, LlamaGen-XL': ('against_llamagen_xl', 'against_llamagen_xl_local'),
    'two CPU cores, LlamaGen-B': ('against_llamagen', 'against_llamagen_local')}
# Reports on the same passes by batch size.
_BATCHES = {1: 'compiled_7b', 8: 'compiled_7b_batch', 32: 'compiled_7b_batch32',
            128: 'compiled_7b_batch128'}


def gains(*reports: str) -> list[tuple[float, float, int]]:
  """Returns tokens per pass, speed-up over vanilla and tokens in a pass of each decoder."""
  found = []
  for row in (row for name in reports for row in kept.rows(name)):
    length = re.search(r'window=(\d+)|chain\((\d+)\)', row.get('decoder', ''))
    if length and row.get('speedup'):  # A chain of drafts follows a committed token.
      found.append((row['tokens'], row['speedup'], int(length[1] or int(length[2]) + 1)))
  return found


def by_batch() -> dict[str, list[float]]:
  """Returns the speed-ups over vanilla by decoder, in the order of `_BATCHES`."""
  tables = [{row['decoder']: row['speedup'] for row in kept.rows(name)}
            for name in _BATCHES.values()]
  return {name: [table[name] for table in tables] for name in tables[0]
          if name != 'vanilla' and all(table.get(name) for table in tables)}


def _finish(axes, title: str, xlabel: str) -> None:
  axes.set_title(title, fontsize=9, color=canvas.INK, loc='left')
  axes.set_xlabel(xlabel, fontsize=8, color=canvas.INK)
  axes.tick_params(labelsize=8, colors=canvas.INK)
  axes.spines[['top', 'right']].set_visible(False)


def draw_gains(path: pathlib.Path) -> None:
  """Writes the picture: gains of single images, and of one and several at once."""
  figure = canvas.figure(8.2, 3.7)
  single, several = figure.subplots(1, 2, width_ratios=(1.7, 1))
  single.axline((1, 1), slope=1, color=canvas.NEUTRAL, linewidth=1)
  single.annotate('if passes cost the same', (4.6, 4.6), xytext=(-4, 0), fontsize=7.5, ha='right',
                  textcoords='offset points', color=canvas.FAINT)
  for (name, reports), color, marker in zip(_PASSES.items(), charts.COLORS, charts.MARKERS):
    tokens, speed, lengths = zip(*gains(*reports))
    single.scatter(tokens, speed, s=28, color=color, marker=marker, label=name, zorder=3)
    for x, y, length in zip(tokens, speed, lengths):
      single.annotate(f'{length}', (x, y), xytext=(5, -2.5), textcoords='offset points',
                      fontsize=7.5, color=canvas.INK)
  single.set(xlim=(1, 11.3), ylim=(0.8, 5.4))
  single.set_ylabel('speed-up over vanilla', fontsize=8, color=canvas.INK)
  single.legend(fontsize=7.5, frameon=False, loc='lower right', labelcolor=canvas.INK)
  _finish(single, 'One image; numbers: tokens in a pass', 'tokens committed per pass')
  places = range(len(_BATCHES))
  for (name, speeds), color, shift in zip(by_batch().items(), charts.COLORS, (-0.2, 0.2)):
    bars = several.bar([place + shift for place in places], speeds, 0.36, color=color,
                       label=canvas.plain(name))
    several.bar_label(bars, fmt='%.1f', fontsize=7.5, padding=2, color=canvas.INK)
  several.axhline(1, color=canvas.INK, linewidth=0.9, linestyle=':')
  several.annotate('vanilla', (len(_BATCHES) - 0.58, 1), xytext=(0, 3), fontsize=7.5,
                   textcoords='offset points', color=canvas.INK)
  several.set(ylim=(0, 4.1), xlim=(-0.5, len(_BATCHES) - 0.15))
  several.set_xticks(places, [str(count) for count in _BATCHES])
  several.legend(fontsize=7.5, frameon=False, loc='upper right', labelcolor=canvas.INK)
  _finish(several, 'Predicted on an H200, 7B', 'images decoded at once')
  canvas.save(figure, path)


if __name__ == '__main__':
  draw_bias(kept.ROOT / 'docs' / 'pictures' / 'bias.png')
  draw_gains(kept.ROOT / 'docs' / 'pictures' / 'gains.png')
