"""A smoke test of a training recipe: all stages, with a few steps and images."""

import dataclasses
from typing import Any

# Upper bounds of fields, in whichever part of a recipe they are.
_BOUNDS = dict(
    num_steps=6, batch_size=4, warmup_steps=2, cooldown_steps=2, quantize_from=2,
    windows_per_image=2, num_depths=2, num_train_images=16, num_held_out_images=8,
    num_measured_images=2, num_plain_images=16, log_every=2, checkpoint_every=2, evaluate_every=3)


def smoke(recipe: Any) -> Any:
  """Returns a recipe with few steps, images and examples per batch; networks keep their sizes."""
  changes: dict[str, Any] = {}
  for field in dataclasses.fields(recipe):
    value = getattr(recipe, field.name)
    if dataclasses.is_dataclass(value):
      changes[field.name] = smoke(value)
    elif field.name in _BOUNDS and value is not None:
      changes[field.name] = min(value, _BOUNDS[field.name])
    elif field.name == 'num_train_images':  # As many as the time allows.
      changes[field.name] = _BOUNDS[field.name]
  return dataclasses.replace(recipe, **changes)
