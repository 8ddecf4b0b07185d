"""The figures of the CSpD paper, a panel per decoder."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cspd_jax.files.run_folder import Report
from cspd_jax.plots import curves as curves_lib, replaced
from cspd_jax.plots.curves import Curve, Panel
from experiments.papers.cspd_cells import Cell, Lab, acceptance_by_step, draws_per_replaced_token

# Number of images in Figure 16.
_SHOWN = 4


def draw(lab: Lab, report: Report) -> list[dict[str, Any]]:
  """Draws Figures 8, 11, 13, 14, 15 and 16; returns the rows of their points."""
  c, result = lab.config, []

  def middle(mode: str) -> int:
    lengths = lab.lengths(mode)
    return lengths[(len(lengths) - 1) // 2]

  def acceptance(cells: list[Cell]) -> list[float]:
    rows = [lab.row(cell) for cell in cells]
    result.extend(rows)
    return [np.nan if (rate := row[f'acceptance_{row["mode"]}']) is None else rate for row in rows]

  def figure(number: int, xlabel: str, title: str, lines: Callable[[str], Mapping[str, Curve]],
             ylabel: str = 'share of drafts accepted') -> None:
    panels = [Panel(mode, ylabel, drawn) for mode in c.decoder if (drawn := lines(mode))]
    if panels:
      for form in ('png', 'svg'):
        curves_lib.save_curves(
            report.path(f'figure_{number}.{form}'), [panels], xlabel=xlabel, title=title)
      print(f'figure {number}: {title}', flush=True)

  figure(8, 'draft length', 'Acceptance over the draft length', lambda mode: _curves({
      'all images': (lab.lengths(mode), acceptance(lab.cells(mode)))}))
  figure(11, 'token, in the order of generation',
         'Acceptance over the image', lambda mode: _curves({
             f'prefix share {share:.0%}': _smooth(acceptance_by_step(
                 lab.images(lab.cell(mode, middle(mode), prefix_share=share)).decoded))
             for share in c.prefix_shares}))
  figure(13, 'guidance scale', 'Acceptance over the guidance scale', lambda mode: _curves({
      f'draft length {length}': (c.scales, acceptance(
          [lab.cell(mode, length, guidance_scale=scale) for scale in c.scales]))
      for length in lab.lengths(mode)}))
  guidance_scale = float(lab.bench.sampling.guidance_scale)
  figure(14, 'temperature', 'Acceptance over the temperature',
         lambda mode: _curves({
             name: (c.temperatures, acceptance(
                 [lab.cell(mode, middle(mode), temperature=value, guidance_scale=scale)
                  for value in c.temperatures]))
             for name, scale in (('guided', guidance_scale), ('without guidance', 1.0))}))
  figure(15, 'draft length', 'Draws from the target until one replaces a draft',
         lambda mode: _curves({'mean': (lab.lengths(mode), [
             draws_per_replaced_token(lab.images(cell).decoded) or np.nan
             for cell in lab.cells(mode)])}) if mode != 'cspd_relaxed' else {},
         'draws per replaced token')
  _replaced(lab, report, {mode: middle(mode) for mode in c.decoder})
  return result


def _replaced(lab: Lab, report: Report, lengths: Mapping[str, int]) -> None:
  """Draws Figure 16: which drafts are accepted."""
  decoded = {mode: lab.images(lab.cell(mode, length)).decoded
             for mode, length in lengths.items()}
  grid = lambda leaf: leaf[:_SHOWN].reshape(-1, *lab.model.grid)
  replaced.save_replaced_map(
      report.path('figure_16.png'),
      {mode: np.asarray(lab.model.pixels(images.tokens[:_SHOWN]))
       for mode, images in decoded.items()},
      {mode: grid(images.tests.tested) for mode, images in decoded.items()},
      {mode: grid(images.tests.accepted) for mode, images in decoded.items()},
      captions=lab.model.conditions.titles(lab.bench.prompts[:_SHOWN]),
      title='Accepted drafts, draft length ' + ', '.join(
          f'{length} with {mode}' for mode, length in lengths.items()))
  print('figure 16: accepted drafts', flush=True)


def _curves(lines: Mapping[str, tuple]) -> dict[str, Curve]:
  """Builds curves from the finite points."""
  result = {}
  for name, (x, y) in lines.items():
    points = [(float(a), float(b)) for a, b in zip(x, y) if np.isfinite(b)]
    if points:
      result[name] = Curve(*zip(*points))
  return result


def _smooth(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns means over eighths of the image, because single positions are too noisy."""
  parts = np.array_split(np.arange(len(shares)), min(8, len(shares)))
  means = [np.mean(shares[part][np.isfinite(shares[part])]) if np.isfinite(shares[part]).any()
           else np.nan for part in parts]
  return np.array([part.mean() for part in parts]), np.array(means)
