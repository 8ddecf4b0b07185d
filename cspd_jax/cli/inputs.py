"""Checks the fields of configurations, and loads the model they name, before anything compiles."""

import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import jax
from absl import logging

import cspd_jax
from cspd_jax import families, sharding
from cspd_jax.cli import fields, groups
from cspd_jax.core import fields as fields_lib
from cspd_jax.files import paths
from cspd_jax.generation import prompts as prompts_lib


def overrides(group: Any) -> dict[str, Any]:
  """Returns the fields of a dataclass that are not None."""
  return {field.name: getattr(group, field.name) for field in dataclasses.fields(group)
          if getattr(group, field.name) is not None}


# Why a mesh of several groups is refused by programs that measure; see `model`.
MEASURED = 'decoders are measured on one group of devices'


def parts(texts: Sequence[str] | None) -> dict[str, Any]:
  """Returns folders of networks by role; raises ValueError unless each text is `ROLE=FOLDER`."""
  folders: dict[str, Any] = {}
  known = lambda: dict.fromkeys(
      role for family in families.FAMILIES.values() for role in family.roles)
  for text in texts or ():
    role, _, folder = text.partition('=')
    if role not in (roles := known()):
      families.load_installed()
      roles = known()
    if role not in roles or not folder or role in folders:
      raise ValueError(f'parts holds {text!r:.80}; it must be ROLE=FOLDER, such as '
                       f'eagle=runs/eagle, once for each role of: {", ".join(roles)}.')
    folders[role] = folder
  return folders


def model(loading: groups.ModelFlags, *, tokens: str | None = None, one_group: str | None = None,
          **options: Any) -> cspd_jax.Model:
  """Loads a model, with further options of `cspd_jax.load`.

  `tokens` are the only ones that it may have, discrete or continuous; None for either.
  `one_group` is why the mesh must have one group of devices; None if it may have several. What does
  not exist, does not belong together or is not available raises ValueError.
  """
  if isinstance(loading, groups.LoadFlags):
    options |= dict(parts(loading.parts), grid=pair('grid', loading.grid))
  result = cspd_jax.load(
      loading.model, dtype=loading.dtype, quantize=loading.quantize,
      cache_dtype=loading.cache_dtype, sharding=mesh(loading.mesh, one_group),
      allow_nonfinite=loading.allow_nonfinite, **options)
  if tokens is not None:
    check_tokens(loading.model, result, tokens)
  return result


def check_tokens(name: str, model: cspd_jax.Model, kind: str) -> None:
  """Raises ValueError for a model, by its name, with tokens of another kind, such as discrete."""
  if model.table.tokens != kind:
    raise ValueError(f'model is {name!r}, which has {model.table.tokens} tokens; give one whose '
                     f'tokens are {kind}.')


def run_name(model: str) -> str:
  """Returns the name of a model's folder, for the default folders of runs."""
  return os.path.basename(os.path.abspath(os.path.expanduser(model))) or 'model'


def pair(name: str, text: str | None, between: str = 'x') -> tuple[int, int] | None:
  """Parses two numbers such as '2x4'; None stays None, and other texts raise ValueError."""
  if text is None:
    return None
  match = re.fullmatch(rf'(\d{{1,6}}){between}(\d{{1,6}})', text)
  if match is None:
    raise ValueError(f'{name} is {text!r}; it must be two numbers, such as 2{between}4.')
  return int(match[1]), int(match[2])


def mesh(text: str | None, one_group: str | None = None) -> Any:
  """Returns the mesh of a field such as '2x4', of the first devices; None stays None.

  Other texts, several groups unless `one_group` is None, and too many devices raise ValueError.
  """
  sizes = pair('mesh', text)
  if sizes is None:
    return None
  devices, count = jax.devices(), math.prod(sizes)
  problem = ('both numbers must be at least 1' if 0 in sizes else
             f'its first number must be 1, because {one_group}' if sizes[0] != 1 and one_group else
             f'it requires {count} devices, but there '
             f'{"is one" if len(devices) == 1 else f"are {len(devices)}"}: choose smaller numbers, '
             'or leave it out for one device' if count > len(devices) else None)
  if problem is not None:
    raise ValueError(f'mesh is {text!r}; {problem}.')
  return sharding.make_mesh(*sizes, devices=devices[:count])


