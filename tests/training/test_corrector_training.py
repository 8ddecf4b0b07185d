"""Training of correctors: windows as they were met, what is read of them, learning."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from configs.train import drafters
from cspd_jax.cli import groups
from cspd_jax.commands import train
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding.drafters import from_network
from cspd_jax.decoding.drafters.corrected import corrected
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.generation import memory
from cspd_jax.models import eagle, llamagen, local
from cspd_jax.training import corrector, corrector_loss, drafter, optimizer, windows
from cspd_jax.training.optimizer import OptimizerConfig
from tests.builders import models as models_lib
from tests.training import test_drafter_training

TARGET = llamagen.LlamaGenConfig(
    height=4, width=5, dim=16, num_layers=1, num_heads=2, ffn_dim=24, vocab_size=10, num_classes=2)
EAGLE = eagle.EagleConfig(
    num_tokens=20, row_width=5, dim=16, num_heads=2, ffn_dim=24, vocab_size=10, num_layers=2,
    correction_dim=8)
LOCAL = local.LocalConfig(
    vocab_size=10, num_tokens=20, row_width=5, dim=4, hidden_dim=16, feature_dim=16,
    correction_dim=8)
OPTIMIZER = OptimizerConfig(num_steps=40, batch_size=4, learning_rate=1e-2, warmup_steps=5)
TRAIN = corrector_loss.CorrectorTrainConfig(OPTIMIZER, windows_per_image=3, passes=2)
LABELS = np.arange(6) % 2
LENGTH = 7
FORWARD = lambda params, *args: llamagen.logits_and_features(params, TARGET, *args)
ENDS = llamagen.ends(TARGET)
TEACHER = drafter.Teacher(FORWARD, ENDS)
DECODER = make_decoder(
    llamagen.target(TARGET, guided=True),
    corrected(from_network(eagle.network(EAGLE, ENDS)), LENGTH + 1, 2), rejection())


@pytest.fixture(autouse=True, scope='module')
def _precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target_params():
  return test_drafter_training.target_params(TARGET)


@pytest.fixture(scope='module')
def params():
  return eagle.init(EAGLE, jax.random.key(1))


@pytest.fixture(scope='module')
def met(target_params, params):
  """The result of a decode and the state that the recording drafter kept of every round."""
  arguments = (target_params, LABELS, jax.random.key(2), SamplingParams(guidance_scale=2.0),
               eagle.attach(target_params, params))
  return jax.jit(DECODER)(*arguments), windows.recorder(DECODER)(*arguments)


def _batch(result, index=0):
  return corrector_loss.batch_of(result, LABELS, TRAIN, index, features=windows.along(result))


def _sequence(result, image, turn, tokens):
  """Tokens committed before a round, and those behind them."""
  before = result.tokens[image, :result.first[image, turn] + 1]
  return jnp.asarray(np.concatenate([before, tokens]))[None]


def _said(params, target_params, tokens, features):
  """What the network says behind tokens `[1, n]` of features `[S, n, F]` that predicted them."""
  _, said = eagle.predict(
      eagle.attach(target_params, params), EAGLE, ENDS, jnp.repeat(tokens, 2, axis=0), features)
  return jnp.moveaxis(said, 0, 1)


@pytest.mark.slow
def test_watching_changes_nothing(met):
  decoded, result = met
  np.testing.assert_array_equal(result.tokens, decoded.tokens)
  committed = np.where(result.accepted >= 0, result.accepted + 1, 0)
  np.testing.assert_array_equal((committed > 0).sum(1), decoded.rounds - 1)
  np.testing.assert_array_equal(committed.sum(1), 19)
  np.testing.assert_array_equal(
      np.where(committed, result.first, 0), np.where(committed, committed.cumsum(1) - committed, 0))


@pytest.mark.slow
def test_recorded_answers_are_the_targets(met, target_params):
  _, result = met
  for image, turn in ((0, 0), (1, 1), (4, 2)):
    first = result.first[image, turn]
    room = min(LENGTH, 19 - first)
    tokens = _sequence(result, image, turn, result.nodes[image, turn, :room])
    padded = jnp.pad(tokens, ((0, 0), (0, 21 - tokens.shape[1])))[:, :20]
    for stream in range(2):
      # Feature `k` predicts token `k`.
      _, features = FORWARD(target_params, LABELS[[image]], padded, jnp.array([stream == 1]))
      np.testing.assert_allclose(
          result.features[image, turn, :room, stream], features[0, first + 1:first + 1 + room],
          rtol=2e-3, atol=2e-3)


@pytest.mark.slow
def test_windows_are_read_as_sequences(met, target_params, params):
  _, result = met
  batch = _batch(result)
  both = [FORWARD(target_params, batch.condition, batch.tokens, jnp.full(4, drop))[1]
          for drop in (False, True)]
  features, answers = jnp.stack(both), batch.features.astype(jnp.float32)
  said, old, read = corrector_loss._reader(
      eagle.network(EAGLE, ENDS), eagle.attach(target_params, params), batch, features, answers)
  hints = jax.random.normal(jax.random.key(3), answers[:, :, 1:-1].shape)
  new = read(hints)
  for image, turn in ((0, 1), (2, 0)):
    first = int(batch.first[image, turn])
    tokens = jnp.concatenate([batch.tokens[image, :first + 1], batch.nodes[image, turn]])
    inputs = jnp.concatenate(
        [features[:, image, :first + 1], jnp.moveaxis(answers[image, turn, :-1], 1, 0)], axis=1)
    want = _said(params, target_params, tokens[None], inputs)
    np.testing.assert_allclose(old[image, turn], want[first + 1:], atol=2e-5)

    start = first + int(batch.accepted[image, turn]) + 1
    room = max(min(LENGTH - 1, 19 - start), 0)
    inputs = jnp.concatenate([features[:, image, :start + 1], jnp.moveaxis(
        hints[image, turn, :room], 1, 0)], axis=1)
    want = _said(params, target_params, batch.tokens[None, image, :start + 1 + room], inputs)
    np.testing.assert_allclose(said[:, image, start], want[start], atol=2e-5)
    np.testing.assert_allclose(new[image, turn, :room], want[start + 1:], atol=2e-5)


@pytest.mark.slow
def test_windows_are_read_by_what_is_near(met, target_params):
  """As one call for all positions of an image reads them; features along it are the target's."""
  _, result = met
  batch = _batch(result)
  for stream in range(2):
    _, features = FORWARD(target_params, batch.condition, batch.tokens, jnp.full(4, stream == 1))
    np.testing.assert_allclose(
        batch.along[:, 1:, stream], features[:, -19:], rtol=2e-3, atol=2e-3)
  params = local.init(LOCAL, jax.random.key(1))
  reading = corrector_loss._local_reading(
      params, LOCAL, target_params, TEACHER, batch, SamplingParams(guidance_scale=2.0))
  answers = batch.features.astype(jnp.float32)
  hints = jax.random.normal(jax.random.key(3), answers[:, :, 1:].shape)
  new = reading.read(hints)

  def whole(image, first, tokens, hints):
    """Predictions for the tokens after number `first`, which are given with their features."""
    at = slice(first + 1, first + 1 + len(tokens))
    every = jnp.zeros(40, jnp.int32).at[:20].set(batch.tokens[image]).at[at].set(tokens)
    features = jnp.zeros((40, 2, 16)).at[:20].set(batch.along[image]).at[at].set(hints)
    reads = jnp.pad(local.read(params, LOCAL, features), ((6, 0), (0, 0), (0, 0), (0, 0)))
    return jax.tree.map(lambda x: x[0, at], local.predict(
        params, LOCAL, every[None], reads[None, :-1], jnp.array([-1])))

  for image, turn in ((0, 1), (2, 0), (3, 2)):
    first, nodes = int(batch.first[image, turn]), batch.nodes[image, turn]
    old = whole(image, first, nodes, answers[image, turn, :-1])
    start = first + int(batch.accepted[image, turn]) + 1
    room = max(min(LENGTH, 19 - start), 0)
    tokens = batch.tokens[image, start + 1:start + 1 + room]
    after = whole(image, start, tokens, hints[image, turn, :room])
    inside = max(min(LENGTH - 1, 18 - first), 0)
    for name in local.Prediction._fields:
      np.testing.assert_allclose(
          getattr(reading.old, name)[image, turn, :inside], getattr(old, name)[1:1 + inside],
          atol=2e-5)
      np.testing.assert_allclose(
          getattr(new, name)[image, turn, :room], getattr(after, name), atol=2e-5)


