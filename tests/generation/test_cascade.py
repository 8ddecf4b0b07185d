"""Two models in turn: a pair that is small enough to enumerate."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core import guarantees
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.decoding import specification
from cspd_jax.generation import gallery as gallery_lib, options as options_lib, stored_run
from cspd_jax.generation.cascade import Both, Cascade, in_turn
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Handover, ImageTokenizer, PromptKind
from cspd_jax.generation.slots import Runner
from cspd_jax.measure.bench import Bench
from cspd_jax.testing import tabular
from tests.marks import representative

NAMES = ('cat', 'dog')
# The prior draws two tokens of two, and each of the four pairs is a class of the model.
PRIOR = tabular.tabular(jax.random.key(1), vocab_size=2, length=2, num_classes=2)
LAST = tabular.tabular(jax.random.key(2), vocab_size=3, length=4, num_classes=4, row_width=2)
SAMPLING = dict(temperature=0.8, prior=dict(temperature=1.3))


def _encode(prompts):
  if unknown := [prompt for prompt in prompts if prompt not in NAMES]:
    raise ValueError(f'prompts holds {unknown[0]!r}.')
  return np.asarray([NAMES.index(prompt) for prompt in prompts], np.int32)


def pair():
  """Returns the model with its prior."""
  prior = Model(
      'pair/prior', 'pair', None, PRIOR.params, (1, 2), lambda guided: PRIOR.target,
      PromptKind(_encode, list, NAMES, words=NAMES),
      defaults={'temperature': 1.2}, handover=Handover(lambda tokens: {'tokens': tokens}, 1, ''))

  def codes(prompts):
    if not np.issubdtype(prompts.dtype, np.integer):
      raise ValueError(f'prompts is {prompts.dtype}; it must be whole numbers.')
    return np.asarray(prompts, np.int32)

  prefill = LAST.target.prefill
  target = LAST.target._replace(
      prefill=lambda params, tokens, slots: prefill(params, tokens @ jnp.array([2, 1]), slots),
      check_condition=lambda tokens: None)
  tokenizer = ImageTokenizer(None, np.float32(1.0), decode=lambda params, tokens: jnp.broadcast_to(
      params * tokens.reshape(-1, 2, 2, 1) - 1, (len(tokens), 2, 2, 3)))
  return Cascade(prior, Model(
      'pair', 'pair', None, LAST.params, (2, 2), lambda guided: target,
      PromptKind(codes, lambda tokens: [f'codes {i}' for i in range(len(tokens))], ()),
      tokenizer))


@pytest.fixture(scope='module')
def model():
  return pair()


def _exact_joint(label):
  """The probability `[4, 81]` of every pair of sequences under both models."""
  sampling = lambda **options: options_lib.sampling(specification.TABLE, {}, options)
  first = PRIOR.distribution(sampling(temperature=SAMPLING['prior']['temperature']), label)
  last = [LAST.distribution(sampling(temperature=SAMPLING['temperature']), code)
          for code in range(4)]
  return first[:, None] * np.stack(last)


@pytest.mark.parametrize('decoder', representative([
    'vanilla', 'mc_sjd(window=2) | mc_sjd(window=3)', 'seed_exact(window=2) | mc_sjd(window=2)'],
    'mc_sjd(window=2) | mc_sjd(window=3)'))
def test_both_stages_together_follow_the_joint_distribution(model, decoder):
  """Of 6000 images: a chi-squared test, whose false alarms are rarer than one in a thousand."""
  count = 6000
  out = model.generate(['dog'] * count, seed=5, decoder=decoder, batch_size=count, **SAMPLING)
  pairs = (out.prior.tokens @ [2, 1]) * 81 + out.tokens @ [27, 9, 3, 1]
  expected = count * _exact_joint(1).ravel()
  observed = np.bincount(pairs, minlength=4 * 81)
  rare = expected < 5
  expected = np.append(expected[~rare], expected[rare].sum())
  observed = np.append(observed[~rare], observed[rare].sum())
  statistic, degrees = ((observed - expected)**2 / expected).sum(), len(expected) - 1
  assert degrees > 60 and statistic < degrees + 3.3 * np.sqrt(2 * degrees)


def test_two_seed_exact_stages_draw_the_images_of_vanilla(model):
  prompts = [*NAMES, 'cat', 'dog', 'dog']
  expected = model.generate(prompts, seed=3, decoder='vanilla', **SAMPLING)
  assert len(np.unique(expected.prior.tokens, axis=0)) > 1
  for decoder in ('seed_exact(window=2)', 'vanilla | seed_exact(window=3)',
                  'seed_exact(window=2) | vanilla'):
    out = model.generate(prompts, seed=3, decoder=decoder, **SAMPLING)
    assert out.guarantee == 'seed-exact'
    np.testing.assert_array_equal(out.prior.tokens, expected.prior.tokens)
    np.testing.assert_array_equal(out.tokens, expected.tokens)
    np.testing.assert_array_equal(out.images, expected.images)


@pytest.mark.parametrize('decoder, guarantee', [
    ('mc_sjd(window=2) | vanilla', 'exact'), ('vanilla | mc_sjd(window=2)', 'exact'),
    ('vanilla | jacobi(window=2)+cool', 'bounded'), ('vanilla', 'seed-exact')])
def test_the_guarantee_is_the_weaker_one(model, decoder, guarantee):
  assert model.sampler(decoder).guarantee == guarantee
  assert guarantees.of_stages([Guarantee.BIASED, Guarantee.EXACT]) == Guarantee.BIASED


def test_bounds_add(model):
  out = model.generate(['cat'] * 8, seed=3, decoder='jacobi(window=2)+cool', temperature=0.5)
  parts = np.asarray(out.prior.decoded.tv_bound), np.asarray(out.decoded.tv_bound)
  assert all(part.max() > 0 for part in parts)
  np.testing.assert_allclose(out.tv_bound, sum(parts), rtol=1e-6)
  np.testing.assert_allclose(out[3].tv_bound, out.tv_bound[3:4])


def test_every_stage_has_random_numbers_of_its_own(model):
  """The prior's are those of no model and no other image; the model's are as without a prior."""
  images = model.images(['cat'] * 4, seed=3, decoder='vanilla')
  keys = [jax.random.key_data(part.inputs(np.arange(4))[1]) for part in in_turn(images)]
  assert len(np.unique(np.concatenate(keys), axis=0)) == 8
  alone = model.images(np.zeros((4, 2), int), seed=3, decoder='vanilla')
  np.testing.assert_array_equal(jax.random.key_data(alone.inputs(np.arange(4))[1]), keys[1])


def test_an_image_does_not_depend_on_its_batch(model):
  prompts = ['cat', 'dog', 'dog', 'cat', 'dog', 'dog', 'cat', 'cat', 'dog', 'cat', 'dog']
  whole = model.generate(prompts, seed=8, decoder='seed_exact(window=2)')
  for size in (1, 2):  # Several groups of batches; with slots that start the next image.
    parts = model.generate(prompts, seed=8, decoder='seed_exact(window=2)', batch_size=size)
    np.testing.assert_array_equal(parts.tokens, whole.tokens)
    np.testing.assert_array_equal(parts.prior.tokens, whole.prior.tokens)
    assert parts.prior.prompts == prompts
  one = model.generate('dog', seed=[(8, 4)], decoder='seed_exact(window=2)')
  np.testing.assert_array_equal(one.tokens[0], whole.tokens[4])
  seen = []
  model.generate(prompts, decoder='vanilla', batch_size=2,
                 progress=lambda done, total: seen.append((done, total)))
  assert seen[-1] == (11, 11) and len(seen) > 2


def test_results_say_what_both_stages_did(model, tmp_path):
  out = model.generate(
      list(NAMES), seed=4, decoder='vanilla | seed_exact(window=2)', temperature=[0.5, 0.7],
      prior=dict(temperature=[0.9, 1.1]))
  assert repr(out).startswith(
      'Generated(2 images of 2x2 by vanilla | seed_exact(window=2) (seed-exact)')
  texts = out.metadata(1)
  assert texts['prior_passes'] == out.prior.decoded.rounds[1] == 2
  assert texts['passes'] == out.decoded.rounds[1]
  assert texts['sampling']['temperature'] == pytest.approx(0.7)
  assert texts['sampling']['prior']['temperature'] == pytest.approx(1.1)
  again = model.generate(texts['prompt'], seed=[(texts['seed'], texts['number'])],
                         decoder=texts['decoder'], **texts['sampling'])
  np.testing.assert_array_equal(again.tokens[0], out.tokens[1])
  part = out[1]
  np.testing.assert_array_equal(part.prior.tokens, out.prior.tokens[1:])
  assert part.metadata(0) == texts
  np.testing.assert_array_equal(out.prior.handed['tokens'], out.prior.tokens)
  out.save(tmp_path)


def test_options_are_those_of_the_model_that_they_name(model):
  default = model.images(['cat'], decoder='vanilla')
  assert default.recorded['prior']['temperature'] == pytest.approx(1.2)  # The prior's own default.
  assert default.recorded['temperature'] == 1
  both = model.sampler('seed_exact', window=2)
  assert both.text == 'seed_exact(window=2) | seed_exact(window=2)'
  other = model.sampler('seed_exact', window=3, prior=dict(window=2))
  assert other.text == 'seed_exact(window=2) | seed_exact(window=3)'
  sampler = model.sampler('seed_exact(window=2)', prior=dict(temperature=0.5))
  again = model.sampler('seed_exact(window=2)', prior=dict(temperature=0.5))
  assert sampler.first is again.first and sampler.second is again.second
  np.testing.assert_array_equal(
      sampler(list(NAMES), seed=3).tokens,
      model.generate(list(NAMES), seed=3, decoder='seed_exact(window=2)',
                     prior=dict(temperature=0.5)).tokens)


def test_tokens_of_the_prior_are_prompts(model):
  out = model.generate(list(NAMES), seed=3, decoder='vanilla')
  alone = model.generate(out.prior.tokens, seed=3, decoder='vanilla')
  np.testing.assert_array_equal(alone.tokens, out.tokens)
  assert alone.prior is None and alone.prompts == ['codes 0', 'codes 1']
  assert alone.decoder == 'vanilla' and alone.guarantee == 'seed-exact'
  for name in ('temperature', 'top_k', 'window'):
    with pytest.raises(ValueError, match=f'prior.{name} is 1, but prompts are tokens of the prior'):
      model.generate(out.prior.tokens, decoder='vanilla', prior={name: 1})
  with pytest.raises(ValueError, match="tokens of the prior, which .*; pass 'vanilla'"):
    model.generate(out.prior.tokens, decoder='vanilla | vanilla')
  with pytest.raises(ValueError, match=r'a list of lists; .*: pass np.asarray\(prompts\)'):
    model.generate(out.prior.tokens.tolist())
  drawn = model.prior.generate(list(NAMES)).tokens
  np.testing.assert_array_equal(model.condition(drawn), drawn)
  with pytest.raises(ValueError, match=r'pass model.prior.generate\(prompts\).tokens'):
    model.condition(list(NAMES))


def test_the_second_model_is_measured_with_what_the_prior_draws(model):
  drawing, drawn = model.drawing([*NAMES, 'cat']), model.prior.generate(list(NAMES)).tokens
  np.testing.assert_array_equal(drawing.condition(['dog', 'cat']), drawn[::-1])
  out = drawing.generate(['dog'], seed=3, decoder='vanilla')
  expected = model.generate(drawn[1:], seed=3, decoder='vanilla')
  np.testing.assert_array_equal(out.tokens, expected.tokens)
  assert out.prompts == ['dog'] and out.prior is None
  images = Bench(drawing, list(NAMES)).images('vanilla')
  np.testing.assert_array_equal(images.condition, drawn)


def test_streams_show_both_stages(model):
  states = list(model.stream(list(NAMES), seed=3, decoder='seed_exact(window=2)'))
  of_prior = [state for state in states if state.is_prior]
  assert of_prior == states[:len(of_prior)] and 1 < len(of_prior) < len(states)
  for state in of_prior:
    assert not state.complete and (state.images == 128).all()
    assert state.images.shape == (2, 2, 2, 3) and 'tokens of the prior' in repr(state)
    with pytest.raises(ValueError, match='iterate until'):
      state.result()
    assert 'Partial(' in state._repr_html_()
  assert [state.count.max() for state in of_prior][-1] == 2
  assert [state.complete for state in states].count(True) == 1
  expected = model.generate(list(NAMES), seed=3, decoder='seed_exact(window=2)')
  result = states[-1].result()
  np.testing.assert_array_equal(result.images, expected.images)
  np.testing.assert_array_equal(result.prior.tokens, expected.prior.tokens)
  assert result.metadata(1) == expected.metadata(1)


def test_prefixes_are_those_of_the_image(model):
  first = np.array([[2, 1], [0, 2]])
  out = model.generate(list(NAMES), seed=3, decoder='seed_exact(window=2)', prefix=first)
  np.testing.assert_array_equal(out.tokens[:, :2], first)
  vanilla = model.generate(list(NAMES), seed=3, decoder='vanilla', prefix=first)
  np.testing.assert_array_equal(out.tokens, vanilla.tokens)
  plain = model.generate(list(NAMES), seed=3, decoder='vanilla')
  np.testing.assert_array_equal(out.prior.tokens, plain.prior.tokens)
  # Of more images than the prior draws at once.
  prompts, first = [*NAMES] * 3, np.arange(12).reshape(6, 2) % 3
  whole = model.generate(prompts, seed=3, decoder='seed_exact(window=2)', prefix=first)
  for size in (1, 4):
    out = model.generate(prompts, seed=3, decoder='seed_exact(window=2)', prefix=first,
                         batch_size=size)
    np.testing.assert_array_equal(out.tokens, whole.tokens)


def test_one_prompt_and_a_file_of_prompts_are_counted(model, tmp_path):
  out = model.generate('dog', seed=3, decoder='vanilla', prefix=np.array([2, 1]))
  assert len(out) == 1 and out.tokens[0, :2].tolist() == [2, 1]
  (tmp_path / 'prompts.txt').write_text('cat\ndog\n')
  of_file = model.generate(tmp_path / 'prompts.txt', seed=3, decoder='vanilla')
  expected = model.generate(list(NAMES), seed=3, decoder='vanilla')
  np.testing.assert_array_equal(of_file.tokens, expected.tokens)
  assert list(model.stream('dog', seed=3, decoder='vanilla'))[-1].result().prompts == ['dog']


def test_slots_decode_one_stage_after_the_other(model):
  spec = 'seed_exact(window=2)'
  images = model.images(['dog'], seed=[(6, 2)], decoder=spec, batch_size=1)

  def finished(of, image):
    runner = Runner(of, 2, decoder=spec)
    runner.join([image])
    while not (done := runner.finished()):
      runner.step()
    return done[0].decoded

  first = finished(model.prior, images.first)
  second = finished(model.second, images.then(first))
  result = images.sampler.result(images, Both(first, second))
  expected = model.generate('dog', seed=[(6, 2)], decoder=spec)
  np.testing.assert_array_equal(result.tokens, expected.tokens)
  np.testing.assert_array_equal(result.prior.tokens, expected.prior.tokens)


def test_a_run_that_is_stopped_continues(model, tmp_path):
  prompts = ['cat', 'dog', 'dog', 'cat', 'dog', 'dog', 'cat', 'cat', 'dog']
  images = model.images(prompts, seed=2, decoder='seed_exact(window=2)', batch_size=1)

  class Stop(Exception):
    pass

  def stop(done, total):
    if done == 5:
      raise Stop

  with pytest.raises(Stop):
    gallery_lib.Gallery(images, tmp_path).generate({}, stop)
  assert len(list(tmp_path.rglob('*.png'))) == 5
  gallery = gallery_lib.Gallery(images, tmp_path)
  assert gallery.generate({})
  assert 'tokens of the prior' in gallery.gained(0.0)
  assert gallery.headline.startswith('9 images with seed_exact(window=2) | seed_exact(window=2)')
  whole = model.generate(prompts, seed=2, decoder='seed_exact(window=2)')
  names = whole.names()
  assert all((tmp_path / name).read_bytes() == whole.png(i) for i, name in enumerate(names))
  assert gallery_lib.Gallery(images, tmp_path).is_complete
  other = model.images(prompts, seed=2, batch_size=1, decoder='seed_exact(window=2)',
                       prior=dict(temperature=0.3))
  assert stored_run.settings(other) != stored_run.settings(images)


def test_copies_have_the_prior_too(model):
  assert model.with_prefix(np.array([0, 1])).prior is model.prior
  assert copy.copy(model).second is model.second
  with pytest.raises(TypeError, match='cannot be pickled or deep-copied'):
    copy.deepcopy(model)
