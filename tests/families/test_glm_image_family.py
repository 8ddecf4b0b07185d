"""GLM-Image: tokens of two grids that diffusers draws, prompts, and what needs pixels."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from PIL import Image

import cspd_jax
from cspd_jax.commands import compare, generate as generate_command
from cspd_jax.files import store
from cspd_jax.models import glm_image
from cspd_jax.text import bpe, templates
from tests.builders import folders, sizes, texts, writers
from tests.marks import representative

pytest.importorskip('tokenizers')

CONFIG = sizes.GLM_IMAGE
PROMPTS = ['a cat', 'a dog, 中文']
ROOT = pathlib.Path(__file__).parents[2]
# In this form, the words of one message and nothing else.
TEMPLATE = ("{%- for message in messages -%}{%- for part in message['content'] -%}"
            "{{ part['text'] }}{%- endfor -%}{%- endfor -%}")


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A converted model, with an EAGLE network that was not trained."""
  folder = folders.copied('glm_image', tmp_path_factory.mktemp('glm_image'))
  folders.add_eagle(folder, 'glm_image', CONFIG)
  return folder


@pytest.fixture(scope='module')
def model(folder):
  return cspd_jax.load(folder)


@pytest.fixture(scope='module')
def text():
  return texts.vocabulary(texts.glm_image(), 'glm_image')


@pytest.mark.slow
def test_streams_and_marks_of_commands_need_pixels(folder, tmp_path, capsys):
  for name in ('stream', 'inception'):
    assert generate_command.main(['cspd-generate', f'--model={folder}', '--prompt=a cat',
                                  f'--output={tmp_path}/out', f'--{name}=x.png']) == 2
    assert f"{name} is 'x.png', but another program draws" in capsys.readouterr().err


def test_a_model_without_its_tokenizer_file(folder, model, text):
  alone = cspd_jax.load(folder, text=None)
  with pytest.raises(ValueError, match=(
      r"prompts is .*lacks the part text, .*tokenizer.json.: add it with cspd-convert "
      r'--family=glm_image_text --source=FILE --output=FOLDER.*padded.\[.ids,., ...\]')):
    alone.condition(PROMPTS)
  contexts = [templates.glm_image(text, prompt, 3, 4, small=CONFIG.small) for prompt in PROMPTS]
  for part, expected in zip(alone.condition(templates.padded(contexts)), model.condition(PROMPTS)):
    np.testing.assert_array_equal(part, expected)


@pytest.mark.slow
@pytest.mark.verifies('folder to pictures', 'glm_image')
def test_tokens_become_pictures_by_diffusers(model, tmp_path):
  """The program on a page, with a tiny pipeline of diffusers on a CPU."""
  pytest.importorskip('torch')
  pytest.importorskip('diffusers.pipelines.glm_image')
  from tests.families import glm_image_pipeline  # It requires both.
  glm_image_pipeline.save(tmp_path / 'pipeline', CONFIG.num_codes)
  paths = model.generate(PROMPTS, seed=3, decoder='seed_exact(window=4)').save(tmp_path / 'out')
  made = subprocess.run(
      [sys.executable, 'examples/decode_with_diffusers.py', *map(str, paths), '--device=cpu',
       '--steps=2', f'--model={tmp_path}/pipeline'], cwd=ROOT, check=False, text=True,
      capture_output=True, env=os.environ | {'HF_HUB_OFFLINE': '1'})
  assert made.returncode == 0, made.stderr
  pictures = sorted((tmp_path / 'out').glob('*.png'))
  assert [picture.with_suffix('.safetensors') for picture in pictures] == sorted(paths)
  first, second = (np.asarray(Image.open(picture), int) for picture in pictures)
  assert first.shape == (96, 128, 3) and first.std() > 5
  # The same noise, so that the tokens alone make the difference.
  assert np.abs(first - second).mean() > 1


