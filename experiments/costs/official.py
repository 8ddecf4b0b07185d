"""The official PyTorch code of a model, from a clone of its repository."""

import importlib
import os
import sys
from typing import Any

from cspd_jax.checkpoints import paths


def imported(repo: str, url: str, file: str, needs: str) -> tuple[Any, Any]:
  """PyTorch, with as many threads as there are cores, and a module of the official code.

  Args:
    repo: folder of the clone.
    url: of the repository, for messages.
    file: of the module, in the clone.
    needs: what must be installed, for messages.

  Raises:
    ValueError: if the code or what it needs is not there.
  """
  folder = paths.find('repo', repo)
  if not (folder / file).exists():
    raise ValueError(f'repo is {repo!r}, where there is no {file}; give a clone of {url}.')
  sys.path.insert(0, str(folder))
  try:
    name = file.removesuffix('.py').replace('/', '.')
    torch, module = importlib.import_module('torch'), importlib.import_module(name)
  except ImportError as error:
    raise ValueError(f'the official code cannot be imported ({error}); it needs '
                     f'pip install {needs}.') from error
  torch.set_num_threads(os.cpu_count())
  return torch, module


def perturb(torch: Any, model: Any, deviation: float = 0.02) -> None:
  """Gives what was initialised with zeros random numbers, in place."""
  for parameter in model.parameters():
    if not parameter.abs().max():
      torch.nn.init.normal_(parameter, std=deviation)
