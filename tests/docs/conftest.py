"""Where code of pages and notebooks runs."""

import contextlib
import functools
from unittest import mock

import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.decoding import specification
from cspd_jax.files import store


@functools.cache
def _shipped(name):
  """A shipped model, loaded once, with all that is compiled for it."""
  return families.load(name)


def _load(name_or_folder=store.DEFAULT, **options):
  if options or str(name_or_folder) not in families.shipped():
    return families.load(name_or_folder, **options)
  return _shipped(str(name_or_folder))


@pytest.fixture
def place(monkeypatch, tmp_path):
  """A folder of its own to run in; what is registered there is forgotten afterwards."""
  monkeypatch.setattr(cspd_jax, 'load', _load)
  monkeypatch.chdir(tmp_path)
  with contextlib.ExitStack() as stack:
    for known in (families.FAMILIES, store.KINDS, specification.DRAFTERS, specification.VERIFIERS,
                  specification.DECODERS):
      stack.enter_context(mock.patch.dict(known))
    yield tmp_path
