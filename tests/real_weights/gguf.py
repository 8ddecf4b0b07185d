"""Reads GGUF files: metadata, and tensors of the types that SmolLM2's file has.

Facts of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Nothing is executed,
and sizes are those of arrays within the file.
"""

import struct
from typing import Any

import numpy as np

# Metadata types of fixed size, by number.
_SCALARS = dict(enumerate(['B', 'b', 'H', 'h', 'I', 'i', 'f', '?'])) | {10: 'Q', 11: 'q', 12: 'd'}
_STRING, _ARRAY = 8, 9
_BLOCK = 32


class _Reader:
  """A position in a file."""

  def __init__(self, data: np.ndarray):
    self.data, self.position = data, 0

  def bytes(self, size: int) -> bytes:
    """Returns the next bytes."""
    part = self.data[self.position:self.position + size]
    assert len(part) == size, 'the file is cut off'
    self.position += size
    return part.tobytes()

  def scalar(self, code: str) -> Any:
    """Returns the next number."""
    return struct.unpack('<' + code, self.bytes(struct.calcsize('<' + code)))[0]

  def string(self) -> str:
    """Returns the next string."""
    return self.bytes(self.scalar('Q')).decode()

  def value(self, kind: int) -> Any:
    """Returns the next value of a metadata type."""
    if kind == _STRING:
      return self.string()
    if kind == _ARRAY:
      kind, count = self.scalar('I'), self.scalar('Q')
      return [self.value(kind) for _ in range(count)]
    return self.scalar(_SCALARS[kind])


def _float32(data: np.ndarray) -> np.ndarray:
  return data.view(np.float32)


def _q4_1(data: np.ndarray) -> np.ndarray:
  """Blocks of 32 numbers `q d + m`: `d` and `m` in 16 bits, then the low halves, then the high."""
  blocks = data.reshape(-1, 4 + _BLOCK // 2)
  scale, least = blocks[:, :4].copy().view(np.float16).astype(np.float32).T[:, :, None]
  packed = blocks[:, 4:]
  return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32) * scale + least


def _q8_0(data: np.ndarray) -> np.ndarray:
  """Blocks of 32 numbers `q d`: `d` in 16 bits, then signed bytes."""
  blocks = data.reshape(-1, 2 + _BLOCK)
  scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
  return blocks[:, 2:].view(np.int8).astype(np.float32) * scale


# Bytes of a block, numbers of a block and how to read it, by type.
_TYPES = {0: (4, 1, _float32), 3: (20, _BLOCK, _q4_1), 8: (34, _BLOCK, _q8_0)}


def read(path: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Returns metadata, and float32 tensors by name, in C order: output axis first."""
  reader = _Reader(np.memmap(path, np.uint8, 'r'))
  assert reader.bytes(4) == b'GGUF' and reader.scalar('I') == 3
  num_tensors, num_entries = reader.scalar('Q'), reader.scalar('Q')
  metadata = {reader.string(): reader.value(reader.scalar('I')) for _ in range(num_entries)}
  entries = []
  for _ in range(num_tensors):
    name, rank = reader.string(), reader.scalar('I')
    shape = tuple(reader.scalar('Q') for _ in range(rank))[::-1]
    entries.append((name, shape, reader.scalar('I'), reader.scalar('Q')))
  align = metadata.get('general.alignment', 32)
  start = -(-reader.position // align) * align
  tensors = {}
  for name, shape, kind, offset in entries:
    size, numbers, convert = _TYPES[kind]
    length = int(np.prod(shape)) // numbers * size
    data = np.asarray(reader.data[start + offset:start + offset + length])
    tensors[name] = np.ascontiguousarray(convert(data)).reshape(shape)
  return metadata, tensors