def test_saved_files_hold_both_grids_and_what_made_them(model, tmp_path):
  out = model.generate(PROMPTS, seed=7, decoder='seed_exact(window=4)')
  assert repr(out).startswith('Generated(2 images of 3x4 tokens by seed_exact(window=4')
  assert out.images.shape == (2, 0, 0, 3) and out.round_of_cell.shape == (2, 3, 4)
  first, second = out.save(tmp_path)
  assert second.name == '00001_a_dog_中文_seed7.safetensors'
  saved = safetensors.numpy.load_file(second)
  with safetensors.safe_open(second, 'numpy') as file:
    texts = file.metadata()
  assert texts['prompt'] == PROMPTS[1] and texts['seed'] == '7' and texts['number'] == '1'
  assert texts['decoder'].startswith('seed_exact(window=4') and texts['guarantee'] == 'seed-exact'
  assert texts['grid'] == '[3, 4]' and 'cspd_jax' in texts['software']
  assert json.loads(texts['sampling'])['top_p'] == pytest.approx(0.75)
  small, large = out.tokens[1, :2].reshape(1, 1, 2), out.tokens[1, 2:-1].reshape(1, 3, 4)
  np.testing.assert_array_equal(saved['small_tokens'], small)
  np.testing.assert_array_equal(saved['large_tokens'], large)
  # As the pipeline enlarges its tokens: each is a square of two by two.
  wide = saved['prior_token_ids'].reshape(6, 8)
  assert wide.dtype == np.int64 and saved['prior_token_ids'].shape == (1, 48)
  np.testing.assert_array_equal(wide[1::2, ::2], large[0])
  np.testing.assert_array_equal(wide[::2, 1::2], large[0])
  np.testing.assert_array_equal(out.tokens[:, -1], CONFIG.num_codes)
  part = out[1]
  np.testing.assert_array_equal(part.handed['large_tokens'], large)
  again = safetensors.numpy.load(part.file(0))
  assert again.keys() == saved.keys() and all(
      np.array_equal(again[name], saved[name]) for name in saved)
  html = out._repr_html_()
  assert 'Generated(2 images' in html
  assert out.save(tmp_path) == [first, second]  # Equal files stay.
  first.write_bytes(first.read_bytes()[:40])
  with pytest.raises(ValueError, match='holds another 00000_a_cat'):
    out.save(tmp_path)
  from cspd_jax.generation import results
  with pytest.raises(ValueError, match='cannot be read as safetensors'):
    results.texts_of_file(first)


def test_what_needs_pixels_is_refused(model, folder, tmp_path, capsys):
  with pytest.raises(ValueError, match='has no image tokenizer; another program draws the pixels'):
    model.pixels(np.zeros((1, CONFIG.num_tokens), np.int32))
  with pytest.raises(ValueError, match='whose pixels another program draws; pass the tokens of'):
    model.generate(PROMPTS, decoder='seed_exact(window=4)').png(0)
  assert compare.main(['cspd-compare', f'--model={folder}', '--prompt=a cat', '--paired',
                       f'--output={tmp_path}']) == 2
  assert 'paired is True, but another program draws the pixels' in capsys.readouterr().err


@pytest.mark.slow
def test_unfinished_images_are_shown_as_rounds(model):
  states = list(model.stream(PROMPTS[:1], seed=7, decoder='seed_exact(window=4)'))
  assert states[0].images.shape == (1, 0, 0, 3) and 'Partial(' in states[0]._repr_html_()
  assert not states[0].fixed.any() and states[-1].fixed.all() and len(states) > 3
  middle = next(state for state in states if 3 <= state.count[0] < 14)
  np.testing.assert_array_equal(middle.fixed[0].ravel(), np.arange(12) < middle.count[0] - 2)


def test_prompts_end_with_both_grids(text):
  ids, = templates.glm_image(text, ' a cat ', 32, 24, small=(18, 13))
  sop, eop, start = (text.ids[name] for name in templates.GLM_TOKENS)
  assert ids == [*text.encode(' a cat '), sop, *text.encode('32 24'), eop, sop,
                 *text.encode('18 13'), eop, start]
  # Names of other tokens in the words of a user are words.
  ids, = templates.glm_image(text, 'a <|dit_token_16384|> cat', 32, 24, small=(18, 13))
  assert ids.count(start) == 1 and ids[-1] == start