@pytest.mark.slow
def test_whole_images_are_read_alike(met, target_params, params):
  batch = _batch(met[1])
  sampling = SamplingParams(guidance_scale=batch.guidance_scale)
  result, parts = corrector_loss.plain_loss(
      params, EAGLE, target_params, TEACHER, batch.tokens, batch.condition, sampling)
  want = corrector_loss.agreement(
      params, EAGLE, TRAIN, target_params, TEACHER, batch, sampling).plain
  np.testing.assert_allclose(result, want.mean(), rtol=1e-4)
  assert 0 < parts['overlap'] < 1 and result > 0


@pytest.mark.slow
@pytest.mark.parametrize('config', [EAGLE, LOCAL])
def test_it_learns_from_whole_images(met, target_params, params, config):
  batch = _batch(met[1])
  images = batch.tokens, batch.along if config == LOCAL else batch.condition
  params = local.init(LOCAL, jax.random.key(1)) if config == LOCAL else params
  sampling = SamplingParams(guidance_scale=batch.guidance_scale)
  step = jax.jit(lambda state: optimizer.step(state, lambda params: corrector_loss.plain_loss(
      params, config, target_params, TEACHER, *images, sampling), OPTIMIZER))
  state = optimizer.start(params, OPTIMIZER)
  state, first = step(state)
  for _ in range(OPTIMIZER.num_steps - 1):
    state, last = step(state)
  assert last['loss'] < 0.7 * first['loss'] and last['overlap'] > first['overlap']


