"""What the calls of the tables need, made when the first row asks for it."""

import functools
import pathlib

import pytest

import cspd_jax
from tests.families import tiny
from tests.generation import test_cascade
from tests.serve import tiny as served


class Models:
  """Models by name, and a folder `tmp` of each test."""

  tmp: pathlib.Path

  def __init__(self, folder):
    self.beach = tiny.saved(folder / 'beach')

  demo = functools.cached_property(lambda self: cspd_jax.load('demo'))
  emoji = functools.cached_property(lambda self: cspd_jax.load('emoji'))
  mar = functools.cached_property(lambda self: cspd_jax.load('mar_demo'))
  model = functools.cached_property(lambda self: cspd_jax.load(self.beach))
  pair = functools.cached_property(lambda self: test_cascade.pair())
  served = functools.cached_property(lambda self: served.model())


@pytest.fixture(scope='session')
def _models(tmp_path_factory):
  return Models(tmp_path_factory.mktemp('models'))


@pytest.fixture
def at(_models, tmp_path):
  _models.tmp = tmp_path
  return _models
