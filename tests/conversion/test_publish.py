"""Model folders written as published files: official programs, what is said, what is refused."""

import dataclasses
import json
import os
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from checkpoints_conversion import command, convert, publish, pytorch, read, rules
from cspd_jax.files import store, weights
from cspd_jax.models import early_fusion
from tests.builders import folders, published, sizes, texts
from tests.conversion.test_published_tensors import TINY


def _save(path, family, config, seed=3, **changes):
  """Saves a network of random numbers; returns its parameters."""
  params = published.params(family, config, seed) | changes
  store.save(path, rules.get(family).kind, config, params)
  return params


def _publish(to, source, output, **arguments):
  """Writes files; returns the path of every network, and the lines."""
  lines = []
  made = publish.publish_model(to, source, output, note=lines.append, **arguments)
  return [path for path, _ in made], lines


def test_chameleon_has_what_transformers_reads(tmp_path):
  _publish('anole', folders.model('anole'), tmp_path / 'out')
  content = json.loads((tmp_path / 'out' / 'config.json').read_text())
  names = content['vocabulary_map']
  assert names['<s>'] == content['bos_token_id'] == 0 and names['IMGIMGAZ'] == 4 + int(
      np.flatnonzero(texts.CODES == 0)[0])
  with safetensors.safe_open(tmp_path / 'out' / 'model.safetensors', 'numpy') as file:
    assert file.metadata() == {'format': 'pt'}
    inside = [name for name in read.read(tmp_path / 'out').tensors if name.startswith(
        'model.vqmodel.')]
    # Each head has its own norm, and tokens that are no codes have no outputs.
    assert file.get_tensor('model.layers.0.self_attn.q_norm.weight').shape == (2, 8)
    output = file.get_tensor('lm_head.weight')
  assert output[4:8196].any(axis=1).all() and not output[:4].any() and not output[8196:].any()
  assert 'model.vqmodel.encoder.conv_in.weight' in inside and not any(
      '.decoder.' in name for name in inside)
  assert (tmp_path / 'out' / 'tokenizer.json').read_bytes() == texts.chameleon()
  params = json.loads((tmp_path / 'out' / 'vqgan.yaml').read_text())['model']['params']
  assert params['n_embed'] == 8192 and params['ddconfig']['ch_mult'] == [1]
  assert read.read(tmp_path / 'out' / 'vqgan.ckpt').key == 'state_dict'


