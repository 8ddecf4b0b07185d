"""Lumina-mGPT 2.0: agreement with its official program, and from published files to pictures.

`tests/data/lumina_mgpt_2.npz` was recorded in float32 from the official repository (commit
f44a4d7) with transformers 4.46, and with the weights of `published.py`:

- `logits` `[3, 2, 73, 48]`: those of the codes by `ChameleonForConditionalGeneration` at the sizes
  of `CASE`, weight seed 81, from the last token of the prompt on; one call for a whole sequence and
  calls for one token each agreed to 1e-4. Prompts are published ids `default_rng(82)
  .integers(0, 96, (3, 2, 12))` from the places `FIRST` on, then codes `.integers(0, 48, (3, 8, 8))`
  of the same generator plus 45, with the tokens of the grammar where they belong.
- `words_0` to `words_2`: the ids of `WORDS` for an image of 64x32 pixels by `FlexARItemProcessor`,
  which read the folder of `published_files.lumina_mgpt_2`.
- `probabilities` and `ids`: see `test_logits_processors.py`.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from checkpoints_conversion import convert as convert_lib, rules
from cspd_jax.files import store
from cspd_jax.models import causal, early_fusion
from cspd_jax.text import bpe, templates
from tests.conversion import published_settings
from tests.families import published_files
from tests.families.published_files import convert
from tests.models import published

pytest.importorskip('tokenizers')  # It reads the file of words.

pytestmark = pytest.mark.usefixtures('precise')

CASE = early_fusion.EarlyFusionConfig(
    height=8, width=8, vocab_size=96, num_codes=48, first_code=45, row_end=40, image_ends=(37,),
    dim=64, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=96)
FIRST = np.array([[0, 10], [5, 8], [9, 11]])
CONFIG, VQ = published_files.LUMINA_MGPT_2, published_files.MOVQGAN
WORDS = ('a cat', '', 'e\u0301t\u00e9 \u4e2d\u6587, 12 cats\n\nand  dogs')


@pytest.fixture(scope='module')
def recorded():
  return published.recorded('lumina_mgpt_2')


def _images(config, codes):
  """Images of codes with the tokens of the grammar."""
  return early_fusion.with_grammar(config, jnp.asarray(codes.reshape(len(codes), -1)))


@pytest.fixture(scope='module')
def case():
  """Parameters, prompts of two streams and images, in this library's tokens."""
  rng = np.random.default_rng(82)
  prompts = np.argsort(early_fusion.order(CASE))[rng.integers(0, 96, (3, 2, 12))]
  condition = causal.Prompt(jnp.asarray(prompts), jnp.arange(12) >= FIRST[..., None])
  tokens = _images(CASE, rng.integers(0, 48, (3, 8, 8)))
  return published.params('lumina_mgpt_2', CASE, 81), condition, tokens


@pytest.mark.verifies('parity', 'lumina_mgpt_2')
@pytest.mark.parametrize('stream', [0, 1])
def test_logits_agree_with_the_official_model(case, recorded, stream):
  params, condition, tokens = case
  want = recorded['logits'][:, stream]
  logits, _ = jax.jit(early_fusion.logits_and_features, static_argnums=1)(
      params, CASE, condition, tokens, np.full(3, bool(stream)))
  assert want.shape[1] == CASE.num_tokens >= 64
  np.testing.assert_allclose(logits[..., :48], want, atol=3e-4)


def _text():
  return bpe.read({'file': np.frombuffer(published_files.lumina_mgpt_2_text(), np.uint8)},
                  'lumina_mgpt_2')


def test_sizes_without_tokens_are_refused():
  for size in ((3, 4), (4, 6), (2, 4)):
    with pytest.raises(ValueError, match=f'image has {size[0]}x{size[1]} .* only multiples of 4'):
      templates.lumina_mgpt_2(_text(), 'a cat', *size)
  with pytest.raises(ValueError, match="no token '<reserved08864>'"):
    templates.lumina_mgpt_2(_text(), 'a cat', 256, 4)


@pytest.mark.parametrize('number', range(3))
def test_contexts_are_those_of_the_official_program(recorded, number):
  request, away = templates.lumina_mgpt_2(_text(), WORDS[number], 4, 8, first_token='<|im_end|>')
  image = [151665, 151701, 151702]
  assert request == [*recorded[f'words_{number}'], *image] and away == image
  assert templates.lumina_mgpt_2(_text(), WORDS[number], 4, 8)[0] == [151643, *request[1:]]


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """The published folder."""
  return published_files.lumina_mgpt_2(tmp_path_factory.mktemp('published'))


@pytest.fixture(scope='module')
def model(files, tmp_path_factory):
  """The model, whose image tokenizer is a file of safetensors here."""
  folder = tmp_path_factory.mktemp('models') / 'lumina_2'
  safetensors.numpy.save_file(
      published_files.tensors('movqgan', VQ, 2), files.parent / 'movq.safetensors')
  assert not convert(files.parent, 'movqgan', 'movq.safetensors', folder)
  assert not convert(files.parent, 'lumina_mgpt_2', files.name, folder, '--height=4', '--width=8',
                     '--role=target')
  assert not convert(files.parent, 'lumina_mgpt_2_text', f'{files.name}/tokenizer.json', folder)
  return cspd_jax.load(folder)


