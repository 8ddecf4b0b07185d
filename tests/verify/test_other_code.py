"""Networks against other people's code, where it is installed, and printed tokens."""

import contextlib
import json
import os
import pathlib
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from checkpoints_conversion import torch_classes
from cspd_jax import families
from cspd_jax.cli import groups
from cspd_jax.commands import verify
from cspd_jax.files import store
from cspd_jax.generation.cascade import Cascade
from cspd_jax.text import bpe, templates
from cspd_jax.verify import other_code
from tests.builders import folders, sizes
from tests.verify import mistakes
from tests.verify.conftest import verdicts


def checked(model, source, prompts, **options):
  """The checks of the network of a model, by name."""
  config = verify.Config(loading=groups.LoadFlags(model=str(source)), **options)
  return {result.name: result for result in verify._check_network(config, model, prompts)}


class Array(np.ndarray):
  """An array with the methods of a tensor of PyTorch."""

  float = numpy = lambda self: self


@pytest.fixture(params=['stand-in', 'transformers'])
def code(request, monkeypatch, emoji):
  """Other code for `emoji`: the right network itself, or the installed transformers."""
  if request.param == 'transformers':
    pytest.importorskip('torch'), pytest.importorskip('transformers', '5')
    return 'ChameleonForConditionalGeneration'

  def logits(network, model, condition, stream, tokens):
    rows = jnp.asarray(np.pad(tokens, (0, 1)))[None]
    return np.asarray(emoji.teacher.forward(
        emoji.params, condition, rows, jnp.array([stream == 1]))[0])[0].view(Array)

  def build(module, path, model):
    assert (path / 'model.safetensors').exists()
    network = types.SimpleNamespace(eval=lambda: network)
    return network

  monkeypatch.setitem(torch_classes.CLASSES, 'anole', torch_classes.TorchClass(
      'StandIn', logits, build, 'numpy'))
  monkeypatch.setitem(sys.modules, 'torch', types.SimpleNamespace(
      no_grad=contextlib.nullcontext))
  return 'StandIn'


@pytest.mark.parametrize('make', [
    pytest.param(None, marks=pytest.mark.slow), mistakes.wrong_rotation_everywhere,
    pytest.param(mistakes.swapped_layers, marks=pytest.mark.slow)])
def test_other_code_finds_what_all_passes_have(emoji, code, make):
  found = checked(make(emoji) if make else emoji, 'emoji', ['a fox on white'])
  assert verdicts(found.values()) == {
      'windows': 'passed', "the training's pass": 'passed',
      'other code': 'failed' if make else 'passed'}, found
  assert code in found['other code'].words


# Classes of transformers, and clones by the environment variable with their folder.
LIVE = {'lumina_mgpt': None, 'lumina_mgpt_2': None, 'anole': None, 'emu3': None, 'emu3_5': None,
        'simplear': None, 'liquid': None, 'janus_pro': None, 'glm_image': None,
        'llamagen': 'LLAMAGEN_CLONE', 'tar': 'TAR_CLONE', 'mar': 'MAR_CLONE'}


def published_files(name, root):
  """Files of the weights of a tiny model that cannot be written from it; None for others."""
  if name == 'janus_pro':
    folder = folders.FAMILIES[name].write(root)
    settings = json.loads((folder / 'config.json').read_text())
    settings['text_config']['pad_token_id'] = 0  # One of the tiny vocabulary.
    (folder / 'config.json').write_text(json.dumps(settings))
    import transformers  # With the parts that the files of the tests do not have.
    transformers.JanusForConditionalGeneration.from_pretrained(
        folder, dtype='float32').save_pretrained(root / 'all')
    return root / 'all'
  if name == 'glm_image':
    from tests.models import glm_image_reference
    glm_image_reference.network(sizes.GLM_IMAGE, 85).save_pretrained(root)
    return root
  return None


@pytest.mark.slow
@pytest.mark.parametrize('name', LIVE)
def test_families_have_the_logits_of_other_code(name, tmp_path):
  pytest.importorskip('torch'), pytest.importorskip('transformers', '5')
  if (repo := LIVE[name] and os.environ.get(LIVE[name])) is None and LIVE[name]:
    pytest.skip(f'{LIVE[name]} is not set to the folder of a clone')
  folder, prompts = folders.model(name), [0] if name == 'mar' else ['a cat']
  model = cspd_jax.load(folder)
  published = published_files(name, tmp_path)
  for one, of_one in ([(model.prior, prompts), (model.second, np.zeros((1, 81), int) + 3)]
                      if isinstance(model, Cascade) else [(model, prompts)]):
    result = checked(one, folder, of_one, repo=repo,
                     published=published and str(published))['other code']
    assert result.verdict == 'passed', result
    assert max(result.numbers.values()) < 1e-4


