"""MAR's files: the averaged weights of a training, and a folder that becomes pictures."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

import cspd_jax
from checkpoints_conversion import command, convert, read, rules
from cspd_jax.commands import generate as generate_command
from cspd_jax.files import store
from tests.conversion import small, torch_files


def test_the_averaged_weights_are_taken_unless_asked_otherwise(tmp_path):
  source, parts = tmp_path / 'last.pth', [small.tensors('mar', small.MAR, seed) for seed in (0, 1)]
  torch_files.save_parts(source, dict(model=parts[0], model_ema=parts[1]))
  config = convert.convert_file('mar', source, tmp_path / 'out', options={'num_heads': 2})
  loaded = store.load(tmp_path / 'out')
  assert loaded.metadata['key'] == 'model_ema'
  for name, x in convert.publish(rules.get('mar'), config, loaded.params).items():
    np.testing.assert_array_equal(x, parts[1][name])
  for other, name in ((dict(key='model', prefer='model_ema'), 'model'), (dict(), 'model')):
    weights = read.read(source, **other)
    assert weights.key == name
    for key, x in parts[0].items():
      np.testing.assert_array_equal(weights.tensors[key], x)


@pytest.mark.slow
@pytest.mark.verifies('folder to pictures', 'mar')
def test_a_folder_becomes_pictures_by_two_commands(tmp_path, capsys):
  published, folder = tmp_path / 'pretrained_models', tmp_path / 'model'
  tokenizer = dataclasses.replace(small.KL_VAE, z_channels=small.MAR.token_dim)
  for path, parts in (
      ('mar/mar_tiny/checkpoint-last.pth', dict(
          model=small.tensors('mar', small.MAR), model_ema=small.tensors('mar', small.MAR, 1))),
      ('vae/kl16.ckpt', dict(model=small.tensors('kl_vae', tokenizer)))):
    (published / path).parent.mkdir(parents=True)
    torch_files.save_parts(published / path, parts)
  assert command.main(['convert', '--family=mar', f'--source={published}/mar/mar_tiny',
                       '--num_heads=2', f'--output={folder}']) == 0
  assert f'Next: cspd-generate --model={folder} --prompt=' in capsys.readouterr().out
  assert generate_command.main(
      ['cspd-generate', f'--model={folder}', '--prompt=0,2', f'--output={tmp_path}/out']) == 0
  pictures = [np.asarray(Image.open(path)) for path in sorted((tmp_path / 'out').glob('*.png'))]
  assert [picture.shape for picture in pictures] == [(4, 4, 3)] * 2
  assert not np.array_equal(*pictures) and all(picture.std() > 0 for picture in pictures)
  model = cspd_jax.load(folder)
  assert (model.config, model.tokenizer.config) == (small.MAR, tokenizer)
  assert model.defaults['guidance_scale'] == 4.0
