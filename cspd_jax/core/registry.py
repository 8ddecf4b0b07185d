"""Registries: dictionaries by name, to which families add values."""

from typing import TypeVar

Value = TypeVar('Value')


def add(registry: dict[str, Value], kind: str, name: str, value: Value) -> None:
  """Adds a value to a registry; adding an equal value again has no effect.

  Args:
    registry: the registry.
    kind: the kind of its values, for errors.
    name: the name.
    value: the value.

  Raises:
    ValueError: if a different value has this name.
  """
  if registry.setdefault(name, value) != value:
    raise ValueError(f'{kind} is {name!r}, which is registered with {registry[name]!r:.200}; '
                     'choose another name.')
