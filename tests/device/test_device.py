"""Checks on the accelerator of this machine; `pytest -m device -n 0`."""

import jax
import pytest

from cspd_jax.core import programs
from experiments.stages import checks, images
from experiments.stages.piece import Piece

pytestmark = pytest.mark.device


@pytest.fixture(name='piece')
def _piece(tmp_path):
  return Piece(tmp_path, 3600)


@pytest.mark.parametrize('name', checks.KERNELS)
def test_kernels_equal_plain_operations_and_are_used(name):
  if not programs.on_cuda():
    pytest.skip('the kernels are for NVIDIA GPUs')
  assert checks.KERNELS[name].difference(jax.devices()[0]) < 0.02
  assert checks.KERNELS[name].is_available()


def test_products_with_int8_matrices():
  assert checks.int8_difference() < 2e-3  # A GPU multiplies float32 numbers in parts.


@pytest.mark.parametrize('name', ['emoji', 'demo'])
def test_seed_exact_images(piece, name):
  images.seeds(piece, name, 64)
  rows = piece.rows()
  assert len(rows) == 6, rows
  assert all(row['in_window'] == 1 for row in rows if row['guarantee'] == 'seed-exact'), rows
  # Whatever was chosen, equal kernels draw equal images.
  assert all(row['guarantee'] == 'seed-exact' for row in rows
             if 'tree' not in row['decoder'] and not row['other_kernels']), rows


def test_distributions_of_exact_decoders(piece):
  checks.exact(piece)
  assert len(piece.rows()) > 10 and all(row['pass'] for row in piece.rows()), piece.rows()
