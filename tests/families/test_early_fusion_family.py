"""Lumina-mGPT and its kin: parts and layouts of their files, prompts, drafters."""

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.commands import generate as generate_command
from cspd_jax.families import early_fusion as early_fusion_family
from cspd_jax.files import store
from cspd_jax.models import eagle, early_fusion
from cspd_jax.text import templates
from tests.builders import folders, published, sizes, texts, writers
from tests.conversion import published_settings, torch_files

for _package in ('tiktoken', 'tokenizers'):  # They read the files of words.
  pytest.importorskip(_package)

CONFIG, VQ = sizes.LUMINA_MGPT, sizes.CHAMELEON_VQ
GRID = '--height=4', '--width=6'


@pytest.fixture
def folder():
  return folders.model('lumina_mgpt')


@pytest.mark.slow
def test_a_model_is_converted_part_by_part(folder, tmp_path):
  """The same as all at once; and what a model without some parts cannot do."""
  root, output = tmp_path / 'published', tmp_path / 'model'
  source = writers.lumina_mgpt(root)
  words = root / 'ckpts' / 'chameleon' / 'tokenizer'
  pixels = writers.save(root, 'chameleon_vqgan', VQ, seed=2)
  assert not folders.run(pixels, 'chameleon_vqgan', output)
  assert not folders.run(source, 'lumina_mgpt', output, *GRID, '--role=target')
  assert not folders.run(words / 'text_tokenizer.json', 'lumina_mgpt_text', output)
  for role in ('target', 'tokenizer', 'text'):
    published.assert_same(*(store.load(one / role).params for one in (output, folder)))
  model = cspd_jax.load(output)
  assert (model.config, model.defaults) == (CONFIG, folders.loaded('lumina_mgpt').defaults)
  with pytest.raises(ValueError, match='no text part, whose file maps image tokens'):
    cspd_jax.load(output, text=None)
  alone = cspd_jax.load(output, text=None, tokenizer=None)
  with pytest.raises(ValueError, match=(
      'no words because it lacks the part text, a .* --family=lumina_mgpt_text --source')):
    alone.condition(['a cat'])
  with pytest.raises(ValueError, match='has no image tokenizer'):
    alone.generate(model.condition(['a cat']))
  # Tokens of the grammar are far from all codes.
  assert model.codebook.shape == (8194, 4) and np.all(model.codebook[8192:] > 1e3)


@pytest.mark.slow
def test_an_image_tokenizer_in_the_file_of_the_target(folder, tmp_path, capsys):
  """As in folders of transformers; Meta's own tokenizers may be in `original_tokenizers`."""
  source, parts = tmp_path / 'hf', folders.loaded('lumina_mgpt')
  pixels = published.tensors('chameleon_vqgan', VQ, 2)
  settings = dict(
      base_channels=VQ.ch, channel_multiplier=[1], num_res_blocks=1, attn_type='vanilla',
      embed_dim=4, latent_channels=4, num_embeddings=8192, double_latent=False,
      attn_resolutions=None, resolution=512, in_channels=3)

  def converted(output, kept=lambda name: True, **changes):
    inside = {f'model.vqmodel.{name}': x for name, x in pixels.items() if kept(name)}
    writers.shard(
        source, published.tensors('lumina_mgpt', CONFIG, 1) | inside,
        writers.settings_of(published_settings.LUMINA_MGPT, CONFIG) | {
            'vq_config': settings | changes})
    code = folders.run(source, 'lumina_mgpt', tmp_path / output, *GRID)
    return code, ''.join(capsys.readouterr())

  def check(output):
    model = cspd_jax.load(tmp_path / output)
    published.assert_same(model.params, parts.params)
    published.assert_same(model.tokenizer.params, parts.tokenizer.params)
    np.testing.assert_array_equal(model.condition(['a']).tokens, parts.condition(['a']).tokens)

  (source / 'original_tokenizers').mkdir(parents=True)
  (source / 'original_tokenizers' / 'text_tokenizer.json').write_bytes(texts.chameleon())
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
def test_prompts_are_written_as_the_official_sampler_does():
  model = folders.loaded('lumina_mgpt')
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
  assert templates.anole(texts.vocabulary(texts.chameleon(), 'lumina_mgpt'), 'me', 32, 32) == ([
      0, *(20000 + ord(letter) for letter in 'Generate an image of me'), 8710, 8197], [8197])


@pytest.mark.slow
def test_contexts_of_another_program(folder):
  model = folders.loaded('lumina_mgpt')
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
  table = published.tensors('eagle_lumina_mgpt', config, 3)['embed_tokens.weight']
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
def test_words_are_written_for_the_target_alone(tmp_path, capsys):
  """Anole has the same file of words, and another template."""
  folder, file = folders.copied('lumina_mgpt', tmp_path / 'model'), tmp_path / 'text_tokenizer.json'
  file.write_bytes(texts.chameleon())
  assert not folders.run(file, 'anole_text', tmp_path / 'words')
  message = ("text is a tokenizer file for anole, but model '.*' needs one for lumina_mgpt; pass "
             r'text=FOLDER of such a file \(cspd-convert --family=lumina_mgpt_text\)')
  with pytest.raises(ValueError, match=message):
    cspd_jax.load(folder, text=tmp_path / 'words' / 'text')
  before = (folder / 'model.json').read_bytes()
  assert folders.run(file, 'anole_text', folder) == 2
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
  assert folders.run(tmp_path / 'text.json', family, tmp_path / 'model') == 2
  assert message in capsys.readouterr().err and not (tmp_path / 'model').exists()


@pytest.mark.slow
def test_emu3_writes_as_its_official_program():
  text = texts.vocabulary(texts.emu3(), 'emu3')
  request, away = templates.emu3(text, 'cat', 90, 45)
  image = [151852, *b'9', *b'0', *b'*', *b'4', *b'5', 151851]
  assert request == [151849, 259, *b' masterpiece, film grained, best quality.', *image]
  assert away[0] == 151849 and away[-len(image):] == image and len(away) > 100
  # Composed, and no special token for what looks like one.
  assert text.encode('e\u0301') == list('\u00e9'.encode())
  assert 151849 not in text.encode('<|extra_203|>')
  for file in (b'%% 0', b'YQ== x', b'YQ== 1', b''):
    with pytest.raises(ValueError, match='supply the emu3.tiktoken that belo'):
      texts.vocabulary(file, 'emu3')


@pytest.mark.slow
def test_texts_are_saved_as_they_are(folder):
  loaded = store.load(folder / 'text', dtype='bfloat16')
  assert bytes(np.asarray(jax.device_get(loaded.params['file']))) == texts.chameleon()
