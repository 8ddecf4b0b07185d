"""Commands store compiled programs in a folder of their own, or where JAX's settings say."""

import resource
import warnings

import jax
import pytest
from jax._src import compilation_cache

from cspd_jax.cli import compiled


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
  """JAX without a cache, and a home folder for the test."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  names = ('jax_compilation_cache_dir', 'jax_enable_compilation_cache',
           'jax_persistent_cache_min_compile_time_secs',
           'jax_persistent_cache_min_entry_size_bytes')
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


@pytest.fixture(name='start')
def _start(tmp_path):
  """A function that compiles a program as a new process does, with a cache in `tmp_path`."""
  def start():
    compilation_cache.reset_cache()
    jax.clear_caches()
    compiled.enable()
    with warnings.catch_warnings():
      warnings.simplefilter('always')
      assert jax.jit(lambda x: x + 1)(1) == 2

  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
  jax.config.update('jax_compilation_cache_dir', str(tmp_path))
  yield start
  compilation_cache.reset_cache()


@pytest.mark.parametrize('damage', [lambda data: b'', lambda data: data[:len(data) // 2],
                                    lambda data: data[:-1] + bytes([data[-1] ^ 1])],
                         ids=['empty', 'cut', 'flipped'])
def test_a_damaged_entry_is_replaced(tmp_path, capsys, start, damage):
  """JAX compiled the program at every start, and warned."""
  start()
  path, = tmp_path.glob('*lambda*-cache')
  path.write_bytes(damage(path.read_bytes()))
  others = set(tmp_path.iterdir())
  start()
  assert compilation_cache.decompress_executable(path.read_bytes())
  assert others == set(tmp_path.iterdir()) and 'Error' not in capsys.readouterr().err
  path.unlink()
  path.mkdir()
  with pytest.warns(UserWarning, match='Error reading persistent'):  # It cannot be repaired.
    start()


@pytest.mark.slow
def test_a_full_disk_leaves_no_cut_entry(tmp_path, start):
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
  try:
    with pytest.warns(UserWarning, match='Error writing persistent .* File too large'):
      start()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert not list(tmp_path.glob('*-cache'))
