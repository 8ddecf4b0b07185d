"""The figures of the CSpD paper, a panel per decoder."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from cspd_jax.models import kl_vae
from cspd_jax.models import mar
from cspd_jax.plots import curves as curves_lib
from cspd_jax.plots import replaced
from cspd_jax.plots.curves import Curve, Panel
from experiments import mar_tables_runs as runs_lib
from experiments.mar_tables_runs import Bench, Cell, Runner

# Figure 16 shows that many images.
_SHOWN = 4


def write(bench: Bench, runner: Runner, workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Draws Figures 8, 11, 13, 14, 15 and 16; returns what is in them as rows."""
  c, found = bench.config, []
  middle = c.lengths[len(c.lengths) // 2 - 1] if len(c.lengths) > 1 else c.lengths[0]
  cell = lambda mode, length=middle, **changes: Cell(
      mode, length, c.prefix_share, c.guidance_scale, c.temperature)._replace(**changes)

  def acceptance(cells: list[Cell]) -> list[float]:
    generated = [runner.cell(cell) for cell in cells]
    found.extend(runs_lib.row(bench, cell, images, runner.batch_size)
                 for cell, images in zip(cells, generated))
    rates = [runs_lib.acceptance(images) for images in generated]
    return [np.nan if rate is None else rate for rate in rates]

  def figure(number: int, xlabel: str, title: str, lines: Callable[[str], Mapping[str, Curve]],
             ylabel: str = 'share of drafts accepted') -> None:
    panels = [Panel(mode, ylabel, drawn) for mode in bench.modes if (drawn := lines(mode))]
    if panels:
      for form in ('png', 'svg'):
        curves_lib.save_curves(
            workdir / f'figure_{number}.{form}', [panels], xlabel=xlabel, title=title)
      print(f'figure {number}: {title}', flush=True)

  figure(8, 'draft length', 'Acceptance over the draft length', lambda mode: _curves({
      'all images': (c.lengths, acceptance([cell(mode, length) for length in c.lengths]))}))
  figure(11, 'token, in the order of generation',
         f'Acceptance over the image, draft length {middle}', lambda mode: _curves({
             f'prefix share {prefix_share:.0%}': _smooth(runs_lib.by_place(
                 runner.cell(cell(mode, prefix_share=prefix_share))))
             for prefix_share in c.prefix_shares}))
  figure(13, 'guidance scale', 'Acceptance over the guidance scale', lambda mode: _curves({
      f'draft length {length}': (c.scales, acceptance(
          [cell(mode, length, guidance_scale=scale) for scale in c.scales]))
      for length in c.lengths}))
  figure(14, 'temperature', f'Acceptance over the temperature, draft length {middle}',
         lambda mode: _curves({
             name: (c.temperatures, acceptance(
                 [cell(mode, temperature=value, guidance_scale=scale, guided=guided)
                  for value in c.temperatures]))
             for name, guided, scale in (('guided', True, c.guidance_scale),
                                         ('without guidance', False, 1.0))}))
  figure(15, 'draft length', 'Draws from the target until one replaces a draft',
         lambda mode: _curves({'mean': (c.lengths, [
             runs_lib.costs(runner.cell(cell(mode, length)))['draws_per_replaced_token'] or np.nan
             for length in c.lengths])}) if mode != 'cspd_relaxed' else {},
         'draws per replaced token')

  generated = {mode: jax.tree.map(lambda leaf: leaf[:_SHOWN], runner.cell(cell(mode)))
               for mode in bench.modes}
  decode = jax.jit(lambda params, tokens: kl_vae.decode(
      params, bench.tokenizer.config, mar.unpatchify(bench.model.config, tokens)))
  names = bench.model.metadata.get('labels')
  replaced.save_replaced_map(
      workdir / 'figure_16.png',
      {mode: np.asarray(decode(bench.tokenizer.params, g.tokens))
       for mode, g in generated.items()},
      {mode: runs_lib.in_grid(bench, g.tests.tested) for mode, g in generated.items()},
      {mode: runs_lib.in_grid(bench, g.tests.accepted) for mode, g in generated.items()},
      captions=[names[i] if names else f'class {i}' for i in bench.labels[:_SHOWN]],
      title=f'Which drafts are kept, draft length {middle}')
  print('figure 16: which drafts are kept', flush=True)
  return found


def _curves(lines: Mapping[str, tuple]) -> dict[str, Curve]:
  """Curves without the points that do not exist."""
  drawn = {}
  for name, (x, y) in lines.items():
    kept = [(float(a), float(b)) for a, b in zip(x, y) if np.isfinite(b)]
    if kept:
      drawn[name] = Curve(*zip(*kept))
  return drawn


def _smooth(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Means over eighths of the image, which single places are too few images for."""
  parts = np.array_split(np.arange(len(shares)), min(8, len(shares)))
  means = [np.mean(shares[part][np.isfinite(shares[part])]) if np.isfinite(shares[part]).any()
           else np.nan for part in parts]
  return np.array([part.mean() for part in parts]), np.array(means)
