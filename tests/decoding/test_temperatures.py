"""All temperatures: tokens of valid rows are possible under the distribution in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.testing.tabular import prefix_number
from tests.builders import tables
from tests.marks import representative

VOCAB, LENGTH = 5, 4
PAIR = tables.pair(VOCAB, LENGTH, num_classes=2)
# float32 guides these without rounding, and many of the second class are equal.
STEPS = np.asarray([1 / 16, 1]).reshape(-1, 1, 1, 1)
LOGITS = np.round(np.asarray(PAIR.model.params) / STEPS) * STEPS

DECADES = np.asarray([0] + [float(f'1e{power}') for power in range(-45, 38)], np.float32)
OPTIONS = [  # Guidance scale, top-k, top-p, min-p.
    (2.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (2**20, 0, 1.0, 0.0), (3.0, 2, 1.0, 0.0),
    (2.0, 0, 0.55, 0.0), (2.0, 4, 0.55, 0.3), (1.0, 0, 1.0, 1.0)]
EXACT = (
    'vanilla', 'vanilla(window=3)', 'jacobi(window=3)', 'sjd(window=3)', 'sjd_pp(window=3)',
    'mc_sjd(window=3)',
    'sjd_pac(window=5, tree=caterpillar(2, 2))', 'seed_exact(window=5, tree=caterpillar(2, 2))',
    'speculative(length=2)', 'model(length=2)+block', 'eagle(tree=kary(2, 3))',
    'eagle(tree=kary(2, 3), draws=iid)+kseq', 'eagle(tree=kary(2, 3), draws=fixed)',
    'eagle2(num_nodes=5, width=2, depth=3)', 'medusa(length=2)',
    'corrected(window=5, tree=caterpillar(2, 2))', 'corrected(window=3, corrector=neighbours)',
    'corrected_seed_exact(window=3)')
# Their tokens may be impossible under the target's distribution; their rows are valid.
RELAXED = (
    *(f'jacobi(coupling=maximal, window=3)+{verifier}' for verifier in (
        'cool', 'typical', 'lantern(k=1)', 'grouped(group=2)')),
    'eagle(tree=kary(2, 3))+lantern_pp(k=1)')


def rows():
  """Every option at every decade: options of rows `[B]` side by side, and their classes."""
  temperature, option = (part.ravel() for part in np.meshgrid(
      DECADES, np.arange(len(OPTIONS)), indexing='ij'))
  scale, top_k, top_p, min_p = np.asarray(OPTIONS)[option].T
  sampling = SamplingParams(
      scale.astype(np.float32), temperature, top_k.astype(np.int32), top_p.astype(np.float32),
      min_p=min_p.astype(np.float32))
  return sampling, np.arange(len(temperature), dtype=np.int32) % 2


def pick(sampling, index):
  return SamplingParams(*(value[index] if np.ndim(value) else value for value in sampling))


def options_of(sampling, row):
  return [np.asarray(value).item() for value in (
      pick(sampling, row)[i] for i in (0, 1, 2, 3, 5))]


def test_distributions():
  """Also of rows beside others, at temperatures where float32 rounds quotients most."""
  sampling, labels = rows()
  node = np.arange(3)
  logits = np.moveaxis(LOGITS[labels][:, :, node], 1, 0)
  actual = jax.jit(warp_lib.probabilities)(jnp.asarray(logits, jnp.float32), sampling, node[None])
  assert jax.jit(warp_lib.is_distribution)(actual).all()
  uncut = np.asarray(jax.jit(warp_lib.log_probs_of_logits)(
      jnp.asarray(logits, jnp.float32), sampling, node[None], None,
      np.broadcast_to(node, (len(labels), 3)), np.ones((len(labels), 3), np.int32)))
  for row, label in enumerate(labels):
    for number in node:
      want = tables.warped(LOGITS[label, :, number], *options_of(sampling, row))
      np.testing.assert_allclose(actual[row, number], want, atol=1e-5)
      assert not np.any((actual[row, number] > 0) & (want == 0)), options_of(sampling, row)
      scale, temperature = options_of(sampling, row)[:2]
      want = tables.warped(LOGITS[label, :, number], scale, temperature, 0, 1, 0)[1]
      np.testing.assert_allclose(np.exp(uncut[row, number]), want, atol=1e-5)


@functools.cache
def program(spec, x64):
  del x64  # The program is another one.
  return jax.jit(PAIR.build(spec))


def decoded(spec, dtype, sampling, labels):
  return jax.device_get(program(spec, dtype == 'float64')(
      jnp.asarray(LOGITS, dtype), labels, jax.random.key(3), sampling,
      jnp.asarray(PAIR.draft_params(spec), dtype)))


def impossible(result, sampling, labels):
  """The options of valid rows that hold a token of probability 0."""
  actual = []
  for row, tokens in enumerate(result.tokens):
    for count in range(LENGTH):
      prefix = prefix_number(tokens[None, :count], VOCAB)[0]
      p = tables.warped(LOGITS[labels[row], :, prefix], *options_of(sampling, row))
      if result.valid[row] and p[tokens[count]] == 0:
        actual.append((options_of(sampling, row), count))
  return actual


CASES = [(spec, dtype) for spec in EXACT + RELAXED for dtype in ('float32', 'bfloat16', 'float64')]


@pytest.mark.parametrize('spec,dtype', representative(
    CASES, ('mc_sjd(window=3)', 'float32')))
def test_decoders(spec, dtype):
  """In a batch of all options, and one by one."""
  sampling, labels = rows()
  with jax.enable_x64(dtype == 'float64'):
    together = decoded(spec, dtype, sampling, labels)
    singles = [decoded(spec, dtype, pick(sampling, slice(row, row + 1)), labels[row:row + 1])
               for row in range(0, len(labels), len(OPTIONS) + 1)]
  alone = jax.tree.map(lambda *leaves: np.concatenate(leaves), *singles)
  every = slice(None, None, len(OPTIONS) + 1)
  for result, options, classes in (
      (together, sampling, labels), (alone, pick(sampling, every), labels[every])):
    assert result.valid.all()
    if spec in EXACT:
      assert not impossible(result, options, classes)
      assert np.isfinite(result.log_probs).all()


@pytest.mark.parametrize('value', [2.0**127, 1e38, 3e38, np.inf, -1.0])
def test_temperatures_without_a_reciprocal_are_invalid(value):
  sampling, labels = rows()
  run = PAIR.build('vanilla')
  with pytest.raises(ValueError, match=r'temperature is .*; it must be from 0 \(greedy\) to 8.5e'):
    run.check(labels, SamplingParams(temperature=value))
  temperature = sampling.temperature.copy()
  temperature[5] = value
  result = decoded('vanilla', 'float32', sampling._replace(temperature=temperature), labels)
  np.testing.assert_array_equal(result.valid, np.arange(len(labels)) != 5)


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'int32'])
def test_dtypes_of_options(dtype):
  sampling = SamplingParams(2.0, np.asarray([0, 1, 2], jnp.dtype(dtype)))
  labels = np.zeros(3, np.int32)
  assert PAIR.build('vanilla').check(labels, sampling).all()
  logits = jnp.asarray(np.moveaxis(LOGITS[labels][:, :, :1], 1, 0), jnp.float32)
  p = warp_lib.probabilities(logits, sampling, np.zeros((3, 1), int))
  for row, temperature in enumerate((0, 1, 2)):
    np.testing.assert_allclose(p[row, 0], tables.warped(LOGITS[0, :, 0], 2.0, temperature, 0, 1, 0),
                               atol=1e-6)
