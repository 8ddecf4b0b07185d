"""NextStep-1: from files in the published layouts, at tiny sizes, to pictures by two commands."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax.commands import generate as generate_command
from cspd_jax.models import kl_vae, nextstep
from cspd_jax.text import bpe, templates
from tests.conversion import published_settings, torch_files
from tests.families import published_files
from tests.families.published_files import convert

pytest.importorskip('tokenizers')  # It reads words.

FIRST = dataclasses.replace(
    nextstep.PRESETS['nextstep_1_512'], height=3, width=4, latent_channels=4, dim=32, num_layers=2,
    num_heads=4, num_kv_heads=2, ffn_dim=48, head_width=24, head_layers=2)
SECOND = dataclasses.replace(FIRST, token_norm=False, num_levels=28, last_step=None)
VAE = kl_vae.KLVAEConfig(
    ch_mult=(1, 1), num_res_blocks=1, z_channels=4, scale=0.9, shift=0.1, quant_conv=False,
    level_attention=False, normalized=True)
WORDS = ('--height=3', '--width=4')


def tokenizer_file():
  """A file like Qwen's: all bytes, some merges, and the tokens of images with published ids."""
  merges = [('c', 'a'), ('ca', 't')]
  vocab = {piece: number for number, piece in enumerate([
      *sorted(published_files.bytes_to_symbols().values()), *map(''.join, merges)])}
  names = ('[PAD]', '<|image_area|>', '<|begin_of_image|>', '<|end_of_image|>',
           '<|image_placeholder|>')
  pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
             r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+')
  return published_files.tokenizer_file(
      vocab, {name: 151665 + place for place, name in enumerate(names)}, merges, reads_bytes=True,
      split=pattern)


def published(root, config, settings, vae='vae'):
  """A folder as it is on the hub, with an output matrix of text."""
  folder = root / 'NextStep-1-Large'
  weights = published_files.tensors('nextstep', config, 1)
  weights['lm_head.weight'] = np.zeros((3, 2), np.float32)
  sizes = dict(
      hidden_size=config.dim, num_hidden_layers=config.num_layers,
      num_attention_heads=config.num_heads, num_key_value_heads=config.num_kv_heads,
      head_dim=config.head_dim, intermediate_size=config.ffn_dim)
  heads = (('genloss_width', 'genloss_depth', 'num_channels') if 'genloss_width' in settings else
           ('fm_head_dim', 'fm_head_layers', 'latent_channels'))
  sizes |= zip(heads, (config.head_width, config.head_layers, config.latent_channels))
  published_files.shard(folder, weights, settings | sizes)
  (folder / 'tokenizer.json').write_bytes(tokenizer_file())
  (root / vae if '/' in vae else folder / vae).mkdir(parents=True)
  place = root / vae if '/' in vae else folder / vae
  torch_files.save(place / 'checkpoint.pt', published_files.tensors('nextstep_vae', VAE, 2))
  (place / 'config.json').write_text(json.dumps(published_settings.NEXTSTEP_VAE | dict(
      ch_mult=[1, 1], num_res_blocks=1, z_channels=4, scaling_factor=0.9, shift_factor=0.1)))
  return folder


LAYOUTS = {
    '1': (FIRST, published_settings.NEXTSTEP_1, 'mar'),
    '1.1': (SECOND, published_settings.NEXTSTEP_1_1, 'mar(last_noise=True)'),
}


@pytest.mark.slow
@pytest.mark.verifies('folder to pictures', 'nextstep')
@pytest.mark.parametrize('release', LAYOUTS)
def test_a_folder_becomes_pictures_by_two_commands(release, tmp_path, capsys):
  config, settings, decoder = LAYOUTS[release]
  published(tmp_path, config, settings)
  model_folder = tmp_path / 'model'
  assert not convert(tmp_path, 'nextstep', 'NextStep-1-Large', model_folder, *WORDS)
  printed = capsys.readouterr()
  assert ('assumed the sampler of NextStep-1' in printed.out + printed.err) == (release == '1')
  assert f"Next: cspd-generate --model={model_folder} --prompt='a light" in printed.out
  assert not generate_command.main(
      ['cspd-generate', f'--model={model_folder}', '--prompt=a cat', '--prompt=a dog, 中文',
       f'--output={tmp_path}/out', '--dtype=bfloat16'])
  pictures = sorted((tmp_path / 'out').glob('*.png'))
  assert len(pictures) == 2 and pictures[0].read_bytes() != pictures[1].read_bytes()
  model = cspd_jax.load(model_folder)
  assert model.config == config and model.tokenizer.config == VAE
  assert model.defaults['guidance_scale'] == 7.5 and model.defaults['decoder'] == decoder
  built = model.decoder(decoder)
  assert built.schedule.num_levels == config.num_levels
  assert ('with noise' in built.distribution) == (release == '1.1')
  write = templates.nextstep if release == '1' else templates.nextstep_1_1
  prompt = model.condition(['a cat'])
  for stream, ids in enumerate(write(bpe.Vocabulary(tokenizer_file()), 'a cat', 3, 4)):
    assert np.asarray(prompt.tokens)[0, stream][-len(ids):].tolist() == ids
    assert np.asarray(prompt.visible)[0, stream].sum() == len(ids)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  root = tmp_path_factory.mktemp('nextstep')
  published(root, FIRST, published_settings.NEXTSTEP_1)
  assert not convert(root, 'nextstep', 'NextStep-1-Large', root / 'model', *WORDS)
  return root / 'model'


