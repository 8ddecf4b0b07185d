"""Shared by programs that time a model against its official PyTorch code on the same CPU."""

import dataclasses
import importlib
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from checkpoints_conversion import convert, rules
from cspd_jax.files import paths
from cspd_jax.files.run_folder import Report
from cspd_jax.measure.tables import Table
from experiments import measured
from experiments.costs import forced_rounds

_DEVIATION = 0.02


@dataclasses.dataclass(frozen=True)
class Flags:
  """Command-line flags.

  Attributes:
    repo: folder of the official code.
    decoder: specifications of decoders; that of one token per round is always included.
    accepted: report.json of measured tokens per round, as of experiments.continuous_windows.
    repeats: timed runs of each decoder, whose median is reported.
    workdir: folder of report.json.
  """

  repo: str | None = None
  decoder: tuple[str, ...] = forced_rounds.DECODERS
  accepted: str = 'docs/reports/continuous_windows.json'
  repeats: int = 5
  workdir: str = 'runs/against'


def official(flags: Flags, url: str, file: str, needs: str) -> tuple[Any, Any]:
  """Imports PyTorch, set to one thread per core, and a module of a model's official code.

  `file` is its path in a clone of `url`, and `needs` are the packages to install; without the code
  or such a package it raises ValueError.
  """
  if flags.repo is None:
    raise ValueError(f'repo is none; give the folder of a clone of {url}.')
  sys.path.insert(0, str(clone(flags.repo, url, file)))
  try:
    name = file.removesuffix('.py').replace('/', '.')
    torch, module = importlib.import_module('torch'), importlib.import_module(name)
  except ImportError as error:
    raise ValueError(f'the official code cannot be imported ({error}); run pip install {needs}.'
                     ) from error
  torch.set_num_threads(os.cpu_count())
  return torch, module


def clone(repo: str, url: str, file: str) -> pathlib.Path:
  """Returns the folder of a clone of `url`; raises ValueError if it does not contain `file`."""
  folder = paths.find('repo', repo).absolute()
  if not (folder / file).exists():
    raise ValueError(f'repo is {repo!r}, which does not contain {file}; give a clone of {url}.')
  return folder


def perturb(torch: Any, model: Any) -> None:
  """Replaces parameters that were initialised with zeros by random numbers, in place."""
  for parameter in model.parameters():
    if not parameter.abs().max():  # A head of zeros would accept every draft.
      torch.nn.init.normal_(parameter, std=_DEVIATION)


def converted(family: str, config: Any, model: Any, left_out: Sequence[str] = ()) -> Any:
  """Returns the parameters of an official model, without tensors whose names hold `left_out`."""
  return jax.tree.map(jnp.asarray, convert.convert(
      rules.get(family), config,
      {name: tensor.float().cpu().numpy() for name, tensor in model.state_dict().items()
       if not any(part in name for part in left_out)}))


def write(report: Report, flags: Flags, torch: Any, shown: Sequence[Table], **more: Any) -> None:
  """Prints tables and writes them; see `measured.write`."""
  measured.write(report, flags, shown, batch=1, dtype='float32',
                 torch_version=str(torch.__version__), **more)
