"""From files in the published layout of Lumina-mGPT, at tiny sizes, to pictures of words."""


import jax
import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from cspd_jax import families
from cspd_jax.commands import generate as generate_command
from cspd_jax.families import early_fusion as early_fusion_family
from cspd_jax.files import store
from cspd_jax.models import eagle, early_fusion
from cspd_jax.text import bpe, templates
from tests.conversion import published_settings, torch_files
from tests.families import published_files
from tests.families.published_files import chameleon_text, convert, emu3_text
from tests.models import published

for _package in ('tiktoken', 'tokenizers'):  # They read the files of words.
  pytest.importorskip(_package)

CONFIG, VQ, CODES = published_files.LUMINA_MGPT, published_files.CHAMELEON_VQ, published_files.CODES


def _text(file, form='lumina_mgpt'):
  return bpe.read({'file': np.frombuffer(file, np.uint8)}, form)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """Files as they are published, those of PyTorch as safetensors."""
  folder = tmp_path_factory.mktemp('published')
  weights = published_files.tensors('lumina_mgpt', CONFIG, 1)
  published_files.shard(folder / 'transformer', weights, published_files.transformer_settings(
      published_settings.LUMINA_MGPT, CONFIG))
  safetensors.numpy.save_file(
      published_files.tensors('chameleon_vqgan', VQ, 2), folder / 'vqgan.safetensors')
  (folder / 'text_tokenizer.json').write_bytes(chameleon_text())
  return folder


@pytest.fixture(scope='module')
def folder(files, tmp_path_factory):
  """The model, converted by the command."""
  folder = tmp_path_factory.mktemp('models') / 'lumina'
  assert not convert(files, 'chameleon_vqgan', 'vqgan.safetensors', folder)
  assert not convert(files, 'lumina_mgpt', 'transformer', folder, '--height=4', '--width=6')
  assert not convert(files, 'lumina_mgpt_text', 'text_tokenizer.json', folder)
  return folder


@pytest.mark.slow
def test_a_model_is_converted_part_by_part(folder):
  model = cspd_jax.load(folder)
  assert model.config == CONFIG and model.tokenizer.config == VQ
  assert model.defaults == {
      'temperature': 1.0, 'top_p': 1.0, 'guidance_scale': 4.0, 'top_k': 2000}
  with pytest.raises(ValueError, match='no text part, whose file maps image tokens'):
    cspd_jax.load(folder, text=None)
  alone = cspd_jax.load(folder, text=None, tokenizer=None)
  with pytest.raises(ValueError, match=(
      'no words because it lacks the part text, a .* --family=lumina_mgpt_text --source')):
    alone.condition(['a cat'])
  with pytest.raises(ValueError, match='has no image tokenizer'):
    alone.generate(model.condition(['a cat']))


@pytest.mark.slow
def test_an_image_tokenizer_in_the_file_of_the_target(folder, tmp_path, capsys):
  """As in folders of transformers; Meta's own tokenizers may be in `original_tokenizers`."""
  source, parts = tmp_path / 'hf', cspd_jax.load(folder)
  pixels = published_files.tensors('chameleon_vqgan', VQ, 2)
  sizes = dict(base_channels=VQ.ch, channel_multiplier=[1], num_res_blocks=1, attn_type='vanilla',
               embed_dim=4, latent_channels=4, num_embeddings=8192, double_latent=False,
               attn_resolutions=None, resolution=512, in_channels=3)

  def converted(output, kept=lambda name: True, **changes):
    inside = {f'model.vqmodel.{name}': x for name, x in pixels.items() if kept(name)}
    published_files.shard(
        source, published_files.tensors('lumina_mgpt', CONFIG, 1) | inside,
        published_files.transformer_settings(published_settings.LUMINA_MGPT, CONFIG) | {
            'vq_config': sizes | changes})
    code = convert(tmp_path, 'lumina_mgpt', 'hf', tmp_path / output, '--height=4', '--width=6')
    return code, ''.join(capsys.readouterr())

  def check(output):
    model = cspd_jax.load(tmp_path / output)
    for one, other in ((model.params, parts.params),
                       (model.tokenizer.params, parts.tokenizer.params)):
      jax.tree.map(np.testing.assert_array_equal, one, other)
    np.testing.assert_array_equal(model.condition(['a']).tokens, parts.condition(['a']).tokens)

  (source / 'original_tokenizers').mkdir(parents=True)
  (source / 'original_tokenizers' / 'text_tokenizer.json').write_bytes(chameleon_text())
  assert converted('whole')[0] == 0
  check('whole')
  code, error = converted('wrong', embed_dim=8, attn_type='linear')
  assert code == 2 and "vq_config.attn_type is 'linear'" in error
  # Releases of transformers write the encoder alone.
  code, printed = converted('alone', lambda name: not name.startswith('decoder'))
  assert code == 0 and 'Missing: an image tokenizer of Chameleon (vqgan.ckpt)' in printed
  torch_files.save(source / 'original_tokenizers' / 'vqgan.ckpt', pixels)
  assert converted('files', lambda name: not name.startswith('decoder'))[0] == 0
  check('files')


