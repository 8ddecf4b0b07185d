"""Models from modules in memory are those that `cspd-convert` makes of their files."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from checkpoints_conversion import convert, rules
from cspd_jax.files import store
from cspd_jax.models import llamagen, vq

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers', '5')

from tests.builders import published  # noqa: E402
from tests.conversion import live_networks  # noqa: E402  (Both require transformers.)
from tests.models import janus_reference  # noqa: E402

_SIZES = dict(height=4, width=5)


@pytest.mark.slow
@pytest.mark.parametrize('name', live_networks.CASES)
def test_a_module_of_transformers(name, tmp_path):
  family, make, changes = live_networks.CASES[name]
  network = live_networks.redraw(make(**changes))
  model = cspd_jax.from_torch(network, family, options=_SIZES)
  network.save_pretrained(tmp_path / 'published')
  convert.convert_file(family, tmp_path / 'published', tmp_path / 'converted', options=_SIZES)
  saved = store.load(tmp_path / 'converted')
  assert model.config == saved.config and model.grid == (4, 5) and model.name == family
  published.assert_same(model.params, saved.params)
  # Chameleon's module has no decoder of images, and that of Emu3 is in one of two classes.
  assert (model.tokenizer is not None) == (name == 'emu3-hf')


def test_a_state_dict_with_its_settings():
  family, make, changes = live_networks.CASES['emu3']
  network = live_networks.redraw(make(**changes))
  model = cspd_jax.from_torch(network, family, options=_SIZES)
  wrapped = {f'module.{name}': tensor for name, tensor in network.state_dict().items()}
  other = cspd_jax.from_torch(wrapped, family, options=_SIZES, name='mine',
                              config=network.config.to_diff_dict())
  published.assert_same(model.params, other.params)
  for wrap in (torch.compile, torch.nn.DataParallel):
    published.assert_same(
        model.params, cspd_jax.from_torch(wrap(network), family, options=_SIZES).params)
  assert other.name == 'mine' and other.config == model.config
  with pytest.raises(rules.ConversionError, match='num_heads cannot be inferred'):
    cspd_jax.from_torch(network.state_dict(), family, options=_SIZES)


def test_settings_of_a_module_are_read():
  network = live_networks.emu3_hf(rope_parameters={
      'rope_type': 'linear', 'rope_theta': 37.0, 'factor': 2.0})
  with pytest.raises(rules.ConversionError, match="rope_parameters.rope_type is 'linear'"):
    cspd_jax.from_torch(network, 'emu3', options=_SIZES)


def test_settings_of_a_module_of_llamagen_are_read():
  arguments = dataclasses.make_dataclass('ModelArgs', [('n_head', int, 2), ('block_size', int, 4),
                                                       ('norm_eps', float, 1e-3)])
  config = llamagen.LlamaGenConfig(
      height=2, width=2, dim=16, num_layers=1, num_heads=2, ffn_dim=8, vocab_size=9, num_classes=3)
  shapes = convert.published_shapes(rules.get('llamagen'), config)
  module = torch.nn.Module()
  module.state_dict = lambda: {name: torch.ones(shape) for name, shape in shapes.items()}
  module.config = arguments()
  made = cspd_jax.from_torch(module, 'llamagen').config
  assert made == dataclasses.replace(config, norm_eps=1e-3)


def test_assumptions_are_logged(caplog):
  family, make, changes = live_networks.CASES['emu3']
  cspd_jax.from_torch(make(**changes), family)
  assert 'assumed images of 90x90 tokens' in caplog.text


def test_modules_without_numbers_are_refused():
  with torch.device('meta'):
    network = live_networks.CASES['emu3'][1]()
  with pytest.raises(rules.ConversionError, match="norm.weight is torch.float32 .* on 'meta'"):
    cspd_jax.from_torch(network, 'emu3', options=_SIZES)


@pytest.fixture(name='janus', scope='module')
def _janus():
  """A module whose settings have the sizes of published images."""
  network = janus_reference.network()
  network.config.vision_config.image_size, network.config.vq_config.num_patches = 384, 24
  network.config.vision_config.num_image_tokens = 576
  return network


@pytest.mark.slow
def test_networks_of_the_same_file(janus):
  model = cspd_jax.from_torch(janus, 'janus_pro')
  codes = np.random.default_rng(0).integers(0, janus_reference.VQ.codebook_size, (2, 8, 8))
  with torch.no_grad():
    wanted = janus.model.vqmodel.decode(torch.tensor(codes.reshape(2, -1))).numpy()
  pixels = vq.decode(model.tokenizer.params, model.tokenizer.config, codes)
  np.testing.assert_allclose(pixels, np.clip(wanted.transpose(0, 2, 3, 1), -1, 1), atol=1e-4)
  assert model.defaults['guidance_scale'] == 5.0 and model.grid == (24, 24)
  alone = cspd_jax.from_torch(janus, 'janus_pro', tokenizer=None)
  assert alone.tokenizer is None


@pytest.mark.slow
def test_bfloat16(janus):
  wide = cspd_jax.from_torch(janus, 'janus_pro', dtype='bfloat16')
  narrow = {name: tensor.to(torch.bfloat16) for name, tensor in janus.state_dict().items()}
  assert {leaf.dtype for leaf in jax.tree.leaves(wide.params)} == {jnp.dtype('bfloat16')}
  model = cspd_jax.from_torch(narrow, 'janus_pro', config=janus.config.to_diff_dict())
  jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(
      np.float32(ours), np.float32(theirs), rtol=0.02, atol=0.05), model.params, wide.params)


@pytest.mark.slow
def test_parts_are_loaded_or_in_files(janus, tmp_path):
  whole = cspd_jax.from_torch(janus, 'janus_pro')
  draft = cspd_jax.from_torch(janus, 'janus_pro', draft=janus)
  assert 'model' in draft.drafts and 'model' not in whole.drafts
  store.save(tmp_path / 'vq', 'vq', whole.tokenizer.config, whole.tokenizer.params)
  for part in (tmp_path / 'vq', store.load(tmp_path / 'vq')):
    again = cspd_jax.from_torch(janus, 'janus_pro', tokenizer=part)
    published.assert_same(again.tokenizer.params, whole.tokenizer.params)


@pytest.mark.parametrize('family, parts, message', [
    ('janus', {}, 'janus_pro'), ('janus_pro_vq', {}, 'is not a target'),
    ('t5', {}, 'is not a target'), ('janus_pro', dict(tokeniser=None), 'tokeniser is not a part'),
    ('janus_pro', dict(eagle={}), 'eagle'),
    ('janus_pro', dict(tokenizer=[1]), 'tokenizer is a list; it must be a torch.nn.Module')])
def test_bad_input(janus, family, parts, message):
  with pytest.raises(ValueError, match=message):
    cspd_jax.from_torch(janus, family, **parts)


@pytest.mark.parametrize('source', [[1], {'weight': np.zeros(3)}])
def test_sources_that_are_no_modules_are_refused(source):
  with pytest.raises(ValueError, match=r"dict of ema, optimizer; pass .*, such as source\['ema'\]"):
    cspd_jax.from_torch({'ema': {}, 'optimizer': {}, 'step': 3}, 'llamagen')
  with pytest.raises(ValueError, match='source is a .*; it must be a torch.nn.Module'):
    cspd_jax.from_torch(source, 'janus_pro')


def test_numbers_that_are_none(janus):
  state = janus.state_dict() | {'model.language_model.norm.weight': torch.full((16,), np.nan)}
  with pytest.raises(ValueError, match='norm.weight'):
    cspd_jax.from_torch(state, 'janus_pro', config=janus.config.to_diff_dict())