@pytest.mark.slow
def test_a_model_has_the_official_options(model, recorded):
  assert model.config == CONFIG and model.tokenizer.config == VQ
  assert model.defaults == {
      'temperature': 1.0, 'top_p': 1.0, 'guidance_scale': 4.0, 'top_k': 4096}
  # Words begin with the token of the model's settings.
  condition = model.condition(['a cat'])
  ids = early_fusion.order(CONFIG)[np.asarray(condition.tokens)[0, 0]]
  size = [151665, 151701, 151702]
  assert ids[np.asarray(condition.visible)[0, 0]].tolist() == [*recorded['words_0'], *size]


@pytest.mark.slow
def test_other_sizes(model, tmp_path):
  folder = tmp_path / 'model'
  store.save(folder / 'target', 'early_fusion', CONFIG, model.params)
  config = bpe.TextConfig('lumina_mgpt_2', len(published_files.lumina_mgpt_2_text()), '<|im_end|>')
  store.save(folder / 'text', 'text', config,
             {'file': np.frombuffer(published_files.lumina_mgpt_2_text(), np.uint8)})
  cspd_jax.families.save(folder, 'early_fusion', {'target': 'target', 'text': 'text'})
  tall = cspd_jax.load(folder, grid=(12, 4))
  assert tall.num_tokens == 12 * 5 + 1
  condition = tall.condition(['a cat'])
  ids = early_fusion.order(CONFIG)[np.asarray(condition.tokens)[0]]
  assert ids[:, -3:].tolist() == [[151665, 151703, 151701]] * 2
  assert ids[0][np.asarray(condition.visible)[0, 0]][0] == 151645


def _opened(folder, settings=None):
  """The output of a conversion of the tokenizer file with settings next to it."""
  folder.mkdir()
  (folder / 'tokenizer.json').write_bytes(published_files.lumina_mgpt_2_text())
  if settings is not None:
    (folder / 'tokenizer_config.json').write_text(json.dumps(settings))
  return convert_lib.open_source('lumina_mgpt_2_text', folder / 'tokenizer.json')


@pytest.mark.parametrize('settings, name', [
    ({'bos_token': '<|im_start|>', 'eos_token': '<|im_end|>'}, '<|im_start|>'),
    ({'bos_token': {'content': '<|im_start|>'}}, '<|im_start|>'),
    ({'bos_token': None, 'eos_token': '<|im_end|>'}, '<|im_end|>'),
    (published_settings.TOKENIZER, '<|endoftext|>')])
def test_the_first_token_is_that_of_the_settings(tmp_path, settings, name):
  opened = _opened(tmp_path / 'files', settings)
  assert opened.network.config.first_token == name and not opened.assumptions


def test_without_settings_the_first_token_is_assumed(tmp_path):
  opened = _opened(tmp_path / 'files')
  assert opened.network.config.first_token is None
  assert opened.assumptions == (
      "assumed prompts that begin with <|endoftext|>; the model's tokenizer_config.json next to "
      'the tokenizer.json specifies another token',)


def test_settings_without_a_usable_first_token_are_refused(tmp_path):
  with pytest.raises(rules.ConversionError, match='bos_token or eos_token is 3; it must be the na'):
    _opened(tmp_path / 'number', {'bos_token': 3})
  opened = _opened(tmp_path / 'absent', {'bos_token': '<s>'})
  with pytest.raises(ValueError, match="the tokenizer file has no token '<s>'"):
    opened.params()


def test_the_vocabulary_may_have_another_size():
  file = rules.get('lumina_mgpt_2')
  for size in (171384, 200000):
    config = dataclasses.replace(CONFIG, vocab_size=size)
    shapes = convert_lib.published_shapes(file, config)
    assert file.infer(shapes, {'height': 4, 'width': 8}) == config
  shapes = convert_lib.published_shapes(rules.get('lumina_mgpt'), published_files.LUMINA_MGPT)
  with pytest.raises(rules.ConversionError, match='65536 tokens; .* has at least 171384'):
    file.infer(shapes, {})


def test_fields_that_the_official_program_does_not_read():
  file = rules.get('lumina_mgpt_2')
  read = lambda **change: file.settings(
      {'config.json': {**published_settings.LUMINA_MGPT_2, **change}})
  assert read(vocabulary_map={'IMGIMGAZ': 4}, boi_token_id=8197, eoi_token_id=8196) == read()
  for change in ({'attention_bias': True}, {'sliding_window': 3}, {'rope_scaling': {'type': 'x'}}):
    with pytest.raises(rules.ConversionError, match=next(iter(change))):
      read(**change)
