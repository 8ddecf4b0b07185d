"""Models on disk, and a family that is not part of the package."""

import dataclasses
import importlib
import json
import shutil
import sys

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.cli import inputs
from cspd_jax.files import store
from cspd_jax.generation import options
from tests.families import tiny


@pytest.mark.slow
def test_a_new_family_has_every_decoder_that_needs_no_drafts(beach):
  model = cspd_jax.load(beach)
  exact = model.generate(['sea', 'sky'], seed=1, decoder='vanilla')
  assert exact.images.shape == (2, 16, 16, 3) and exact.sampling['guidance_scale'] == 1.5
  same = model.generate(['sea', 'sky'], seed=1, decoder='seed_exact')
  np.testing.assert_array_equal(same.images, exact.images)
  for decoder in model.table.decoders:
    if model.table.needs(decoder) is None:
      assert model.decoder(decoder).guarantee in ('exact', 'seed-exact')
  relaxed = model.decoder('jacobi(window=4)+lantern_pp(lam=2)')
  assert relaxed.guarantee == 'bounded'


@pytest.fixture
def installed(beach, tmp_path, monkeypatch):
  """Installs a package with a module and an entry point; the family is not registered yet."""
  monkeypatch.delitem(families.FAMILIES, 'tiny')
  for kind in ('tiny', 'palette'):
    monkeypatch.delitem(store.KINDS, kind)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, 'of_beaches', raising=False)

  def install(module, entry):
    (tmp_path / 'of_beaches.py').write_text(module)
    folder = tmp_path / 'beaches-1.0.dist-info'
    folder.mkdir()
    (folder / 'METADATA').write_text('Metadata-Version: 2.1\nName: beaches\nVersion: 1.0\n')
    (folder / 'entry_points.txt').write_text(f'[cspd_jax.families]\n{entry}\n')
    importlib.invalidate_caches()
    return beach
  return install


@pytest.mark.parametrize('module, entry', [
    ('from tests.families.tiny import FAMILY', 'tiny = of_beaches:FAMILY'),
    ('from cspd_jax import families\nfrom tests.families import tiny\n'
     'families.register(tiny.FAMILY)', 'tiny = of_beaches')])
@pytest.mark.parametrize('part', ['', 'target'])
def test_an_installed_family_is_found(installed, module, entry, part):
  folder = installed(module, entry)
  assert cspd_jax.load(folder / part).family == 'tiny'
  assert inputs.parts(['tokenizer=x']) == {'tokenizer': 'x'}


def test_an_installed_family_that_cannot_be_imported(installed):
  folder = installed('import absent_package', 'tiny = of_beaches')
  with pytest.raises(ValueError, match="the family 'tiny' of beaches cannot be imported from "
                                       'of_beaches .ModuleNotFoundError: No module named .absent_'
                                       'package..; repair this package, or remove it'):
    cspd_jax.load(folder)
  assert 'emoji' in families.shipped() and families.roles('emoji'), 'others are not affected'


@pytest.mark.parametrize('part', ['', 'target'])
def test_a_family_that_nobody_registered(installed, part):
  folder = installed('', 'other = of_beaches')
  with pytest.raises(ValueError, match='is registered by its module, which you import first, in a '
                                       'command with --import=MODULE'):
    cspd_jax.load(folder / part)


def test_missing_drafts_are_named(beach):
  # A folder for which `cspd-train` has fitted a network, and the decoder's name alone.
  model = dataclasses.replace(cspd_jax.load(beach), drafts={'neighbours': None})
  assert options.lacks(model, 'corrected') == (
      "drafts with a corrector; model 'beach' has none: use corrected(corrector=neighbours), with "
      "a network that it has, or use a decoder without it, because 'tiny' models support none")


