"""Draws how far relaxed decoders are from the model's distribution, from kept reports.

    python -m docs.bias    # rewrites docs/pictures/bias.png
"""

import json
import pathlib
import sys

from cspd_jax.plots import canvas

ROOT = pathlib.Path(__file__).parent
# Verifiers on the same EAGLE tree, by report.
_TREE = 'eagle(tree=EAGLE)'
_REPORTS = 'lantern', 'cool_sd'


def rows() -> list[dict]:
  """Returns vanilla and the verifiers of the tree, exact ones first, then by distance."""
  found = {}
  for name in _REPORTS:
    content = json.loads((ROOT / 'reports' / f'{name}.json').read_text(encoding='utf-8'))
    for row in content['rows']:
      drafter, _, verifier = row['decoder'].partition('+')
      # Ours, not with residuals or limits of released code.
      if 'nll_excess' in row and drafter in ('vanilla', _TREE) and not any(
          word in verifier for word in ('residual=', 'clamp=')):
        found.setdefault(verifier or drafter, row | dict(name=verifier or drafter))
  return sorted(found.values(), key=lambda row: (row['guarantee'] == 'bounded', row['nll_excess']))


def draw(path: pathlib.Path) -> None:
  """Writes the picture."""
  bars = rows()
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


if __name__ == '__main__':
  sys.exit(draw(ROOT / 'pictures' / 'bias.png'))
