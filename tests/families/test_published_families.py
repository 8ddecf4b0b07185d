"""Every published family at a tiny size, end to end: from its files to pictures and back.

A family is an entry of `tests.builders.folders.FAMILIES`. What is particular to one is tested in a
file of its own.
"""

import functools
import itertools
import json
import re
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

import cspd_jax
from checkpoints_conversion import folder as folder_lib, publish
from cspd_jax import families
from cspd_jax.commands import compare, generate as generate_command, train, tune
from cspd_jax.core import programs
from cspd_jax.decoding import rounding
from cspd_jax.files import store
from cspd_jax.models import early_fusion, vq
from tests.builders import folders, published, texts, writers
from tests.builders.folders import FAMILIES
from tests.marks import representative

for _package in ('ftfy', 'tiktoken', 'tokenizers'):  # They read words.
  pytest.importorskip(_package)

# Tokens of one model, one after the other.
ONE_BY_ONE = [name for name, family in FAMILIES.items() if family.decoder == 'seed_exact(window=4)']


def _run(program, capsys, *words, code=0):
  """Runs a program, and returns what it prints."""
  result = program.main(['program', *words])
  printed = capsys.readouterr()
  assert result == code, printed.err
  return printed.err if code else printed.out


def _of_glm_image(report, printed, files):
  assert 'Pixels: python examples/decode_with_diffusers.py FILE.safetensors draws them' in printed
  assert report['sampling'] == {**report['sampling'], 'temperature': 0.9, 'top_p': 0.75,
                                'guidance_scale': 1.0}
  assert all(row['passes'] > 3 for row in report['rows'])
  assert safetensors.numpy.load_file(files[0])['large_tokens'].shape == (1, 3, 4)


def _of_tar(report, printed, files):
  assert '2 images with vanilla | seed_exact(window=4)' in printed
  assert 'for 81 tokens of the prior' in printed
  assert report['sampling']['guidance_scale'] == 4.0
  assert report['sampling']['prior'] == {**report['sampling']['prior'], 'top_k': 7, 'top_p': 0.95}
  assert [row['prior_passes'] for row in report['rows']] == [81, 81]
  assert report['guarantee'] == 'seed-exact'


def _of_mammothmoda2(report, printed, files):
  assert 'Pixels: the program of bytedance/mammothmoda draws them from image_ids' in printed
  assert safetensors.numpy.load_file(files[0])['image_ids'].shape == (1, 4 * 11)


PARTICULAR = {
    'glm_image': _of_glm_image, 'mammothmoda2': _of_mammothmoda2, 'tar': _of_tar}


@pytest.mark.slow
@pytest.mark.verifies('folder to pictures', 'lumina_mgpt', 'lumina_mgpt_2', 'anole', 'emu3',
                      'emu3_5', 'llamagen', 'janus_pro', 'simplear', 'liquid', 'nextstep', 'mar',
                      'tar', 'ar_dtok', 'ta_tok', 'mammothmoda2')
@pytest.mark.parametrize('name', FAMILIES)
def test_files_become_pictures_by_two_commands(name, tmp_path, capsys):
  family = FAMILIES[name]
  folder = folders.convert(name, tmp_path / 'published', tmp_path / 'model')
  printed = ''.join(capsys.readouterr())
  has_words = name != 'mar'
  prompt = "'a lighthouse at dusk'" if has_words else '0'
  assert f'Next: cspd-generate --model={tmp_path}/model --prompt={prompt}' in printed
  # The sampler of the first release is in no file.
  assert ('assumed the sampler of NextStep-1' in printed) == (name == 'nextstep')
  if has_words:
    error = _run(generate_command, capsys, f'--model={folder}', f'--output={tmp_path}/out', code=2)
    assert error.count('\n') == 1 and "no prompts of its own; pass --prompt='...'" in error
  arguments = [f'--model={folder}', *(f'--prompt={words}' for words in family.prompts),
               *([f'--decoder={family.decoder}'] if family.decoder else ()), '--seed=3',
               *(['--prior.top_k=7'] if name == 'tar' else ()),
               f'--output={tmp_path}/out']
  printed = _run(generate_command, capsys, *arguments)
  end = 'safetensors' if family.pixels is None else 'png'
  files = sorted((tmp_path / 'out').glob(f'*.{end}'))
  report = json.loads((tmp_path / 'out' / 'report.json').read_text())
  assert [row['file'] for row in report['rows']] == [file.name for file in files]
  assert files[0].read_bytes() != files[1].read_bytes()
  if has_words:
    assert [row['prompt'] for row in report['rows']] == [*family.prompts]
    assert [file.stem for file in files] == ['00000_a_cat_seed3', '00001_a_dog_中文_seed3']
  if family.pixels is not None:
    images = [np.asarray(Image.open(file)) for file in files]
    assert [image.shape for image in images] == [(*family.pixels, 3)] * 2
    assert all(image.std() > 0 for image in images)
  PARTICULAR.get(name, lambda *made: None)(report, printed, files)
  # The same again, which finds that everything is there.
  assert 'are complete' in _run(generate_command, capsys, *arguments)

  model, parts = cspd_jax.load(folder), families.model_file.read(folder)['parts']
  stored = {role: store.describe(folder / part).config for role, part in parts.items()}
  assert stored == stored | {'target': family.config, **family.networks}
  assert parts.keys() - family.networks.keys() <= {'target', 'text'}
  assert model.defaults == family.defaults
  if model.family == 'early_fusion':
    _check_pixels(model, name)


