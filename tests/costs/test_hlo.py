"""`costs.hlo` and `costs.predicted`: short texts, programs for a CPU, and what a card measured."""

import json
import pathlib
import textwrap

import jax
import jax.numpy as jnp
import pytest

from experiments.costs import devices, hlo, predicted

_REPORTS = pathlib.Path(__file__).parents[2] / 'docs' / 'reports'


def _program(step, **options):
  """A loop over a product, a row of a cache of 4 MiB, and what `step` makes of the cache."""
  def run(weights, x):
    def body(carry):
      i, cache, x = carry
      x = jnp.tanh(x @ weights)
      cache = jax.lax.dynamic_update_slice(cache, x[:, None], (0, i, 0))
      return i + 1, step(cache), x

    start = (0, jnp.zeros((4, 1024, 256)), x)
    return jax.lax.while_loop(lambda carry: carry[0] < 64, body, start)[1]

  text = jax.jit(run).lower(jnp.zeros((256, 256)), jnp.zeros((4, 256))).compile().as_text()
  return hlo.Program(text, **options).round()


def test_a_cache_that_is_updated_in_place():
  cost = _program(lambda cache: cache)
  weights = 4 * 256 * 256
  assert weights <= cost.bytes < 1.2 * weights, 'not the cache'
  assert cost.flops == pytest.approx(2 * 4 * 256 * 256, rel=0.05)
  assert (cost.copies, cost.conditionals, cost.loops) == (0, 0, 0) and 1 <= cost.kernels < 12


def test_products_that_last_longer_than_their_bytes():
  cost = _program(lambda cache: cache, balance=1)
  assert cost.lasting > cost.bytes
  assert cost.lasting == pytest.approx(2 * 4 * 256 * 256, rel=0.2)
  assert _program(lambda cache: cache, balance=1e6).lasting == pytest.approx(cost.bytes)


def test_a_cache_that_is_copied():
  cost = _program(lambda cache: jnp.swapaxes(jnp.swapaxes(cache, 0, 1)[::-1], 0, 1))
  assert cost.copies >= 1 and cost.bytes > 2 * 4 * 4 * 1024 * 256


@pytest.mark.parametrize('iterations', [1, 2.5])
def test_loops_inside_of_a_round(iterations):
  """One of three turns, and one that ends by values."""
  def run(x):
    known = lambda x: jax.lax.fori_loop(0, 3, lambda i, x: x @ x, x)
    inner = lambda x: jax.lax.while_loop(lambda x: jnp.sum(x) < 1e3, lambda x: x @ x, x)
    step = lambda carry: (carry[0] + 1, inner(known(carry[1])) @ carry[1])
    return jax.lax.while_loop(lambda carry: carry[1][0, 0] < carry[0], step, (0, x))

  text = jax.jit(run).lower(jnp.ones((64, 64))).compile().as_text()
  cost = hlo.Program(text, iterations).round()
  assert cost.loops == 2
  assert cost.flops == pytest.approx((1 + 3 + iterations) * 2 * 64**3, rel=0.05)


def _loop(lines):
  """The cost of a round with these lines over arrays of [2,64,2,8] in 16 bits."""
  return hlo.Program(textwrap.dedent('''\
      HloModule decode

      %part (t: bf16[2,64,2,8]) -> bf16[2,64,2,8] {
        %t = bf16[2,64,2,8]{3,2,1,0} parameter(0)
        ROOT %u = bf16[2,64,2,8]{3,2,1,0} negate(%t)
      }

      %body (state: (s32[], bf16[2,64,2,8])) -> (s32[], bf16[2,64,2,8]) {
        %state = (s32[], bf16[2,64,2,8]{3,2,1,0}) parameter(0)
        %i = s32[] get-tuple-element(%state), index=0
        %x = bf16[2,64,2,8]{3,2,1,0} get-tuple-element(%state), index=1
      LINES
        ROOT %after = (s32[], bf16[2,64,2,8]{3,2,1,0}) tuple(%i, %y)
      }

      %more (state.1: (s32[], bf16[2,64,2,8])) -> pred[] {
        %state.1 = (s32[], bf16[2,64,2,8]{3,2,1,0}) parameter(0)
        %j = s32[] get-tuple-element(%state.1), index=0
        %last = s32[] constant(9)
        ROOT %less = pred[] compare(%j, %last), direction=LT
      }

      ENTRY %main (begin: (s32[], bf16[2,64,2,8])) -> (s32[], bf16[2,64,2,8]) {
        %begin = (s32[], bf16[2,64,2,8]{3,2,1,0}) parameter(0)
        ROOT %loop = (s32[], bf16[2,64,2,8]{3,2,1,0}) while(%begin), condition=%more, body=%body
      }
      ''').replace('LINES', lines)).round()


_WHOLE = 2 * 64 * 2 * 8 * 2


@pytest.mark.parametrize('mask_type, read', [('PADDING', 2), ('NO_MASK', 3)])
def test_fused_attention_reads_live_slots(mask_type, read):
  cost = _loop('  %y = bf16[2,64,2,8]{3,2,1,0} custom-call(%x, %x, %x), '
               f'custom_call_target="__cudnn$fmha", backend_config={{"mask_type": "{mask_type}"}}')
  assert cost.kernels == 1 and cost.bytes == pytest.approx((read + 1) * _WHOLE, abs=16)


def test_annotations_are_no_kernels():
  cost = _loop('  %y = bf16[2,64,2,8]{3,2,1,0} custom-call(%x), '
               'custom_call_target="ConcatBitcast"')
  assert cost.kernels == 0 and cost.bytes == pytest.approx(0, abs=16)


def test_branches_are_counted():
  cost = _loop('  %zero = s32[] constant(0)\n  %b = pred[] compare(%i, %zero), direction=EQ\n'
               '  %y = bf16[2,64,2,8]{3,2,1,0} conditional(%b, %x, %x), true_computation=%part, '
               'false_computation=%part')
  assert (cost.conditionals, cost.kernels) == (1, 1)
  assert cost.bytes >= 2 * _WHOLE


def test_a_program_without_a_loop():
  text = jax.jit(lambda x: x + 1).lower(jnp.zeros(3)).compile().as_text()
  with pytest.raises(ValueError, match='no loop'):
    hlo.Program(text).round()


def test_more_layers_and_seconds():
  device = devices.Accelerator(1e9, 1e12, 1e-6, 0, '', '', ())
  few, more = hlo.Cost(lasting=1e6, flops=1e6, kernels=8), hlo.Cost(lasting=3e6, kernels=9)
  whole = predicted.extrapolated(few, more, 10)
  assert (whole.lasting, whole.flops, whole.kernels) == (21e6, -9e6, 18)
  assert predicted.seconds(whole, device) == pytest.approx(21e-3 + 18e-6)


@pytest.mark.parametrize('name', ['accelerator_xl', 'accelerator_large'])
def test_predictions_are_close_to_what_a_card_measured(name):
  """With the rates that it measured on itself."""
  report = json.loads((_REPORTS / f'{name}.json').read_text())
  card = devices.ACCELERATORS['h200']._replace(**report['facts']['rates'])
  rows = [row for row in report['rows'] if 'predicted_ms' in row]
  assert len(rows) >= 4
  for row in rows:
    # One image at once, so that no kernel multiplies for longer than it reads.
    cost = hlo.Cost(lasting=row['bytes'], kernels=row['kernels'])
    ratio = 1e-3 * row['ms'] / predicted.seconds(cost, card)
    assert 0.8 < ratio < 1.35, row['decoder']
