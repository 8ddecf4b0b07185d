"""When kernels for GPUs are used, once they were tried out; and which ones XLA has chosen."""

import functools
import pathlib

import jax
import numpy as np
import pytest

from cspd_jax.continuous.chains import draft_loop
from cspd_jax.core.kernels import chosen
from cspd_jax.models import attention, fused_head

# A module, its environment variable, and a trial that this machine can run.
_MODULES = {
    'attention': (attention, 'CSPD_JAX_ATTENTION',
                  functools.partial(attention.difference, implementation='xla')),
    'head': (fused_head, 'CSPD_JAX_HEAD',
             functools.partial(fused_head.difference, interpret=True)),
    'drafts': (draft_loop, 'CSPD_JAX_HEAD',
               functools.partial(draft_loop.difference, interpret=True))}


@pytest.fixture(name='kernels', params=_MODULES)
def _kernels(request):
  module, *rest = _MODULES[request.param]
  module.is_available.cache_clear()
  yield module, *rest
  module.is_available.cache_clear()


def _has_gpu(monkeypatch, module, difference):
  """Gives the process a device on which a trial has this result."""
  monkeypatch.setattr(jax, 'local_devices', lambda backend: [jax.devices()[0]])
  monkeypatch.setattr(module, 'difference', difference)


def test_no_kernels_without_a_gpu(kernels):
  module, *_ = kernels
  assert not module.is_available()


@pytest.mark.parametrize('error', [0.5, 1.5, np.nan])
def test_kernels_are_used_if_they_agree(monkeypatch, kernels, error):
  module, *_ = kernels
  _has_gpu(monkeypatch, module, lambda device: error * module._TOLERANCE)
  assert module.is_available() == (error < 1)


def test_kernels_that_do_not_run_are_not_used(monkeypatch, kernels, caplog):
  def fail(device):
    raise RuntimeError('cuDNN is not detected.')

  module, *_ = kernels
  _has_gpu(monkeypatch, module, fail)
  with caplog.at_level('WARNING', logger='absl'):
    assert not module.is_available()
  assert 'cuDNN is not detected' in caplog.text


def test_the_environment_disables_kernels(monkeypatch, kernels):
  module, variable, _ = kernels
  _has_gpu(monkeypatch, module, lambda device: 0.0)
  monkeypatch.setenv(variable, 'plain')
  assert not module.is_available()
  module.is_available.cache_clear()
  monkeypatch.setenv(variable, 'fast')
  with pytest.raises(ValueError, match=f"{variable} is 'fast'; it must be one of auto, plain"):
    module.is_available()


@pytest.mark.slow
def test_the_trial_runs_outside_of_traces(monkeypatch, kernels):
  module, _, trial = kernels
  _has_gpu(monkeypatch, module, trial)

  @jax.jit
  def traced(x):
    def body(carry):
      assert module.is_available()
      return carry + 1
    with jax.numpy_dtype_promotion('strict'), jax.default_matmul_precision('highest'):
      return jax.lax.while_loop(lambda carry: carry < 3, body, x)

  assert traced(0) == 3


# Programs with one product, compiled for an H200: a fusion of Triton, and a call of a library.
_FUSION, _CALL = ((pathlib.Path(__file__).parent / 'recorded' / f'h200_{name}.hlo').read_text()
                  for name in ('fusion', 'library_call'))


@pytest.mark.parametrize('text', [_FUSION, _CALL])
def test_equal_kernels_are_equal_texts_whatever_surrounds_them(text):
  product, = chosen(text)
  for old, new in (('%x.1', '%y.7'), ('gemm_fusion_dot', 'fusion.3'), ('stack_frame_id=3', ''),
                   ('"operation_queue_id":"0"', '"operation_queue_id":"2"'),
                   ('"reification_cost":[]', '"reification_cost":[{"end_to_end_cycles":5}]')):
    assert chosen(text.replace(old, new)) == {product}, old
  assert 'op_name' not in product and 'queue' not in product and '%main' not in product
  assert {product} < chosen(_FUSION + _CALL)


@pytest.mark.parametrize('text, old, new', [
    (_FUSION, '"num_warps":"2"', '"num_warps":"4"'),
    (_FUSION, '"sizes":["1","8","16"]', '"sizes":["1","16","16"]'),
    (_FUSION, '"sizes":["16"]', '"sizes":["32"]'), (_FUSION, '__triton_nested', '__other'),
    (_FUSION, '[4,', '[2,'), (_FUSION, 'bf16', 'f16'),
    (_CALL, '"selected_algorithm":"0"', '"selected_algorithm":"21"'),
    (_CALL, '__cublas$lt$matmul', '__cublas$gemm')])
def test_another_kernel_is_another_text(text, old, new):
  assert len(chosen(text) - chosen(text.replace(old, new))) == 1
  assert len(chosen(_FUSION) - chosen(_CALL)) == 1


def test_a_program_of_a_cpu_has_no_kernels():
  text = jax.jit(lambda x: x @ x).lower(np.ones((4, 4))).compile().as_text()
  assert 'dot(' in text and not chosen(text)
