"""Checks of what generation programs are asked for, before anything is compiled."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cspd_jax.core import checkpoint

_DTYPES = ('float32', 'bfloat16')


def check_numbers(config: Any, positive: Sequence[str], limits: Mapping[str, int]) -> None:
  """Raises ValueError for fields out of range.

  Args:
    config: the configuration; it has a field `dtype`.
    positive: fields that must be at least 1.
    limits: fields that must be from 0 to below a number.
  """
  for name in positive:
    if getattr(config, name) < 1:
      raise ValueError(f'{name} is {getattr(config, name)}; it must be at least 1.')
  for name, limit in limits.items():
    if not 0 <= getattr(config, name) < limit:
      raise ValueError(f'{name} is {getattr(config, name)}; it must be 0 to {limit - 1}.')
  if config.dtype not in _DTYPES:
    raise ValueError(f'dtype is {config.dtype!r}; it must be one of {", ".join(_DTYPES)}.')


def decoder_names(
    config: Any, known: Sequence[str], needs: Mapping[str, tuple[str, str]],
) -> tuple[list[str], dict[str, str]]:
  """Names of the decoders to run, and why others of 'all' are left out.

  Args:
    config: its field `decoder` is 'all' or names separated by commas.
    known: names of all decoders.
    needs: by decoder, the field that names a checkpoint it needs, and what that is in words.

  Raises:
    ValueError: for unknown names, or a named decoder whose checkpoint is not given.
  """
  names = choices(config, 'decoder', known)
  return able(config, names, {
      name: f'it needs {words}; give {field}' for name, (field, words) in needs.items()
      if not getattr(config, field)})


def able(config: Any, names: Sequence[str], unable: Mapping[str, str],
         ) -> tuple[list[str], dict[str, str]]:
  """The decoders that can run, and why others of 'all' are left out.

  Args:
    config: its field `decoder` is 'all' or names separated by commas.
    names: of decoders.
    unable: by decoder, why it cannot run.

  Raises:
    ValueError: if one of them is named in `decoder`.
  """
  reasons = {name: unable[name] for name in names if name in unable}
  if reasons and config.decoder.strip() != 'all':
    name, reason = next(iter(reasons.items()))
    raise ValueError(f'decoder {name} cannot run: {reason}.')
  return [name for name in names if name not in reasons], reasons


def choices(config: Any, option: str, known: Sequence[str]) -> list[str]:
  """The names that an option holds, separated by commas, or all.

  Raises:
    ValueError: for unknown names, or none.
  """
  text = getattr(config, option)
  names = list(known) if text.strip() == 'all' else list(dict.fromkeys(_split(text)))
  if not names or any(name not in known for name in names):
    raise ValueError(f'{option} is {text!r}; it must be all or, separated by commas, any of '
                     f'{", ".join(known)}.')
  return names


def load(config: Any, role: str, kind: str) -> checkpoint.Loaded:
  """The checkpoint that the option `role` names.

  Raises:
    ValueError: if there is none, it cannot be read, or it is of another kind.
  """
  name = getattr(config, role)
  if not name:
    raise ValueError(f'{role} is empty; give the name or the folder of a checkpoint.')
  try:
    loaded = checkpoint.load(name, dtype=config.dtype)
  except checkpoint.CheckpointError as error:
    raise ValueError(f'{role}: {error}') from error
  if loaded.kind != kind:
    raise ValueError(f'{role} is {name!r}, a {loaded.kind!r} checkpoint; it must be {kind!r}.')
  return loaded


def check_pair(config: Any, role: str, size: str, loaded: checkpoint.Loaded, model_size: str,
               model: checkpoint.Loaded) -> None:
  """Raises ValueError unless two sizes that belong together are equal."""
  ours, theirs = getattr(loaded.config, size), getattr(model.config, model_size)
  if ours != theirs:
    raise ValueError(
        f'{size} of the {role} {getattr(config, role)!r} is {ours}, but {model_size} of the model '
        f'{config.model!r} is {theirs}; they must be equal. Give the {role} that belongs to the '
        'model.')


def check_mar_pair(config: Any, draft: checkpoint.Loaded, model: checkpoint.Loaded) -> None:
  """Raises ValueError unless two MAR models have the same tokens and classes."""
  for size in ('height', 'width', 'token_dim', 'patch_size', 'num_classes'):
    check_pair(config, 'draft_model', size, draft, size, model)


def labels(config: Any, model: checkpoint.Loaded) -> tuple[np.ndarray, list[str]]:
  """The class of every image `[N]` int32, and what it is called.

  Raises:
    ValueError: for classes that the model does not have, or more of them than images.
  """
  names, count = model.metadata.get('labels', []), model.config.num_classes
  if config.prompt and config.label:
    raise ValueError(
        f'prompt is {config.prompt!r} and label is {config.label!r}; give only one of them.')
  if config.prompt and not names:
    raise ValueError(
        f'prompt is {config.prompt!r}, but the classes of {config.model!r} have no names; give '
        f'label, 0 to {count - 1}.')
  chosen = list(range(count))
  if text := config.prompt or config.label:
    option = 'prompt' if config.prompt else 'label'
    known = {name: i for i, name in enumerate(names if config.prompt else map(str, chosen))}
    parts = _split(text)
    if not parts or any(part not in known for part in parts):
      allowed = ', '.join(names) if config.prompt else f'0 to {count - 1}'
      raise ValueError(
          f'{option} is {text!r}; it must be classes of {config.model!r} separated by commas: '
          f'{allowed}.')
    if len(parts) > config.num_images:
      raise ValueError(
          f'num_images is {config.num_images}, but {option} has {len(parts)} classes; it must be '
          'at least as many.')
    chosen = [known[part] for part in parts]
  numbers = np.resize(chosen, config.num_images).astype(np.int32)
  return numbers, [names[label] if names else f'class {label}' for label in numbers]


def _split(text: str) -> list[str]:
  """The parts of a list in commas."""
  return [part.strip() for part in text.split(',') if part.strip()]
