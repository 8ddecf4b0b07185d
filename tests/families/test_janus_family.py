"""Janus-Pro: from files in the published formats, at tiny sizes, to pictures by two commands."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.commands import generate as generate_command, train
from cspd_jax.files import store
from cspd_jax.models import eagle, janus
from cspd_jax.models.conditions import Prompt
from cspd_jax.testing import exactness
from cspd_jax.text import bpe, templates
from tests.families import janus_files
from tests.marks import representative

pytest.importorskip('tokenizers')

CONFIG = janus_files.CONFIG
PROMPTS = ['a cat', 'a dog, 中文']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A model, converted from files of transformers, with an EAGLE network that was not trained."""
  root = tmp_path_factory.mktemp('janus')
  assert not janus_files.converted(janus_files.folder(root / 'files', True), root / 'model')
  config = families.FAMILIES['janus_pro'].published.networks(CONFIG)['eagle'][1]
  store.save(root / 'model' / 'eagle', 'eagle', config, eagle.init(config, jax.random.key(3)))
  families.save(root / 'model', 'janus_pro', {'eagle': 'eagle'})
  return root / 'model'


@pytest.fixture(scope='module')
def model(folder):
  return cspd_jax.load(folder)


@pytest.mark.verifies('folder to pictures', 'janus_pro')
@pytest.mark.parametrize('is_transformers', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_folder_becomes_pictures_by_two_commands(is_transformers, tmp_path, capsys):
  source = janus_files.folder(tmp_path / 'Janus-Pro-1B', is_transformers)
  assert not janus_files.converted(source, tmp_path / 'model')
  printed = capsys.readouterr().out
  assert f"Next: cspd-generate --model={tmp_path}/model --prompt='a light" in printed
  assert not generate_command.main(
      ['cspd-generate', f'--model={tmp_path}/model', *(f'--prompt={words}' for words in PROMPTS),
       '--decoder=seed_exact(window=4)', f'--output={tmp_path}/out', '--dtype=bfloat16'])
  pictures = sorted((tmp_path / 'out').glob('*.png'))
  assert len(pictures) == 2 and pictures[0].read_bytes() != pictures[1].read_bytes()
  header = pictures[0].read_bytes()[16:24]
  assert (int.from_bytes(header[:4], 'big'), int.from_bytes(header[4:], 'big')) == (8, 6)
  model = cspd_jax.load(tmp_path / 'model')
  assert model.config == CONFIG and model.tokenizer.config == janus_files.VQ
  assert model.defaults == {'guidance_scale': 5.0, 'temperature': 1.0, 'top_p': 1.0}
  sampling = json.loads((tmp_path / 'out' / 'report.json').read_text())['sampling']
  assert sampling['guidance_scale'] == 5.0 and not sampling['top_k']


@pytest.mark.slow
def test_both_formats_are_one_model(tmp_path):
  loaded = []
  for is_transformers in (True, False):
    source = janus_files.folder(tmp_path / f'files{is_transformers}', is_transformers)
    assert not janus_files.converted(source, tmp_path / f'model{is_transformers}')
    loaded.append(cspd_jax.load(tmp_path / f'model{is_transformers}'))
  shapes = [jax.tree.map(np.shape, model.params) for model in loaded]
  assert shapes[0] == shapes[1] and loaded[0].config == loaded[1].config


@pytest.mark.parametrize('roles', [True, False])
def test_prompts_are_those_of_the_official_template(roles):
  text = bpe.Vocabulary(janus_files.tokenizer_file(roles))
  request, other = templates.janus_pro(text, '  a cat ', 24, 24)
  ids = text.ids
  if roles:
    words = [ids['<|User|>'], *text.encode(': a cat\n\n'), ids['<|Assistant|>'], *text.encode(':')]
  else:
    words = text.encode('<|User|>: a cat\n\n<|Assistant|>:')
  begin, pad, image = (ids[name] for name in (
      '<｜begin▁of▁sentence｜>', '<｜▁pad▁｜>', '<begin_of_image>'))
  assert request == [begin, *words, image]
  assert other == [begin, *[pad] * len(words), image]
  # Names of tokens in the words of a user are words.
  injected, _ = templates.janus_pro(text, 'a <begin_of_image> cat', 24, 24)
  assert injected.count(image) == 1


@pytest.mark.slow
def test_padding_of_the_second_context_is_read(model):
  condition = model.condition(PROMPTS)
  visible = np.asarray(condition.visible)
  np.testing.assert_array_equal(visible[:, 0], visible[:, 1])
  assert visible[0].sum() < visible[1].sum()
  tokens = np.asarray(condition.tokens)[0, 1][visible[0, 1]] - CONFIG.num_codes
  assert len(set(tokens[1:-1])) == 1 and len(tokens) > 6
  changed = condition._replace(tokens=condition.tokens.at[0, 1, -4].add(1))
  image = jnp.zeros((2, 12), jnp.int32)
  logits, other = (model.teacher.forward(model.params, prompt, image, jnp.ones(2, bool))[0]
                   for prompt in (condition, changed))
  assert np.abs(logits[0] - other[0]).max() > 1e-3
  np.testing.assert_array_equal(logits[1], other[1])


def test_a_tokenizer_of_another_model_is_refused():
  text = bpe.Vocabulary(janus_files.tokenizer_file().replace('▁pad▁'.encode(), b'padding').replace(
      b'\\u2581pad\\u2581', b'padding'))
  with pytest.raises(ValueError, match='the tokenizer file has no token .*pad'):
    templates.janus_pro(text, 'a cat', 24, 24)


def test_ids_outside_the_vocabulary_are_refused(model):
  ids = np.full((1, 2, 3), CONFIG.text_size)
  with pytest.raises(ValueError, match='supports 0 to 299'):
    model.condition(Prompt(ids, np.ones(ids.shape, bool)))


@pytest.fixture(scope='module')
def vanilla(model):
  return model.generate(PROMPTS, seed=5, decoder='vanilla')


@pytest.mark.slow
@pytest.mark.parametrize('decoder', [
    'seed_exact(window=4)', 'eagle(tree=chain(3))+match',
    'corrected_seed_exact(corrector=eagle, window=4)',
    'corrected_seed_exact(corrector=layers, window=4)'])
def test_seed_exact_decoders_repeat_vanilla(model, vanilla, decoder):
  tokens = model.generate(PROMPTS, seed=5, decoder=decoder).decoded.tokens
  np.testing.assert_array_equal(tokens, vanilla.decoded.tokens)
  assert len(np.unique(tokens)) > 3 and vanilla.images.shape == (2, 6, 8, 3)


@pytest.mark.slow
@pytest.mark.parametrize('decoder', representative(
    ['mc_sjd(window=2)', 'eagle(tree=chain(2))+rejection'], 'mc_sjd(window=2)'))
def test_decoders_draw_from_the_model(decoder):
  """Whole images of 3 codes out of 4, with guidance, against their enumerated distribution."""
  config = dataclasses.replace(CONFIG, height=1, width=3, num_codes=4, text_size=9)
  params = jax.tree.map(
      lambda leaf, key: leaf + 0.4 * jax.random.normal(key, leaf.shape),
      janus.init(config, jax.random.key(0)),
      _keys(jax.eval_shape(lambda: janus.init(config, jax.random.key(0)))))
  networks = families.FAMILIES['janus_pro'].published.networks(config)
  drafter = eagle.init(networks['eagle'][1], jax.random.key(4))
  parts = {'target': store.Loaded('janus', config, params, {}),
           'eagle': store.Loaded('eagle', networks['eagle'][1], drafter, {})}
  model = families.FAMILIES['janus_pro'].build(families.Parts('tiny', parts, {}))
  ids = np.array([[[1, 5, 6, 3], [1, 2, 2, 3]], [[1, 8, 4, 3], [1, 2, 2, 3]]])
  prompts = model.condition(Prompt(ids, np.ones(ids.shape, bool)))
  sampling = model.sampling(guidance_scale=2.0)
  images = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing='ij'), axis=-1).reshape(-1, 3)
  probs = []
  for row in range(2):
    condition = jax.tree.map(lambda x, row=row: jnp.repeat(x[row:row + 1], 64, axis=0), prompts)
    first, second = (janus.logits_and_features(
        params, config, condition, images, jnp.full(64, drop))[0] for drop in (False, True))
    steps = jax.nn.softmax(second + 2 * (first - second), axis=-1)
    probs.append(jnp.prod(jnp.take_along_axis(steps, images[..., None], axis=2)[..., 0], axis=1))
  decode, draft_params = jax.jit(model.decoder(decoder, guided=True)), model.draft_params(decoder)
  report = exactness.check_sampler(
      lambda key, labels: decode(
          params, jax.tree.map(lambda x: x[labels], prompts), key, sampling, draft_params).tokens,
      np.stack(probs), 4, samples=2**13, batch_size=2**10)
  assert report.passed and report.tv < 3 * report.tv_expected, report


