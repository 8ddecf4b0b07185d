"""`costs.hlo`, `instructions`, `rounds`, `predicted` on short texts and on a program for a CPU."""

import pathlib
import textwrap

import jax
import jax.numpy as jnp
import pytest

from experiments.costs import devices, hlo, instructions, predicted, rounds

# A loop that reads a weight, updates a cache of [2,8] in place, copies another of [4,1024,128] and
# chooses a branch; and a loop of three turns inside of it. The first copy has no line.
_TEXT = (pathlib.Path(__file__).parent / 'round.hlo').read_text()
_CACHES = {(2, 8), (4, 1024, 128)}


@pytest.fixture(scope='module')
def module():
  return hlo.parse(_TEXT)


@pytest.fixture(scope='module')
def result(module):
  return rounds.read(module, _CACHES)


def _kernel(result, name):
  return next(kernel for kernel in result.kernels if kernel.name == name)


def test_instructions(module):
  body = module.computations['body'].instructions
  assert module.entry == 'main' and module.computations['body'].root == 'after'
  assert [str(one) for one in body['state'].arrays] == [
      's32[]', 'f32[16,32]', 'f32[2,8]', 'f32[4,1024,128]', 'f32[2,16]']
  assert body['product'].operands == ('token', 'weight')
  assert body['product'].called == 'fused_product' and body['inner'].trips == 3
  assert module.computations['main'].instructions['loop'].trips is None
  assert body['chosen'].calls('false_computation') == ['uncut']
  assert module.computations['main'].instructions['p'].text('op_name') == "params['output']"
  assert [(line.function, line.line) for line in module.stack(body['product'])] == [
      ('attend', 147), ('Decoder.__call__', 106)]


@pytest.mark.parametrize('layout,dims,expected', [
    ('{1,0}', (3, 5), 30), ('{1,0:T(8,128)(2,1)}', (3, 5), 8 * 128 * 2),
    ('{0,1:T(8,128)(2,1)}', (3, 200), 128 * 200 * 2), ('{1,0:T(8,128)(2,1)S(1)}', (3, 5), 0)])
def test_bytes_of_arrays(layout, dims, expected):
  assert hlo.Array('bf16', dims, layout).bytes == expected


def test_a_round(result):
  assert (result.conditionals, result.loops) == (1, 1)
  names = [kernel.name for kernel in result.kernels]
  assert names == ['product', 'update', 'moved', 'back', 'negate.1', 'copy.1']
  assert _kernel(result, 'negate.1').times == 3
  assert result.copied == 4 * 1024 * 128 * 4


def test_iterations_of_a_loop_that_ends_by_values():
  def run(x):
    inner = lambda x: jax.lax.while_loop(lambda x: jnp.sum(x) < 1e3, lambda x: x @ x, x)
    step = lambda carry: (carry[0] + 1, inner(carry[1]) @ carry[1])
    return jax.lax.while_loop(lambda carry: carry[1][0, 0] < carry[0], step, (0, x))

  text = jax.jit(run).lower(jnp.ones((64, 64))).compile().as_text()
  once, often = (rounds.read(hlo.parse(text), set(), iterations) for iterations in (1, 2.5))
  flops = [sum(kernel.times * kernel.flops for kernel in one.kernels) for one in (once, often)]
  assert flops == [2 * 2 * 64**3, 3.5 * 2 * 64**3]


def test_kernels_move_the_bytes_of_their_slices(result):
  product = _kernel(result, 'product')
  assert [(one.label.kind, one.read, one.written) for one in product.moved] == [
      ('constants', 128, 0), ('weights', 2048, 0), ('', 0, 256)]
  assert product.flops == 2 * 2 * 32 * 16 and not product.moves
  assert (product.part, product.scope) == ('target', 'attention')
  assert product.source == 'models/transformer.py:147'
  # Only the slice is read and written, not the whole array.
  update = _kernel(result, 'update')
  assert [(one.label.kind, one.read, one.written) for one in update.moved] == [
      ('cache', 0, 0), ('', 8, 0), ('constants', 4, 0), ('cache', 0, 8)]
  assert not update.moves  # It creates no new array.
  moved = _kernel(result, 'moved')
  assert moved.moves and moved.part == 'drafter' and moved.bytes == 2 * 4 * 1024 * 128 * 4
  # The source line of its caller.
  assert _kernel(result, 'copy.1').source == 'decoding/loop.py:106'


