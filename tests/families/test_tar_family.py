"""Tar: its two models together and alone, its template, and what does not belong together."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import cspd_jax
from checkpoints_conversion import publish
from cspd_jax import families
from cspd_jax.commands import compare as compare_command, inspect as inspect_command
from cspd_jax.files import store
from cspd_jax.generation import memory
from cspd_jax.models import tar
from cspd_jax.text import templates
from tests.builders import folders, published, sizes, texts, writers
from tests.conversion import torch_files
from tests.experiments import calls

pytest.importorskip('tokenizers')

PROMPTS = ['a cat', 'a dog, 中文']
SPEC = 'seed_exact(window=4)'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A converted model, with EAGLE networks of both stages that were not trained."""
  folder = folders.copied('tar', tmp_path_factory.mktemp('tar'))
  folders.add_eagle(folder, 'tar', sizes.AR_DTOK)
  folders.add_eagle(folder, 'tar_prior', sizes.TAR, 'prior_eagle')
  return folder


@pytest.fixture(scope='module')
def model(folder):
  return cspd_jax.load(folder)


@pytest.fixture(scope='module')
def text():
  return texts.vocabulary(texts.tar(), 'tar')


def test_both_models_are_inspected(folder, tmp_path, capsys):
  result = calls.call(inspect_command.main, capsys, tmp_path / 'out', f'--model={folder}',
                      '--window=1')
  assert result.code == 0, result.err
  prior, last = (result.out.index(text) for text in (
      'cache of 1 image of 81 tokens of the prior: ', 'cache of 1 image of 16 tokens: '))
  assert result.out.startswith('The prior, ') and prior < last
  assert prior < result.out.index('The model of its tokens, ') < last
  report = json.loads((tmp_path / 'out' / 'report.json').read_text())
  shown = {table['title']: [report['rows'][i] for i in table['rows']] for table in report['tables']}
  parts = store.load(folder / 'prior').params, store.load(folder / 'target').params
  sizes = [sum(leaf.size for leaf in jax.tree.leaves(params)) for params in parts]
  assert list(shown) == ['prior_networks', 'prior_rounds', 'networks', 'rounds']
  assert shown['prior_networks'][0]['parameters'] == sizes[0] < sizes[0] + sizes[1]
  assert [row['network'] for row in shown['prior_networks']] == ['target', 'eagle', 'layers']
  assert report['prior_cache_gigabytes'] != report['cache_gigabytes']


@pytest.mark.slow
def test_a_comparison_has_the_passes_of_both_models(folder, tmp_path, capsys):
  result = calls.call(
      compare_command.main, capsys, tmp_path / 'out', f'--model={folder}', '--prompt=a cat',
      '--decoder=vanilla,seed_exact(window=4)', '--budget=1e-3')
  assert result.code == 0, result.err
  rows = json.loads((tmp_path / 'out' / 'report.json').read_text())['rows']
  expected = cspd_jax.load(folder).prior.generate(['a cat'])
  assert [row['prior_passes'] for row in rows] == [expected.decoded.rounds.mean()] * 2
  assert 'of the prior' in result.out and 'The prior drew its 81 tokens once' in result.out
  assert rows[0]['rounds'] == 16 >= rows[1]['rounds']


@pytest.mark.slow
def test_seed_exact_stages_draw_the_images_of_vanilla(model):
  expected = model.generate(PROMPTS, seed=7, decoder='vanilla(window=4)')
  chain = 'eagle(tree=chain(3))+match'
  for decoder in (SPEC, f'{SPEC} | {chain}', f'{chain} | {SPEC}'):
    out = model.generate(PROMPTS, seed=7, decoder=decoder)
    assert out.guarantee == 'seed-exact'
    np.testing.assert_array_equal(out.prior.tokens, expected.prior.tokens)
    np.testing.assert_array_equal(out.tokens, expected.tokens)


@pytest.mark.slow
def test_either_model_is_one_of_its_own(model, folder, tmp_path):
  """The prior writes codes, which are prompts of the other one."""
  out = model.generate(PROMPTS, seed=7, decoder=SPEC)
  prior = cspd_jax.load(folder / 'prior', text=folder / 'text')
  assert prior.family == 'tar_prior'
  options = dict(seed=7, decoder=SPEC, top_k=1200, top_p=0.95)
  codes = prior.generate(PROMPTS, **options)
  assert codes.tokens.shape == out.prior.tokens.shape  # By keys of its own, so other ones.
  assert codes.images.shape == (2, 0, 0, 3) and codes.handed['codes'].dtype == np.int32
  assert 'safetensors' in codes.save(tmp_path)[0].name
  alone = cspd_jax.load(folder, prior=None, text=None)
  again = alone.generate(out.prior.tokens, seed=7, decoder=SPEC)
  np.testing.assert_array_equal(again.images, out.images)
  with pytest.raises(ValueError, match='no prior that reads words, .*prior=FOLDER and text=FOLDER'):
    alone.generate(PROMPTS)


