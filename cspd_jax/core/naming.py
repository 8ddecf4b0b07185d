"""Names: registries, to which families add values, and suggestions for names that do not exist."""

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TypeVar

Value = TypeVar('Value')
# Names of other programs and packages, and the names here, of which the first supported one counts;
# or a text that says what to do in its place.
Aliases = Mapping[str, tuple[str, ...] | str]


def add(registry: dict[str, Value], kind: str, name: str, value: Value) -> None:
  """Adds a value to a registry of a kind; raises ValueError if a different value has this name."""
  if registry.setdefault(name, value) != value:
    raise ValueError(f'{kind} is {name!r}, which is registered with {registry[name]!r:.200}; '
                     'choose another name.')


def nearest(name: str, supported: Collection[str], aliases: Aliases = MappingProxyType({})
            ) -> str | None:
  """Returns the supported name that an unsupported one may mean, or None.

  `name` itself may be among those that are supported elsewhere; it is never returned.
  """
  supported = [other for other in supported if other != name]
  meant = aliases.get(name, ())
  if isinstance(meant, str):
    return None
  for alias in meant:
    if alias in supported:
      return alias
  return next(iter(difflib.get_close_matches(name, supported, n=1)), None)


def question(name: str, supported: Collection[str], otherwise: str,
             aliases: Aliases = MappingProxyType({})) -> str:
  """Returns a question about the supported name that may be meant, then `otherwise`, the names."""
  meant = suggestion(name, supported, aliases).removeprefix('; ')
  return otherwise if meant == '.' else f'{meant} Otherwise {otherwise}'


def suggestion(name: str, supported: Collection[str], aliases: Aliases = MappingProxyType({}),
               form: str = '{}', otherwise: str = '.') -> str:
  """Returns the end of an error message: a question, advice, or `otherwise` if no name is near.

  The name that is asked for has a `form`, such as '--{}' for flags.
  """
  if isinstance(meant := aliases.get(name), str):
    return f'; {meant}.'
  near = nearest(name, supported, aliases)
  return otherwise if near is None else f'; did you mean {form.format(near)}?'