@pytest.mark.slow
def test_prompts_are_written_as_the_official_sampler_does(folder):
  model = cspd_jax.load(folder)
  condition = model.condition(['a cat', 'a <racm3:break> ' + 'long ' * 20])
  order = early_fusion.order(CONFIG)
  ids = [[order[np.asarray(row)[np.asarray(seen)]].tolist() for row, seen in zip(*image)]
         for image in zip(condition.tokens, condition.visible)]
  words = 'Generate an image of 96x64 according to the following prompt:\na cat'
  image = [8197, 8804 + 2, 8804 + 3]
  assert ids[0] == [[0, *(20000 + ord(letter) for letter in words), 8710, *image], image]
  # What looks like a token of the grammar is text.
  assert ids[1][0].count(8197) == 1 and ids[1][1] == image
  assert condition.tokens.shape[2] % 32 == 0 and condition.tokens.shape[1] == 2
  assert templates.anole(_text(chameleon_text()), 'me', 32, 32) == ([
      0, *(20000 + ord(letter) for letter in 'Generate an image of me'), 8710, 8197], [8197])


@pytest.mark.slow
def test_contexts_of_another_program(folder):
  model = cspd_jax.load(folder)
  build = lambda name: early_fusion_family.FAMILY.build(families.family.Parts('lumina', {
      role: store.load(folder / role) for role in ('target', 'text')},
      dict(model.defaults, contexts=name)))
  plain, sjd = (one.condition(['a cat']) for one in (model, build('lumina_mgpt_sjd')))
  ids = lambda prompt, stream: prompt.tokens[0, stream][prompt.visible[0, stream]].tolist()
  assert ids(plain, 0) == ids(sjd, 0)
  # The end of the turn stands before the start of the image, as it does in the request.
  request, image = ids(plain, 0), ids(plain, 1)
  assert ids(sjd, 1) == [request[-len(image) - 1], *image]
  with pytest.raises(ValueError, match="contexts of model 'lumina' is 'x'; it must be one of"):
    build('x')


@pytest.mark.slow
def test_pictures_of_words(folder, tmp_path):
  model = cspd_jax.load(folder)
  made = model.generate(['a cat', 'a dog'], seed=1, decoder='corrected_seed_exact', window=6)
  np.testing.assert_array_equal(made.decoded.tokens, model.generate(
      ['a cat', 'a dog'], seed=1, decoder='vanilla').decoded.tokens)
  near = model.codebook
  assert near.shape == (8194, 4) and np.all(near[8192:] > 1e3)
  assert generate_command.main(
      ['cspd-generate', f'--model={folder}', '--prompt=a cat', '--decoder=mc_sjd(window=6)',
       f'--output={tmp_path}/out']) == 0
  assert len(list((tmp_path / 'out').glob('*.png'))) == 1


@pytest.mark.slow
def test_images_of_other_sizes(folder):
  own, wide = cspd_jax.load(folder), cspd_jax.load(folder, grid=(2, 8))
  assert wide.grid == (2, 8) and wide.num_tokens == 2 * 9 + 1
  condition = wide.condition(['a cat'])
  size = early_fusion.order(CONFIG)[np.asarray(condition.tokens)[0, 1, -2:]]
  np.testing.assert_array_equal(size, [8804 + 1, 8804 + 4])
  made = wide.generate('a cat', seed=1, decoder='vanilla')
  assert made.images.shape == (1, 2, 8, 3)
  np.testing.assert_array_equal(made.decoded.tokens[0, [8, 17, 18]], [8192, 8192, 8193])
  assert own.params['transformer'].keys() == wide.params['transformer'].keys()


@pytest.mark.slow
def test_sizes_that_there_are_not(folder, tmp_path, capsys):
  with pytest.raises(ValueError, match='has 3x4 codes; Lumina-mGPT supports on'):
    cspd_jax.load(folder, grid=(3, 4)).condition(['a cat'])
  words = [f'--model={folder}', '--prompt=a cat', f'--output={tmp_path}/out']
  assert generate_command.main(['cspd-generate', *words, '--grid=4by4']) == 2
  assert "grid is '4by4'; it must be two numbers, such as 2x4" in capsys.readouterr().err
  assert generate_command.main(
      ['cspd-generate', '--model=demo', '--grid=4x4', f'--output={tmp_path}/out']) == 2
  assert "grid is (4, 4), but a 'llamagen' model generates images" in capsys.readouterr().err


