"""`costs.hlo`, `instructions`, `rounds` and `predicted` on a program that XLA compiled for TPUs.

The loop reads a weight in fast memory and another that is copied there in two parts, which an
annotation joins; writes its cache back in parallel with the kernels; and contains a loop whose
number of iterations follows only from its condition.
"""

import textwrap

import pytest

from experiments.costs import devices, hlo, instructions, predicted, rounds

_TEXT = textwrap.dedent('''\
    HloModule jit_decode, is_scheduled=true

    %turn (t: (s32[], f32[16,256])) -> (s32[], f32[16,256]) {
      %t = (s32[]{:T(128)}, f32[16,256]{1,0:T(8,128)}) parameter(0)
      %turns = s32[]{:T(128)} get-tuple-element(%t), index=0
      %x = f32[16,256]{1,0:T(8,128)} get-tuple-element(%t), index=1
      %one = s32[]{:T(128)} constant(1)
      %more.1 = s32[]{:T(128)} add(%turns, %one)
      %negate = f32[16,256]{1,0:T(8,128)} negate(%x)
      ROOT %tuple.1 = (s32[]{:T(128)}, f32[16,256]{1,0:T(8,128)}) tuple(%more.1, %negate)
    }

    %more (t.1: (s32[], f32[16,256])) -> pred[] {
      %t.1 = (s32[]{:T(128)}, f32[16,256]{1,0:T(8,128)}) parameter(0)
      %turns.1 = s32[]{:T(128)} get-tuple-element(%t.1), index=0
      %five = s32[]{:T(128)} constant(5)
      ROOT %less = pred[]{:T(512)} compare(%turns.1, %five), direction=LT
    }

    %body (state: (s32[], bf16[256,256], bf16[256,256], bf16[2,256,128], f32[16,256])) -> \
    (s32[], bf16[256,256], bf16[256,256], bf16[2,256,128], f32[16,256]) {
      %state = (s32[]{:T(128)}, bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, \
    bf16[256,256]{1,0:T(8,128)(2,1)}, bf16[2,256,128]{2,1,0:T(8,128)(2,1)}, \
    f32[16,256]{1,0:T(8,128)}) parameter(0)
      %i = s32[]{:T(128)} get-tuple-element(%state), index=0
      %near = bf16[256,256]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%state), index=1
      %far = bf16[256,256]{1,0:T(8,128)(2,1)} get-tuple-element(%state), index=2
      %cache = bf16[2,256,128]{2,1,0:T(8,128)(2,1)} get-tuple-element(%state), index=3
      %token = f32[16,256]{1,0:T(8,128)} get-tuple-element(%state), index=4
      %start.1 = ((bf16[256,256]{1,0:T(8,128)(2,1)}), bf16[128,256]{1,0:T(8,128)(2,1)S(1)}, \
    s32[]{:S(2)}) slice-start(%far), slice={[0:128], [0:256]}
      %start.2 = ((bf16[256,256]{1,0:T(8,128)(2,1)}), bf16[128,256]{1,0:T(8,128)(2,1)S(1)}, \
    s32[]{:S(2)}) slice-start(%far), slice={[128:256], [0:256]}
      %product = f32[16,256]{1,0:T(8,128)} convolution(%token, %near), dim_labels=bf_io->bf
      %done.1 = bf16[128,256]{1,0:T(8,128)(2,1)S(1)} slice-done(%start.1)
      %done.2 = bf16[128,256]{1,0:T(8,128)(2,1)S(1)} slice-done(%start.2)
      %joined = bf16[256,256]{1,0:T(8,128)(2,1)S(1)} custom-call(%done.1, %done.2), \
    custom_call_target="ConcatBitcast"
      %again = f32[16,256]{1,0:T(8,128)} convolution(%product, %joined), dim_labels=bf_io->bf
      %first = (s32[]{:T(128)}, f32[16,256]{1,0:T(8,128)}) tuple(%i, %again)
      %inner = (s32[]{:T(128)}, f32[16,256]{1,0:T(8,128)}) while(%first), condition=%more, \
    body=%turn
      %turned = f32[16,256]{1,0:T(8,128)} get-tuple-element(%inner), index=1
      %there = (bf16[2,256,128]{2,1,0:T(8,128)(2,1)S(1)}, bf16[2,256,128]{2,1,0:T(8,128)(2,1)}, \
    u32[]{:S(2)}) copy-start(%cache)
      %cache.1 = bf16[2,256,128]{2,1,0:T(8,128)(2,1)S(1)} copy-done(%there)
      %back = (bf16[2,256,128]{2,1,0:T(8,128)(2,1)}, bf16[2,256,128]{2,1,0:T(8,128)(2,1)S(1)}, \
    u32[]{:S(2)}) copy-start(%cache.1)
      %cache.2 = bf16[2,256,128]{2,1,0:T(8,128)(2,1)} copy-done(%back)
      ROOT %after = (s32[]{:T(128)}, bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, \
    bf16[256,256]{1,0:T(8,128)(2,1)}, bf16[2,256,128]{2,1,0:T(8,128)(2,1)}, \
    f32[16,256]{1,0:T(8,128)}) tuple(%i, %near, %far, %cache.2, %turned)
    }

    %alive (s: (s32[], bf16[256,256], bf16[256,256], bf16[2,256,128], f32[16,256])) -> pred[] {
      %s = (s32[]{:T(128)}, bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, \
    bf16[256,256]{1,0:T(8,128)(2,1)}, bf16[2,256,128]{2,1,0:T(8,128)(2,1)}, \
    f32[16,256]{1,0:T(8,128)}) parameter(0)
      %count = s32[]{:T(128)} get-tuple-element(%s), index=0
      ROOT %yes = pred[]{:T(512)} compare(%count, %count), direction=LT
    }

    ENTRY %main (p: bf16[256,256], p.1: bf16[256,256], c: bf16[2,256,128], x: f32[16,256]) -> \
    s32[] {
      %p = bf16[256,256]{1,0:T(8,128)(2,1)} parameter(0), \
    metadata={op_name="params['near']"}
      %p.1 = bf16[256,256]{1,0:T(8,128)(2,1)} parameter(1), \
    metadata={op_name="params['far']"}
      %c = bf16[2,256,128]{2,1,0:T(8,128)(2,1)} parameter(2)
      %x.1 = f32[16,256]{1,0:T(8,128)} parameter(3)
      %zero = s32[]{:T(128)} constant(0)
      %fetch = (bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, bf16[256,256]{1,0:T(8,128)(2,1)}, \
    u32[]{:S(2)}) copy-start(%p)
      %fetched = bf16[256,256]{1,0:T(8,128)(2,1)S(1)} copy-done(%fetch)
      %before = (s32[]{:T(128)}, bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, \
    bf16[256,256]{1,0:T(8,128)(2,1)}, bf16[2,256,128]{2,1,0:T(8,128)(2,1)}, \
    f32[16,256]{1,0:T(8,128)}) tuple(%zero, %fetched, %p.1, %c, %x.1)
      %loop = (s32[]{:T(128)}, bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, \
    bf16[256,256]{1,0:T(8,128)(2,1)}, bf16[2,256,128]{2,1,0:T(8,128)(2,1)}, \
    f32[16,256]{1,0:T(8,128)}) while(%before), condition=%alive, body=%body
      ROOT %n = s32[]{:T(128)} get-tuple-element(%loop), index=0
    }
    ''')