@pytest.mark.slow
@pytest.mark.parametrize('config', [EAGLE, LOCAL])
def test_it_learns(met, target_params, params, config):
  _, result = met
  batch = _batch(result)
  params = local.init(LOCAL, jax.random.key(1)) if config == LOCAL else params
  step = jax.jit(lambda state: optimizer.step(state, lambda params: corrector_loss.loss(
      params, config, TRAIN, target_params, TEACHER, batch, SamplingParams()), OPTIMIZER))
  measure = jax.jit(lambda params: corrector_loss.measure(
      params, target_params, batch, config, TRAIN, TEACHER, SamplingParams(guidance_scale=2.0)))
  before = measure(params)
  state = optimizer.start(params, OPTIMIZER)
  for _ in range(OPTIMIZER.num_steps):
    state, _ = step(state)
  after = measure(state.params)
  assert after['length'] > before['length'] + 0.3 and after['overlap_1'] > before['overlap_1']


@pytest.mark.slow
@pytest.mark.parametrize('halves', [(True, False), (False, True), (True, True)])
def test_target_and_corrector_may_have_other_dtypes(target_params, params, halves):
  half = lambda tree, is_half: jax.tree.map(
      lambda leaf: leaf.astype(jnp.bfloat16) if is_half else leaf, tree)
  target, network = half(target_params, halves[0]), half(params, halves[1])
  result = jax.eval_shape(
      DECODER, target, LABELS, jax.random.key(2), SamplingParams(guidance_scale=2.0),
      eagle.attach(target, network))
  assert result.tokens.shape == (6, 20)


@pytest.mark.slow
def test_lengths_are_measured_with_the_options_of_the_recipe(met, target_params, params):
  """The divergence that is trained is without cuts."""
  batch = _batch(met[1])
  measure = lambda sampling: corrector_loss.measure(
      params, target_params, batch, EAGLE, TRAIN, TEACHER, sampling)
  whole = measure(SamplingParams(guidance_scale=2.0))
  greedy = measure(SamplingParams(guidance_scale=2.0, top_k=1))
  assert abs(greedy['overlap_1'] - whole['overlap_1']) > 1e-3
  np.testing.assert_allclose(greedy['plain'], whole['plain'], rtol=1e-5)