@pytest.mark.slow
def test_pixels_are_those_of_normalised_tokens(folder):
  model = cspd_jax.load(folder)
  tokens = np.random.default_rng(0).standard_normal((2, 12, 16)).astype(np.float32)
  latents = tokens - tokens.mean(-1, keepdims=True)
  latents /= latents.std(-1, keepdims=True)
  grid = latents.reshape(2, 3, 4, 4, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(2, 6, 8, 4)
  expected = kl_vae.decode(model.tokenizer.params, VAE, grid)
  np.testing.assert_allclose(model.pixels(tokens), expected, atol=1e-4)
  np.testing.assert_allclose(model.pixels(3 * tokens + 1), expected, atol=1e-4)


@pytest.mark.slow
def test_images_of_another_grid(folder):
  model = cspd_jax.load(folder, grid=(2, 2))
  assert model.grid == (2, 2) and model.config.num_tokens == 4
  tokens = model.generate('a cat', seed=1).decoded.tokens
  assert tokens.shape == (1, 4, 16)
  model = cspd_jax.load(folder)
  prompts = np.asarray(model.condition(['a cat']).tokens)
  other = np.asarray(cspd_jax.load(folder, grid=(2, 2)).condition(['a cat']).tokens)
  assert (prompts != other).any(), 'a prompt ends with the size of the image'


@pytest.mark.slow
@pytest.mark.parametrize('decoder', ['exact_head', 'windows(window=4)'])
def test_decoders_of_continuous_tokens(folder, decoder):
  out = cspd_jax.load(folder).generate(['a cat', 'a dog'], seed=1, decoder=decoder).decoded
  assert np.isfinite(out.tokens).all() and not np.asarray(out.tests.missed).any()
  assert (np.asarray(out.rounds) <= 12).all() and out.costs.head_calls.sum() < 2 * 50 * 12
  assert np.asarray(out.order).tolist() == [list(range(12))] * 2


def test_prompts_are_those_of_the_official_examples():
  text = bpe.Vocabulary(tokenizer_file())
  request, negative = templates.nextstep(text, 'a cat', 16, 32)
  image = [151666, *text.encode('16*32'), 151667]
  assert len(image) == 2 + len('16*32'), 'digits are tokens of their own'
  assert request == [*text.encode('a cat masterpiece, film grained, best quality.'), *image]
  words = ('lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer '
           'digits, cropped, worst quality, low quality, normal quality, jpeg artifacts, '
           'signature, watermark, username, blurry.')
  assert negative == [*text.encode(words), *image]
  request, negative = templates.nextstep_1_1(text, 'a cat', 16, 32)
  assert request == [*text.encode('a cat'), *image]
  words = words.replace('text, error', 'bad texts, bad layout, error')
  assert negative == [*text.encode(words), *image]
  # The names of special tokens are plain text in prompts.
  assert 151667 not in text.encode('<|begin_of_image|>')


@pytest.mark.slow
def test_prompts_of_published_ids(folder):
  model = cspd_jax.load(folder, text=None)
  with pytest.raises(ValueError, match='no words because it lacks the part text'):
    model.condition(['a cat'])
  prompt = nextstep.Prompt(np.full((1, 2, 3), 7), np.ones((1, 2, 3), bool))
  assert model.generate(prompt, seed=0).decoded.tokens.shape == (1, 12, 16)
  with pytest.raises(ValueError, match='tokens from 152064 to 152064; this model supports 0 to'):
    model.condition(nextstep.Prompt(np.full((1, 2, 3), 152064), np.ones((1, 2, 3), bool)))


@pytest.mark.slow
def test_networks_that_do_not_belong_together_are_refused(folder):
  other = dataclasses.replace(VAE, z_channels=8)
  params = jax.eval_shape(lambda: kl_vae.init(other, jax.random.key(0)))
  with pytest.raises(ValueError, match='tokenizer has z_channels 8, but the target .* has '
                                       'latent_channels 4'):
    cspd_jax.load(folder, tokenizer=cspd_jax.files.store.Loaded(
        'kl_vae', other, params, {}))