def images(group: groups.Images, of: cspd_jax.Model, default: int = 4
           ) -> tuple[list[Any], int | tuple[int, ...]]:
  """Returns the prompt of every image, and the seed of all images or of each.

  `default` is the number of images if no prompt, no seeds and no number are specified. Raises
  ValueError for prompts that the model does not accept, or numbers that do not fit together.
  """
  if group.prompt is not None and group.prompts is not None:
    raise ValueError(f'prompt is {group.prompt!r} and prompts is {group.prompts!r}; give only one '
                     'of them.')
  prompts = _prompts(group, of)
  specified = group.prompt is not None or group.prompts is not None
  count = group.num_images
  if count is None:
    num_seeds = len(group.seed) if isinstance(group.seed, tuple) else 0
    count = max(len(prompts) if specified else 0, num_seeds) or default
  fields_lib.require(not specified or count >= len(prompts), 'num_images', count,
                     f'at least {len(prompts)}, the number of prompts')
  prompts_lib.seeds(group.seed, count)  # Checks them.
  return (prompts * math.ceil(count / len(prompts)))[:count], group.seed


def next_command(program: str, loading: groups.ModelFlags, of: cspd_jax.Model,
                 prompts: Sequence[Any],
                 sampling: groups.SamplingFlags = groups.SamplingFlags(), **flags: Any) -> str:
  """Returns another program's command with this model and sampling, and a prompt if needed."""
  own = {} if of.prompts else {'prompt': prompts[0]}
  return fields.command_line(
      program, **{**overrides(loading), **own, **overrides(sampling), **flags})


def _prompts(group: groups.Images, of: cspd_jax.Model) -> list[Any]:
  if group.prompts is not None:
    prompts = prompts_lib.listed(pathlib.Path(group.prompts))
  elif group.prompt is not None:
    texts = (group.prompt,) if isinstance(group.prompt, str) else group.prompt
    prompts = [prompt for text in texts for prompt in _split(text, of)]
  else:
    prompts = list(of.prompts)
    if not prompts:
      raise ValueError(f'prompt is none, and model {of.name!r} has no prompts of its own; pass '
                       "--prompt='...', or --prompts=FILE.")
  of.prompt_kind.encode(prompts_lib.listed(prompts))  # Checks them.
  return prompts


def _split(text: str, of: cspd_jax.Model) -> list[str]:
  """The prompts of a text: itself if it is a description, else the classes between its commas."""
  encode = of.prompt_kind.encode
  if of.prompts and getattr(encode(of.prompts[:1]), 'ndim', None) == 1:
    try:
      encode([text])  # The name of a class may have commas of its own.
    except ValueError:
      return [part.strip() for part in text.removesuffix(',').split(',')]
  return [text]


def check_kind(recipe: Any, kind: type | tuple[type, ...], example: str) -> None:
  """Raises ValueError unless a configuration is a recipe of this class, or one of these classes."""
  if not isinstance(recipe, kind):
    raise ValueError(f'--config returns a {type(recipe).__name__}; this program requires a recipe '
                     f'like {example}.')


def output_folder(name: str, folder: str | None, workdir: pathlib.Path) -> pathlib.Path:
  """Returns the folder of trained networks: `folder`, or the one of this name in `workdir`.

  It raises ValueError if it cannot be written, or that in `workdir` is a link: someone else may
  have placed it, and the model in its target would be replaced.
  """
  if folder is None and (workdir / name).is_symlink():
    raise ValueError(f'workdir is {str(workdir)!r}, where {name} is a link; remove it, or pass '
                     f'the folder as {name}.')
  return paths.folder(name, folder or workdir / name)


def log_progress() -> None:
  """Shows the log lines of the progress."""
  logging.set_verbosity(logging.INFO)


def log_size(folder: pathlib.Path) -> None:
  """Logs that a folder was written, and its size."""
  size = sum(file.stat().st_size for file in folder.rglob('*') if file.is_file())
  logging.info('wrote %s, %.2f MB', folder, size / 1e6)
