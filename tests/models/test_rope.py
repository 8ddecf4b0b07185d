"""Rotary frequencies are those of the published programs, to the last bit."""

import zlib

import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import transformer as rope


def _published(count, base):
  torch = pytest.importorskip('torch')
  return (1.0 / (base ** (torch.arange(0, 2 * count, 2).float() / (2 * count)))).numpy()


@pytest.mark.parametrize('count, base, checksum', [
    (16, 1e4, 0x617aacd4), (64, 1e4, 0xe506291f), (32, 1e6, 0x1e8de795)])
def test_frequencies_are_the_recorded_ones(count, base, checksum):
  """The checksums are those of PyTorch 2.13 for heads of LlamaGen, Chameleon and a small Emu3."""
  assert zlib.crc32(rope.frequencies(count, base).tobytes()) == checksum


@pytest.mark.parametrize('base', [1e4, 1e6])
def test_frequencies_are_those_of_pytorch(base):
  """PyTorch's power rounds up to 2 of 128 numbers the other way, depending on the processor."""
  for count in (16, 20, 25, 32, 40, 64, 128):
    turns, published = rope.frequencies(count, base), _published(count, base)
    assert turns.dtype == np.float32
    assert np.sum(turns != published) <= count // 64


@pytest.mark.slow
@pytest.mark.parametrize('base', [1e4, 1e6])
def test_rotations_far_into_the_sequence_are_those_of_pytorch(base):
  """Frequencies that are off by a bit give cosines that are off by 1e-3 here."""
  angles = np.float32(9300) * _published(64, base)
  tables = rope.sequence_rope(128, base)(jnp.array([[9300]]))
  near = np.float64([np.abs(np.asarray(table)[0, 0] - function(angles.astype(np.float64)))
                     for table, function in ((tables.cos, np.cos), (tables.sin, np.sin))])
  assert np.sum(near.max(axis=0) > 1e-6) <= 1  # The one frequency that PyTorch rounds otherwise.
