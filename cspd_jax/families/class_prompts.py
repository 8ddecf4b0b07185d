"""Prompts of class-conditional models: names of classes, or their numbers."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from cspd_jax.generation.parts import Conditions


def conditions(num_classes: int, names: Sequence[str] = ()) -> Conditions:
  """Returns the prompts that a class-conditional model supports.

  Args:
    num_classes: number of classes.
    names: of the classes, or empty.

  Raises:
    ValueError: unless there are `num_classes` names or none.
  """
  names = names or ()
  if names and (not isinstance(names, list | tuple) or len(names) != num_classes
                or not all(isinstance(name, str) for name in names)):
    raise ValueError(f'labels of the target is {names!r:.80}; it must be a list of {num_classes} '
                     'names, or empty.')
  number: dict[str, int] = {}
  for label, name in enumerate(names):
    number.setdefault(name.lower(), label)

  def label_of(prompt):
    if isinstance(prompt, str):
      text = prompt.strip()
      if text.lower() in number:
        return number[text.lower()]
      if not text.isdecimal() or int(text) >= num_classes:
        raise ValueError(f'prompts holds {prompt!r}; it must be {_allowed(num_classes, names)}.')
      return int(text)
    if isinstance(prompt, (float, np.floating)):
      raise ValueError(f'prompts holds {prompt}, which is a float; it must be '
                       f'{_allowed(num_classes, names)}: convert floats with int.')
    if not isinstance(prompt, (int, np.integer)) or isinstance(prompt, bool):
      raise ValueError(f'prompts holds {prompt!r}; it must be {_allowed(num_classes, names)}.')
    if not 0 <= prompt < num_classes:
      raise ValueError(f'prompts holds {prompt}; it must be {_allowed(num_classes, names)}.')
    return int(prompt)

  def encode(prompts):
    return jnp.asarray([label_of(prompt) for prompt in prompts], jnp.int32)

  def titles(prompts):
    labels = map(label_of, prompts)
    return [names[label] if names else f'class {label}' for label in labels]

  return Conditions(encode, titles, tuple(names) or range(num_classes))


def _allowed(num_classes: int, names: Sequence[str]) -> str:
  numbers = f'a class from 0 to {num_classes - 1}'
  if not names:
    return numbers
  shown = ', '.join(names) if len(names) <= 20 else f'{", ".join(names[:5])} and others'
  return f'{numbers}, or one of {shown}'
