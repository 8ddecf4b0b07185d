"""What all tests share: compiled programs, and their order."""

import contextlib
import functools
import gc
import importlib.metadata
import os
import pathlib
import re
import time
from unittest import mock

import jax
import pytest

from cspd_jax.cli import compiled
from cspd_jax.core import compilations

# Files with expensive fixtures or many slow tests.
_LONG = ('decoding', 'testing', 'commands', 'training')


# Most of the time goes to compiling programs that run once.
_QUICK = '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'
# XLA refuses flags that it does not know, and later versions may not know these.
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  # Parts compiled in parallel would take more time in all, and the workers fill the machine.
  _QUICK += ' --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'

# Seconds for which compiled programs are kept.
_KEPT = 7 * 24 * 3600
# Tracing makes objects by the thousands, and few of them are garbage.
_OBJECTS_PER_COLLECTION = 100_000
# Linux ends a process with more than 65,530; a compiled program takes hundreds.
_MOST_MAPS = 30_000


def pytest_configure(config):
  """Lets the workers, later runs, and programs that tests start share what they compile."""
  gc.set_threshold(_OBJECTS_PER_COLLECTION, 20, 20)
  compilations._PATIENCE = 600.0  # On a busy machine, lines on slow work would mix with messages.
  # Python reads it at its start. Programs that tests start would print warnings of other packages.
  os.environ.pop('PYTHONWARNDEFAULTENCODING', None)
  left_out = re.compile('not (slow|compiled)')
  chosen = left_out.sub('', config.option.markexpr or '')
  if not re.search('slow|compiled', chosen):
    os.environ.setdefault('XLA_FLAGS', _QUICK)
  if 'compiled' in chosen and jax.config.jax_platforms is None:
    # Files that are imported before the first test would make the wheels look for their devices.
    jax.config.update('jax_platforms', 'cpu')
  # XLA's threads would each keep a part of the memory that they once used.
  os.environ.setdefault('MALLOC_ARENA_MAX', '2')
  if 'JAX_COMPILATION_CACHE_DIR' in os.environ:  # The caller's, or that of the first process.
    return
  folder = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser()
  folder = folder / 'cspd_jax' / 'tests' / compiled.processor()
  folder.mkdir(parents=True, exist_ok=True)
  for path in folder.iterdir():
    with contextlib.suppress(OSError):  # Another run may remove it.
      if path.stat().st_mtime < time.time() - _KEPT:
        path.unlink()
  settings = dict(jax_compilation_cache_dir=str(folder),
                  jax_persistent_cache_min_compile_time_secs=0.5,
                  jax_persistent_cache_min_entry_size_bytes=0)
  for name, value in settings.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)


def pytest_collection_finish():
  """Excludes what is imported from garbage collection, which runs after each file."""
  gc.collect()
  gc.freeze()


def pytest_runtest_teardown(item, nextitem):
  """Forgets the programs of a file after its last test, or when a worker holds too many."""
  if nextitem is None or nextitem.path != item.path or _maps() > _MOST_MAPS:
    jax.clear_caches()
    gc.collect()


def _maps():
  """Returns how many parts the memory of this process has, where the system tells."""
  with contextlib.suppress(OSError):
    return pathlib.Path('/proc/self/maps').read_bytes().count(b'\n')
  return 0


def pytest_collection_modifyitems(items):
  """Long files first, so that no worker is left alone with one of them at the end."""
  items.sort(key=lambda item: item.path.parent.name not in _LONG)


@pytest.fixture
def precise():
  """Matrix products of float32 in full precision."""
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture
def float64():
  """Numbers of 64 bits."""
  with jax.enable_x64(True):
    yield


@pytest.fixture(scope='module')
def load_once():
  """Models are loaded once for all tests of a file, and keep what they have compiled."""
  import cspd_jax

  with mock.patch.object(cspd_jax, 'load', functools.lru_cache(cspd_jax.load)):
    yield


@pytest.fixture(scope='module')
def beach(tmp_path_factory):
  """The folder of the tiny model `beach`, see `tests.families.tiny`."""
  from tests.families import tiny

  return tiny.saved(tmp_path_factory.mktemp('models') / 'beach')


@pytest.fixture(scope='module')
def llamagens(tmp_path_factory):
  """A folder with tiny models of classes, see `tests.builders.models`."""
  from tests.builders import models

  models.llamagens(folder := tmp_path_factory.mktemp('models'))
  return folder


@pytest.fixture(scope='module')
def mars(tmp_path_factory):
  """A folder with tiny models of continuous tokens, see `tests.builders.models`."""
  from tests.builders import models

  models.mars(folder := tmp_path_factory.mktemp('models'))
  return folder