def _check_pixels(model, name):
  """Images are those of the codes that stand where the grammar forces no token."""
  made = model.generate(['a cat', 'a dog'], seed=1, decoder='vanilla')
  forced = np.asarray(early_fusion.forced(model.config, np.arange(model.num_tokens)))
  np.testing.assert_array_equal(
      made.tokens[:, forced >= 0], np.tile(forced[forced >= 0], (2, 1)))
  assert made.tokens[:, forced < 0].max() < model.config.num_codes
  codes = np.asarray(early_fusion.codes(model.config, made.tokens)).reshape(-1, *model.grid)
  if name in ('lumina_mgpt', 'anole'):
    codes = texts.CODES[codes]
  want = vq.decode(model.tokenizer.params, model.tokenizer.config, codes)
  # The official programs round to the nearest level.
  np.testing.assert_allclose(made.images, (np.clip(want, -1, 1) + 1) * 127.5, atol=0.51)


@pytest.mark.slow
@pytest.mark.parametrize('name', ONE_BY_ONE)
def test_drafters_are_trained_tuned_and_compared(name, tmp_path, capsys):
  """The tokens of drafters that were trained for it are those of `vanilla`."""
  folder = folders.copied(name, tmp_path / 'model')
  model, eagle = f'--model={folder}', folder / 'eagle'
  run = lambda program, *words: _run(program, capsys, *words)
  assert f'Stored in {folder}/neighbours' in run(
      train, model, '--smoke', f'--output={folder}/neighbours', f'--workdir={tmp_path}/fit')
  assert f'Stored in {eagle}' in run(train, model, '--kind=eagle', '--smoke',
                                     f'--workdir={tmp_path}/train', f'--output={eagle}')
  loaded = cspd_jax.load(folder, eagle=eagle, neighbours=folder / 'neighbours')
  assert {'neighbours', 'eagle'} <= loaded.drafts.keys()
  decode = lambda decoder: np.asarray(loaded.generate(
      FAMILIES[name].prompts, seed=1, decoder=decoder).tokens)
  vanilla = decode('vanilla')
  assert len(np.unique(vanilla)) > 3
  for decoder in ('seed_exact(window=4)', 'eagle(tree=chain(2))+match',
                  'corrected_seed_exact(corrector=neighbours, window=4, iterations=2)',
                  'corrected_seed_exact(corrector=eagle, window=4)',
                  'corrected_seed_exact(corrector=layers, window=4)',
                  'corrected_seed_exact(corrector=layers, window=6, tree=caterpillar(2, 2))'):
    np.testing.assert_array_equal(decode(decoder), vanilla, err_msg=decoder)

  families.save(folder, loaded.family, {'eagle': 'eagle', 'neighbours': 'neighbours'})
  before = (folder / 'model.json').read_bytes()
  decoders = ('vanilla', 'mc_sjd', 'eagle(tree=chain(2))', 'corrected(corrector=neighbours)')
  run(tune, model, '--dry_run', f'--decoder={",".join(decoders)}', '--window=4', '--batch_size=1',
      '--num_images=2', '--prompt=a cat', f'--output={tmp_path}/tune')
  rows = (tmp_path / 'tune' / 'rows.csv').read_text()
  assert all(decoder.partition('(')[0] in rows for decoder in decoders)
  assert (folder / 'model.json').read_bytes() == before, 'a dry run stores nothing'

  out = tmp_path / 'compare'
  assert f'Pictures and report.json are in {out}.' in run(
      compare, model, '--prompt=a cat', '--num_images=1', '--budget=1',
      f'--decoder={",".join(decoders)}', f'--output={out}')
  assert {file.name for file in out.iterdir()} >= {'acceptance.png', 'speed.png', 'report.json'}
  assert len(list(out.glob('images_*.png'))) == (4 if FAMILIES[name].pixels else 0)


