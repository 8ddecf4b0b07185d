"""SimpleAR and Liquid: encoded pictures, prompts, tokens of text, sampled distributions.

`tests/data/language_samplers.npz` was recorded in float32 from the networks of transformers 5.24
with the weights of `writers.language_target`, for the prompt 'a cat' and the codes of
`writers.language_codes`: `liquid` from the official function `top_k_top_p_filtering` of
`genaibench_generation.py` after guidance 7 and temperature 0.99, with `top_k` 4096 and `top_p`
0.96, every 16th of the 4096 largest probabilities of a position with its code, and the number of
positive ones; `simplear` from the official `CFGLogits` with scale 6 and temperature 1, the
probabilities of every 125th code, and the sum of those of all codes. That program does not mask
text, and its `top_k` of 64000 of all 215672 tokens, which at random weights removes many codes, was
left out.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from checkpoints_conversion import convert as convert_lib, rules
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.families import early_fusion as early_fusion_family
from cspd_jax.models import early_fusion, vq
from cspd_jax.text import templates
from tests.builders import folders, published, sizes, texts, writers
from tests.conversion import published_settings

pytest.importorskip('tokenizers')  # It reads the files of words.

NAMES = 'simplear', 'liquid'


def _text(name):
  return texts.vocabulary(texts.of_language_model(name, 0), name)


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_pictures_are_encoded_as_codes_of_the_image_tokenizer(name):
  model, codes = folders.loaded(name), writers.language_codes(name)
  pixels = model.pixels(jnp.asarray(codes[None]))
  images = np.random.default_rng(7).uniform(-1, 1, pixels.shape).astype(np.float32)
  np.testing.assert_array_equal(
      model.tokens(jnp.asarray(images)),
      vq.encode(model.tokenizer.params, model.tokenizer.config, images).reshape(1, -1))
  # Pixels require no text part.
  alone = cspd_jax.load(folders.model(name), text=None)
  np.testing.assert_array_equal(alone.pixels(jnp.asarray(codes[None])), pixels)


_TEMPLATES = {
    'simplear': (
        '<|t2i|>A highly realistic image of {}<|soi|>', '<|t2i|>An image of aerial view, '
        'overexposed, low quality, deformation, a poor composition, bad hands, bad teeth, bad '
        'eyes, bad limbs, distortion<|soi|>'),
    # The tokenizer adds the first token.
    'liquid': ('<bos>{} Generate an image based on this description.<boi>',
               '<bos><unconditional><boi>')}


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('prompt', ['a cat', '', ' two  dogs, one cat. '])
def test_prompts_are_those_of_the_official_program(name, prompt):
  """The tokenizer splits the whole text at special tokens, as the official programs let it do."""
  import tokenizers
  whole = tokenizers.Tokenizer.from_buffer(texts.of_language_model(name, 0))
  write = early_fusion_family.FAMILY.prompt_writers[name]
  request, null = write(_text(name), prompt, 32, 32)
  template, negative = _TEMPLATES[name]
  assert request == whole.encode(template.format(prompt), add_special_tokens=False).ids
  assert null == whole.encode(negative, add_special_tokens=False).ids


@pytest.mark.parametrize('name', NAMES)
def test_special_tokens_in_a_prompt_are_text(name):
  special = max(texts.SPECIAL[name])
  request, _ = early_fusion_family.FAMILY.prompt_writers[name](_text(name), special, 32, 32)
  assert len(request) > 20 and texts.SPECIAL[name][special] not in request[1:-1]


@pytest.mark.parametrize('name', NAMES)
def test_files_of_other_models_are_refused(name):
  other = texts.vocabulary(texts.chameleon(), name)
  with pytest.raises(ValueError, match='the tokenizer file has no token'):
    early_fusion_family.FAMILY.prompt_writers[name](other, 'a cat', 32, 32)


def test_the_tokenizer_has_as_many_tokens_as_there_are_rows_of_text(tmp_path, capsys, monkeypatch):
  """Liquid with 48 codes and 1200 tokens of text; its first code is their number."""
  config = dataclasses.replace(sizes.LIQUID, num_codes=48, vocab_size=1248, first_code=1200)
  family = rules.get('liquid')
  infer = lambda shapes, options: family.infer.func({'liquid_7b': config}, shapes, options)
  monkeypatch.setitem(rules.FAMILIES, 'liquid', family._replace(infer=infer))
  tensors = published.tensors('liquid', config, 93)

  def save(folder, rows, num_tokens):
    """A published folder with more rows of embeddings at their end, and a tokenizer."""
    embedding = np.pad(tensors['model.embed_tokens.weight'], ((0, rows), (0, 0)))
    settings = writers.settings_of(published_settings.LIQUID, config)
    writers.shard(tmp_path / folder, {**tensors, 'model.embed_tokens.weight': embedding},
                  settings | {'vocab_size': 1248 + rows}, count=1)
    if num_tokens:
      (tmp_path / folder / 'tokenizer.json').write_bytes(
          texts.of_language_model('liquid', num_tokens))

  def run(source, output, family='liquid'):
    """The exit code of the command, and what it printed."""
    words = ('--height=2', '--width=3') if family == 'liquid' else ()
    code = folders.run(tmp_path / source, family, tmp_path / output, *words)
    return code, ''.join(capsys.readouterr())

  # Padded embeddings, alone: what is assumed is said, and the tokenizer contradicts it later.
  save('padded', 20, None)
  code, printed = run('padded', 'model')
  assert not code and 'liquid: assumed that the text tokenizer has 1220 tokens, so th' in printed
  (tmp_path / 'tokenizer.json').write_bytes(texts.of_language_model('liquid', 1200))
  message = 'text has 1200 tokens, but the target of .* has 1220 rows of text before its codes'
  code, printed = run('tokenizer.json', 'model', 'liquid_text')
  assert code == 2 and re.search(message, printed)
  assert not (tmp_path / 'model' / 'text').exists()
  # Both at once: nothing is written.
  (tmp_path / 'padded' / 'tokenizer.json').write_bytes(texts.of_language_model('liquid', 1200))
  code, printed = run('padded', 'other')
  assert code == 2 and re.search(message, printed) and not (tmp_path / 'other').exists()
  # More tokens than rows: words would be codes.
  save('words', 0, 1207)
  code, printed = run('words', 'other')
  assert code == 2 and 'text has tokens up to 1206, but the target of' in printed
  # As many, however many these are.
  save('fits', 20, 1220)
  code, printed = run('fits', 'fits_model')
  assert not code and 'assumed that the text' not in printed


def _probabilities(name):
  config = folders.FAMILIES[name].config
  prompt = templates.padded([early_fusion_family.FAMILY.prompt_writers[name](
      _text(name), 'a cat', config.height, config.width)])
  condition = early_fusion.renumbered(config, prompt)
  tokens = jnp.asarray(writers.language_codes(name)[None])
  options = SamplingParams(**rules.get(name).sampling(config)['pictures'])
  params = convert_lib.convert(rules.get(name), config, writers.language_target(name))

  @jax.jit
  def run(params):
    streams = [early_fusion.logits_and_features(
        params, config, condition, tokens, jnp.array([drop]))[0] for drop in (False, True)]
    positions = jnp.arange(config.num_tokens)[None]
    return warp_lib.probabilities(
        jnp.stack(streams), options, positions, jnp.full_like(positions, -1))[0]

  with jax.default_matmul_precision('highest'):
    return np.asarray(run(params))


def test_liquid_samples_as_its_official_program():
  recorded, probabilities = published.recorded('language_samplers'), _probabilities('liquid')
  want = np.take_along_axis(
      probabilities, recorded['liquid_codes'].astype(int), axis=1)
  np.testing.assert_allclose(want, recorded['liquid'], atol=2e-6)
  count = np.sum(probabilities > 0, axis=1)
  # Sums of thousands of probabilities round differently at the cut.
  assert np.all(np.abs(count - recorded['liquid_count']) <= 2)
  assert count.min() > 100 and count.max() <= 4096


@pytest.mark.slow
def test_simplear_samples_as_its_official_program_given_a_code():
  recorded, probabilities = published.recorded('language_samplers'), _probabilities('simplear')
  share = recorded['simplear_total'][:, None]
  assert np.all(share < 0.9)  # Here text is probable; its official program writes the first code.
  np.testing.assert_allclose(probabilities[:, ::125], recorded['simplear'] / share, rtol=1e-3)
