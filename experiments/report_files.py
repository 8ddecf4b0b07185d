"""Writes the pictures and the figures of a report."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from cspd_jax.plots import acceptance
from cspd_jax.plots import bars
from cspd_jax.plots import grid
from experiments import json_file
from experiments.turns import Job, Measured

# More images than these would make the acceptance map too wide to read.
MAPPED_IMAGES = 4


class Bar(NamedTuple):
  """A figure that is drawn as bars: its key, its name, its format and what it means."""

  key: str
  name: str
  form: str
  meaning: str


def write(workdir: pathlib.Path, job: Job, report: Mapping[str, Any],
          measured: Mapping[str, Measured], images: Mapping[str, np.ndarray],
          title: Callable[[str, Mapping[str, Any]], str], bar: Bar) -> None:
  """Writes what `experiments.generate` leaves behind, report.json last.

  Args:
    workdir: the folder.
    job: what was generated.
    report: the content of report.json; a decoder's `images` is the name of their file.
    measured: the decoders' results.
    images: `[N, H, W, 3]` in [-1, 1] by decoder.
    title: `(name, figures)` of a decoder to the title of its images.
    bar: the figure that is drawn beside the wall-clock.
  """
  decoders = report['decoders']
  for name, one in decoders.items():
    grid.save_grid(workdir / one['images'], images[name], captions=job.captions,
                   title=title(name, one))
  acceptance.save_acceptance_map(
      workdir / 'acceptance.png',
      {name: job.grid(one.decoded.round_of_token)[:MAPPED_IMAGES]
       for name, one in measured.items()},
      images={name: value[:MAPPED_IMAGES] for name, value in images.items()},
      captions=job.captions[:MAPPED_IMAGES], title='In which round each token was fixed')
  values = lambda key: {name: one[key] for name, one in decoders.items()}
  bars.save_bars(
      workdir / 'speed.png',
      [bars.Panel(bar.name, values(bar.key), bar.form, bar.meaning),
       bars.Panel('Seconds per image', values('seconds_per_image'), '{:.3f} s',
                  'wall-clock at batch 1 without compilation; shorter is better')],
      title=f'{report["model"]} on {report["device"]}')
  json_file.write(workdir / 'report.json', report)
