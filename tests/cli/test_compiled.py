"""Commands store compiled programs in a folder of their own, or where JAX's settings say."""

import jax
import pytest

from cspd_jax.cli import compiled


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
  """JAX without a cache, and a home folder for the test."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  names = ('jax_compilation_cache_dir', 'jax_enable_compilation_cache')
  before = {name: getattr(jax.config, name) for name in names}
  jax.config.update('jax_compilation_cache_dir', None)
  jax.config.update('jax_enable_compilation_cache', True)
  yield
  for name, value in before.items():
    jax.config.update(name, value)


def test_a_folder_per_processor(tmp_path):
  compiled.enable()
  folder, = (tmp_path / 'cache' / 'cspd_jax' / 'compiled').iterdir()
  assert jax.config.jax_compilation_cache_dir == str(folder)


def test_the_users_folder_stays(tmp_path):
  jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'mine'))
  compiled.enable()
  assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'mine')


def test_it_can_be_turned_off(tmp_path):
  jax.config.update('jax_enable_compilation_cache', False)
  compiled.enable()
  assert jax.config.jax_compilation_cache_dir is None and not (tmp_path / 'cache').exists()


def test_without_a_folder_that_can_be_written_nothing_is_stored(tmp_path):
  (tmp_path / 'cache').write_text('a file')
  compiled.enable()
  assert jax.config.jax_compilation_cache_dir is None