def test_figures(result):
  device = devices.Accelerator(1e9, 1e12, 1e-6, 0, 0, '', '', ())
  one = predicted.figures(result, device, temporaries=10)
  assert one.weights == 2048 and one.total_kernels == 8
  assert one.copies == {('f32[4,1024,128]', 'decoding/drafters/eagle.py:20'): 2}
  assert one.bytes['target', 'weights'] == 2048
  assert one.seconds['launches'] == pytest.approx(8e-6)
  assert one.seconds['bytes'] == pytest.approx(one.total_bytes / 1e9)
  slow = predicted.figures(result, device._replace(flops=1e6))
  assert slow.seconds['products'] == pytest.approx(2048 / 1e6)
  more = one._replace(kernels={'target': 5, 'verifier': 2}, weights=3000.0, copies={})
  whole = predicted.extrapolated(one, more, 10)
  assert whole.weights == 2048 + 10 * 952 and whole.kernels['verifier'] == 20
  assert whole.kernels['target'] == one.kernels['target'] + 10 * (5 - one.kernels['target'])
  assert list(whole.copies.values()) == [2 - 20]


@pytest.mark.parametrize('kind,attributes,arithmetic', [
    ('bf16', '', instructions.BFLOAT16), ('s8', '', instructions.INT8),
    ('f32', '', instructions.FLOAT32),
    ('f32', ', operand_precision={highest,highest}', instructions.FULL)])
@pytest.mark.parametrize('opcode', ['dot', 'custom-call'])
def test_arithmetic_of_products(kind, attributes, arithmetic, opcode):
  if opcode == 'custom-call':
    attributes = (', custom_call_target="__cublas$gemm", backend_config={"dot_dimension_numbers":'
                  '{"lhs_contracting_dimensions":["1"]},"precision_config":{"operand_precision":'
                  f'["{"HIGHEST" if attributes else "DEFAULT"}"]}}}}')
  module = hlo.parse(textwrap.dedent(f'''\
      ENTRY %main (x: {kind}[8,16], w: {kind}[16,32]) -> f32[8,32] {{
        %x = {kind}[8,16]{{1,0}} parameter(0)
        %w = {kind}[16,32]{{1,0}} parameter(1)
        ROOT %y = f32[8,32]{{1,0}} {opcode}(%x, %w), lhs_contracting_dims={{1}}, \
      rhs_contracting_dims={{0}}{attributes}
      }}
      '''))
  computation = module.computations['main']
  result = instructions.products(module, computation, computation.instructions['y'])
  assert result == {arithmetic: 2 * 8 * 16 * 32}


@pytest.mark.parametrize('kind,expected', [
    ('f32', {instructions.FULL: 2 * 16 * 64 * 32}),
    ('bf16', {instructions.BFLOAT16: 6 * 16 * 64 * 32})])
def test_products_of_the_fused_head(kind, expected):
  module = hlo.parse(textwrap.dedent(f'''\
      ENTRY %main (r: s32[2], x: f32[2,64], w: {kind}[64,32], b: f32[32]) -> f32[16,32] {{
        %r = s32[2]{{0}} parameter(0)
        %x = f32[2,64]{{1,0}} parameter(1)
        %w = {kind}[64,32]{{1,0}} parameter(2)
        %b = f32[32]{{0}} parameter(3)
        ROOT %y = f32[16,32]{{1,0}} custom-call(%r, %x, %w, %b), \
      custom_call_target="__gpu$xla.gpu.triton", backend_config={{name = "head_layer"}}
      }}
      '''))
  computation = module.computations['main']
  assert instructions.products(module, computation, computation.instructions['y']) == expected


def test_a_program_without_a_loop():
  text = jax.jit(lambda x: x + 1).lower(jnp.zeros(3)).compile().as_text()
  with pytest.raises(ValueError, match='no loop'):
    rounds.read(hlo.parse(text), set())


@pytest.fixture(scope='module')
def on_cpu():
  """The round of a small loop compiled for this machine: a product and an update of a cache row."""
  def run(params, x):
    def body(carry):
      i, cache, x = carry
      x = jnp.tanh(x @ params['w'])
      return i + 1, jax.lax.dynamic_update_slice(cache, x[:, None], (0, i, 0)), x

    start = (0, jnp.zeros((4, 64, 256)), x)
    return jax.lax.while_loop(lambda carry: carry[0] < 64, body, start)[1]

  arguments = [{'w': jnp.zeros((256, 256))}, jnp.zeros((4, 256))]
  text = jax.jit(run).lower(*arguments).compile().as_text()
  return rounds.read(hlo.parse(text), {(4, 64, 256)})


def test_a_program_of_this_machine(on_cpu):
  weights = [one.read for kernel in on_cpu.kernels for one in kernel.moved
             if one.label.kind == 'weights']
  cache = [one.written for kernel in on_cpu.kernels for one in kernel.moved
           if one.label.kind == 'cache']
  assert max(weights) == 256 * 256 * 4 and sum(cache) == 4 * 256 * 4
  assert sum(kernel.flops for kernel in on_cpu.kernels) == 2 * 4 * 256 * 256
  assert on_cpu.copied == 0 and on_cpu.conditionals == 0


@pytest.mark.parametrize('opcode,line,expected', [
    ('gather', 'gather(%p, %i), offset_dims={1}', ([2 * 64 * 4, 8], 2 * 64 * 4)),
    ('slice', 'slice(%p), slice={[0:2], [0:64]}', ([2 * 64 * 4], 2 * 64 * 4)),
    ('add', 'add(%r, %r)', ([512, 512], 512))])
