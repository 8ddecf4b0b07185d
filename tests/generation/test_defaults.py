"""Default decoders by device and number of images: their form, use and storage."""

import dataclasses
import json
import types
from unittest import mock

import jax
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.families import folder as folder_lib
from cspd_jax.generation import defaults as defaults_lib, options
from cspd_jax.generation.gallery import Gallery

H200 = types.SimpleNamespace(device_kind='NVIDIA H200', platform='gpu')
CPU = types.SimpleNamespace(device_kind='cpu', platform='cpu')
CHOSEN = {'cpu': {'1': 'mc_sjd(window=4)', '8': 'vanilla'}, 'gpu': 'mc_sjd(window=64)',
          'NVIDIA H200': {'4': 'seed_exact(window=16)'}}


def _content(folder):
  return json.loads((folder / 'model.json').read_text())


@pytest.mark.parametrize('chosen, device, batch_size, result', [
    (None, CPU, 1, None),
    ('sjd', CPU, 1, 'sjd'),
    ('sjd', H200, 64, 'sjd'),
    ({'gpu': 'sjd'}, CPU, 1, None),
    (CHOSEN, CPU, 1, 'mc_sjd(window=4)'),
    (CHOSEN, CPU, 7, 'mc_sjd(window=4)'),
    (CHOSEN, CPU, 8, 'vanilla'),
    (CHOSEN, CPU, 100, 'vanilla'),
    (CHOSEN, H200, 3, 'mc_sjd(window=64)'),
    (CHOSEN, H200, 4, 'seed_exact(window=16)'),
])
def test_the_kind_comes_before_the_platform_and_a_size_holds_up_to_the_next(
    chosen, device, batch_size, result):
  defaults_lib.check(chosen)
  assert defaults_lib.find(chosen, device, batch_size) == result


@pytest.mark.parametrize('chosen, decoders, result', [
    (None, {1: 'a'}, {'cpu': 'a'}),
    (None, {2: 'a'}, {'cpu': {'2': 'a'}}),
    ('s', {1: 'a'}, {'cpu': 'a', 'gpu': 's', 'tpu': 's'}),
    ({'gpu': 's'}, {1: 'a', 8: 'b'}, {'gpu': 's', 'cpu': {'1': 'a', '8': 'b'}}),
    ({'cpu': 's'}, {8: 'b'}, {'cpu': {'1': 's', '8': 'b'}}),
    ({'cpu': {'1': 'a', '16': 'b'}}, {1: 'c', 4: 'b'}, {'cpu': {'1': 'c', '4': 'b', '16': 'b'}}),
    ({'cpu': {'1': 'a', '8': 'b'}}, {1: 'b', 8: 'b'}, {'cpu': {'1': 'b', '8': 'b'}}),
])
def test_a_choice_joins_what_was_there(chosen, decoders, result):
  joined = defaults_lib.joined(chosen, 'cpu', decoders)
  assert joined == result
  defaults_lib.check(joined)
  for size, decoder in decoders.items():
    assert defaults_lib.find(joined, CPU, size) == decoder


def test_models_take_what_is_stored_for_their_device_and_batch(beach, tmp_path):
  kind = jax.devices()[0].device_kind
  place = folder_lib.place(beach, tmp_path / 'own')
  place.store(kind, {1: 'mc_sjd(window=4)', 2: 'vanilla'})
  place.store('another device', {1: 'jacobi(window=3)'})
  model = cspd_jax.load(tmp_path / 'own')
  chosen = lambda prompts, **options: model.images(prompts, **options).sampler.text
  assert str(model.specification()) == 'mc_sjd(window=4)' == chosen('sea')
  assert chosen(['sea', 'sky']) == 'vanilla' == model.generate(['sea', 'sky']).decoder
  assert chosen(['sea', 'sky'], batch_size=1) == 'mc_sjd(window=4)'
  assert chosen(['sea', 'sky'], decoder='sjd(window=2)') == 'sjd(window=2)'
  for size, text in ((1, 'mc_sjd(window=4)'), (8, 'vanilla')):  # The default of `cspd-generate`.
    gallery = Gallery(
        model.images(['sea', 'sky'], batch_size=size), tmp_path / f'by_{size}')
    assert str(gallery.images.sampler.specification) == text
  assert next(model.stream(['sea', 'sky'])).images.shape[0] == 2
  with pytest.raises(ValueError, match='batch_size is 1, but all images of a stream'):
    model.stream(['sea'], batch_size=1)
  elsewhere = dataclasses.replace(model, defaults={'decoder': {'another device': 'vanilla'}})
  assert str(elsewhere.specification()) == 'mc_sjd(window=4)'
  assert str(elsewhere.specification(batch_size=2)) == 'vanilla'
  gpu = mock.Mock(platform='gpu', device_kind='some GPU')
  for drafts, text in (({}, 'mc_sjd'), ({'eagle': None}, 'eagle')):
    assert all(str(options.default(model.table, None, drafts, gpu, size)) == text
               for size in (1, 8))


def test_a_group_of_devices_takes_its_share(beach):
  model = cspd_jax.load(beach, sharding=cspd_jax.sharding.make_mesh(data=1))
  defaults = {'decoder': {jax.default_backend(): {'1': 'sjd(window=2)', '4': 'vanilla'}}}
  one = dataclasses.replace(model, defaults=defaults)
  assert str(one.specification(batch_size=4)) == 'vanilla'
  two = dataclasses.replace(
      model, defaults=defaults, mesh=types.SimpleNamespace(
          shape={cspd_jax.sharding.DATA: 2}, devices=model.mesh.devices))
  assert str(two.specification(batch_size=6)) == 'sjd(window=2)'
  assert str(two.specification(batch_size=7)) == 'vanilla'


def test_a_decoder_that_nobody_knows_is_named_where_it_would_be_used(beach, tmp_path):
  folder_lib.place(beach, tmp_path / 'own').store(jax.devices()[0].device_kind, {
      1: 'vanilla', 2: 'faster(window=4)'})
  model = cspd_jax.load(tmp_path / 'own')
  assert str(model.specification(batch_size=1)) == 'vanilla'
  with pytest.raises(
      ValueError, match="names for .* and 2 images .* 'faster' is not registered.* Pass decoder"):
    model.generate(['sea', 'sky'])
  assert model.images(['sea', 'sky'], decoder='vanilla').sampler.text == 'vanilla'


def test_networks_stay_where_they_are(beach, tmp_path):
  before = (beach / 'model.json').read_bytes()
  place = folder_lib.place(beach, tmp_path / 'own')
  place.store('cpu', {1: 'vanilla'})
  folder_lib.place(beach, tmp_path / 'own').store('cpu', {8: 'sjd(window=2)'})
  own = _content(tmp_path / 'own')
  assert own['defaults'] == {
      'guidance_scale': 1.5, 'decoder': {'cpu': {'1': 'vanilla', '8': 'sjd(window=2)'}}}
  assert sorted(path.name for path in (tmp_path / 'own').iterdir()) == ['model.json']
  assert (beach / 'model.json').read_bytes() == before
  assert families.part_folder(tmp_path / 'own', 'target') == beach / 'target'
