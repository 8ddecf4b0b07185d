"""Images with a prefix: the rest has the model's distribution, whatever decodes and drafts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import cspd_jax
from cspd_jax import families
from cspd_jax.commands import generate as command
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import prefix as prefix_lib
from cspd_jax.decoding.tree import chain
from cspd_jax.files.store import Loaded
from cspd_jax.models import eagle, early_fusion, janus, llamagen, local, neighbours, vq
from cspd_jax.models.conditions import Prompt
from tests.builders import published
from tests.marks import representative

VQ = vq.VQConfig(ch=8, ch_mult=(1, 1), num_res_blocks=1, z_channels=8, codebook_size=12,
                 codebook_dim=4)
SHARED = dict(height=4, width=3, vocab_size=20, num_codes=12, first_code=4, row_end=17,
              image_ends=(18,), dim=16, num_heads=2, ffn_dim=16)
EARLY_FUSION = early_fusion.EarlyFusionConfig(num_layers=2, **SHARED)
LLAMAGEN = llamagen.LlamaGenConfig(
    height=4, width=3, vocab_size=12, num_classes=3, dim=16, num_layers=2, num_heads=2, ffn_dim=16)


# By name: family, kind and sizes of models with prompts of unequal lengths; early fusion with
# grammars that end every row, every row but the last, or no row.
MIXED = {
    'early_fusion': ('early_fusion', 'early_fusion', early_fusion, EARLY_FUSION),
    'open_last_row': ('early_fusion', 'early_fusion', early_fusion, dataclasses.replace(
        EARLY_FUSION, ends_last_row=False, image_ends=(18, 19))),
    'plain_rows': ('early_fusion', 'early_fusion', early_fusion, dataclasses.replace(
        EARLY_FUSION, row_end=None, image_ends=())),
    'janus': ('janus_pro', 'janus', janus, janus.JanusConfig(
        height=4, width=3, num_codes=12, text_size=8, dim=16, num_layers=2, num_heads=2,
        ffn_dim=16)),
    'captions': ('llamagen', 'llamagen', llamagen, dataclasses.replace(
        LLAMAGEN, conditioning='text', caption_dim=6)),
}


def _loaded(kind, module, config, seed):
  return Loaded(kind, config, published.random_params(
      functools.partial(module.init, config), 0.4, seed=seed), {})


@functools.cache
def _model(name):
  config, module = {'early_fusion': (EARLY_FUSION, early_fusion),
                    'llamagen': (LLAMAGEN, llamagen)}[name]
  tokens = dict(num_tokens=config.num_tokens, row_width=getattr(config, 'row_width', config.width))
  values = getattr(config, 'num_image_tokens', config.vocab_size)
  network = eagle.EagleConfig(
      family='chameleon' if name == 'early_fusion' else name, dim=16, num_heads=2, ffn_dim=16,
      vocab_size=config.vocab_size, num_outputs=values, **tokens)
  parts = {
      'target': _loaded(name, module, config, 0), 'draft': _loaded(name, module, config, 0),
      'eagle': _loaded('eagle', eagle, network, 1),
      'neighbours': _loaded('neighbours', neighbours, neighbours.NeighboursConfig(
          values, dim=4, hidden_dim=8, **tokens), 2),
      'local': _loaded('local', local, local.LocalConfig(
          values, dim=4, hidden_dim=8, feature_dim=16, correction_dim=4, **tokens), 4)}
  if name == 'llamagen':
    parts['tokenizer'] = _loaded('vq', vq, VQ, 3)
  model = families.FAMILIES[name].build(families.Parts(name, parts, {'guidance_scale': 2.0}))
  # Its image tokenizer would require a text part; these tests compare tokens.
  return model


def _condition(name):
  if name == 'llamagen':
    return jnp.array([0, 2])
  tokens = np.random.default_rng(0).integers(12, 20, (2, 2, 5))
  visible = np.arange(5) >= [[[2], [4]], [[0], [3]]]
  return Prompt(jnp.asarray(tokens, jnp.int32), jnp.asarray(visible))


@functools.cache
def _whole(name):
  """Images without a prefix."""
  model = _model(name)
  decode = jax.jit(model.decoder('vanilla'))
  return np.asarray(decode(model.params, _condition(name), jax.random.key(1),
                           SamplingParams(guidance_scale=2.0)).tokens)


def _with_prefix(name, spec, rows=2, seed=7):
  length = rows * _model(name).target(guided=True).row_width
  model = _model(name).with_prefix(_whole(name)[:, :length])
  condition = prefix_lib.Prefixed(_condition(name), jnp.asarray(model.prefix))
  return jax.jit(model.decoder(spec))(
      model.params, condition, jax.random.key(seed), SamplingParams(guidance_scale=2.0),
      model.draft_params(model.specification(spec)))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['early_fusion', 'llamagen'])
def test_the_rest_has_the_logits_of_whole_images(name):
  model, tokens = _model(name), jnp.asarray(_whole(name))
  target = model.target(guided=True)
  prefix_length, size = 2 * target.row_width, target.num_tokens
  zero = jnp.zeros(2, jnp.int32)

  @functools.partial(jax.jit, static_argnums=0)
  def whole(target, condition, tokens):
    first, features, cache = target.prefill(model.params, condition, target.num_tokens)
    more, _, _ = target.score(model.params, cache, tokens[:, :-1], zero, chain(tokens.shape[1] - 2))
    return jnp.concatenate([first[:, :, None], more], axis=2), features

  want, before = whole(target, _condition(name), tokens)
  later = prefix_lib.target(target, prefix_length)
  result, features = whole(
      later, prefix_lib.Prefixed(_condition(name), tokens[:, :prefix_length]),
      tokens[:, prefix_length:])
  assert later.num_tokens == size - prefix_length
  np.testing.assert_allclose(result, want[:, :, prefix_length:], atol=2e-4)
  assert features.shape[2] == before.shape[2] + prefix_length


_SPECS = (
    ('early_fusion', 'seed_exact(window=4)'), ('early_fusion', 'model(length=3)+match'),
    ('early_fusion', 'eagle(tree=chain(3))+match'),
    ('early_fusion', 'eagle(tree=kary(2, 2))+match'),
    ('early_fusion', 'corrected_seed_exact(corrector=neighbours, window=4)'),
    ('early_fusion', 'corrected_seed_exact(corrector=layers, window=4)'),
    ('early_fusion', 'corrected_seed_exact(corrector=local, window=4)'),
    ('llamagen', 'corrected_seed_exact(corrector=local, window=4)'),
    ('llamagen', 'corrected_seed_exact(corrector=eagle, window=4)'),
    ('llamagen', 'model(length=3)+match'))


@pytest.mark.slow
@pytest.mark.parametrize('name, spec', representative(_SPECS, _SPECS[2]))
def test_seed_exact_decoders_repeat_vanilla(name, spec):
  result, want = _with_prefix(name, spec), _with_prefix(name, 'vanilla')
  np.testing.assert_array_equal(result.tokens, want.tokens)
  assert np.all(result.valid) and np.all(result.rounds <= want.rounds)
  if spec.startswith('model'):  # The draft is the target itself, and reads the prefix too.
    assert np.max(result.rounds) <= 1 + -(-want.tokens.shape[1] // 4)


@pytest.mark.slow
def test_a_network_continues_as_if_it_had_read_the_image_from_its_beginning():
  model, tokens, prefix_length = _model('early_fusion'), jnp.asarray(_whole('early_fusion')), 8
  target, made = model.target(guided=True), model.drafts['eagle']
  zero, rest = jnp.zeros(2, jnp.int32), tokens.shape[1] - prefix_length

  @jax.jit
  def features_of(tokens):
    _, features, cache = target.prefill(model.params, _condition('early_fusion'), target.num_tokens)
    _, more, _ = target.score(model.params, cache, tokens, zero, chain(tokens.shape[1] - 1))
    return jnp.concatenate([features, more], axis=2)

  features = features_of(tokens)
  last = features.shape[2] - tokens.shape[1]

  @functools.partial(jax.jit, static_argnums=(0, 2, 3))
  def predicted(network, condition, before, count):
    cache = network.prefill(made.params, condition, features[:, :, :before], count)
    return network.step(
        made.params, cache, tokens[:, -count:], features[:, :, before - 1:before - 1 + count], zero,
        np.arange(count), np.tri(count, dtype=bool))[0]

  want = predicted(made.build(True), _condition('early_fusion'), last, tokens.shape[1])
  condition = prefix_lib.Prefixed(_condition('early_fusion'), tokens[:, :prefix_length])
  result = predicted(made.build(True, prefix_length), condition, last + prefix_length, rest)
  np.testing.assert_allclose(result, want[:, :, prefix_length:], atol=1e-4)


def test_guidance_ends_where_it_would_end_in_the_whole_image():
  guided = lambda sampling, positions: (positions - 1 <= sampling.guidance_interval) | (
      sampling.guidance_interval == -1)
  positions = np.arange(12)
  for interval in (-1, 0, 2, 4, 6, 20, np.array([2**31 - 1], np.int32)):
    sampling = SamplingParams(guidance_scale=3.0, guidance_interval=interval)
    moved = prefix_lib.sampling(sampling, 4)
    want = guided(sampling, positions)[4:]
    scale = np.where(guided(moved, positions[:8]), moved.guidance_scale, 1)
    np.testing.assert_array_equal(scale, np.where(want, 3, 1), str(interval))
  with pytest.raises(ValueError, match='guidance_interval is 3 with a prefix of 4 tokens'):
    prefix_lib.sampling(SamplingParams(guidance_scale=3.0, guidance_interval=3), 4)


def _wrong(column, value):
  tokens = _whole('early_fusion')[:, :8].copy()
  tokens[1, column] = value
  return tokens


# Outside the vocabulary, the end of a row inside a row, and another token at its position.
@pytest.mark.parametrize('column, value', [(0, 20), (0, 12), (3, 5)])
def test_wrong_tokens_are_refused(column, value):
  decoder = _model('early_fusion').with_prefix(np.zeros((2, 8), int)).decoder('vanilla')
  with pytest.raises(ValueError, match='row 1, include one that is not allowed at its position'):
    decoder.check(prefix_lib.Prefixed(_condition('early_fusion'), _wrong(column, value)))
  with pytest.raises(ValueError, match=r'float32\[2, 8\]; they must be integers'):
    decoder.check(prefix_lib.Prefixed(_condition('early_fusion'), np.zeros((2, 8), np.float32)))


def test_traced_wrong_tokens_are_marked():
  decoder = _model('early_fusion').with_prefix(np.zeros((2, 8), int)).decoder('vanilla')
  check = jax.jit(lambda tokens: decoder.check(
      prefix_lib.Prefixed(_condition('early_fusion'), tokens)))
  assert check(_wrong(0, 12)).tolist() == [True, False]


@pytest.mark.slow
def test_generate_completes_images():
  model = _model('llamagen')
  whole = model.generate([0, 2], seed=1, decoder='vanilla')
  made = model.generate([0, 2], seed=3, decoder='eagle(tree=chain(2))', prefix=whole.tokens, rows=2)
  np.testing.assert_array_equal(made.tokens[:, :6], whole.tokens[:, :6])
  assert made.tokens.shape == whole.tokens.shape and made.decoded.tokens.shape == (2, 6)
  assert (made.tokens[:, 6:] != whole.tokens[:, 6:]).any() and made.metadata(0)['label'] == 0
  assert made.metadata(0)['given_tokens'] == 6 and 'data:image' in made._repr_html_()
  assert not made.round_of_cell[:, :2].any() and made.round_of_cell[:, 2:].max() > 0
  again = model.generate([0, 2], seed=3, decoder='vanilla', prefix=whole.tokens[:1, :6])
  np.testing.assert_array_equal(again.tokens[1, :6], whole.tokens[0, :6])
  looks = list(model.stream([0, 2], seed=3, decoder='eagle(tree=chain(2))', prefix=whole.tokens,
                            rows=2))
  assert looks[0].count.tolist() == [7, 7] and looks[0].fixed.sum() == 14
  assert repr(looks[0]).startswith('Partial(14 of 24 tokens of 2 images')
  np.testing.assert_array_equal(looks[-1].result().images, made.images)
  read = model.generate([0, 2], seed=3, decoder='vanilla', prefix=whole.images)
  tokens = np.asarray(model.tokens(whole.images / np.float32(127.5) - 1))
  np.testing.assert_array_equal(read.tokens[:, :6], tokens[:, :6])


@functools.cache
def _mixed(name):
  """A model with an image tokenizer, and five prompts of unequal lengths."""
  family, kind, module, config = MIXED[name]
  # A tokenizer with spatial norms needs no text part.
  pixels = dataclasses.replace(VQ, normalized=False, spatial_norm=family == 'early_fusion')
  parts = {'target': _loaded(kind, module, config, 0), 'tokenizer': _loaded('vq', vq, pixels, 3)}
  model = families.FAMILIES[family].build(families.Parts(name, parts, {'guidance_scale': 2.0}))
  rng, lengths = np.random.default_rng(0), ((1, 6), (6, 1), (3, 2), (1, 3), (2, 6))
  if name == 'captions':
    return model, [rng.standard_normal((long, 6)).astype(np.float32) for long, _ in lengths]
  return model, [[rng.integers(12, 20, long) for long in both] for both in lengths]


def _joined(name, prompts):
  """Prompts as a condition, padded to the longest of them."""
  if name == 'captions':
    return prompts
  longest = max(len(ids) for both in prompts for ids in both)
  pad = lambda ids, value: [value] * (longest - len(ids))
  # Published ids of Janus are those of text, which follow the codes in the library's order.
  shift = 12 if name == 'janus' else 0
  return Prompt(np.array([[[*pad(ids, 0), *(ids - shift)] for ids in both] for both in prompts]),
                np.array([[[*pad(ids, False), *(ids >= 0)] for ids in both] for both in prompts]))


_QUEUES = (*((name, 'mc_sjd(window=4)') for name in MIXED),
           ('open_last_row', 'corrected_seed_exact(corrector=layers, window=4)'),
           ('janus', 'model(length=2)+rejection'))


@pytest.mark.slow
@pytest.mark.parametrize('name, spec', representative(_QUEUES, _QUEUES[1]))
def test_a_queue_of_prefixes_and_prompts_has_the_images_of_one_after_the_other(name, spec):
  """Five images in two rows: a row that is complete starts the next one."""
  (model, prompts), seeds = _mixed(name), [7, 8, 9, 10, 11]
  if spec.startswith('model'):
    family, kind, module, config = MIXED[name]
    parts = {'target': _loaded(kind, module, config, 0), 'draft': _loaded(kind, module, config, 4),
             'tokenizer': Loaded('vq', model.tokenizer.config, model.tokenizer.params, {})}
    model = families.FAMILIES[family].build(families.Parts(name, parts, model.defaults))
  whole = model.generate(_joined(name, prompts), seed=1, decoder='vanilla').tokens
  width = 2 * model.target(guided=True).row_width
  made = model.generate(_joined(name, prompts), seed=seeds, decoder=spec, batch_size=2,
                        prefix=whole, rows=2)
  assert len(np.unique(made.tokens[:, width:], axis=0)) == 5
  np.testing.assert_array_equal(made.tokens[:, :width], whole[:, :width])
  for i, prompt in enumerate(prompts):
    alone = model.generate(_joined(name, [prompt]), seed=seeds[i:i + 1], decoder=spec,
                           prefix=whole[i], rows=2)
    np.testing.assert_array_equal(made.tokens[i], alone.tokens[0])
    np.testing.assert_array_equal(made.decoded.rounds[i], alone.decoded.rounds[0])
    np.testing.assert_array_equal(made.images[i], alone.images[0])
  # Images as pixels become the rows of tokens with their grammar.
  again = model.generate(_joined(name, prompts), seed=seeds, decoder=spec, batch_size=2,
                         prefix=made.images, rows=2)
  encoded = np.asarray(model.tokens(made.images / np.float32(127.5) - 1))
  np.testing.assert_array_equal(again.tokens[:, :width], encoded[:, :width])


@pytest.mark.slow
def test_the_command_completes_a_picture(tmp_path, capsys):
  picture = np.random.default_rng(0).integers(256, size=(96, 160, 3)).astype(np.uint8)
  Image.fromarray(picture).save(tmp_path / 'picture.png')
  words = ['--model=demo', '--prompt=cat', '--decoder=mc_sjd(window=8)', '--guidance_scale=1',
           f'--prefix={tmp_path}/picture.png', '--rows=15']
  assert not command.main(['cspd-generate', *words, f'--output={tmp_path}/out'])
  with Image.open(next((tmp_path / 'out').glob('*.png'))) as made:
    assert made.info['given_tokens'] == str(15 * 16)
  assert command.main(['cspd-generate', *words, '--rows=20', f'--output={tmp_path}/other']) == 2
  assert 'rows is 20; it must be a whole number from 1 to 15' in capsys.readouterr().err
  model = cspd_jax.load('demo')
  middle = Image.fromarray(picture).resize(
      (64, 64), Image.Resampling.LANCZOS, box=(32, 0, 128, 96))
  tokens = model.tokens(np.asarray(middle)[None] / np.float32(127.5) - 1)
  np.testing.assert_array_equal(
      model.prefix_tokens(tmp_path / 'picture.png', 15, 1), tokens[:, :15 * 16])
  # As a camera stores it that was turned.
  exif = Image.Exif()
  exif[0x0112] = 8
  Image.fromarray(np.rot90(picture, -1)).save(tmp_path / 'turned.png', exif=exif)
  np.testing.assert_array_equal(
      model.prefix_tokens(tmp_path / 'turned.png', 15, 1), tokens[:, :15 * 16])
