"""Fixtures of the tests of the server."""

import pytest


@pytest.fixture(scope='session')
def model():
  """A model whose images are decoded in no time; it keeps what is compiled for all tests."""
  from tests.serve import tiny
  return tiny.model()


@pytest.fixture(scope='module')
def signals_left_alone():
  """Lets the servers of a module run in threads."""
  from tests.serve import running  # Imports the packages of the server.
  with running.without_signals():
    yield
