"""The decoder that a model is decoded with by default, as `model.json` names it.

`defaults.decoder` is one of

  'mc_sjd(window=64)'                       a specification, for every device
  {'cpu': ..., 'NVIDIA H200': ...}          by device
  {'cpu': {'1': ..., '8': ...}}             by device, and by number of images decoded together

A device is named by its kind, as JAX reports it, or by its platform ('cpu', 'gpu', 'tpu'); the kind
takes precedence. A number of images applies from itself up to the next number.

`defaults.serve` has the same forms: the decoder that a server shows first, for what it saves. It
serves the fastest one, `defaults.decoder`, if cspd-tune has measured that on its kind of device.

`defaults.seconds` holds what `cspd-tune` measured with these decoders, seconds per image by kind of
device and number of images: `{'NVIDIA H200': {'8': ['mc_sjd(window=32)', 1.25]}}`.
"""

from collections.abc import Mapping
from typing import Any

from cspd_jax.core import fields

PLATFORMS = ('cpu', 'gpu', 'tpu')


def check(choice: Any, name: str = 'decoder') -> None:
  """Raises ValueError unless default decoders have a form above, with whatever specifications.

  `name` is 'decoder' or 'serve'.
  """
  by_device = choice if isinstance(choice, Mapping) else {'': choice}
  for device, entry in by_device.items():
    where = f'{name} for {device!r}' if device else name
    if isinstance(entry, Mapping) and device:
      if wrong := [size for size in entry if not _is_size(size)]:
        raise ValueError(f'{where} is set for {wrong[0]!r} images; it must be a whole number, at '
                         'least 1.')
      specifications = list(entry.values())
    else:
      specifications = [entry]
    for text in specifications:
      fields.require(isinstance(text, str) or not device and text is None, where, text,
                     'a text such as mc_sjd(window=32), or such texts by device, and there by '
                     'number of images')


def check_seconds(measured: Any) -> None:
  """Raises ValueError unless measurements are None or have the form that `seconds` reads."""
  by_device = {} if measured is None else measured
  for by_size in by_device.values() if isinstance(by_device, Mapping) else [None]:
    for entry in by_size.values() if isinstance(by_size, Mapping) else [None]:
      fields.require(
          isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
          and isinstance(entry[1], int | float), 'seconds', measured,
          'a decoder and its seconds per image, by device and number of images: run cspd-tune '
          'again')


def find(choice: Any, device: Any, batch_size: int) -> str | None:
  """Returns the specification for a JAX device and a number of images decoded together, or None."""
  if not isinstance(choice, Mapping):
    return choice
  for name in (device.device_kind, device.platform):
    sizes = _sizes(choice.get(name, {}))
    if fitting := [size for size in sizes if size <= batch_size]:
      return sizes[max(fitting)]
  return None


def joined(choice: Any, kind: str, decoders: Mapping[int, str]) -> dict[str, Any]:
  """Adds decoders for one kind of device, by number of images, to default decoders."""
  by_device = dict.fromkeys(PLATFORMS, choice) if isinstance(choice, str) else dict(choice or {})
  # Every measured size stays, so that another measurement changes only its own.
  sizes = dict(sorted((_sizes(by_device.get(kind, {})) | dict(decoders)).items()))
  by_device[kind] = sizes[1] if list(sizes) == [1] else {str(size): sizes[size] for size in sizes}
  return by_device


def with_seconds(measured: Any, kind: str, seconds: Mapping[int, tuple[str, float]]
                 ) -> dict[str, Any]:
  """Adds measurements on one kind of device, by number of images, to `defaults.seconds`."""
  added = {str(size): list(entry) for size, entry in sorted(seconds.items())}
  result = dict(measured or {})
  return result | {kind: {**result.get(kind, {}), **added}}


def seconds(measured: Any, kind: str, batch_size: int, specification: str) -> float | None:
  """Returns the seconds per image in `measured`, which may be None, with a decoder, or None."""
  decoder, value = (measured or {}).get(kind, {}).get(str(batch_size), (None, None))
  return value if decoder == specification else None


def different(decoders: Mapping[int, str]) -> dict[int, str]:
  """Sorts specifications by number of images and drops those equal to the one before."""
  changes: dict[int, str] = {}
  for size in sorted(decoders):
    if not changes or changes[max(changes)] != decoders[size]:
      changes[size] = decoders[size]
  return changes


def _sizes(entry: str | Mapping[str, str]) -> dict[int, str]:
  """Specifications by number of images, for one device."""
  if isinstance(entry, str):
    return {1: entry}
  return {int(size): text for size, text in entry.items()}


def _is_size(text: Any) -> bool:
  return isinstance(text, str) and text.isascii() and text.isdecimal() and int(text[:9]) > 0