@pytest.mark.slow
@pytest.mark.parametrize('name', ONE_BY_ONE)
def test_tokens_are_those_of_vanilla_in_windows_bit_for_bit(name):
  """In bfloat16 and int8, where sums of another shape would round otherwise."""
  model = cspd_jax.load(
      folders.model(name), dtype='bfloat16', quantize='int8', cache_dtype='int8')
  one, other = (model.generate([*FAMILIES[name].prompts] * 4, seed=5, decoder=decoder)
                for decoder in ('vanilla(window=6)', 'seed_exact(window=6)'))
  np.testing.assert_array_equal(one.tokens, other.tokens)
  np.testing.assert_array_equal(one.log_probs, other.log_probs)


@pytest.mark.slow
@pytest.mark.parametrize('name', ONE_BY_ONE)
def test_no_place_of_a_window_rounds_otherwise(name):
  for dtype, guided in itertools.product(('float32', 'bfloat16'), (False, True)):
    model = cspd_jax.load(folders.model(name), dtype=dtype)
    target = model.target(guided)
    condition = jax.tree.map(np.asarray, model.condition(['a fox'] * 3))
    for window in (2, 5, 7, 8, 14, 20):
      begins = rounding.passes(window, target.num_tokens, 3)
      run = programs.jit(functools.partial(rounding.digests, target, window), short_sums=True)
      result = rounding.compare(begins, jax.device_get(run(model.params, condition, begins)))
      assert result.is_equal, (dtype, guided, window, str(result))


# Another grid; the published ids at the end of both contexts, if they hold the size.
GRIDS = {
    'lumina_mgpt': ((2, 8), [8804 + 1, 8804 + 4]),
    'lumina_mgpt_2': ((12, 4), [151665, 151703, 151701]), 'anole': ((2, 5), None),
    'emu3': ((4, 2), None), 'emu3_5': ((4, 2), None), 'simplear': ((2, 5), None),
    'liquid': ((2, 5), None), 'glm_image': ((4, 3), None),
    'mammothmoda2': ((2, 12), None), 'nextstep': ((2, 2), None)}


@pytest.mark.slow
@pytest.mark.parametrize('name', GRIDS)
def test_images_of_another_grid(name):
  grid, end = GRIDS[name]
  model, own = cspd_jax.load(folders.model(name), grid=grid), folders.loaded(name)
  made = model.generate('a cat', seed=1, **({'decoder': 'vanilla'} if name != 'nextstep' else {}))
  assert model.grid == grid and made.tokens.shape[1] == model.num_tokens
  if pixels := FAMILIES[name].pixels:
    sides = np.array(pixels) // own.grid
    assert made.images.shape == (1, *(sides * grid), 3)
  else:
    assert {part: x.shape[1:] for part, x in made.handed.items() if 'prior' not in part} == (
        {'image_ids': (2 * 13,)} if name == 'mammothmoda2' else
        {'small_tokens': (2, 1), 'large_tokens': grid})
  prompt, before = (np.asarray(one.condition(['a cat']).tokens) for one in (model, own))
  has_size = name not in ('anole', 'simplear', 'liquid')
  assert has_size == (prompt.shape != before.shape or (prompt != before).any())
  if end:
    ids = early_fusion.order(model.config)[prompt[0, :, -len(end):]]
    np.testing.assert_array_equal(ids, [end] * 2)


# What is told when the files that were written are converted again.
WRITTEN = {
    'lumina_mgpt': {}, 'anole': {}, 'lumina_mgpt_2': {}, 'emu3': {}, 'emu3_5': {}, 'simplear': {},
    'llamagen': {'num_heads': 2, 'image_size': 48}}


