"""Optional packages that are absent or broken."""

import sys

import pytest

from cspd_jax.cli import exits
from cspd_jax.core import packages
from cspd_jax.text import bpe

BROKEN = {
    'absent': (None, 'is not installed'),
    'another': ('import no_such_package_at_all', "cannot be imported (ModuleNotFoundError: No mod"),
    'library': ("raise ImportError('libx.so:\\n no such file')",
                'cannot be imported (ImportError: libx.so: no such file)'),
    'system': ("raise OSError('wrong ELF class')", 'cannot be imported (OSError: wrong ELF class)'),
    'panic': ("class PanicException(BaseException): pass\nraise PanicException('at src/lib.rs')",
              'cannot be imported (PanicException: at src/lib.rs)')}


@pytest.fixture(params=BROKEN)
def broken(request, tmp_path, monkeypatch):
  """Replaces a package by one that fails in a certain way; returns the reason."""
  source, reason = BROKEN[request.param]
  monkeypatch.syspath_prepend(tmp_path)

  def replace(name):
    for module in [*sys.modules]:
      if module.split('.')[0] == name:
        monkeypatch.delitem(sys.modules, module)
    if source is None:
      monkeypatch.setitem(sys.modules, name, None)
    else:
      (tmp_path / f'{name}.py').write_text(source)
    return reason

  return replace


def test_the_reason_is_one_line(broken):
  reason = broken('abacus')
  with pytest.raises(ImportError) as caught:
    packages.load('abacus')
  assert str(caught.value).startswith(f'abacus {reason}') and '\n' not in str(caught.value)


@pytest.mark.parametrize('name', ['tokenizers', 'tiktoken', 'ftfy'])
def test_packages_of_words_name_their_extra(broken, capsys, name):
  reason = broken(name)
  assert exits.code_of(lambda: bpe.import_package(name)) == 2
  err = capsys.readouterr().err
  assert err.startswith(f'error: Text prompts need the package {name}, but {name} {reason}')
  assert "'.[text]'" in err and err.count('\n') == 1


def test_an_interrupt_passes(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / 'abacus.py').write_text('raise KeyboardInterrupt')
  with pytest.raises(KeyboardInterrupt):
    packages.load('abacus')