_WEIGHT, _CACHE = 256 * 256 * 2, 2 * 256 * 128 * 2


@pytest.fixture(scope='module')
def result():
  return rounds.read(hlo.parse(_TEXT), {(2, 256, 128)})


def test_copies_beside_the_kernels_are_bytes_and_no_kernels(result):
  assert [(one.name, one.overlapped) for one in result.kernels] == [
      ('start.1', True), ('start.2', True), ('product', False), ('again', False),
      ('negate', False), ('there', True), ('back', True)]
  moved = predicted.figures(result, devices.ACCELERATORS['v5e'])
  assert moved.total_kernels == 2 + 5 and result.loops == 1
  # Arrays in fast memory do not count as read; arrays that are copied there are read once.
  assert moved.bytes['loop', 'weights'] == moved.weights == _WEIGHT
  assert moved.bytes['loop', 'cache'] == 2 * _CACHE


def test_a_cache_that_passes_through_fast_memory_stays_in_place(result):
  assert result.copied == 0
  assert rounds.read(hlo.parse(_TEXT.replace('copy-start(%cache.1)', 'copy-start(%joined)')),
                     {(2, 256, 128)}).copied == _CACHE


def test_turns_of_a_loop(result):
  assert next(one.times for one in result.kernels if one.name == 'negate') == 5
  module = hlo.parse(_TEXT)
  assert module.trips(module.computations['body'].instructions['inner']) == 5
  assert module.trips(module.computations['main'].instructions['loop']) is None


@pytest.mark.slow
@pytest.mark.parametrize('left,right,out,attributes,expected', [
    # A projection to 32 attention heads: each is a position of a window with padding on all sides.
    ('bf16[2,64,512,1]', 'bf16[512,32,128,1]', 'bf16[2,64,32,128]',
     'window={size=1x32 pad=0_0x31_31 rhs_reversal=0x1}, dim_labels=0bf1_i1o0->0b1f',
     2 * 2 * 64 * 512 * 32 * 128),
    # The projection back: a sum over attention heads.
    ('bf16[2,64,32,128]', 'bf16[32,128,512,1]', 'bf16[2,64,512,1]',
     'window={size=1x32}, dim_labels=0b1f_1io0->0bf1', 2 * 2 * 64 * 32 * 128 * 512),
    # Scores of 2 rows and 32 attention heads, which are dilated batches.
    ('bf16[2,32,64,128]', 'bf16[2,32,256,128]', 'f32[2,32,64,256]',
     'window={size=2x32 stride=1x31 lhs_dilate=2x32}, dim_labels=01bf_01oi->01bf',
     2 * 2 * 32 * 64 * 256 * 128),
    ('bf16[2,512]', 'bf16[512,96]', 'f32[2,96]', 'dim_labels=bf_io->bf', 2 * 2 * 512 * 96)])
def test_products_are_convolutions(left, right, out, attributes, expected):
  module = hlo.parse(textwrap.dedent(f'''\
      ENTRY %main (l: {left}, r: {right}) -> {out} {{
        %l = {left}{{}} parameter(0)
        %r = {right}{{}} parameter(1)
        ROOT %x = {out}{{}} convolution(%l, %r), {attributes}
      }}
      '''))
  computation = module.computations['main']
  product = instructions.products(module, computation, computation.instructions['x'])
  assert product == {instructions.BFLOAT16: expected}
