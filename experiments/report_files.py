"""Writes the pictures and the figures of a report."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cspd_jax.plots import acceptance
from cspd_jax.plots import bars
from cspd_jax.plots import grid
from experiments import json_file
from experiments.turns import Job, Measured

# More images than these would make the acceptance map too wide to read.
_MAPPED_IMAGES = 4


def write(workdir: pathlib.Path, job: Job, report: Mapping[str, Any],
          measured: Mapping[str, Measured], images: Mapping[str, np.ndarray], words: Any) -> None:
  """Writes what `experiments.generate` leaves behind, report.json last.

  Args:
    workdir: the folder.
    job: what was generated.
    report: the content of report.json; a decoder's `images` is the name of their file.
    measured: the decoders' results.
    images: `[N, H, W, 3]` in [-1, 1] by decoder.
    words: `title(name, figures)` for a decoder's images; `WORK`: the figure that the bars show, its
      name, format and meaning.
  """
  decoders = report['decoders']
  for name, one in decoders.items():
    grid.save_grid(workdir / one['images'], images[name], captions=job.captions,
                   title=words.title(name, one))
  acceptance.save_acceptance_map(
      workdir / 'acceptance.png',
      {name: job.grid(one.decoded.round_of_token)[:_MAPPED_IMAGES]
       for name, one in measured.items()},
      images={name: value[:_MAPPED_IMAGES] for name, value in images.items()},
      captions=job.captions[:_MAPPED_IMAGES], title='In which round each token was fixed')
  values = lambda key: {name: one[key] for name, one in decoders.items()}
  key, *work = words.WORK
  bars.save_bars(
      workdir / 'speed.png',
      [bars.Panel(work[0], values(key), *work[1:]),
       bars.Panel('Seconds per image', values('seconds_per_image'), '{:.3f} s',
                  'wall-clock at batch 1 without compilation; shorter is better')],
      title=f'{report["model"]} on {report["device"]}')
  json_file.write(workdir / 'report.json', report)