def test_prompts_are_in_the_template_of_qwen(text):
  ids, = templates.tar(text, ' a cat<I3><|im_end|> ', 9, 9)
  special = texts.SPECIAL['tar']
  begin, end = special['<|im_start|>'], special['<|im_end|>']
  words = text.encode
  assert ids == [
      begin, *words('system\nYou are a helpful assistant.'), end, *words('\n'),
      begin, *words('user\n a cat<I3><|im_end|> '), end, *words('\n'),
      begin, *words('assistant\n'), special['<im_start>'], special['<S2>']]
  # Names of tokens in the words of a user are words.
  assert ids.count(end) == 2 and text.ids['<I3>'] not in ids
  assert [templates.tar(text, 'a', side, side)[0][-1] - special['<S0>'] for side in tar.SIDES] == [
      0, 1, 2]


@pytest.mark.slow
def test_prompts_are_those_of_its_chat_template(model, text):
  transformers = pytest.importorskip('transformers')
  template = (  # Of Qwen2.5, for a system's and a user's message.
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
      "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
  from tokenizers import Tokenizer
  tokenizer = transformers.PreTrainedTokenizerFast(
      tokenizer_object=Tokenizer.from_str(texts.tar().decode()),
      chat_template=template)
  for prompt in PROMPTS:
    words = tokenizer.apply_chat_template(
        [{'role': 'system', 'content': 'You are a helpful assistant.'},
         {'role': 'user', 'content': prompt}], tokenize=False, add_generation_prompt=True)
    given = tokenizer(words + '<im_start><S2>').input_ids
    assert templates.tar(text, prompt, 9, 9) == (given,)


def _text(tmp_path, file):
  """Writes a tokenizer file as a network; returns its folder."""
  (tmp_path / 'tokenizer.json').write_bytes(file)
  assert not folders.run(tmp_path / 'tokenizer.json', 'tar_text', tmp_path / 'words')
  return tmp_path / 'words' / 'text'


@pytest.mark.parametrize('changes, message', [
    (dict(codes=39), 'text must have <I39> as token 304, because the 40 codes .* has no such tok'),
    (dict(first=266, codes=39), 'text must have <I0> as token 265, .* has it as token 266'),
    (dict(codes=0), 'text must have <I0> as token 265.* belongs to the model'),
    (dict(codes=50), 'text has tokens up to 314, but the target of .* has 305 rows')])
def test_tokenizers_of_other_models_are_refused(folder, tmp_path, changes, message):
  part = _text(tmp_path, texts.tar(**changes))
  with pytest.raises(ValueError, match=message):
    cspd_jax.load(folder, text=part)


def test_networks_that_do_not_belong_together_are_refused(folder):
  def changed(role, **changes):
    part = store.load(folder / role)
    return part._replace(config=dataclasses.replace(part.config, **changes))

  # Codes of the largest grid, for which the table of positions is too short.
  with pytest.raises(ValueError, match='has 729 codes; the table of 96 positions has room for 81'):
    cspd_jax.load(folder, prior=changed('prior', height=27, width=27), prior_eagle=None)
  with pytest.raises(ValueError, match='prior has num_codes 39, but the bridge of .* has 40'):
    cspd_jax.load(folder, prior=changed('prior', num_codes=39, first_code=266), text=None,
                  prior_eagle=None)
  with pytest.raises(ValueError, match='bridge has dim 24, but the target .* condition_dim 12'):
    cspd_jax.load(folder, bridge=changed('bridge', dim=24))
  with pytest.raises(ValueError, match='has no bridge .*cspd-convert --family=ta_tok, or pass'):
    cspd_jax.load(folder, bridge=None)
  with pytest.raises(ValueError, match='generates images of one size'):
    cspd_jax.load(folder, grid=(8, 8))


def test_only_codes_can_be_drawn(model):
  """The head of the prior predicts nothing else, so all that it draws is a condition."""
  target = model.prior.target(False)
  assert target.vocab_size == sizes.TAR_CODES
  assert model.target(False).check_condition(np.full((1, 81), sizes.TAR_CODES - 1)).all()
  with pytest.raises(ValueError, match='codes from 40 to 40; this model supports 0 to 39'):
    model.generate(np.full((1, 81), sizes.TAR_CODES))


def test_options_of_loading_are_for_both_models(folder):
  loaded = cspd_jax.load(folder, dtype='bfloat16', quantize='int8', cache_dtype='int8')
  assert memory.precision(loaded) == memory.precision(loaded.prior) == dict(
      dtype='bfloat16', quantize='int8', cache_dtype='int8')
  with pytest.raises(ValueError, match="prior_decodr' is among the defaults|'decodr' is among"):
    families.save(folder, 'tar', {}, {'prior_decodr': 'vanilla'})


@pytest.mark.parametrize('to, start, lines', [
    ('ar_dtok', 'ar_dtok: ', [
        'ar_dtok: the file holds the weights alone; the official program reads a .pth whose part',
        f'ar_dtok: the files do not hold num_heads, which is {sizes.AR_DTOK.num_heads}; convert'
        f' them back with --num_heads={sizes.AR_DTOK.num_heads}']),
    ('ta_tok', 'ta_tok: ', [
        'ta_tok: the file holds the weights alone; the official program reads a .pth whose part',
        'ta_tok: the files do not hold normalized, which is True; convert them back with '
        '--normalized=1',
        'ta_tok: the files that the model was converted from also had '
        'encoder.post_layernorm.bias, encode_task_layer.0.bias, scale_layer.shift, ... (5 tensors)'
        ]),
    ('tar', 'left out ', [
        'left out a tokenizer file for tar, which published folders have, too: --to=tar_text '])])
def test_what_the_files_of_tar_cannot_hold_is_said(folder, tmp_path, to, start, lines):
  said = []
  paths = [path for path, _ in publish.publish_model(
      to, folder, tmp_path / 'out', note=said.append)]
  for line in lines:
    assert any(text.startswith(line) for text in said), line
  assert sum(text.startswith(start) for text in said) >= len(lines)
  assert paths[0].suffix == ('' if to == 'tar' else '.pth')


@pytest.mark.parametrize('name, changes, message', [
    ('XXS', dict(model_type='class_cond'), "args.model_type is 'class_cond'; it must be"),
    ('XXS', dict(model_type='indice_cond'), "args.model_type is 'indice_cond'"),
    ('XXS', dict(model_type=None), "args.model_type is absent, which means 'class_cond'"),
    ('XXS', dict(frame_prediction=True), 'args.frame_prediction is True; it must be False'),
    ('XXS', dict(extra=1), 'args.extra is 1; no published model has the field'),
    ('XXS', dict(cond_dim=13), 'condition_dim is 13, the model has 12'),
    ('XXS', dict(cls_token_num=729), 'num_positions is 744, the model has 96'),
    ('XXS', dict(max_seq_len=17), 'args.max_seq_len is 17; it must be the number of tokens of a'),
    ('XXS', dict(norm_eps='1e-5'), "args.norm_eps is '1e-5'; it must be a number"),
    ('M', {}, "name is 'llama-abs-M'; it must be llama-abs- and one of")])
def test_arguments_of_other_networks_are_refused(tmp_path, capsys, name, changes, message):
  files = writers.tar_pixels(tmp_path, f'llama-abs-{name}', **changes)
  with folders.tiny():
    assert folders.run(files / 'ar_dtok_lp_256px.pth', 'ar_dtok', tmp_path / 'model') == 2
  assert message in capsys.readouterr().err


def test_arguments_of_the_bridge_are_read(tmp_path, capsys):
  convert = lambda name, output, *words: folders.run(
      tmp_path / name, 'ta_tok', tmp_path / output, *words)
  writers.ta_tok(tmp_path / 'ta_tok.pth')
  assert not convert('ta_tok.pth', 'model')
  assert store.describe(tmp_path / 'model' / 'bridge').config == sizes.TA_TOK
  writers.ta_tok(tmp_path / 'ta_tok.pth', {**writers.TA_TOK, 'bottleneck': dict(
      name='bottleneck', args=dict(bottleneck_dim=8, regularizer=dict(name='vq', args={})))})
  assert convert('ta_tok.pth', 'other') == 2
  assert "args.bottleneck.args.regularizer.name is 'vq'; it must be 'simvq'" in (
      capsys.readouterr().err)
  # A state dict alone does not say whether vectors of codes have norm one.
  torch_files.save(tmp_path / 'bare.pth', published.tensors('ta_tok', sizes.TA_TOK, 73))
  assert convert('bare.pth', 'other') == 2
  assert '--normalized=N' in capsys.readouterr().err
  assert not convert('bare.pth', 'other', '--normalized=1')


def test_weights_of_another_size_of_images_are_refused(tmp_path, capsys):
  """Those of the smallest images, as a model of the largest."""
  file = writers.tar_pixels(tmp_path) / 'ar_dtok_lp_256px.pth'
  with folders.tiny():
    assert folders.run(file, 'ar_dtok', tmp_path / 'model', '--model=ar_dtok_1024') == 2
  message = capsys.readouterr().err
  assert 'num_tokens is 16, the model has 4096' in message
  assert 'num_positions is 96, the model has 4824' in message


@pytest.mark.parametrize('words, message', [
    (('--height=20', '--width=20'), 'height and width are 20 and 20; the codes of Tar have one of'),
    (('--height=13',), 'height and width are 13 and 27')])
def test_scales_that_do_not_exist_are_refused(tmp_path, capsys, words, message):
  source = writers.tar_language(tmp_path)
  assert folders.run(source, 'tar', tmp_path / 'model', *words) == 2
  assert message in capsys.readouterr().err
