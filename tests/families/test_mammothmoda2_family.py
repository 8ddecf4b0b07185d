"""MammothModa2: prompts and their null condition, tokens that are handed on, and refused files."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from cspd_jax import families
from cspd_jax.decoding.tree import chain
from cspd_jax.files import store, weights
from cspd_jax.models import early_fusion
from tests.builders import folders, sizes, texts, writers
from tests.conversion import published_settings
from tests.models import cases

pytest.importorskip('tiktoken')

CONFIG = sizes.MAMMOTHMODA2


@pytest.fixture(scope='module')
def text():
  return texts.vocabulary(texts.mammothmoda2(), 'mammothmoda2')


def test_prompts_state_the_grid_and_the_null_condition_is_ten_tokens(text):
  write = families.FAMILIES['mammothmoda2'].prompt_writers
  ids, null = write['mammothmoda2_columns_first'](text, 'a <|image token|>', 32, 48)
  image, start, end = (text.ids[f'<|image {name}|>'] for name in ('token', 'start', 'end'))
  assert (image, start, end) == (152069, 152070, 152071)
  assert text.ids['<|visual token 000000|>'] == 152072 and text.ids['<|endofline|>'] == 152064
  # The name of a token in the words is words.
  assert ids[0] == text.ids['<|im_start|>'] and ids.count(image) == 1
  assert ids[-7:] == [start, *text.encode('48*32'), image] and null == ids[-10:]
  other, _ = write['mammothmoda2_rows_first'](text, 'a <|image token|>', 32, 48)
  assert other == [*ids[:-6], *text.encode('32*48'), image]
  assert write['mammothmoda2'](text, 'a', 32, 32)[0][-7:-1] == [start, *text.encode('32*32')]
  with pytest.raises(ValueError, match='32x48 codes, and whether its prompt states rows'):
    write['mammothmoda2'](text, 'a', 32, 48)


def test_tokens_are_handed_on_by_their_published_ids():
  model = folders.loaded('mammothmoda2')
  made = model.generate(['a cat'], seed=1, decoder='seed_exact(window=4)')
  ids = made.handed['image_ids'].reshape(4, 11)
  assert ids.dtype == np.int64 and (ids[:, -1] == 152064).all()
  np.testing.assert_array_equal(ids[:, :-1] - 152072, made.tokens.reshape(4, 11)[:, :-1])
  assert made.round_of_cell.shape == (1, 4, 10) and made.images.shape == (1, 0, 0, 3)


def test_a_tokenizer_with_other_codes_is_refused():
  file = np.frombuffer(texts.mammothmoda2().replace(b'<|image end|>\n', b''), np.uint8)
  part = folders.loaded('mammothmoda2')
  parts = families.Parts('x', {
      'target': store.Loaded('mammothmoda2', part.config, part.params, {}),
      'text': store.Loaded('text', dataclasses.replace(
          store.describe(folders.model('mammothmoda2') / 'text').config, num_bytes=len(file)),
          {'file': file}, {})}, {})
  with pytest.raises(ValueError, match='token 000000.> as token 152072, .*as token 152071; use'):
    families.FAMILIES['mammothmoda2'].build(parts)
  with pytest.raises(ValueError, match='lacks the names of mammothu_vision_tokens.txt'):
    texts.vocabulary(texts.emu3(), 'mammothmoda2')


def test_a_window_reads_the_networks_of_images_alone():
  """Numbers of the other networks change no window, and prompts read both."""
  case = cases.case('mammothmoda2 preview')
  named = weights.named(case.params)
  second = {name for name in named if '/image_' in name}
  first = {name.replace('image_', '') for name in second}
  assert {name.split('/')[1] for name in second} == {'layers_1', 'layers_2'}
  init = weights.named(jax.eval_shape(
      lambda key: early_fusion.init(case.config, key), jax.random.key(0)))
  assert {name: leaf.shape for name, leaf in init.items()} == {
      name: leaf.shape for name, leaf in named.items()}
  target = early_fusion.target(case.config, guided=True)
  without = lambda names: jax.tree_util.tree_map_with_path(
      lambda path, leaf: leaf * jnp.nan if jax.tree_util.keystr(
          path, simple=True, separator='/') in names else leaf, case.params)
  prefill, score = jax.jit(target.prefill, static_argnums=2), jax.jit(
      target.score, static_argnums=4)
  _, _, cache = prefill(case.params, case.condition, 12)
  for names, is_read in ((first, False), (second, True)):
    logits, _, _ = score(without(names), cache, case.tokens[:, :4], jnp.zeros(2, int), chain(3))
    assert np.isnan(logits).any() == is_read
    assert np.isnan(prefill(without(names), case.condition, 12)[0]).any()


SETTINGS = {'config.json': writers.mammoth_settings(),
            't2i_generation_config.json': writers.MAMMOTH_GENERATION}


@pytest.mark.parametrize('file, path, value, message', [
    ('config.json', 'llm_config.text_config.hidden_size', 8192, 'dim is 8192, the model has 16'),
    ('config.json', 'llm_config.text_config.num_hidden_layers', 80, 'num_layers is 80, the model'),
    ('config.json', 'llm_config.text_config.num_attention_heads', None,
     'num_heads cannot be inferred .*"num_attention_heads": 28'),
    ('config.json', 'llm_config.text_config.rope_theta', None, 'rope_base cannot be inferred'),
    ('config.json', 'llm_config.text_config.vocab_size', 151936, 'but another field is 152064'),
    ('config.json', 'llm_config.gen_vocab_size', 32768, 'but another field is 32768'),
    ('config.json', 'llm_config.text_config.moe_type', 'ffn_attention-1:2',
     "'ffn_attention-1:2'; it must be ffn or a range of layers such as ffn-14:28"),
    ('config.json', 'llm_config.text_config.moe_type', 'ffn', 'another field means'),
    ('config.json', 'llm_config.model_type', 'qwen2_5_vl', 'it must be mammothmoda2_qwen2_5_vl or'),
    ('t2i_generation_config.json', 'repetition_penalty', 1.05, 'it must be 1.0, because another'),
    ('t2i_generation_config.json', 'visual_token_end_id', 184864, 'it must be 16384 behind'),
    ('t2i_generation_config.json', 'visual_token_start_id', 1000, 'visual_token_end_id is 168456'),
    ('t2i_generation_config.json', 'eol_token_id', 152080, 'must be different tokens')])
def test_settings_that_are_refused(file, path, value, message):
  contents = SETTINGS | {file: published_settings.changed(SETTINGS[file], path, value)}
  with pytest.raises(ValueError, match=message):
    convert.of_tensors('mammothmoda2', writers.mammoth_tensors(), contents, metadata=dict)


def test_weights_of_preview_beside_settings_of_dev():
  content = json.loads(json.dumps(writers.mammoth_settings()).replace('qwen2_5', 'qwen3'))
  with pytest.raises(ValueError, match='qk_rms_norm is True, the model has False'):
    convert.of_tensors('mammothmoda2', writers.mammoth_tensors(), {'config.json': content},
                       metadata=dict)
  shapes = {f'gen_vae.{name}': np.zeros(3, np.float32) for name in 'ab'}
  with pytest.raises(rules.ConversionError, match='not the autoregressive part of MammothModa2'):
    convert.of_tensors('mammothmoda2', shapes, SETTINGS, metadata=dict)


def test_what_is_left_out_is_named(tmp_path):
  opened = convert.open_source('mammothmoda2', writers.mammothmoda2(tmp_path))
  assert opened.network.config == dataclasses.replace(CONFIG, height=32, width=32)
  assert opened.defaults == {'temperature': 0.9, 'top_k': 500, 'top_p': 1.0}
  grid, left_out = opened.assumptions
  assert 'assumed images of 32x32 tokens (1024x1024 pixels)' in grid
  assert left_out.startswith('left out ') and '(5 tensors), which this network does not' in left_out


@pytest.mark.parametrize('template, form', [
    ('<|image start|>{{ ar_height }}*{{ ar_width }}<|image token|>', 'mammothmoda2_rows_first'),
    ('{{ ar_height }}<|image start|>{{ ar_width }}*{{ ar_height }}', 'mammothmoda2_columns_first'),
    ('{{ start }}{{ ar_width }}*{{ ar_height }}', 'mammothmoda2')])
def test_the_chat_template_says_which_side_is_first(template, form, tmp_path):
  folder = writers.mammothmoda2(tmp_path)
  (folder / 'chat_template.json').unlink()
  (folder / 'chat_template.jinja').write_text(template)
  opened = convert.open_source('mammothmoda2_text', folder / 'mammothu.tiktoken')
  assert opened.network.config.form == form
  assert bool(opened.assumptions) == (form == 'mammothmoda2')
