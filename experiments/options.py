"""What programs with a configuration and flags of the same names have in common."""

import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags
from absl import logging


class Family(NamedTuple):
  """A kind of model that a program works with.

  Attributes:
    config: the configuration class.
    example: the file with its default configuration.
    work: what else the program needs to know.
  """

  config: type
  example: str
  work: Any = None


class Begun(NamedTuple):
  """A program that may start its work.

  Attributes:
    config: the configuration with the flags that were given.
    work: of the family it belongs to.
    prepared: what the program made of it.
    workdir: folder of the results; it exists.
  """

  config: Any
  work: Any
  prepared: Any
  workdir: pathlib.Path


def begin(argv: Sequence[str], config: Any, flag_holders: Mapping[str, flags.FlagHolder],
          families: Sequence[Family], prepare: Callable[[Any, Any], Any]) -> Begun:
  """Reads the command line and checks everything; ends the program if something is wrong.

  Args:
    argv: what is left of the command line, the program first.
    config: holder of the flag --config.
    flag_holders: by name, the flags that replace fields of the configuration.
    families: see `resolve`.
    prepare: `(config, work) -> prepared`; loads and checks what there is, and raises
      ValueError for anything that cannot work.

  Raises:
    SystemExit: with code 2, after one message, before anything is compiled or written.
  """
  if not flags.FLAGS['verbosity'].present:
    logging.set_verbosity(logging.WARNING)  # Loading a checkpoint logs a page.
  try:
    if len(argv) > 1:
      raise ValueError(f'{" ".join(argv[1:])!r} is not a flag; see --help.')
    given = {name: holder.value for name, holder in flag_holders.items()
             if holder.value is not None}
    resolved, work = resolve(config.value(), given, families)
    return Begun(resolved, work, prepare(resolved, work), open_workdir(resolved.workdir))
  except ValueError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)


def resolve(config: Any, given: dict[str, Any], families: Sequence[Family]) -> tuple[Any, Any]:
  """The configuration with the flags that were given.

  Args:
    config: the configuration, with the fields of one of the families.
    given: values by name; another 'model' has no drafting models unless they are given.
    families: the first one whose fields the configuration has is taken.

  Returns:
    The configuration, and the family's `work`.

  Raises:
    ValueError: if the configuration is not one for this program, or has no such fields.
  """
  missing = {family: [field.name for field in dataclasses.fields(family.config)
                      if not hasattr(config, field.name)] for family in families}
  family = next((family for family in families if not missing[family]), None)
  if family is None:
    nearest = min(missing, key=lambda family: len(missing[family]))
    examples = ' or '.join(family.example for family in families)
    raise ValueError(
        f'config is a {type(config).__name__} without {", ".join(missing[nearest])}; this program '
        f'takes one like {examples}.')
  fields = [field.name for field in dataclasses.fields(config)]
  if unknown := [name for name in given if name not in fields]:
    raise ValueError(
        f'{unknown[0]} is not an option of models as in {family.example}; options are '
        f'{", ".join(fields)}.')
  if given.get('model', config.model) != config.model:
    # What drafts for another target would not fit.
    given = {name: '' for name in ('draft_model', 'eagle', 'medusa') if name in fields} | given
  return dataclasses.replace(config, **given), family.work


def open_workdir(workdir: str) -> pathlib.Path:
  """Creates the folder if necessary.

  Raises:
    ValueError: if files cannot be written there.
  """
  try:
    os.makedirs(workdir, exist_ok=True)
    with tempfile.TemporaryFile(dir=workdir):
      pass
  except OSError as error:
    raise ValueError(
        f'workdir is {workdir!r}, where files cannot be written ({error.strerror}); give another '
        'folder.') from error
  return pathlib.Path(workdir)