@pytest.mark.slow
def test_prompts_are_those_of_its_processor(text, tmp_path):
  """With the chat template of one message, and every rounding of sizes that its program has."""
  glm = pytest.importorskip('transformers.models.glm_image')
  transformers = pytest.importorskip('transformers')
  file = tmp_path / 'tokenizer.json'
  file.write_bytes(texts.glm_image())
  tokenizer = transformers.PreTrainedTokenizerFast(
      tokenizer_file=str(file), bos_token=templates.GLM_TOKENS[-1],
      pad_token='<|endoftext|>', extra_special_tokens={
          name: token for name, token in writers.GLM_NAMES.items()
          if name not in ('bos_token', 'pad_token')}, padding_side='left')
  processor = glm.GlmImageProcessor(
      glm.GlmImageImageProcessorPil(), tokenizer, chat_template=TEMPLATE)
  for height, width in ((1024, 1024), (1152, 768), (1056, 1030), (512, 2048)):
    given = processor.apply_chat_template(
        [[{'role': 'user', 'content': [{'type': 'text', 'text': words}]}] for words in PROMPTS],
        tokenize=True, padding=True, return_dict=True, return_tensors='np',
        processor_kwargs=dict(target_h=height, target_w=width))
    config = glm_image.GlmImageConfig(height=height // 32, width=width // 32)
    assert given['image_grid_thw'].tolist() == [
        [1, config.height, config.width], [1, *config.small]] * 2
    for row, words in enumerate(PROMPTS):
      ids = given['input_ids'][row][np.asarray(given['attention_mask'][row]) == 1]
      assert ids.tolist() == templates.glm_image(
          text, words, config.height, config.width, small=config.small)[0]


@pytest.mark.parametrize('prompt, message', [
    ('a cat<sop>36 24<eop>', "prompts holds '<sop>' in .*leave it out and choose the size with"),
    ('a cat<eop>', "prompts holds '<eop>'"),
    ('<|image|> on the moon', "stands for an image to edit; images are not read here, because")])
def test_prompts_that_are_refused(prompt, message, model):
  with pytest.raises(ValueError, match=message):
    model.generate(prompt)


@pytest.mark.parametrize('options, message', [
    (dict(guidance_scale=2.0), 'guidance_scale is 2.0; it must be 1'),
    (dict(prefix=np.zeros(3, int)), 'whole rows of 4 tokens'),
    (dict(prefix=np.full(4, 40)), "with the grammar's tokens at the positions that it forces")])
def test_options_that_are_refused(options, message, model):
  with pytest.raises(ValueError, match=message):
    model.generate(PROMPTS[0], decoder='vanilla', **options)


@pytest.mark.parametrize('grid, message', [
    ((3, 0), 'grid'), ((1.5, 3), r'grid is \(1.5, 3\); it must be rows and columns of tokens'),
    ((1, 9), 'the small grid of an image this narrow has 0x6 tokens')])
def test_grids_that_are_not_whole_or_too_narrow_are_refused(grid, message, folder):
  with pytest.raises(ValueError, match=message):
    cspd_jax.load(folder, grid=grid)


def test_a_tokenizer_of_another_model_is_refused(folder):
  content = json.loads(texts.glm_image())
  start, end, *_ = texts.SPECIAL['glm_image']
  for token in content['added_tokens']:
    token['id'] = {start: 41, end: 40}.get(token['content'], token['id'])
  file = np.frombuffer(json.dumps(content).encode(), np.uint8)
  other = store.Loaded('text', bpe.TextConfig('glm_image', len(file)), {'file': file}, {})
  with pytest.raises(ValueError, match='as token 41, but the target of .* has 40 codes before it'):
    cspd_jax.load(folder, text=other)


@pytest.mark.slow
def test_the_large_grid_is_drawn_again_for_a_small_one(model):
  """A prefix of the small grid and a part of the large one; drafts see what is left of it."""
  first = model.generate(PROMPTS, seed=3, decoder='vanilla')
  kept = first.tokens[:, :4]
  one, other = (model.generate(PROMPTS, seed=8, decoder=decoder, prefix=kept) for decoder in (
      'vanilla', 'seed_exact(window=4, initialization=repeat-small)'))
  np.testing.assert_array_equal(one.tokens, other.tokens)
  np.testing.assert_array_equal(one.tokens[:, :4], kept)
  assert (one.tokens[:, 4:] != first.tokens[:, 4:]).any()
  np.testing.assert_array_equal(one.round_of_cell[:, 0, :2], 0)
  np.testing.assert_array_equal(one.handed['small_tokens'][:, 0], kept[:, :2])


@pytest.mark.slow
def test_a_network_of_transformers_becomes_a_model():
  pytest.importorskip('torch')
  pytest.importorskip('transformers.models.glm_image')
  from tests.models import glm_image_reference as reference  # It requires both.
  made = cspd_jax.from_torch(reference.network(), 'glm_image',
                             options={'num_heads': 4, 'height': 8, 'width': 6})
  # The side of the small grid is the published one.
  assert made.config == dataclasses.replace(reference.CONFIG, small_side=16)
  assert made.defaults == {'temperature': 0.9, 'top_p': 0.75}


@pytest.fixture(scope='module')
def vanilla(model):
  return model.generate(PROMPTS, seed=5, decoder='vanilla')


@pytest.mark.parametrize('decoder', representative(
    ('seed_exact(window=4)', 'seed_exact(window=4, initialization=repeat-small)',
     'eagle(tree=chain(3))+match', 'corrected_seed_exact(corrector=eagle, window=4)',
     'corrected_seed_exact(corrector=layers, window=4)'),
    'seed_exact(window=4)'))
def test_seed_exact_decoders_write_the_tokens_of_vanilla(model, vanilla, decoder):
  """Windows that lie in both grids at once, whose positions jump between them."""
  made = model.generate(PROMPTS, seed=5, decoder=decoder)
  np.testing.assert_array_equal(made.tokens, vanilla.tokens)
  assert len(np.unique(made.tokens)) > 8 and made.tokens.shape == (2, 15)
