"""Training of EAGLE drafters and Medusa heads: alignment, learning, measuring, continuing."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from configs.train import drafters
from cspd_jax import families
from cspd_jax.commands import train
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import tree as tree_lib
from cspd_jax.files import store
from cspd_jax.models import eagle, llamagen, medusa
from cspd_jax.training import drafter, loop, samples
from cspd_jax.training.optimizer import OptimizerConfig

pytestmark = pytest.mark.usefixtures('precise')

_sizes = dict(height=3, width=4, dim=16, num_layers=1, num_heads=2, ffn_dim=24, vocab_size=10)
TARGETS = {'class': llamagen.LlamaGenConfig(num_classes=2, **_sizes),
           'text': llamagen.LlamaGenConfig(conditioning='text', caption_dim=6, **_sizes)}
TARGET = TARGETS['class']
EAGLE = eagle.EagleConfig(num_tokens=12, row_width=4, dim=16, num_heads=2, ffn_dim=24,
                          vocab_size=10)
DRAFTERS = {'eagle': EAGLE, 'medusa': medusa.MedusaConfig(num_heads=3, dim=16, vocab_size=10)}
OPTIMIZER = OptimizerConfig(num_steps=60, batch_size=4, learning_rate=1e-2, warmup_steps=5)
TRAIN = drafter.DrafterTrainConfig(OPTIMIZER)


def target_params(config=TARGET):
  """Random parameters, with distributions that are far from uniform."""
  shapes = jax.eval_shape(lambda: llamagen.init(config, jax.random.key(0)))
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda leaf: jnp.asarray(
      rng.standard_normal(leaf.shape) / np.sqrt(leaf.shape[0]), jnp.float32), shapes)
  params['transformer']['output'] *= 4
  return params


_of_target = jax.jit(llamagen.logits_and_features, static_argnums=1)
ENDS = llamagen.ends(TARGET)
TEACHER = drafter.Teacher(
    lambda params, *args: llamagen.logits_and_features(params, TARGET, *args), ENDS)
_predict = jax.jit(eagle.predict, static_argnums=(1, 2))


def _batch(size=4):
  rng = np.random.default_rng(1)
  return (jnp.asarray(rng.integers(0, 10, (size, 12)), jnp.int32),
          jnp.arange(size, dtype=jnp.int32) % 2)


def _step(config, train, params):
  return jax.jit(lambda state, batch: drafter.step(state, batch, params, config, train, TEACHER))


@pytest.mark.parametrize('conditioning', TARGETS)
@pytest.mark.slow
def test_features_of_the_next_token_have_the_lowest_loss(conditioning, monkeypatch):
  """The features of every token, one by one from the decoding target, are a perfect drafter."""
  config, (tokens, condition) = TARGETS[conditioning], _batch(2)
  if conditioning == 'text':
    rng = np.random.default_rng(2)
    condition = llamagen.Caption(
        jnp.asarray(rng.standard_normal((2, 120, 6)), jnp.float32), jnp.ones((2, 120), bool))
  params = target_params(config)
  target = llamagen.target(config, guided=False)
  logits, features, cache = jax.jit(target.prefill, static_argnums=2)(params, condition, 12)
  score = jax.jit(target.score, static_argnums=4)
  of_token, probs_of = [features[0, :, -1]], [jax.nn.softmax(logits[0])]
  for k in range(11):
    logits, features, cache = score(
        params, cache, tokens[:, k:k + 1], jnp.full(2, k), tree_lib.chain(0))
    of_token.append(features[0, :, 0])
    probs_of.append(jax.nn.softmax(logits[0, :, 0]))
  of_token, probs_of = jnp.stack(of_token, axis=1), jnp.stack(probs_of, axis=1)

  def perfect(attached, _, ends, read_tokens, read_features, prompt):
    # Token k comes with the feature whose logits are those of token k.
    np.testing.assert_array_equal(read_tokens, tokens[:, :11])
    np.testing.assert_allclose(read_features[:, -11:], of_token[:, :11], atol=1e-5)
    assert read_features.shape[1] == config.num_condition_tokens - 1 + 11
    return ends.logits(attached['target'], of_token[:, 1:]), of_token[:, 1:]

  monkeypatch.setattr(eagle, 'predict', perfect)
  logits, features = _of_target(
      params, config, condition, tokens, jnp.zeros(2, bool))
  loss, parts = drafter.eagle_loss(
      eagle.init(EAGLE, jax.random.key(0)), EAGLE, dataclasses.replace(TRAIN, noise=0.0),
      llamagen.ends(config), params,
      tokens, features, jax.nn.softmax(logits), jax.random.key(0))
  entropy = jax.scipy.special.entr(probs_of[:, 1:]).sum(-1).mean()
  np.testing.assert_allclose(parts['regression'], 0, atol=1e-9)
  np.testing.assert_allclose(parts['cross_entropy'], entropy, rtol=1e-5)
  np.testing.assert_allclose(loss, 0.1 * entropy, rtol=1e-5)


@pytest.mark.parametrize('labels', [
    'probs', pytest.param('tokens', marks=pytest.mark.slow)])
def test_head_h_learns_the_token_h_plus_one_later(labels, monkeypatch):
  (tokens, classes), params = _batch(2), target_params()
  logits, features = _of_target(
      params, TARGET, classes, tokens, jnp.zeros(2, bool))
  probs = jax.nn.softmax(logits)
  wanted = probs if labels == 'probs' else jax.nn.one_hot(tokens, 10)

  def perfect(_, read):
    assert read.shape == (2, 12, 16)
    np.testing.assert_allclose(read @ params['transformer']['output'], logits, atol=1e-5)
    shifted = [jnp.pad(wanted[:, 1 + h:], ((0, 0), (0, 1 + h), (0, 0))) for h in range(3)]
    return jnp.log(jnp.stack(shifted, axis=2) + 1e-12)

  monkeypatch.setattr(medusa, 'heads', perfect)
  train = dataclasses.replace(TRAIN, labels=labels)
  loss, _ = drafter.medusa_loss({}, DRAFTERS['medusa'], train, tokens, features, probs)
  entropies = [jax.scipy.special.entr(wanted[:, 1 + h:]).sum(-1).mean() for h in range(3)]
  np.testing.assert_allclose(
      loss, entropies[0] + 0.8 * entropies[1] + 0.64 * entropies[2], atol=1e-4)


@pytest.mark.slow
def test_dropped_conditions_use_the_features_of_the_null_condition():
  params, (tokens, labels) = target_params(), _batch()
  train = dataclasses.replace(TRAIN, drop_rate=1.0, noise=0.0)
  state = drafter.init(EAGLE, train, ENDS, params)
  _, metrics = _step(EAGLE, train, params)(state, (tokens, labels))
  loss, result = jax.jit(drafter.eagle_loss, static_argnums=(1, 2, 3)), []
  for drop in (True, False):
    logits, features = _of_target(
        params, TARGET, labels, tokens, jnp.full(4, drop))
    result.append(loss(
        state.params, EAGLE, train, ENDS, params, tokens, features, jax.nn.softmax(logits),
        jax.random.key(0))[0])
  np.testing.assert_allclose(metrics['loss'], result[0], rtol=1e-5)
  assert abs(metrics['loss'] - result[1]) > 1e-3


@pytest.mark.slow
def test_measured_probs_chain_predicted_features():
  params, (tokens, labels) = target_params(), _batch()
  own = drafter.init(EAGLE, TRAIN, ENDS, params).params
  attached = eagle.attach(params, own)
  result = jax.jit(lambda *args: drafter.measure(*args, EAGLE, TEACHER, SamplingParams(2.0), 3,
                                                 stride=4))(
      own, params, (tokens, labels))
  streams = [_of_target(params, TARGET, labels, tokens, jnp.full(4, drop))
             for drop in (False, True)]
  guided = lambda pair: jax.nn.softmax(pair[1] + 2.0 * (pair[0] - pair[1]))
  probs = guided([logits for logits, _ in streams])
  overlaps, hits = np.zeros((3, 3)), np.zeros((3, 3))
  for i, start in enumerate((0, 4, 8)):
    known = [features[:, :start + 1] for _, features in streams]
    for depth in range(1, 4):
      made = [_predict(attached, EAGLE, ENDS, tokens[:, :start + depth], part) for part in known]
      known = [jnp.concatenate([part, predicted[:, -1:]], axis=1)
               for part, (_, predicted) in zip(known, made)]
      distribution = guided([logits[:, -1] for logits, _ in made])
      overlaps[depth - 1, i] = jnp.minimum(distribution, probs[:, start + depth]).sum(-1).mean()
      best = np.argsort(-distribution, axis=-1)[:, :3]
      hits[depth - 1, i] = (best == tokens[:, start + depth, None]).any(-1).mean()
  for depth in range(1, 4):
    np.testing.assert_allclose(result[f'overlap_{depth}'], overlaps[depth - 1].mean(), atol=1e-5)
    np.testing.assert_allclose(result[f'top3_{depth}'], hits[depth - 1].mean(), atol=1e-6)


@pytest.mark.slow
def test_measured_heads_are_compared_with_the_probs_they_predict():
  params, (tokens, labels) = target_params(), _batch()
  # Every head repeats the distribution of the token before.
  own = medusa.from_target(ENDS, params, DRAFTERS['medusa'])
  end = lambda positions: jnp.where(positions % 4 == 3, 9, -1)  # Of a row.
  measure = lambda teacher, sampling: jax.jit(lambda *args: drafter.measure(
      *args, DRAFTERS['medusa'], teacher, sampling, 3))(own, params, (tokens, labels))
  result = measure(TEACHER, SamplingParams())
  greedy = measure(TEACHER, SamplingParams(temperature=0.0))
  ended = measure(TEACHER._replace(forced=end), SamplingParams())
  probs = jax.nn.softmax(llamagen.logits_and_features(
      params, TARGET, labels, tokens, jnp.zeros(len(tokens), bool))[0])
  for h in range(3):
    overlap = jnp.minimum(probs[:, :-1 - h], probs[:, 1 + h:]).sum(-1)
    np.testing.assert_allclose(result[f'overlap_{h + 1}'], overlap.mean(), atol=1e-5)
    overlap = jnp.where(end(jnp.arange(1 + h, 12)) < 0, overlap, 1)
    np.testing.assert_allclose(ended[f'overlap_{h + 1}'], overlap.mean(), atol=1e-5)
    assert greedy[f'top3_{h + 1}'] == result[f'top3_{h + 1}'] < 1
    top1 = (probs[:, :-1 - h].argmax(-1) == tokens[:, 1 + h:]).mean()
    np.testing.assert_allclose(result[f'top1_{h + 1}'], top1, atol=1e-6)


def test_a_smaller_last_batch_weighs_less():
  evaluate = drafter.evaluation(
      None, lambda params, frozen, batch: {'mean': jnp.mean(batch[0])},
      lambda: [(np.zeros(3), None), (np.ones(1), None)])
  assert evaluate(None) == {'mean': 0.25}


@pytest.fixture(scope='module')
def target_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('target')
  store.save(folder, 'llamagen', TARGET, target_params())
  return str(folder)


def _recipe(target_folder, name):
  return drafter.DrafterRecipe(
      drafter=DRAFTERS[name], target=target_folder,
      train=dataclasses.replace(TRAIN, optimizer=dataclasses.replace(OPTIMIZER, num_steps=6)),
      num_train_images=12, num_held_out_images=4, num_depths=1, log_every=2, checkpoint_every=2,
      evaluate_every=3)


@pytest.mark.slow
@pytest.mark.parametrize('name', DRAFTERS)
def test_stopped_run_continues_to_the_same_parameters(name, target_folder, tmp_path, monkeypatch):
  recipe = _recipe(target_folder, name)
  model = cspd_jax.load(recipe.target, dtype='float32')
  whole, report = drafter.train(recipe, model, tmp_path / 'whole')
  for split in ('train', 'held_out'):
    shutil.copytree(*(tmp_path / run / f'tokens_{split}' for run in ('whole', 'stopped')))
  assert report.keys() == {'top1_1', 'top3_1', 'overlap_1'}
  batch_of = loop.batch_of

  def stop_at_step_4(tokens, labels, seed, index, size):
    if index == 4:
      raise KeyboardInterrupt
    return batch_of(tokens, labels, seed, index, size)

  monkeypatch.setattr(loop, 'batch_of', stop_at_step_4)
  with pytest.raises(KeyboardInterrupt):
    drafter.train(recipe, model, tmp_path / 'stopped')
  monkeypatch.undo()
  continued, _ = drafter.train(recipe, model, tmp_path / 'stopped')
  jax.tree.map(np.testing.assert_array_equal, continued, whole)
  lines = [json.loads(line) for line in
           (tmp_path / 'stopped' / f'{name}.jsonl').read_text().splitlines()]
  assert [line['step'] for line in lines] == [2, 3, 4, 6]


@pytest.mark.slow
def test_the_sampling_options_are_those_of_the_target(target_folder, tmp_path, monkeypatch):
  defaults = {'guidance_scale': 1.5, 'top_k': 3, 'top_p': 0.9, 'temperature': 0.8}
  families.save(tmp_path / 'model', 'llamagen', {'target': target_folder}, defaults)
  model = cspd_jax.load(tmp_path / 'model', dtype='float32')
  recipe = dataclasses.replace(_recipe(target_folder, 'medusa'), top_p=1.0)
  used = []
  measure, sampled = drafter.measure, samples.sampled
  monkeypatch.setattr(drafter, 'measure', lambda *args: used.append(args[5]) or measure(*args))
  monkeypatch.setattr(samples, 'sampled', lambda *args: used.append(args[4]) or sampled(*args))
  train.run(recipe, model, tmp_path / 'run', tmp_path / 'medusa')
  assert len(used) > 2
  for sampling in used:
    assert (sampling.guidance_scale, sampling.top_k) == (1.5, 3)
    assert sampling.temperature == np.float32(0.8) and sampling.top_p in (1, None)
  tokens, labels = drafter.images(recipe, model, 'train', tmp_path / 'run')
  logits = np.stack([_of_target(model.params, TARGET, labels, tokens, jnp.full(12, drop))[0]
                     for drop in (False, True)])
  guided = logits[1] + 1.5 * (logits[0] - logits[1])
  chosen = np.take_along_axis(guided, tokens[..., None], axis=-1)
  assert ((guided > chosen + 1e-4).sum(-1) < 3).all()
  settings = json.loads((tmp_path / 'run' / 'report.json').read_text())['settings']
  assert {name: settings[name] for name in SamplingParams._fields} == {
      **defaults, 'top_p': 1.0, 'guidance_interval': -1, 'min_p': 0.0}


@pytest.mark.slow
def test_a_recipe_of_a_shipped_model_has_its_options():
  model = cspd_jax.load('emoji')
  for kind in ('eagle', 'corrector'):
    recipe = samples.completed(train.recipe_for(model, 'emoji', kind), model)
    assert recipe.guidance_scale == 1.5 and recipe.top_k == 0 and recipe.top_p == 1
  assert recipe.train.guidance_scales == (1.5,)
  scales = dict(demo=2.0, emoji=1.5)
  for recipe in drafters.CONFIGS.values():
    assert samples.sampling(recipe, cspd_jax.load(recipe.target)) == SamplingParams(
        guidance_scale=scales[recipe.target])


@pytest.mark.slow
@pytest.mark.parametrize('name', ['eagle', 'medusa'])
def test_shipped_drafters_fit_the_shipped_target(name):
  recipe = drafters.get_config(name)
  drafter.check(recipe, cspd_jax.load(recipe.target))
  loaded = store.load(f'demo/{name}')
  assert (loaded.kind, loaded.config) == (name, recipe.drafter)