def test_what_is_not_compared_says_what_would_compare_it(emoji, monkeypatch):
  def check(model, name, repo=None):
    result, = other_code.check(model, None, np.zeros((1, 1), int), np.zeros(1), name, repo, None)
    assert result.verdict == 'not compared'
    return result.words

  monkeypatch.setitem(sys.modules, 'torch', None)
  words = check(emoji, 'emoji')
  assert 'ChameleonForConditionalGeneration cannot be imported' in words
  assert words.endswith('pip install torch transformers')
  demo = cspd_jax.load('demo')
  assert check(demo, 'demo').startswith(
      'clone https://github.com/FoundationVision/LlamaGen, pip install')
  with pytest.raises(ValueError, match='which does not contain autoregressive/models/gpt.py; give'):
    check(demo, 'demo', repo='.')


PAGES = pathlib.Path(__file__).parents[2] / 'docs' / 'families'


@pytest.mark.parametrize('page', sorted(path.stem for path in PAGES.glob('*.md')))
def test_pages_of_families_end_with_the_command(page):
  *_, command, end = (PAGES / f'{page}.md').read_text().rstrip().split('\n')
  assert end == '```' and command.startswith('cspd-verify --model=checkpoints/')
  name = {'tar': 'ar_dtok', 'janus': 'janus_pro'}.get(page, page)
  url = torch_classes.CLASSES[name].url if name in torch_classes.CLASSES else ''
  assert ('--repo=' in command) == bool(url)
  assert not url or command.endswith(f'--repo={url.split("/")[-1]}')


@pytest.fixture
def janus(monkeypatch, tmp_path):
  """A function that checks tokens, as if another program had printed them, and greedy ones."""
  folder = folders.model('janus_pro')
  model = cspd_jax.load(folder, dtype='float32')
  monkeypatch.setattr(other_code.families, 'describe', lambda name: model)
  monkeypatch.setattr(other_code, 'PRINTED', tmp_path / 'printed.json')
  text = bpe.read(store.load(families.part_folder(folder, 'text')).params, 'janus_pro')
  ids = templates.janus_pro_plain(text, 'x', 3, 4)

  def check(tokens, count=len(ids[0])):
    (tmp_path / 'printed.json').write_text(json.dumps([dict(
        family='janus_pro', model='janus_pro_1b', contexts='janus_pro_plain', prompt='x',
        num_prompt_tokens=count, guidance_scale=5.0, tokens=tokens)]))
    result, = other_code.check_printed(model, folder)
    return result

  made = model.generate(templates.padded([ids]), temperature=0.0, decoder='vanilla')
  return check, np.asarray(made.decoded.tokens)[0].tolist()


@pytest.mark.slow
def test_printed_tokens(janus):
  check, tokens = janus
  result = check(tokens)
  assert result.verdict == 'passed' and result.numbers['agree'] == 12 and len(set(tokens)) > 3
  other = [*tokens[:5], (tokens[5] + 1) % 12, *tokens[6:]]
  result = check(other)
  assert result.verdict == 'failed' and result.numbers['first_wrong'] == 5
  assert f'token {tokens[5]} is more probable than {other[5]} at position 5 by' in result.words
  assert 'the text writes the prompt in' in check(tokens, 99).words


def test_printed_tokens_are_of_a_published_model(emoji):
  printed, = json.loads(other_code.PRINTED.read_text())
  described = families.describe(printed['model'])
  assert described.family == printed['family'] and len(printed['tokens']) == 50
  assert max(printed['tokens']) < described.config.num_codes
  assert printed['contexts'] in families.FAMILIES[described.family].prompt_writers
  assert not list(other_code.check_printed(emoji, 'emoji'))


def test_the_gap_of_rounding_bounds_what_rounding_changes():
  """For both logits of a pair, in both streams, at any guidance scale."""
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, 1, 1000)).astype(np.float32) * 20
  scale, rounded = 5.0, np.asarray(jnp.asarray(logits, jnp.bfloat16), np.float32)
  guided, other = (x[1] + scale * (x[0] - x[1]) for x in (logits, rounded))
  bound = other_code.rounding(logits, scale)
  assert (np.abs(guided - other) <= bound).all()
  assert np.abs(guided - other).max() > bound.max() / 3