@pytest.mark.parametrize('name', representative(WRITTEN, 'llamagen'))
def test_models_are_published_and_converted_again(name, tmp_path):
  """All networks of a model are in one folder, from which the same model is converted."""
  model, lines = folders.model(name), []
  config = FAMILIES[name].config
  options = WRITTEN[name] or {'height': config.height, 'width': config.width}
  paths = [path for path, _ in publish.publish_model(
      name, model, tmp_path / 'out', note=lines.append)]
  roles = families.model_file.read(model)['parts']
  assert len(paths) == len(roles) >= 3
  assert any(line.startswith('left out the defaults of the model: ') for line in lines)
  if name == 'llamagen':  # Their sizes are no published ones, so they have other names.
    names = sorted(path.relative_to(tmp_path / 'out').as_posix() for path in paths)
    assert names == ['llamagen.pt', 'llamagen_vq.pt', 't5', 'tokenizer.json']
    sources = dict(zip(('llamagen', 'llamagen_vq', 't5', 't5_text'), sorted(paths)))
  else:
    sources = folder_lib.find_model(name, tmp_path / 'out', None)
  folder_lib.convert_parts([
      folder_lib.Part(family, path, arguments={'options': options if family == name else {}})
      for family, path in sources.items()], tmp_path / 'again')
  again = families.model_file.read(tmp_path / 'again')['parts']
  assert again.keys() == roles.keys()
  for role, part in roles.items():
    network, back = store.load(model / part), store.load(tmp_path / 'again' / again[role])
    assert back.config == network.config
    published.assert_same(back.params, network.params)


@pytest.fixture(scope='module')
def source(request, tmp_path_factory):
  """Family, folder in two shards, and what the command is told beside it."""
  root = tmp_path_factory.mktemp('published')
  if request.param == 't5':
    return 't5', writers.flan_t5(root / 'flan-t5-xl'), ('--role=t5',)
  family = FAMILIES[request.param]
  return request.param, family.write(root), (*family.words, '--role=target')


@pytest.fixture
def refused(source, tmp_path, capsys):
  """Returns what the command says of a copy in which the tensors of the first shard are changed."""
  family, folder, words = source
  shutil.copytree(folder, tmp_path / folder.name)
  path = tmp_path / folder.name / 'model-00001-of-00002.safetensors'

  def run(change):
    tensors = safetensors.numpy.load_file(path)
    if change(tensors, path) is None:
      safetensors.numpy.save_file(tensors, path)
    assert folders.run(tmp_path / folder.name, family, tmp_path / 'model', *words) == 2
    assert not (tmp_path / 'model').exists()
    error = capsys.readouterr().err
    assert error.startswith('error: ')
    return error

  return run


def _norm(tensors):
  """The name of the scale of a norm, in any family."""
  return next(name for name in sorted(tensors)
              if 'norm' in name and 'weight' in name and not name.startswith('decoder'))


def _typed(tensors, path):
  tensors[_norm(tensors)] = tensors[_norm(tensors)].astype(np.int32)


def _infinite(tensors, path):
  tensors[_norm(tensors)][0] = np.nan


def _renamed(tensors, path):
  name = _norm(tensors)
  tensors[f'another.{name}'] = tensors.pop(name)


# What happens to the tensors of the first shard or to its file, and what is said.
DAMAGES = {
    'missing': (lambda tensors, path: path.unlink() or path,
                'model-00001-of-00002.safetensors is missing; download it'),
    'cut': (lambda tensors, path: path.write_bytes(path.read_bytes()[:-10]),
            r'model-00001-of-00002.safetensors is not a complete safetensors file \('),
    'another type': (_typed, 'quantised: .*norm.* is int32 of shape'),
    'not finite': (
        _infinite, 'tensor .*norm.* holds numbers that are not finite, such as nan'),
    'renamed': (_renamed, r'(?s)\n  missing: .*norm.*\n  unexpected: another\..*norm')}


@pytest.mark.parametrize('source, damage', representative(
    [(family, damage) for family in (
        'lumina_mgpt', 'lumina_mgpt_2', 'anole', 'emu3', 'emu3_5', 't5') for damage in DAMAGES],
    ('t5', 'not finite'), ('t5', 'renamed'), ('t5', 'cut')), indirect=['source'])
def test_damaged_files_are_refused(refused, damage):
  change, message = DAMAGES[damage]
  assert re.search(message, refused(change))


@pytest.mark.slow
@pytest.mark.parametrize('source, message', [
    ('lumina_mgpt', 'has 65539 tokens; a transformer like lumina_mgpt_7b_768 has 65536'),
    ('anole', 'has 65539 tokens; a transformer like anole_7b has 65536'),
    ('emu3', 'has 184625 tokens; a transformer like emu3_gen_8b has 184622')],
    indirect=['source'])
def test_another_vocabulary(refused, message):
  def more(tensors, path):
    for shard in path.parent.glob('model-*.safetensors'):
      tensors = safetensors.numpy.load_file(shard)
      tensors |= {name: np.concatenate([tensors[name], tensors[name][:3]]) for name in tensors
                  if name in ('model.embed_tokens.weight', 'lm_head.weight')}
      safetensors.numpy.save_file(tensors, shard)
    return path

  assert message in refused(more)
