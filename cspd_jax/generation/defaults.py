"""The decoder of a model where nothing is said, as `model.json` names it.

`defaults.decoder` is one of

  'mc_sjd(window=64)'                       a specification, for every device
  {'cpu': ..., 'NVIDIA H200': ...}          by device
  {'cpu': {'1': ..., '8': ...}}             by device, and by number of images decoded together

A device goes by its kind, as JAX calls it, or by its platform ('cpu', 'gpu', 'tpu'); the kind comes
first. A number of images stands for itself and all above it, up to the next one.
"""

from collections.abc import Mapping
from typing import Any

PLATFORMS = ('cpu', 'gpu', 'tpu')


def check(chosen: Any) -> None:
  """Checks the form of what a model names; what a specification says is not looked at.

  Raises:
    ValueError: if it is neither None nor one of the forms above.
  """
  by_device = chosen if isinstance(chosen, Mapping) else {'': chosen}
  for device, named in by_device.items():
    where = f'decoder for {device!r}' if device else 'decoder'
    if isinstance(named, Mapping) and device:
      if wrong := [size for size in named if not _is_size(size)]:
        raise ValueError(f'{where} is given for {wrong[0]!r} images; it must be a whole number, at '
                         'least 1.')
      specifications = list(named.values())
    else:
      specifications = [named]
    for one in specifications:
      if not isinstance(one, str) and (device or one is not None):
        raise ValueError(f'{where} is {one!r:.80}; it must be a text such as mc_sjd(window=32), or '
                         'such texts by device, and there by number of images.')


def find(chosen: Any, device: Any, batch_size: int) -> str | None:
  """The specification that a model names for a device and a number of images; None if none.

  Args:
    chosen: what the model names, of the form that `check` asks for.
    device: a JAX device.
    batch_size: images that are decoded together.
  """
  if not isinstance(chosen, Mapping):
    return chosen
  for name in (device.device_kind, device.platform):
    sizes = _sizes(chosen.get(name, {}))
    if fitting := [size for size in sizes if size <= batch_size]:
      return sizes[max(fitting)]
  return None


def joined(chosen: Any, kind: str, decoders: Mapping[int, str]) -> dict[str, Any]:
  """What a model names, with specifications for one kind of device.

  Args:
    chosen: what it named before.
    kind: of the device.
    decoders: specifications by number of images; they replace those of the same numbers.
  """
  by_device = dict.fromkeys(PLATFORMS, chosen) if isinstance(chosen, str) else dict(chosen or {})
  kept = different(_sizes(by_device.get(kind, {})) | dict(decoders))
  by_device[kind] = kept[1] if list(kept) == [1] else {str(size): kept[size] for size in kept}
  return by_device


def different(decoders: Mapping[int, str]) -> dict[int, str]:
  """Specifications by number of images, rising, without those that the number before has too."""
  kept: dict[int, str] = {}
  for size in sorted(decoders):
    if not kept or kept[max(kept)] != decoders[size]:
      kept[size] = decoders[size]
  return kept


def is_by_size(chosen: Any) -> bool:
  """Whether a model names different decoders for different numbers of images."""
  return isinstance(chosen, Mapping) and any(isinstance(one, Mapping) for one in chosen.values())


def _sizes(named: str | Mapping[str, str]) -> dict[int, str]:
  """Specifications by number of images, for one device."""
  if isinstance(named, str):
    return {1: named}
  return {int(size): one for size, one in named.items()}


def _is_size(text: Any) -> bool:
  return isinstance(text, str) and text.isascii() and text.isdecimal() and int(text[:9]) > 0
