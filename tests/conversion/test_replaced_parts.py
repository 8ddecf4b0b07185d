"""What a conversion replaces in a folder, what it keeps, and parts that do not belong together."""

import json
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from checkpoints_conversion import command, convert, folder, rules
from cspd_jax.files import store
from cspd_jax.models import llamagen, nextstep, vq
from tests.models import published

NEXTSTEP = nextstep.NextStepConfig(
    height=2, width=2, vocab_size=9, latent_channels=2, dim=16, num_layers=1, num_heads=4,
    num_kv_heads=2, ffn_dim=12, head_width=8, head_layers=1)
LLAMAGEN = llamagen.LlamaGenConfig(
    height=2, width=2, dim=16, num_layers=1, num_heads=2, ffn_dim=24, vocab_size=9, num_classes=3)
VQ = vq.VQConfig(ch_mult=(1,), num_res_blocks=1, z_channels=4, codebook_size=9, codebook_dim=2)
OPTIONS = {'nextstep': {'height': 2, 'width': 2}, 'llamagen': {'image_size': 32, 'num_heads': 2},
           'llamagen_vq': {}}


def _part(root, family, config, settings=None, seed=0, **arguments):
  """A published file of random numbers, with settings next to it."""
  root.mkdir()
  shapes = convert.published_shapes(rules.get(family), config)
  safetensors.numpy.save_file(published.weights(shapes, seed), root / 'x.safetensors')
  if settings is not None:
    (root / 'config.json').write_text(json.dumps(settings))
  return folder.Part(family, root / 'x.safetensors', arguments={'options': OPTIONS[family]},
                     **arguments)


def _defaults(path):
  return json.loads((path / 'model.json').read_text())['defaults']


def _edit(path, **defaults):
  content = json.loads((path / 'model.json').read_text())
  content['defaults'] |= defaults
  (path / 'model.json').write_text(json.dumps(content))


def test_another_target_brings_its_own_defaults(tmp_path):
  sizes = {'num_attention_heads': 4, 'rms_norm_eps': 1e-5, 'rope_theta': 1e6,
           'attention_bias': True, 'o_attention_bias': False}
  newer = _part(tmp_path / '1.1', 'nextstep', NEXTSTEP, sizes | {'genloss_width': 8})
  older = _part(tmp_path / '1', 'nextstep', NEXTSTEP, sizes | {'fm_head_dim': 8}, seed=1)
  model, notes = tmp_path / 'model', []
  folder.convert_parts([newer], model)
  assert _defaults(model)['contexts'] == 'nextstep_1_1'
  _edit(model, dtype='bfloat16', seconds={'cpu': {'1': ['mar', 2.0]}})
  folder.convert_parts([older], model, note=notes.append)
  assert _defaults(model) == {
      'guidance_scale': 7.5, 'temperature': 1.0, 'decoder': 'mar', 'dtype': 'bfloat16'}
  assert notes[-1] == (
      'dropped defaults of the target that is replaced: decoder "mar(last_noise=True)", '
      'contexts "nextstep_1_1", seconds {"cpu": {"1": ["mar", 2.0]}}')


@pytest.mark.slow
def test_the_same_target_and_other_parts_keep_the_defaults(tmp_path):
  target = _part(tmp_path / 'target', 'llamagen', LLAMAGEN)
  model, notes = tmp_path / 'model', []
  folder.convert_parts([target], model)
  _edit(model, decoder={'cpu': 'mc_sjd(window=4)'}, min_p=0.1)
  before = _defaults(model)
  for part in (target, _part(tmp_path / 'vq', 'llamagen_vq', VQ)):
    folder.convert_parts([part], model, note=notes.append)
    assert _defaults(model) == before
  assert not any('dropped' in line for line in notes)
  folder.convert_parts([_part(tmp_path / 'other', 'llamagen', LLAMAGEN, seed=1)], model)
  assert _defaults(model) == {
      'guidance_scale': 4.0, 'top_k': 2000, 'temperature': 1.0, 'top_p': 1.0}


def test_a_target_that_was_removed_can_be_replaced(tmp_path):
  target = _part(tmp_path / 'target', 'llamagen', LLAMAGEN)
  folder.convert_parts([target], tmp_path / 'model')
  shutil.rmtree(tmp_path / 'model' / 'target')
  folder.convert_parts([target], tmp_path / 'model')
  assert cspd_jax.load(tmp_path / 'model').config == LLAMAGEN


@pytest.mark.parametrize('dtype', ['int8', *(
    pytest.param(dtype, marks=pytest.mark.slow) for dtype in ('bool', 'float8_e4m3fn'))])
def test_dtypes_that_weights_cannot_have(tmp_path, dtype):
  part = _part(tmp_path / 'target', 'llamagen', LLAMAGEN, dtype=dtype)
  with pytest.raises(ValueError, match=f"dtype is '{dtype}'; it must be a floating-point dtype"):
    folder.convert_parts([part], tmp_path / 'model')
  with pytest.raises(ValueError, match=f"dtype is '{dtype}'; it must be a floating-point dtype"):
    convert.convert_file('llamagen', part.source, tmp_path / 'model', dtype=dtype,
                         options=OPTIONS['llamagen'])
  params = llamagen.init(LLAMAGEN, jax.random.key(0))
  with pytest.raises(ValueError, match=f"dtype is '{dtype}'; it must be a floating-point dtype"):
    store.save(tmp_path / 'model', 'llamagen', LLAMAGEN, params, dtype=dtype)
  with pytest.raises(ValueError, match=f"dtype is '{dtype}'; it must be a floating-point dtype"):
    cspd_jax.load('demo', dtype=dtype)
  assert not (tmp_path / 'model').exists()


@pytest.mark.slow
def test_the_next_command_names_the_folder_and_no_shipped_model(tmp_path, monkeypatch, capsys):
  target = _part(tmp_path / 'target', 'llamagen', LLAMAGEN)
  pixels = _part(tmp_path / 'vq', 'llamagen_vq', VQ)
  monkeypatch.chdir(tmp_path)
  assert command.main(['convert', '--family=llamagen_vq', f'--source={pixels.source}',
                       '--output=demo']) == 0
  assert command.main(['convert', '--family=llamagen', f'--source={target.source}', '--output=demo',
                       '--image_size=32', '--num_heads=2']) == 0
  assert 'Next: cspd-generate --model=./demo --prompt=0' in capsys.readouterr().out
  assert cspd_jax.load('./demo').config == LLAMAGEN != cspd_jax.load('demo').config


@pytest.mark.slow
def test_numbers_that_a_dtype_does_not_represent(tmp_path):
  torch = pytest.importorskip('torch')
  shapes = convert.published_shapes(rules.get('llamagen'), LLAMAGEN)
  tensors = {name: torch.tensor(x) for name, x in published.weights(shapes, 0).items()}
  tensors['norm.weight'] = torch.full((16,), 1e6)
  call = lambda **options: cspd_jax.from_torch(
      tensors, 'llamagen', options=OPTIONS['llamagen'], **options)
  with pytest.raises(ValueError, match="dtype is 'int8'; it must be a floating-point dtype"):
    call(dtype='int8')
  with pytest.raises(ValueError, match='norm/scale .*holds numbers that are not finite.* inf'):
    call(dtype='float16')
  loose = call(dtype='float16', allow_nonfinite=True)
  assert np.isinf(np.asarray(loose.params['transformer']['norm']['scale'])).all()
  assert call(dtype='bfloat16').params['transformer']['norm']['scale'].dtype == 'bfloat16'
