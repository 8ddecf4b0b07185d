"""What configurations ask for, made into what the library takes, before anything is compiled."""

import dataclasses
import math
import pathlib
from typing import Any

import cspd_jax
from cspd_jax.generation import prompts as prompts_lib

_DTYPES = ('float32', 'bfloat16')


def given(group: Any) -> dict[str, Any]:
  """The fields of a group that are not None."""
  return {field.name: getattr(group, field.name) for field in dataclasses.fields(group)
          if getattr(group, field.name) is not None}


def at_least(group: Any, least: int, *names: str) -> None:
  """Raises ValueError for fields below `least`; None passes."""
  for name in names:
    value = getattr(group, name)
    if value is not None and value < least:
      raise ValueError(f'{name} is {value}; it must be at least {least}.')


def tokens_at_most(group: Any, of: cspd_jax.Model, *names: str) -> None:
  """Raises ValueError for numbers of tokens below 1 or above those of an image; None passes."""
  at_least(group, 1, *names)
  for name in names:
    value = getattr(group, name)
    if value is not None and value > of.num_tokens:
      raise ValueError(f'{name} is {value}; it may be at most {of.num_tokens}, the number of '
                       f'tokens of an image of {of.name!r}.')


def check_dtype(config: Any) -> None:
  """Raises ValueError for a dtype that parameters cannot have; None passes."""
  if config.dtype not in (None, *_DTYPES):
    raise ValueError(f'dtype is {config.dtype!r}; it must be one of {", ".join(_DTYPES)}.')


def model(config: Any) -> cspd_jax.Model:
  """The model that a configuration names, with its parts and dtype.

  Raises:
    ValueError: if there is none, or its parts do not belong together.
  """
  check_dtype(config)
  return cspd_jax.load(config.model, dtype=config.dtype, **given(config.parts))


def images(group: Any, of: cspd_jax.Model,
           default: int = 4) -> tuple[list[Any], int | tuple[int, ...]]:
  """The prompt of every image, and the seed of all or of each.

  Args:
    group: has the fields of `configs.groups.Images`.
    of: the model.
    default: number of images without a prompt, seeds or a number.

  Raises:
    ValueError: for prompts that the model does not know, or numbers that do not fit together.
  """
  at_least(group, 1, 'num_images')
  if group.prompt is not None and group.prompts is not None:
    raise ValueError(f'prompt is {group.prompt!r} and prompts is {group.prompts!r}; give only one '
                     'of them.')
  prompts = _prompts(group, of)
  asked = group.prompt is not None or group.prompts is not None
  seeds = group.seeds
  if seeds is not None and not seeds:
    raise ValueError('seeds is empty; give one per image.')
  count = group.num_images
  if count is None:
    count = max(len(prompts) if asked else 0, len(seeds) if seeds else 0) or default
  if asked and count < len(prompts):
    raise ValueError(f'num_images is {count}, but there are {len(prompts)} prompts; it must be at '
                     'least as many.')
  if seeds is not None and len(seeds) != count:
    raise ValueError(f'seeds has {len(seeds)} numbers for {count} images; give one per image.')
  turns = (prompts * math.ceil(count / len(prompts)))[:count]
  seed = group.seed if seeds is None else seeds
  prompts_lib.seeds(seed, count)  # Checks them.
  return turns, seed


def _prompts(group: Any, of: cspd_jax.Model) -> list[Any]:
  """The prompts that are asked for, once each."""
  if group.prompts is not None:
    prompts = prompts_lib.listed(pathlib.Path(group.prompts))
  elif group.prompt is not None:
    prompts = [part.strip() for part in group.prompt.split(',') if part.strip()]
    # A caption, or the name of a class, may have commas of its own.
    if len(prompts) > 1 and _knows(of, group.prompt):
      prompts = [group.prompt]
  else:
    prompts = list(of.prompts)
    if not prompts:
      raise ValueError(f'prompt is none, and model {of.name!r} shows what it is told to; give '
                       'prompt, or prompts.')
  if not prompts:
    raise ValueError('there is no prompt; give at least one.')
  of.condition(prompts)
  return prompts


def _knows(of: cspd_jax.Model, prompt: str) -> bool:
  """Whether a model takes a prompt as it is."""
  try:
    of.condition([prompt])
    return True
  except ValueError:
    return False
