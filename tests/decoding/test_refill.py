"""Rows that take the next image: the images of batches, in fewer rounds."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core import contracts
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import continuous_batching, decoders, prefix, specification
from cspd_jax.models import llamagen
from tests.builders import published, tables
from tests.marks import representative

PAIR = tables.pair(3, 7, num_classes=3, row_width=7)
MODEL, DRAFT = PAIR.model, PAIR.draft
COUNT, SLOTS = 9, 4
NUMBERS = np.arange(COUNT)
# All that an image depends on differs from image to image, and one is drawn greedily.
LABELS = NUMBERS * 2 % 3
KEYS = jax.random.split(jax.random.key(5), COUNT)
WARP = SamplingParams(
    guidance_scale=np.linspace(1, 2, COUNT, dtype=np.float32),
    temperature=np.where(NUMBERS == 6, 0, 1).astype(np.float32), top_k=np.int32(0), top_p=None)
SAMPLED = SamplingParams(np.float32(1.5), np.float32(0.9), None, None, min_p=None)
TREE = 'tree=caterpillar(2, 2)'
NAMES = {
    'vanilla': {}, 'vanilla(window=3)': {}, 'seed_exact': {}, 'mc_sjd': {}, 'corrected': {},
    'eagle': {}, 'eagle2': {}, 'speculative': {}, 'medusa': {}, 'sjd_pac': {},
    f'seed_exact({TREE})': dict(window=5), f'corrected({TREE})': dict(window=5), 'jacobi+cool': {}}


def _build(name):
  return PAIR.build(name, **dict(window=4, length=3) | NAMES.get(name, {}))


def _picked(sampling, numbers):
  return SamplingParams(*(leaf[numbers] if np.ndim(leaf) else leaf for leaf in sampling))


def _refilled(program, count=COUNT, sampling=WARP, params=MODEL.params, draft_params=DRAFT.params,
              conditions=LABELS):
  """All images in order; and the rounds of the loop."""
  groups = list(continuous_batching.run(
      program, params, count,
      lambda numbers: (jax.tree.map(lambda leaf: leaf[numbers], conditions), KEYS[numbers],
                       _picked(sampling, numbers)), draft_params))
  numbers = np.concatenate([group.image for group in groups])
  assert sorted(numbers) == list(range(count))
  decoded = jax.tree.map(lambda *parts: np.concatenate(parts)[np.argsort(numbers)],
                         *(group.decoded for group in groups))
  return decoded, sum(int(group.rounds) for group in groups)


def _batches(decoder, size, count=COUNT, sampling=WARP, params=MODEL.params,
             draft_params=DRAFT.params, conditions=LABELS):
  """All images in order; and the rounds of all batches, prefills apart."""
  run, parts, rounds = jax.jit(decoder), [], 0
  for first in range(0, count, size):
    numbers = np.minimum(np.arange(first, first + size), count - 1)
    part = run(params, jax.tree.map(lambda leaf: leaf[numbers], conditions), KEYS[numbers],
               _picked(sampling, numbers), draft_params)
    rounds += int(part.rounds.max()) - 1
    parts.append(jax.device_get(part))
  return jax.tree.map(lambda *some: np.concatenate(some)[:count], *parts), rounds


def _scheduled(rounds, slots):
  """Rounds of a queue whose images go, one after the other, to the slot that is free first."""
  ends = [0] * slots
  for own in rounds - 1:
    ends[ends.index(min(ends))] += own
  return max(ends)


def _differences(one, other):
  """Fields of a result in which two differ: sums and logarithms in more than their last bits."""
  same = {'tv_bound': lambda a, b: np.allclose(a, b, rtol=1e-6, atol=0, equal_nan=True),
          'log_probs': lambda a, b: np.allclose(a, b, rtol=1e-6, atol=1e-6)}
  return [name for name, a, b in zip(one._fields, one, other)
          if not same.get(name, np.array_equal)(a, b)]


@functools.cache
def _program(name, slots=SLOTS):
  return continuous_batching.jitted(_build(name), slots)


@pytest.mark.parametrize('name', representative(NAMES, f'seed_exact({TREE})'))
def test_images_of_batches(name):
  decoded, rounds = _refilled(_program(name), draft_params=PAIR.draft_params(name))
  want, of_batches = _batches(_build(name), SLOTS, draft_params=PAIR.draft_params(name))
  assert _differences(decoded, want) == [] and decoded.valid.all()
  # No slot is free while an image waits.
  assert rounds == _scheduled(want.rounds, SLOTS)
  if name.startswith('vanilla'):
    assert rounds == of_batches
  else:
    assert rounds < of_batches


@pytest.mark.slow
@pytest.mark.parametrize('count, slots', [(2, 1), (3, 2), (3, 5), (5, 4), (9, 8)])
def test_any_number_of_images_in_any_number_of_slots(count, slots):
  program = _program('mc_sjd', slots)
  assert continuous_batching.group(slots) == max(1, slots // 4)
  decoded, rounds = _refilled(program, count, SAMPLED)
  want, _ = _batches(_build('mc_sjd'), slots, count, SAMPLED)
  assert _differences(decoded, want) == [] and rounds == _scheduled(want.rounds, slots)


@pytest.mark.slow
def test_groups_of_as_many_images_as_slots(monkeypatch):
  monkeypatch.setattr(continuous_batching, 'group', lambda num_slots: num_slots)
  decoded, _ = _refilled(_program('mc_sjd', 3), sampling=SAMPLED)
  want, _ = _batches(_build('mc_sjd'), 3, sampling=SAMPLED)
  assert _differences(decoded, want) == []


def test_one_program_serves_queues_of_any_length():
  program = continuous_batching.jitted(decoders.vanilla(MODEL.target), SLOTS)
  long, rounds = _refilled(program)
  short, fewer = _refilled(program, 5)
  assert fewer == 2 * 6 < rounds == 3 * 6
  assert _differences(short, jax.tree.map(lambda leaf: leaf[:5], long)) == []
  assert program.advance._cache_size() == program.idle._cache_size() == 1


def _primitives(jaxpr):
  """Names of all primitives of a program, with those of its parts."""
  for equation in jaxpr.eqns:
    yield equation.primitive.name
    for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(
        x, 'eqns') or hasattr(x, 'jaxpr')):
      if hasattr(part, 'eqns') or hasattr(part, 'jaxpr'):
        yield from _primitives(getattr(part, 'jaxpr', part))


def _queue(sampling):
  """A group of one image."""
  return continuous_batching.Queue(
      LABELS[:1], KEYS[:1], jax.tree.map(lambda leaf: jnp.full(1, leaf), sampling),
      jnp.zeros(1, jnp.int32), jnp.int32(1), jnp.asarray(True))


def test_the_loop_has_no_conditionals():
  one = continuous_batching.ContinuousBatcher(_build('mc_sjd'), SLOTS)

  def program(sampling):
    queue = _queue(sampling)
    slots = jax.eval_shape(one.idle, MODEL.params, queue)
    return list(_primitives(jax.make_jaxpr(one.advance)(MODEL.params, slots, queue).jaxpr))

  assert 'cond' not in program(SAMPLED) and program(SAMPLED).count('while') == 3
  assert 'cond' in program(SAMPLED._replace(top_k=np.int32(3)))  # That of the cuts would be seen.


def test_an_invalid_image_spoils_no_other_one():
  program, labels = _program(f'seed_exact({TREE})'), np.where(NUMBERS == 4, 2, NUMBERS % 2)
  params = MODEL.params.at[2].set(np.nan)
  decoded, _ = _refilled(program, params=params, conditions=labels)
  np.testing.assert_array_equal(decoded.valid, NUMBERS != 4)
  whole, _ = _refilled(program, conditions=labels)
  np.testing.assert_array_equal(decoded.tokens[decoded.valid], whole.tokens[decoded.valid])


STATE = continuous_batching._replace_slot
MUTANTS = {
    'cache': lambda old, new: new._replace(cache=old.cache),
    'rng': lambda old, new: new._replace(rng=old.rng),
    'rounds': lambda old, new: new._replace(rounds=old.rounds),
    'histogram': lambda old, new: new._replace(accepted=old.accepted),
    'valid': lambda old, new: new._replace(valid=old.valid),
    'options': None}


@pytest.mark.parametrize('mutant', representative(MUTANTS, 'cache'))
def test_state_left_by_the_last_image_of_a_slot_is_detected(mutant, monkeypatch):
  def replaced(old, new, *args):
    state, sampling = STATE(old, new, *args)
    if mutant == 'options':
      return state, old[1]
    return MUTANTS[mutant](old[0], state), sampling

  want, _ = _batches(decoders.vanilla(MODEL.target), SLOTS)
  monkeypatch.setattr(continuous_batching, '_replace_slot', replaced)
  decoded, _ = _refilled(continuous_batching.jitted(decoders.vanilla(MODEL.target), SLOTS))
  assert _differences(decoded, want)


@pytest.mark.parametrize('leaf, message', [
    (lambda batch: jnp.zeros(3), r'shape \[3\] for 1 images and \[3\] for 4'),
    pytest.param(lambda batch: jnp.zeros((batch, batch)), r'shape \[1, 1\] for 1 images',
                 marks=pytest.mark.slow),
    pytest.param(lambda batch: jnp.zeros(5 * batch), r'one axis of size B or 2 B, for B',
                 marks=pytest.mark.slow)])
def test_a_state_that_does_not_tell_its_rows_apart(leaf, message):
  prefill = MODEL.target.prefill

  def changed(params, condition, num_slots):
    logits, features, cache = prefill(params, condition, num_slots)
    return logits, features, (cache, leaf(condition.shape[0]))

  def score(params, cache, tokens, start, tree):
    logits, features, own = MODEL.target.score(params, cache[0], tokens, start, tree)
    return logits, features, (own, cache[1])

  decoder = decoders.vanilla(MODEL.target._replace(prefill=changed, score=score))
  assert jax.jit(decoder)(MODEL.params, LABELS[:2], KEYS[:2], SAMPLED).valid.all()
  with pytest.raises(contracts.ContractError, match=message):
    _refilled(continuous_batching.jitted(decoder, SLOTS), sampling=SAMPLED)


CONFIG = llamagen.LlamaGenConfig(
    height=3, width=3, vocab_size=8, num_classes=3, dim=16, num_layers=1, num_heads=2, ffn_dim=16)


def _transformer():
  """A target of two streams, and its parameters."""
  init = functools.partial(llamagen.init, CONFIG)
  return llamagen.target(CONFIG, guided=True), published.random_params(init, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize('prefix_length', [0, 3])
def test_a_transformer(prefix_length):
  """Keys and values of both streams, without and with a prefix."""
  target, params = _transformer()
  decoder = decoders.mc_sjd(prefix.target(target, prefix_length), 3)
  conditions = LABELS
  if prefix_length:
    first = np.random.default_rng(1).integers(0, 8, (COUNT, prefix_length), np.int32)
    conditions = prefix.Prefixed(LABELS, first)
  arguments = dict(sampling=WARP._replace(top_k=np.int32(4)), params=params, draft_params=None,
                   conditions=conditions)
  decoded, rounds = _refilled(continuous_batching.jitted(decoder, SLOTS), **arguments)
  want, of_batches = _batches(decoder, SLOTS, **arguments)
  assert _differences(decoded, want) == [] and rounds == _scheduled(want.rounds, SLOTS) < of_batches


@pytest.mark.slow
def test_seed_exact_images_of_a_queue_in_bfloat16():
  """Those of `vanilla(window=N)`, which waits in the same way."""
  target, params = _transformer()
  params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
  run = lambda spec: _refilled(
      continuous_batching.jitted(specification.build(spec, target), SLOTS), params=params,
      draft_params=None)[0]
  one, other = run('vanilla(window=3)'), run('seed_exact(window=3)')
  np.testing.assert_array_equal(one.tokens, other.tokens)
  assert other.rounds.mean() < one.rounds.mean() == 9


@pytest.mark.slow
def test_no_more_copies_of_the_cache_than_in_a_batch():
  target, params = _transformer()
  one = continuous_batching.ContinuousBatcher(decoders.mc_sjd(target, 3), SLOTS)
  queue = _queue(SAMPLED)
  slots = jax.eval_shape(one.idle, params, queue)
  size = slots.state.cache.layers[0][0].size

  def copies(function, *args, **how):
    text = jax.jit(function, **how).lower(*args).compile().as_text()
    shapes = re.findall(r'= f32\[([\d,]+)\]\S* copy\(', text)
    assert shapes
    return sum(np.prod([int(one) for one in shape.split(',')]) == size for shape in shapes)

  batch = copies(one.decoder, params, LABELS[:SLOTS], KEYS[:SLOTS], SAMPLED)
  assert copies(one.advance, params, slots, queue, donate_argnums=1) <= batch
