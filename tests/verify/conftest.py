"""Fixtures of the tests of `cspd-verify`."""

import pytest

import cspd_jax


@pytest.fixture(scope='session')
def emoji():
  return cspd_jax.load('emoji', dtype='float32')


def verdicts(results):
  """The verdicts of results by name."""
  return {result.name: result.verdict for result in results}