def test_instructions_alone(opcode, line, expected):
  module = hlo.parse(textwrap.dedent(f'''\
      ENTRY %main (p: f32[100,64]) -> f32[2,64] {{
        %p = f32[100,64]{{1,0}} parameter(0)
        %i = s32[2]{{0}} parameter(1)
        %r = f32[2,64]{{1,0}} parameter(2)
        ROOT %x = f32[2,64]{{1,0}} {line}
      }}
      '''))
  computation = module.computations['main']
  result = instructions.traffic(module, computation, computation.instructions['x'])
  assert (result.read, result.written[0][1]) == expected, opcode


@pytest.mark.parametrize('mask_type,share', [('PADDING', 0.5), ('NO_MASK', 1)])
def test_fused_attention_reads_live_slots(mask_type, share):
  module = hlo.parse(textwrap.dedent(f'''\
      ENTRY %main (q: bf16[2,4,2,8], k: bf16[2,64,2,8], v: bf16[2,64,2,8]) -> bf16[2,2,4,8] {{
        %q = bf16[2,4,2,8]{{3,2,1,0}} parameter(0)
        %k = bf16[2,64,2,8]{{3,2,1,0}} parameter(1)
        %v = bf16[2,64,2,8]{{3,2,1,0}} parameter(2)
        %bias = bf16[2,1,4,64]{{3,2,1,0}} parameter(3)
        %rows = s32[2]{{0}} parameter(4)
        %live = s32[2]{{0}} parameter(5)
        ROOT %x = (bf16[2,2,4,8]{{3,1,2,0}}, u8[0]{{0}}) custom-call(%q, %k, %v, \
      %bias, %rows, %live), custom_call_target="__cudnn$fmhaScaleBiasSoftmax", \
      backend_config={{"mask_type": "{mask_type}"}}
      }}
      '''))
  computation = module.computations['main']
  result = instructions.traffic(module, computation, computation.instructions['x'])
  cache = 2 * 64 * 2 * 8 * 2
  assert result.read == [256, share * cache, share * cache, 1024, 8, 8]


_SPLIT = """\
    %add (a: f32[], b: f32[]) -> f32[] {
      %a = f32[] parameter(0)
      %b = f32[] parameter(1)
      ROOT %s = f32[] add(%a, %b)
    }
    %product (p: bf16[4,8,16], q: bf16[4,16,32]) -> f32[4,8,32] {
      %p = bf16[4,8,16]{2,1,0} parameter(0)
      %q = bf16[4,16,32]{2,1,0} parameter(1)
      ROOT %dot = f32[4,8,32]{2,1,0} dot(%p, %q), lhs_batch_dims={0}, \
    lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
    }
    %sum (x: f32[4,8,32], y: f32[8,32]) -> f32[8,32] {
      %x = f32[4,8,32]{2,1,0} parameter(0)
      %y = f32[8,32]{1,0} parameter(1)
      %zero = f32[] constant(0)
      %reduce = f32[8,32]{1,0} reduce(%x, %zero), dimensions={AXIS}, to_apply=%add
      ROOT %out = f32[8,32]{1,0} add(%reduce, %y)
    }
    ENTRY %main (p: bf16[4,8,16], q: bf16[4,16,32], y: f32[8,32]) -> f32[8,32] {
      %p = bf16[4,8,16]{2,1,0} parameter(0)
      %q = bf16[4,16,32]{2,1,0} parameter(1)
      %y = f32[8,32]{1,0} parameter(2)
      %parts = f32[4,8,32]{2,1,0} fusion(%p, %q), kind=kCustom, calls=%product
      ROOT %out = f32[8,32]{1,0} fusion(%parts, %y), kind=kLoop, calls=%sum
    }
    """


def test_partial_sums():
  for axis, expected in ((0, True), (1, False)):
    module = hlo.parse(textwrap.dedent(_SPLIT.replace('AXIS', str(axis))))
    computation = module.computations['main']
    result = {name: instructions.is_split_product(module, computation, one)
             for name, one in computation.instructions.items()}
    assert result.pop('parts') == expected and not any(result.values())


def test_partial_sums_in_a_cache(result):
  sums = rounds.Label(rounds.PARTIAL_SUMS, 'parts')
  write, read = (result.kernels[0]._replace(moved=(moved,)) for moved in (
      rounds.Moved(sums, 0, 4096), rounds.Moved(sums, 4096, 0)))
  device = devices.Accelerator(1e9, 1e12, 1e-6, 0, 5000, '', '', ())
  figures = lambda device: predicted.figures(result._replace(kernels=[write, read]), device)
  assert figures(device).cached_sums == figures(device).total_bytes == 2 * 4096
  assert figures(device._replace(cache=4000)).cached_sums == 0
