"""Checks on the accelerator of this machine; `pytest -m device -n 0`."""

import pytest

from cspd_jax.core import programs
from cspd_jax.verify import device
from experiments.stages import checks
from experiments.stages.piece import Piece

pytestmark = pytest.mark.device


@pytest.fixture(name='piece')
def _piece(tmp_path):
  return Piece(tmp_path, 3600)


def test_kernels_equal_plain_operations_and_are_used():
  if not programs.on_cuda():
    pytest.skip('the kernels are for NVIDIA GPUs')
  results = list(device.check())
  assert len(results) == 4 and all(
      result.verdict == 'passed' and result.numbers['used'] for result in results), results


@pytest.mark.parametrize('name', ['emoji', 'demo'])
def test_seed_exact_images(piece, name):
  checks.seeds(piece, name, 64)
  rows = piece.rows()
  assert len(rows) == 6 and not any(row['failed'] for row in rows), rows
  assert all(row['in_window'] == 1 for row in rows if row['guarantee'] == 'seed-exact'), rows


def test_distributions_of_exact_decoders(piece):
  checks.distributions(piece)
  assert len(piece.rows()) > 10, piece.rows()
  assert all(row['result'] == 'passed' for row in piece.rows()), piece.rows()
