"""What all tests share: compiled programs, and their order."""

import gc
import importlib.metadata
import os
import re
import shutil
import tempfile

import pytest

# Files with expensive fixtures or many slow tests.
_LONG = ('docs', 'experiments', 'testing', 'training')


# Most of the time goes to compiling programs that run once.
_QUICK = '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'
# XLA refuses flags that it does not know, and later versions do not know this one.
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  _QUICK += ' --xla_cpu_use_fusion_emitters=false'

# Tracing makes objects by the thousands, and few of them are garbage.
_OBJECTS_PER_COLLECTION = 100_000


def pytest_configure(config):
  """Lets the workers, and the programs that tests start, share what they compile."""
  gc.set_threshold(_OBJECTS_PER_COLLECTION, 20, 20)
  left_out = re.compile('not (slow|compiled)')
  if not re.search('slow|compiled', left_out.sub('', config.option.markexpr or '')):
    os.environ.setdefault('XLA_FLAGS', _QUICK)
  if 'JAX_COMPILATION_CACHE_DIR' in os.environ:  # The caller's, or that of the first process.
    return
  folder = tempfile.mkdtemp(prefix='compiled_programs_')
  os.environ |= dict(JAX_COMPILATION_CACHE_DIR=folder,
                     JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0.5',
                     JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES='0')
  config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(scope='session', autouse=True)
def _quiet_programs():
  """Programs that tests start do not warn about the encodings that other packages leave out."""
  os.environ.pop('PYTHONWARNDEFAULTENCODING', None)


def pytest_collection_modifyitems(items):
  """Long files first, so that no worker is left alone with one of them at the end."""
  items.sort(key=lambda item: item.path.parent.name not in _LONG)