def test_parts_are_replaced_or_left_out(beach, tmp_path):
  other = tiny.PaletteConfig(side=2)
  store.save(tmp_path / 'coarse', 'palette', other, tiny.init_palette(
      other, jax.random.key(1)))
  assert cspd_jax.load(beach, tokenizer=tmp_path / 'coarse').generate('sea').images.shape[1] == 8
  loaded = store.load(tmp_path / 'coarse')
  assert cspd_jax.load(beach, tokenizer=loaded).tokenizer.config == other
  with pytest.raises(ValueError, match='load it with tokenizer='):
    cspd_jax.load(beach, tokenizer=None).generate('sea')
  with pytest.raises(ValueError, match="draft is not a part of a 'tiny' model"):
    cspd_jax.load(beach, draft=tmp_path / 'coarse')
  with pytest.raises(ValueError, match='tokenizer is a .tiny. network'):
    cspd_jax.load(beach, tokenizer=beach / 'target')
  with pytest.raises(ValueError, match='target is None'):
    cspd_jax.load(beach, target=None)
  larger = tiny.PaletteConfig(vocab_size=7)
  store.save(tmp_path / 'large', 'palette', larger, tiny.init_palette(
      larger, jax.random.key(1)))
  with pytest.raises(ValueError, match='tokenizer has vocab_size 7, but the target'):
    cspd_jax.load(beach, tokenizer=tmp_path / 'large')


def test_parts_may_lie_elsewhere(beach, tmp_path):
  families.save(tmp_path / 'links', 'tiny', {
      'target': str(beach / 'target'), 'tokenizer': str(beach / 'tokenizer')})
  families.save(tmp_path / 'links', 'tiny', {}, {'temperature': 0.5})
  model = cspd_jax.load(tmp_path / 'links')
  assert model.defaults == {'temperature': 0.5} and model.tokenizer is not None


def test_a_target_alone_is_a_model(beach):
  model = cspd_jax.load(beach / 'target', tokenizer=beach / 'tokenizer')
  assert model.family == 'tiny' and len(model.generate('sky')) == 1


def test_entries_of_users_in_the_file_are_kept(beach, tmp_path):
  networks = {role: str(beach / role) for role in ('target', 'tokenizer')}
  families.save(tmp_path, 'tiny', networks)
  content = json.loads((tmp_path / 'model.json').read_text())
  (tmp_path / 'model.json').write_text(json.dumps(
      content | {'metadata': {'by': 'me'}, 'notes': 'mine', 'defaults': {'top_k': 3}}))
  families.save(tmp_path, 'tiny', {}, {'temperature': 0.5})
  assert json.loads((tmp_path / 'model.json').read_text()) == {
      **content, 'metadata': {'by': 'me'}, 'notes': 'mine',
      'defaults': {'top_k': 3, 'temperature': 0.5}}


def test_a_target_elsewhere_brings_its_own_defaults(beach, tmp_path):
  defaults = {'top_k': 3, 'decoder': 'vanilla', 'dtype': 'float32'}
  families.save(tmp_path, 'tiny', {'target': str(beach / 'target')}, defaults)
  families.save(tmp_path, 'tiny', {'target': str(beach / 'target')}, {'top_p': 0.5})
  assert cspd_jax.load(tmp_path).defaults == {'top_k': 3, 'decoder': 'vanilla', 'top_p': 0.5}
  shutil.copytree(beach / 'target', tmp_path / 'other')
  families.save(tmp_path, 'tiny', {'target': 'other'}, {'temperature': 0.5})
  content = json.loads((tmp_path / 'model.json').read_text())
  assert content['defaults'] == {'dtype': 'float32', 'temperature': 0.5}


@pytest.mark.slow
def test_dtype_and_shipped_defaults():
  with pytest.raises(ValueError, match='float64.*jax_enable_x64.*or use float32'):
    cspd_jax.load('demo', dtype='float64')
  model = cspd_jax.load('demo')
  assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(model.params))
  small = cspd_jax.load(
      'demo', dtype='bfloat16', eagle=None, medusa=None, neighbours=None, local=None,
      corrector=None)
  assert set(small.drafts) == {'model', 'corrector', 'layers'}
  assert str(small.params['label_embedding'].dtype) == 'bfloat16'
  assert json.loads((store.ASSETS / 'demo' / 'model.json').read_text())['family'] == 'llamagen'
