"""`Model.generate` and `stream`: one call from prompts to images, checked before it compiles."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import cspd_jax
from cspd_jax import families
from cspd_jax.files import store
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


@pytest.mark.parametrize('arguments, message', [
    (dict(prompts=['sea', 3]), 'prompts mixes names and numbers'),
    (dict(prompts=[]), 'prompts is empty'),
    (dict(prompts=['dog']), "prompts holds 'dog'; .*[^?]$"),
    (dict(prompts=['Seaa']), "prompts holds 'Seaa'; it must be a class .*; did you mean sea[?]"),
    (dict(prompts=[3]), 'prompts holds 3; it must be a class from 0 to 2'),
    (dict(prompts=[1.0]), 'holds 1.0, which is a float; it must be a class from 0 to 2'),
    (dict(prompts=pathlib.Path('missing.txt')), "prompts is 'missing.txt', which cannot be read"),
    (dict(prompts='sea', seed=-1), 'seed is -1'),
    (dict(prompts='sea', seed=2**32), 'seed is 4294967296'),
    (dict(prompts='sea', seed=1.0), 'seed is 1.0'),
    (dict(prompts='sea', seed=[1, 2]), 'seed has 2 numbers for 1 images'),
    (dict(prompts='sea', seed=[jax.random.key(0)]), 'seed is .*key.*; it must be a whole number'),
    (dict(prompts='sea', decoder=lambda size: 'vanilla'), 'decoder is <function'),
    (dict(prompts='sea', decoder='mc_sjd(windw=3)'), 'windw'),
    (dict(prompts='sea', decoder='mc_sjd', window=0), 'window'),
    (dict(prompts='sea', decoder='mc_sjd', widow=4), 'widow is neither .* did you mean window?'),
    (dict(prompts='sea', seeds=3), 'seeds is neither .* did you mean seed?'),
    (dict(prompts='sea', raw_logprobs=True), 'raw_logprobs is .* did you mean raw_log_probs?'),
    (dict(prompts='sea', decoder='seedexact'), "'seedexact' is not reg.* did you mean seed_exact?"),
    (dict(prompts='sea', qqqqqq=3), r'qqqqqq is neither .*\)\.$'),
    (dict(prompts='sea', sampling={'top_k': 3}),
     "sampling is {'top_k': 3}; pass sampling options as arg"),
    (dict(prompts='sea', sampling=cspd_jax.SamplingParams()),
     'sampling is SamplingParams.* arguments of their own'),
    (dict(prompts='sea', decoder='speculative'),
     "'speculative', which drafts with a draft model; model 'beach' has none: 'tiny' models"),
    (dict(prompts='sea', temperature=-1), 'temperature is -1'),
    (dict(prompts='sea', guidance_scale=[1.0, 2.0]), 'guidance_scale has shape'),
    (dict(prompts='sea', batch_size=0), 'batch_size is 0'),
])
def test_mistakes_are_named_before_anything_is_compiled(model, arguments, message):
  model.kept.programs.clear()
  with pytest.raises(ValueError, match=message):
    model.generate(**arguments)
  assert not model.kept.programs


def test_under_transformations_of_jax(model):
  ask = lambda **arguments: model.generate('sea', decoder='vanilla', **arguments).tokens
  for run in (lambda: jax.jit(lambda x: ask() + x)(0),
              lambda: jax.vmap(lambda seed: ask(seed=seed))(jnp.arange(2)),
              lambda: jax.grad(lambda scale: ask(temperature=scale).sum() * 1.0)(1.0)):
    with pytest.raises(ValueError, match='inside of a function that JAX traces.*request them out'):
      run()


def test_near_names_of_other_functions(model):
  with pytest.raises(ValueError, match='drft is not a part .* did you mean draft?'):
    cspd_jax.load('demo', drft='folder')
  with pytest.raises(ValueError, match='cfg_scale is not .* did you mean guidance_scale'):
    model.sampling(cfg_scale=3)


@pytest.mark.parametrize('sampling', [{'temperature': 1.0}, 1.0, (1.0,)])
def test_sampling_options_of_other_types(model, sampling):
  decoder, condition = model.decoder('vanilla'), model.condition(['sea'])
  with pytest.raises(ValueError, match='must be a cspd_jax.SamplingParams, such as SamplingParams'):
    decoder.check(condition, sampling)
  with pytest.raises(ValueError, match='must be a cspd_jax.SamplingParams, such as SamplingParams'):
    jax.eval_shape(decoder, model.params, condition, jax.random.key(0), sampling, None)
  with pytest.raises(ValueError, match='pass model.sampling'):
    model.sampler('vanilla', sampling=sampling)


def test_bytes_are_rounded_to_the_nearest_level():
  pixels = np.array([-1.2, -1.0, 0.0, 1.0, 1.3], np.float32)
  np.testing.assert_array_equal(
      pixels_lib.to_bytes(pixels.reshape(1, 1, 5, 1)).ravel(), [0, 0, 128, 255, 255])


@pytest.mark.parametrize('place', [None, 5, 1.5, b'demo', ['demo'], object()])
def test_values_that_are_no_paths_are_refused(place):
  for load in (cspd_jax.load, store.load, store.describe, families.describe):
    with pytest.raises(ValueError, match='(model|path_or_name) is .*; it must be a path'):
      load(place)


@pytest.mark.parametrize('prompts, message', [
    ({'sea', 'sky'}, 'prompts is a set, which has no order'),
    ({'sea': 1}.keys(), 'prompts is a dict_keys'), (iter(['sea']), 'it must be a prompt, a list'),
    (b'sea', "prompts is b'sea'; it must be"), (1.5, 'prompts is 1.5; it must be')])
def test_prompts_without_an_order(model, prompts, message):
  for use in (model.condition, model.generate):
    with pytest.raises(ValueError, match=message):
      use(prompts)