def test_the_temperature_of_the_images_is_trained(target_params, params):
  rng = np.random.default_rng(4)
  batch = corrector_loss.CorrectorBatch(
      rng.integers(0, 10, (2, 20)), LABELS[:2], np.full((2, 1), 3), np.full((2, 1), 2),
      rng.integers(0, 10, (2, 1, LENGTH)), rng.standard_normal((2, 1, LENGTH + 1, 2, 16)),
      np.float32(2))

  once = dataclasses.replace(TRAIN, passes=1)

  @jax.jit
  def losses(temperature):
    sampling = SamplingParams(guidance_scale=batch.guidance_scale, temperature=temperature)
    return (corrector_loss.plain_loss(params, EAGLE, target_params, TEACHER, batch.tokens,
                                 batch.condition, sampling),
            corrector_loss.loss(params, EAGLE, once, target_params, TEACHER, batch, sampling))

  (plain, _), (_, parts) = losses(1e4)  # All tokens are as probable as others.
  np.testing.assert_allclose([plain, parts['plain'], parts['length']], [0, 0, LENGTH], atol=0.1)
  (plain, _), (_, parts) = losses(1.0)
  assert min(plain, parts['plain']) > 0.3 and parts['length'] < LENGTH - 1
  # A greedy decoder's drafts are trained at temperature 1.
  jax.tree.map(np.testing.assert_array_equal, losses(0.0), losses(1.0))


def test_flags_of_the_sampling_are_those_of_the_training():
  flags = train.Flags(sampling=groups.SamplingFlags(guidance_scale=6.0), num_steps=20)
  recipe = train.override(drafters.get_config('emoji_corrector'), flags)
  assert recipe.train.guidance_scales == (6.0,) and recipe.guidance_scale == 6
  optimizer = recipe.train.optimizer  # 50 steps of warm-up and 400 of cooldown do not fit.
  assert (optimizer.num_steps, optimizer.warmup_steps, optimizer.cooldown_steps) == (20, 10, 10)


def test_accepted_length():
  overlap = jnp.array([[[0.5, 0.5, 0.5], [1.0, 0.2, 0.9]]])
  inside = jnp.array([[[True, True, True], [True, False, False]]])
  lengths, reached = corrector_loss.accepted_length(overlap, inside)
  np.testing.assert_allclose(lengths, [[0.875, 1.0]])
  np.testing.assert_allclose(reached, [[[1, 0.5, 0.25], [1, 0, 0]]])


@pytest.mark.slow
def test_rounds_behind_the_end_are_not_taken(met):
  _, result = met
  first = windows.Windows(*(part[:3] for part in result))
  few = windows.concatenate([first, windows.Windows(
      *(part[3:] if name == 'tokens' else part[3:, :-1]
        for name, part in zip(result._fields, result)))])
  assert few.first.shape == result.first.shape and few.accepted[3:, -1].max() == -1
  for index in range(20):
    batch = _batch(few, index)
    assert batch.accepted.min() >= 0
    again = _batch(few, index)
    np.testing.assert_array_equal(batch.first, again.first)
  # Few rounds are taken more than once.
  many = dataclasses.replace(TRAIN, windows_per_image=40)
  assert corrector_loss.batch_of(result, LABELS, many, 0).first.shape == (4, 40)


def _recipe(folder):
  few = dataclasses.replace(OPTIMIZER, num_steps=3, warmup_steps=1)
  return corrector.CorrectorRecipe(
      drafter=eagle.EagleConfig(num_tokens=16, row_width=4, dim=16, num_heads=2, ffn_dim=16,
                                vocab_size=16, correction_dim=4),
      plain=few, train=dataclasses.replace(TRAIN, optimizer=few),
      target=str(folder / 'alone'),
      decoder='corrected(corrector=layers, window=5, iterations=1, tree=chain())',
      num_plain_images=8, num_train_images=6, num_held_out_images=4)