@pytest.mark.slow
def test_published_drafters_know_the_tokens(folder, tmp_path):
  config = eagle.EagleConfig(
      'chameleon', num_tokens=29, row_width=7, dim=16, num_heads=2, ffn_dim=16, vocab_size=65536,
      norm_eps=1e-5, own_embedding=True, num_outputs=8194)
  table = published_files.tensors('eagle_lumina_mgpt', config, 3)['embed_tokens.weight']
  params = published.params('eagle_lumina_mgpt', config, 3)
  np.testing.assert_array_equal(params['token_embedding'][:2], table[4:6])
  np.testing.assert_array_equal(params['token_embedding'][8191:8195], table[[8195, 8803, 8196, 0]])
  store.save(tmp_path / 'eagle', 'eagle', config, params)
  model = cspd_jax.load(folder, eagle=tmp_path / 'eagle')
  tokens = lambda decoder: model.generate(['a cat'], seed=2, decoder=decoder).decoded.tokens
  np.testing.assert_array_equal(
      tokens('corrected_seed_exact(corrector=eagle, window=5)'), tokens('vanilla'))
  drafted = np.asarray(tokens('eagle(tree=chain(3))'))
  forced = np.asarray(early_fusion.forced(CONFIG, np.arange(29)))
  np.testing.assert_array_equal(drafted[0, forced >= 0], forced[forced >= 0])


@pytest.mark.slow
def test_words_are_written_for_the_target_alone(folder, files, tmp_path, capsys):
  """Anole has the same file of words, and another template."""
  assert not convert(files, 'anole_text', 'text_tokenizer.json', tmp_path / 'words')
  message = ("text is a tokenizer file for anole, but model '.*' needs one for lumina_mgpt; pass "
             r'text=FOLDER of such a file \(cspd-convert --family=lumina_mgpt_text\)')
  with pytest.raises(ValueError, match=message):
    cspd_jax.load(folder, text=tmp_path / 'words' / 'text')
  before = (folder / 'model.json').read_bytes()
  assert convert(files, 'anole_text', 'text_tokenizer.json', folder) == 2
  assert 'needs one for lumina_mgpt' in capsys.readouterr().err
  assert (folder / 'model.json').read_bytes() == before
  assert store.describe(folder / 'text').config.form == 'lumina_mgpt'


@pytest.mark.slow
@pytest.mark.parametrize('family, option', [
    ('anole', '--family=anole_text, pass'), ('lumina_mgpt', '--family=lumina_mgpt_text, pass'),
    (None, '--family=lumina_mgpt_text or --family=anole_text, pass')])
def test_the_missing_file_of_words_is_that_of_the_target(folder, family, option):
  loaded = {role: store.load(folder / role) for role in ('target', 'tokenizer')}
  loaded['target'] = loaded['target']._replace(metadata={} if family is None else {
      'family': family})
  with pytest.raises(ValueError, match=f'with cspd-convert {option}'):
    early_fusion_family.build(families.family.Parts('model', loaded, {}))


@pytest.mark.parametrize('family, content, message', [
    ('anole_text', b'{}', 'the tokenizer file cannot be read (KeyError'),
    ('anole_text', b'nothing', 'cannot be read (JSON'),
    ('anole_text', b'{"model": {"vocab": []}}', 'cannot be read (AttributeError'),
    ('t5_text', b'{"model": {"type": "Unigram"}}', 'the tokenizer file cannot be read (KeyError')])
def test_files_that_cannot_be_read(tmp_path, capsys, family, content, message):
  (tmp_path / 'text.json').write_bytes(content)
  assert convert(tmp_path, family, 'text.json', tmp_path / 'model') == 2
  assert message in capsys.readouterr().err and not (tmp_path / 'model').exists()


@pytest.mark.slow
def test_emu3_writes_as_its_official_program():
  text = _text(emu3_text(), 'emu3')
  request, away = templates.emu3(text, 'cat', 90, 45)
  image = [151852, *b'9', *b'0', *b'*', *b'4', *b'5', 151851]
  assert request == [151849, 259, *b' masterpiece, film grained, best quality.', *image]
  assert away[0] == 151849 and away[-len(image):] == image and len(away) > 100
  # Composed, and no special token for what looks like one.
  assert text.encode('e\u0301') == list('\u00e9'.encode())
  assert 151849 not in text.encode('<|extra_203|>')
  for file in (b'%% 0', b'YQ== x', b'YQ== 1', b''):
    with pytest.raises(ValueError, match='supply the emu3.tiktoken that belo'):
      _text(file, 'emu3')


@pytest.mark.slow
def test_texts_are_saved_as_they_are(folder):
  loaded = store.load(folder / 'text', dtype='bfloat16')
  assert bytes(np.asarray(jax.device_get(loaded.params['file']))) == chameleon_text()
