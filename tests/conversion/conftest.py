"""Fixtures of the tests of conversion."""

import importlib

import pytest

from tests.conversion import hub_server


@pytest.fixture
def hub(tmp_path, monkeypatch):
  """A stand-in for the Hugging Face Hub, with a cache of its own."""
  pytest.importorskip('huggingface_hub')
  constants = importlib.import_module('huggingface_hub.constants')
  with hub_server.running({}) as server:
    for name, value in dict(
        ENDPOINT=server.url, HF_HUB_CACHE=str(tmp_path / 'cache'), HF_HUB_DISABLE_XET=True,
        HUGGINGFACE_CO_URL_TEMPLATE=f'{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}',
        HF_HUB_OFFLINE=False).items():
      monkeypatch.setattr(constants, name, value)
    yield server
