"""Registries: values by name, which families add."""

from typing import TypeVar

Value = TypeVar('Value')


def add(registry: dict[str, Value], what: str, name: str, value: Value) -> None:
  """Adds a value to a registry; the same value may be added again.

  Raises:
    ValueError: if another value has this name.
  """
  if registry.setdefault(name, value) != value:
    raise ValueError(f'{what} is {name!r}, which is registered with {registry[name]!r:.200}; '
                     'choose another name.')