@pytest.mark.slow
def test_a_recipe_from_images_to_a_model(tmp_path):
  models_lib.llamagens(tmp_path)
  recipe = _recipe(tmp_path)
  target = cspd_jax.load(recipe.target, dtype='float32')
  train.run(recipe, target, tmp_path / 'run', tmp_path / 'corrector')
  # Nothing is left to do, and the result is the same.
  train.run(recipe, target, tmp_path / 'run', tmp_path / 'again')
  first, again = (cspd_jax.load(recipe.target, corrector=tmp_path / name)
                  for name in ('corrector', 'again'))
  jax.tree.map(np.testing.assert_array_equal, first.drafts['corrector'].params,
               again.drafts['corrector'].params)
  changed = jax.tree.map(lambda leaf: leaf * 2, target.params)
  with pytest.raises(ValueError, match=r"windows_train', which .* \(other parameters"):
    corrector.recorded(
        recipe, dataclasses.replace(target, params=changed), 'train', tmp_path / 'run')
  with pytest.raises(ValueError, match=r"windows_train', which .* \(other seed; other prompts\)"):
    corrector.recorded(
        dataclasses.replace(recipe, num_train_images=5), target, 'train', tmp_path / 'run')
  assert 'correction' in first.drafts['corrector'].params
  decode = lambda decoder: first.generate(['cat'] * 3, seed=1, decoder=decoder).decoded.tokens
  np.testing.assert_array_equal(
      decode('corrected_seed_exact(window=5, iterations=2)'), decode('vanilla'))
  train.run(dataclasses.replace(recipe, plain=None), target, tmp_path / 'windows',
            tmp_path / 'by_windows')
  assert cspd_jax.load(recipe.target, corrector=tmp_path / 'by_windows').drafts['corrector']
  assert not (tmp_path / 'windows' / 'tokens').exists()


@pytest.mark.slow
def test_whole_images_of_a_file(tmp_path):
  models_lib.llamagens(tmp_path)
  recipe = dataclasses.replace(_recipe(tmp_path), images=str(tmp_path / 'tokens.npz'))
  target = cspd_jax.load(recipe.target, dtype='float32')
  train_on = lambda tokens, name: np.savez(recipe.images, tokens=tokens) or jax.tree.leaves(
      corrector.train_plain(
          recipe, corrector.lessons(recipe, target, tmp_path / name),
          corrector.init(recipe, target), tmp_path / name))
  tokens = np.arange(8 * 16).reshape(8, 16) % 16
  first, other = train_on(tokens, 'first'), train_on(tokens[:, ::-1], 'other')
  assert not all(map(np.array_equal, first, other))
  assert not (tmp_path / 'first' / 'tokens').exists()  # Nothing was sampled.
  np.savez(recipe.images, tokens=tokens[:7])
  with pytest.raises(ValueError, match='at least 8 images of 16 tokens'):
    corrector.check(recipe, target)


def test_more_windows_than_the_memory_holds_are_refused_before_sampling(tmp_path, monkeypatch):
  models_lib.llamagens(tmp_path)
  recipe = _recipe(tmp_path)
  target = cspd_jax.load(recipe.target, dtype='float32')
  # 15 tokens behind the first in 3 rounds of 5 tokens, whose features are [2, 16] in 16 bits.
  least = 2 * 3 * (5 * 2 * 16 * 2 + 4 * 4 + 2 * 4)
  monkeypatch.setattr(memory, 'free', lambda devices: 1e9)
  monkeypatch.setattr(memory, '_available', lambda: 4 * least)
  monkeypatch.setattr(corrector, 'recorder', None)
  for split, count, most in (('train', 6, 3), ('held_out', 5, 3)):
    with pytest.raises(ValueError, match=rf'num_{split}_images is {count}, but windows of .*; pass '
                       f'at most {most}'):
      corrector.recorded(
          dataclasses.replace(recipe, num_held_out_images=5), target, split, tmp_path / 'run')
  with pytest.raises(TypeError, match='not callable'):  # Those fit, so that they are recorded.
    corrector.recorded(recipe, target, 'held_out', tmp_path / 'other')