def _keys(tree):
  leaves, structure = jax.tree.flatten(tree)
  return jax.tree.unflatten(structure, list(jax.random.split(jax.random.key(1), len(leaves))))


@pytest.mark.slow
def test_a_corrector_is_fitted_for_it(folder, tmp_path):
  assert not train.main(['cspd-train', f'--model={folder}', '--smoke', f'--workdir={tmp_path}/work',
                         f'--output={tmp_path}/fitted'])
  model = cspd_jax.load(folder, neighbours=tmp_path / 'fitted')
  tokens = model.generate(PROMPTS, seed=1,
                          decoder='corrected(corrector=neighbours, window=4)').tokens
  assert tokens.shape == (2, 12)


def test_its_sizes_are_described():
  whole = families.describe('janus_pro_7b')
  assert set(whole.drafts) == {'eagle', 'corrector', 'neighbours', 'layers'}
  assert whole.params['head']['hidden']['kernel'].shape == (4096, 4096)
  assert whole.params['transformer']['token_embedding'].shape == (16384 + 102400, 4096)
  assert 'output' not in whole.params['transformer'] and whole.num_tokens == 576


@pytest.mark.slow
def test_images_of_another_grid_are_refused(folder):
  with pytest.raises(ValueError, match='grid'):
    cspd_jax.load(folder, grid=(2, 2))
