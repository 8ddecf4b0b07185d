"""`Model.generate` and `stream`: one call from prompts to images, checked before it compiles."""


import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import cspd_jax
from cspd_jax.generation import pixels as pixels_lib


@pytest.fixture(scope='module')
def model(beach):
  return cspd_jax.load(str(beach))


@pytest.fixture(scope='module')
def generated(model):
  return model.generate(['sea', 'sky', 'sea'], seed=3, decoder='seed_exact', window=4)


@pytest.mark.slow
def test_refilled_rows_use_the_options_of_their_image(model):
  prompts, first = ['sea', 'sky', 'sand', 'sea', 'sky'], np.arange(20).reshape(5, 4) % 6
  options = dict(seed=1, decoder='mc_sjd', window=3, prefix=first, rows=1,
                 guidance_scale=[1.0, 3.0, 1.5, 2.0, 2.5], temperature=[1.0, 0.0, 0.5, 1.5, 1.0])
  model.kept.programs.clear()
  refilled = model.generate(prompts, batch_size=2, **options)
  assert [name.mode for name in model.kept.programs] == [('slots', 2)]
  whole = model.generate(prompts, **options)
  for name, one, other in zip(whole.decoded._fields, refilled.decoded, whole.decoded):
    if name == 'log_probs':  # Logarithms of two programs may differ in their last bits.
      np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    else:
      np.testing.assert_array_equal(one, other, err_msg=name)
  np.testing.assert_array_equal(refilled.images, whole.images)
  # Rows of a decoder without drafts are complete together.
  images = model.images(prompts, batch_size=2, decoder='vanilla')
  assert not images.sampler.refills(images)


def test_stream_ends_with_what_generate_gives(model, generated):
  looks = list(model.stream(['sea', 'sky', 'sea'], seed=3, decoder='seed_exact', window=4,
                            every=3))
  counts = np.array([look.count for look in looks])
  assert np.all(np.diff(counts, axis=0) >= 0) and counts[0].tolist() == [1, 1, 1]
  assert [look.complete for look in looks] == [False] * (len(looks) - 1) + [True]
  np.testing.assert_array_equal(looks[-1].result().images, generated.images)
  early = looks[1]
  assert np.all(early.images[~early.fixed.repeat(4, 1).repeat(4, 2)] == 128)
  assert early._repr_html_().count('data:image/png') == 3, 'notebooks show pictures'
  with pytest.raises(ValueError, match='iterate until `complete`'):
    early.result()


def test_saved_images_tell_how_they_were_made(generated, tmp_path):
  paths = generated.save(tmp_path / 'out')
  assert [path.name for path in paths] == [
      '00000_sea_seed3.png', '00001_sky_seed3.png', '00002_sea_seed3.png']
  with Image.open(paths[1]) as picture:
    np.testing.assert_array_equal(np.asarray(picture), generated.images[1])
    text = picture.text
  assert text['prompt'] == 'sky' and text['seed'] == '3' and text['number'] == '1'
  assert text['decoder'] == 'seed_exact(window=4)' and 'guidance_scale' in text['sampling']
  assert jax.__version__ in text['software']
  content = paths[0].read_bytes()
  assert generated.save(tmp_path / 'out') == paths  # The same images, once more.
  paths[0].write_bytes(b'another picture')
  with pytest.raises(ValueError, match='holds another 00000_sea_seed3.png already'):
    generated.save(tmp_path / 'out')
  generated.save(tmp_path / 'out', overwrite=True)
  assert paths[0].read_bytes() == content
  (tmp_path / 'file').write_text('')
  with pytest.raises(ValueError, match='cannot be written'):
    generated.save(tmp_path / 'file')


def test_results_display_themselves(model, generated):
  assert repr(generated).startswith('Generated(3 images of 16x16 by seed_exact(window=4)')
  assert generated._repr_html_().count('data:image/png') == 4
  assert repr(model).startswith("Model('beach', family tiny, 4x4 tokens")


def test_prompts_and_seeds_in_every_form(model, tmp_path):
  file = tmp_path / 'prompts.txt'
  file.write_text('sea\n\nSky \n')
  np.testing.assert_array_equal(model.condition(file), [1, 2])
  np.testing.assert_array_equal(model.condition('sea'), [1])
  np.testing.assert_array_equal(model.condition(np.array([1, 2])), [1, 2])
  np.testing.assert_array_equal(model.condition(range(3)), [0, 1, 2])
  np.testing.assert_array_equal(model.condition(model.prompts), range(3))
  one = model.generate(['sea', 'sea'], seed=[4, 9], decoder='mc_sjd', window=4)
  other = model.generate(['sea', 'sky'], seed=[9, 0], decoder='mc_sjd', window=4)
  np.testing.assert_array_equal(one.decoded.tokens[1], other.decoded.tokens[0])
  for scalar in (np.array(3), jnp.asarray(3), np.int64(3)):
    assert model.images('sea', seed=scalar).seeds == [(3, 0)]


def test_bytes_are_rounded_to_the_nearest_level():
  pixels = np.array([-1.2, -1.0, 0.0, 1.0, 1.3], np.float32)
  np.testing.assert_array_equal(
      pixels_lib.to_bytes(pixels.reshape(1, 1, 5, 1)).ravel(), [0, 0, 128, 255, 255])