def test_llamagen_has_what_the_official_classes_read(tmp_path):
  _save(tmp_path / 'target', 'llamagen', sizes.LLAMAGEN)
  (path,), lines = _publish('llamagen', tmp_path / 'target', tmp_path / 'out', dtype='bfloat16')
  assert {str(tensor.dtype) for tensor in read.read(path).tensors.values()} == {'bfloat16'}
  arguments, = (re.search(r'ModelArgs\((.*)\)\)', line)[1] for line in lines if 'ModelArgs' in line)
  values = dict(eval(f'dict({arguments})'))  # pylint: disable=eval-used
  assert values['block_size'] == 4 and values['model_type'] == 'c2i' and values['n_head'] == 2
  # The rule of the class for the width of the hidden layer.
  hidden, multiple = int(values['ffn_dim_multiplier'] * int(8 * 16 / 3)), values['multiple_of']
  assert -(-hidden // multiple) * multiple == sizes.LLAMAGEN.ffn_dim
  _save(tmp_path / 'vq', 'llamagen_vq', sizes.VQ)
  (path,), _ = _publish('llamagen_vq', tmp_path / 'vq', tmp_path / 'vq_out')
  assert read.read(path).tensors['quantize.codebook_used'].shape == (65536,)


def test_a_drafter_takes_the_embedding_of_its_target(tmp_path):
  (path,), _ = _publish('eagle_llamagen', 'demo', tmp_path / 'out')
  back = convert.open_source('eagle_llamagen', path, options={'image_size': 256, 'num_heads': 3})
  params, drafter = weights.named(back.params()), store.load('demo/eagle')
  table = params.pop('token_embedding')
  published.assert_same(params, drafter.params)
  published.assert_same(table, store.load('demo/target').params['transformer']['token_embedding'])
  assert back.network.config == dataclasses.replace(drafter.config, own_embedding=True)
  # The released program refuses a folder without it.
  assert json.loads((path / 'config.json').read_text())['input_type'] == 't2i'


def test_what_files_cannot_hold_is_said(tmp_path):
  paths, lines = _publish('llamagen', 'demo', tmp_path / 'out')
  assert [path.name for path in paths] == ['llamagen.pt']
  for start in ('llamagen: weights do not hold the grid of the images, 16x16 tokens',
                'left out tokenizer: tokenizer cannot be written as a LlamaGen image tokenizer: '
                'The levels of the tokenizer are [32, 32, 64]', 'left out draft: --role=draft',
                'left out eagle: --to=eagle_llamagen', 'left out neighbours: published files hold',
                'left out the defaults of the model: dtype, guidance_scale, decoder',
                'left out what the model knows of the target: labels'):
    assert any(line.startswith(start) for line in lines), start
  paths, lines = _publish('llamagen', 'demo', tmp_path / 'draft', role='draft')
  assert read.read(*paths).tensors and not any(line.startswith('left out') for line in lines)
  _, lines = _publish('anole', 'emoji', tmp_path / 'emoji')
  assert 'anole: lm_head.weight has 23808 numbers that the model does not have; they are zeros' in (
      lines)


def test_tensors_that_came_in_and_do_not_go_out_are_named(tmp_path):
  """CLIP's scale of logits: scores are cosines."""
  _save(tmp_path / 'whole', 'clip', sizes.CLIP)
  (path,), lines = _publish('clip', tmp_path / 'whole', tmp_path / 'published')
  assert not lines
  file = path / 'model.safetensors'
  tensors = safetensors.numpy.load_file(file) | {'logit_scale': np.ones((), np.float32)}
  safetensors.numpy.save_file(tensors, file)
  convert.convert_file('clip', path, tmp_path / 'model', note=lines.append)
  assert lines == ['left out logit_scale, which this network does not have']
  _, lines = _publish('clip', tmp_path / 'model', tmp_path / 'out')
  assert lines == ['clip: the files that the model was converted from also had logit_scale, which '
                   'these do not have']


@pytest.mark.parametrize('to, source, name', [
    ('anole_text', 'emoji', 'text_tokenizer.json'), ('mar', 'mar_demo', 'checkpoint-last.pth')])
def test_files_have_the_names_of_published_folders(to, source, name, tmp_path):
  (path,), _ = _publish(to, source, tmp_path / 'out')
  assert path == tmp_path / 'out' / name and path.is_file()


@pytest.mark.parametrize('to, source, message', [
    ('anole', 'demo', "to is 'anole', and source is 'demo', a 'llamagen' model, which has no files "
                      'of this family; choose one of: llamagen, llamagen_vq, '),
    ('lama', 'demo', "to is 'lama'; it must be one of: "),
    ('llamagen', 'nothing', "source is 'nothing', which has no model.json; with --to "),
    ('llamagen', 'network', "the folder of one 'vq' network; files of llamagen hold a 'llamagen' "
                            'network, so specify the folder of the whole model'),
    ('t5', 'demo', "a model without a t5, which files of t5 hold; it has: target, "),
    ('llamagen_vq', 'demo', 'below 128 channels its normalisation groups differ'),
    ('eagle_anole', 'emoji', 'eagle cannot be written as an EAGLE drafter for anole: num_tokens is '
                             '273, where such files mean 256; row_width is 17, '),
    ('nextstep', 'emoji_continuous', "guidance is 'linear', where such files mean 'constant'"),
    pytest.param(
        'lumina_mgpt', 'emoji', r"(?s)\Atext cannot be written as .*: form is 'anole', where such "
        r"files mean 'lumina_mgpt'\. --to=anole can hold this model\.\n  tokenizer: ",
        marks=pytest.mark.slow)])
def test_wrong_input_is_refused(to, source, message, tmp_path):
  if source == 'network':
    source = store.ASSETS / 'demo' / 'tokenizer'
  with pytest.raises(ValueError, match=message):
    publish.publish_model(to, source, tmp_path / 'out')
  assert not list(tmp_path.iterdir())


def test_numbers_that_the_files_cannot_hold_are_refused(tmp_path):
  """Liquid's table is multiplied, and one row of norms is for all heads."""
  config = dataclasses.replace(sizes.LIQUID, dim=24, attention_dim=None)
  params = _save(tmp_path / 'liquid', 'liquid', config)
  params['transformer']['token_embedding'] *= np.float32(1.1)  # As a training changes it.
  store.save(tmp_path / 'liquid', 'early_fusion', config, params)
  with pytest.raises(ValueError, match=(
      'target has transformer/.*, which .* of a transformer like liquid_7b cannot hold')):
    _publish('liquid', tmp_path / 'liquid', tmp_path / 'out')
  target = dataclasses.replace(sizes.EAGLE_ANOLE, num_tokens=7, row_width=3)
  params = _save(tmp_path / 'eagle', 'eagle_lumina_mgpt', target)
  _publish('eagle_lumina_mgpt', tmp_path / 'eagle', tmp_path / 'same')
  norm = params['layer']['query_norm']
  norm['scale'] = norm['scale'] * np.float32([[1], [2]])
  store.save(tmp_path / 'eagle', 'eagle', target, params)
  with pytest.raises(ValueError, match='layer/query_norm/scale, which layers.0.self_attn.q_norm'):
    _publish('eagle_lumina_mgpt', tmp_path / 'eagle', tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('case', ['class', 'eagle_anole'])
def test_weights_that_are_not_finite(case, tmp_path):
  """Of files of PyTorch and of safetensors."""
  name, config = TINY[case]
  params = _save(tmp_path / 'model', name, config)
  norm = params['transformer' if case == 'class' else 'layer']
  norm = norm['norm' if case == 'class' else 'ffn_norm']
  norm['scale'] = np.full_like(norm['scale'], np.nan)
  store.save(tmp_path / 'model', rules.get(name).kind, config, params, allow_nonfinite=True)
  with pytest.raises(ValueError, match='norm.weight of shape .* holds numbers that are not finite'):
    _publish(name, tmp_path / 'model', tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
  (path,), _ = _publish(name, tmp_path / 'model', tmp_path / 'out', allow_nonfinite=True)
  assert any(np.isnan(np.asarray(tensor)).all() for tensor in read.read(path).tensors.values())


def test_a_folder_that_is_there_stays(tmp_path):
  (tmp_path / 'out').mkdir()
  (tmp_path / 'out' / 'notes.txt').write_text('mine')
  (path,), _ = _publish('llamagen', 'demo', tmp_path / 'out', role='draft')
  before = path.stat().st_mtime_ns
  _publish('llamagen', 'demo', tmp_path / 'out', role='draft')
  assert path.stat().st_mtime_ns == before, 'it is there already'
  path.write_text('mine')
  with pytest.raises(ValueError, match=f'where {path.name} was not written by this program'):
    _publish('llamagen', 'demo', tmp_path / 'out', role='draft')
  assert path.read_text() == 'mine' and (tmp_path / 'out' / 'notes.txt').read_text() == 'mine'


def test_files_that_were_written_wrongly_are_not_moved_into_place(tmp_path, monkeypatch):
  right = pytorch.save
  monkeypatch.setattr(pytorch, 'save', lambda path, tensors, keys: right(
      path, ((name, x + (name == 'norm.weight')) for name, x in tensors), keys))
  with pytest.raises(ValueError, match='draft has transformer/norm/scale, which norm.weight of'):
    _publish('llamagen', 'demo', tmp_path / 'out', role='draft')
  assert not list(tmp_path.iterdir())


def test_a_stopped_command_continues(tmp_path, monkeypatch):
  _save(tmp_path / 'model', 'simplear', sizes.SIMPLEAR)
  made, append = [], weights._append
  def stop(*arguments):
    append(*arguments)
    made.append(list(arguments[3]))
    if len(made) == 2:
      raise KeyboardInterrupt

  monkeypatch.setattr(weights, '_append', stop)
  monkeypatch.setattr(weights, '_GROUP', 1000)
  with pytest.raises(KeyboardInterrupt):
    _publish('simplear', tmp_path / 'model', tmp_path / 'out')
  assert os.listdir(tmp_path / 'out') == ['.unfinished']
  (path,), _ = _publish('simplear', tmp_path / 'model', tmp_path / 'out')
  # Of the second group the process has not noted that it is written.
  names = sum(made[:1] + made[2:], [])
  assert len(made) > 4 and sorted(names) == sorted(read.read(path).tensors)
  assert sorted(file.name for file in tmp_path.iterdir()) == ['model', 'out']


def test_the_command(tmp_path, capsys):
  run = lambda *words: command.main(['convert', *words])
  assert run('--to=llamagen', '--source=demo', f'--output={tmp_path}/out', '--role=draft',
             '--dtype=bfloat16') == 0
  assert f'{tmp_path}/out/llamagen.pt: a LlamaGen transformer' in capsys.readouterr().out
  assert run('--to=llamagen', '--source=demo', f'--output={tmp_path}/x', '--family=llamagen',
             '--num_heads=2', '--key=ema') == 2
  assert 'leave out what only reading needs: --family, --key, --num_heads.' in (
      capsys.readouterr().err)
  assert run('--to=llamagen') == 2
  assert '--source, --output must be specified' in capsys.readouterr().err


def test_files_of_pytorch(tmp_path):
  """They are read here as they are read there, and equal tensors give equal bytes."""
  rng = np.random.default_rng(0)
  arrays = {f'{kind}.{rank}': rng.standard_normal((3, 5, 2)[:rank]).astype(kind)
            for kind in ('float32', 'float16', 'float64', ml_dtypes.bfloat16) for rank in range(4)}
  arrays |= {'turned': arrays['float32.2'].T, 'none': np.zeros((0, 3), np.float32)}
  for name, keys in (('x.pt', ('model', 'ema')), ('y.pt', ('model', 'ema')), ('z.ckpt', ())):
    pytorch.save(tmp_path / name, arrays.items(), keys)
    for key in keys or (None,):
      content = read.read(tmp_path / name, key=key).tensors
      assert list(content) == list(arrays)
      published.assert_same({place: np.asarray(x) for place, x in content.items()}, arrays)
  assert (tmp_path / 'x.pt').read_bytes() == (tmp_path / 'y.pt').read_bytes()
  with pytest.raises(ValueError, match='ids is int32; files of PyTorch are written with: float64'):
    pytorch.save(tmp_path / 'w.pt', [('ids', np.zeros(2, np.int32))])
  assert sorted(path.name for path in tmp_path.iterdir()) == ['x.pt', 'y.pt', 'z.ckpt']


# The installed programs, where they are installed.


@pytest.mark.slow
def test_transformers_computes_the_logits_of_emoji(tmp_path):
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers', '5')
  _publish('anole', 'emoji', tmp_path / 'out')
  theirs = transformers.ChameleonForConditionalGeneration.from_pretrained(
      tmp_path / 'out', dtype='float32').eval()
  network = store.load('emoji/target', dtype='float32')
  config, rng = network.config, np.random.default_rng(0)
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
  prompt = np.array([tokenizer('a fox on white')['input_ids']] * 2)
  tokens = np.array(early_fusion.with_grammar(
      config, rng.integers(0, config.num_codes, (2, config.height * config.width))))
  order = early_fusion.order(config)
  ids = np.concatenate([prompt, order[tokens]], axis=1)
  with torch.no_grad():  # Without Chameleon's mask of image tokens.
    want = theirs.lm_head(theirs.model(torch.tensor(ids)).last_hidden_state).numpy()
  prompts = early_fusion.Prompt(*(np.stack([part] * 2, axis=1) for part in (
      np.argsort(order)[prompt], np.ones(prompt.shape, bool))))
  with jax.default_matmul_precision('highest'):
    logits, _ = early_fusion.logits_and_features(
        network.params, config, prompts, jnp.asarray(tokens), np.zeros(2, bool))
  free = tokens[0] < config.num_codes
  codes = slice(config.first_code, config.first_code + config.num_codes)
  np.testing.assert_allclose(logits[:, free, :config.num_codes],
                             want[:, prompt.shape[1] - 1:-1][:, free, codes], atol=1e-3)


@pytest.mark.slow
def test_transformers_reads_all_of_a_chameleon(tmp_path):
  transformers = pytest.importorskip('transformers', '5')
  pytest.importorskip('torch')
  _publish('lumina_mgpt', folders.model('lumina_mgpt'), tmp_path / 'out')
  network, report = transformers.ChameleonForConditionalGeneration.from_pretrained(
      tmp_path / 'out', output_loading_info=True)
  assert not any(report.values()), report
  assert network.generation_config.eos_token_id == 2
  assert network.model.vocabulary_mapping.bpe2img[4] == texts.CODES[0]


@pytest.mark.slow
@pytest.mark.parametrize('case, kind', [
    ('t5', 'T5EncoderModel'), ('simplear', 'Qwen2ForCausalLM'), ('liquid', 'GemmaForCausalLM'),
    ('clip', 'CLIPModel')])
def test_transformers_reads_networks(case, kind, tmp_path):
  transformers = pytest.importorskip('transformers', '5')
  pytest.importorskip('torch')
  name, config = TINY[case]
  _save(tmp_path / 'model', name, config)
  _publish(name, tmp_path / 'model', tmp_path / 'out')
  _, report = getattr(transformers, kind).from_pretrained(
      tmp_path / 'out', output_loading_info=True)
  report['missing_keys'] -= {'logit_scale'}  # Scores are cosines.
  assert not any(report.values()), report


@pytest.mark.slow
@pytest.mark.parametrize('is_mapped', [False, True])
def test_pytorch_reads_the_files(is_mapped, tmp_path):
  torch = pytest.importorskip('torch')
  rng = np.random.default_rng(0)
  arrays = {f'{kind}.{rank}': rng.standard_normal((3, 5, 2)[:rank]).astype(kind)
            for kind in ('float32', 'float16', 'float64', ml_dtypes.bfloat16) for rank in range(4)}
  pytorch.save(tmp_path / 'x.pt', arrays.items(), ('model', 'ema'))
  content = torch.load(tmp_path / 'x.pt', weights_only=True, mmap=is_mapped)
  assert content.keys() == {'model', 'ema'}
  for part in content.values():
    assert list(part) == list(arrays)
    for name, array in arrays.items():
      assert str(part[name].dtype) == f'torch.{array.dtype}'
      np.testing.assert_array_equal(part[name].double().numpy(), array.astype(np.float64))
