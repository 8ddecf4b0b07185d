"""Janus-Pro against transformers, in both published formats, at random weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from cspd_jax.decoding.tree import chain
from cspd_jax.models import janus, vq
from cspd_jax.models.conditions import Prompt

torch = pytest.importorskip('torch')
pytest.importorskip('transformers', '5')

from tests.models import janus_reference, published  # noqa: E402  (It requires both.)

pytestmark = pytest.mark.usefixtures('precise')

CONFIG, VQ = janus_reference.CONFIG, janus_reference.VQ
FORMATS = ('deepseek', 'transformers')


@pytest.fixture(scope='module')
def reference():
  return janus_reference.network()


def _converted(family, config, tensors):
  family = rules.get(family)
  shapes = {name: x.shape for name, x in tensors.items()}
  return convert.convert(family._replace(**family.variant(shapes)), config, tensors)


@pytest.fixture(scope='module', params=FORMATS)
def tensors(request, reference):
  return janus_reference.tensors(reference, request.param == 'deepseek')


@pytest.fixture(scope='module')
def params(tensors):
  return _converted('janus_pro', CONFIG, tensors)


def _streams(words):
  """Ids of both contexts of an image, as the official programs write them."""
  return [[janus_reference.BEGIN, *words, janus_reference.IMAGE],
          [janus_reference.BEGIN, *[janus_reference.PAD] * len(words), janus_reference.IMAGE]]


@pytest.fixture(scope='module')
def prompt():
  ids = np.array([_streams([7, 9, 11, 5]), _streams([8, 4, 23, 20])])
  return Prompt(ids, np.ones(ids.shape, bool))


@pytest.fixture(scope='module')
def tokens():
  return np.random.default_rng(1).integers(0, CONFIG.num_codes, (2, CONFIG.num_tokens))


@pytest.fixture(scope='module')
def expected(reference, prompt, tokens):
  """Logits `[S, B, T, V]` of transformers: the positions of an image after both contexts."""
  model = reference.model
  with torch.no_grad():
    image = reference.prepare_embeddings_for_image_generation(torch.from_numpy(tokens[:, :-1]))
    result = []
    for stream in range(2):
      context = model.language_model.embed_tokens(torch.from_numpy(prompt.tokens[:, stream]))
      hidden = model.language_model(
          inputs_embeds=torch.cat([context, image], dim=1)).last_hidden_state
      result.append(model.generation_head(hidden[:, context.shape[1] - 1:]).numpy())
  return np.stack(result)


@pytest.mark.verifies('parity', 'janus_pro')
def test_logits_of_an_image_agree(params, prompt, tokens, expected):
  condition = janus.renumbered(CONFIG, prompt)
  assert expected.shape == (2, 2, 64, CONFIG.num_codes) and np.ptp(expected, axis=-1).min() > 2
  for stream in range(2):
    logits, features = janus.logits_and_features(
        params, CONFIG, condition, jnp.asarray(tokens), jnp.full(2, bool(stream)))
    np.testing.assert_allclose(logits, expected[stream], atol=3e-5)
    assert features.shape == (2, 6 + 63, CONFIG.dim)


def test_windows_on_the_cache_agree(params, prompt, tokens, expected):
  """The padding of a batch is not seen; that of the second context is."""
  condition = janus.renumbered(CONFIG, prompt)
  padded = Prompt(*(np.pad(x, ((0, 0), (0, 0), (3, 0))) for x in condition))
  target = janus.target(CONFIG, guided=True)
  logits, _, cache = jax.jit(target.prefill, static_argnums=2)(params, padded, 64)
  np.testing.assert_allclose(logits, expected[:, :, 0], atol=3e-5)
  score, tree = jax.jit(target.score, static_argnums=4), chain(8)
  for start in range(0, 63, 9):  # A chain has a root before its drafts.
    window = jnp.asarray(tokens[:, start:start + 9])
    logits, _, cache = score(params, cache, window, jnp.full(2, start), tree)
    np.testing.assert_allclose(logits, expected[:, :, start + 1:start + 10], atol=3e-5)


@pytest.mark.slow
def test_it_is_a_target(params, prompt):
  published.check(janus, CONFIG, params, janus.renumbered(CONFIG, prompt))


@pytest.mark.slow
def test_greedy_tokens_are_those_of_its_own_loop(params, prompt, reference):
  """`generate` of transformers, with guidance, and its own padding of the second context."""
  reference.generation_config.guidance_scale = 5.0
  reference.generation_config.generation_kwargs = {'boi_token_id': janus_reference.IMAGE}
  ids = torch.from_numpy(prompt.tokens[:, 0])
  with torch.no_grad():
    made = reference.generate(
        ids, attention_mask=torch.ones_like(ids), generation_mode='image', do_sample=False,
        pad_token_id=janus_reference.PAD, bos_token_id=janus_reference.BEGIN).numpy()
  assert made.shape == (2, CONFIG.num_tokens) and len(np.unique(made)) > 8
  condition = janus.renumbered(CONFIG, prompt)
  first, second = (janus.logits_and_features(
      params, CONFIG, condition, jnp.asarray(made), jnp.full(2, drop))[0] for drop in (False, True))
  np.testing.assert_array_equal(jnp.argmax(second + 5 * (first - second), axis=-1), made)


@pytest.mark.slow
def test_pixels_and_codes_agree(tensors, reference, tokens):
  params = _converted('janus_pro_vq', VQ, tensors)
  model = reference.model.vqmodel
  with torch.no_grad():
    expected = model.decode(torch.from_numpy(tokens)).permute(0, 2, 3, 1).numpy()
  vectors = vq.codebook(params, VQ)[tokens.reshape(2, 8, 8)]
  decoded = vq.decode_vectors(params, VQ, vectors)
  assert decoded.shape == (2, 16, 16, 3) and expected.std() > 0.05
  np.testing.assert_allclose(decoded, expected, atol=1e-4)
  images = np.random.default_rng(2).uniform(-1, 1, (2, 16, 16, 3)).astype(np.float32)
  with torch.no_grad():
    hidden = model.quant_conv(model.encoder(torch.from_numpy(images.transpose(0, 3, 1, 2))))
  latents = hidden.permute(0, 2, 3, 1).numpy()
  latents /= np.linalg.norm(latents, axis=-1, keepdims=True)
  np.testing.assert_allclose(vq.latents(params, VQ, images), latents, atol=1e-4)


def test_the_table_is_rounded_once(tensors):
  """Embeddings of codes are computed in float32, whatever the dtype of the file is."""
  low = {name: x.astype(jnp.bfloat16) for name, x in tensors.items()}
  wide = {name: x.astype(np.float32) for name, x in low.items()}
  table, exact = (np.asarray(_converted('janus_pro', CONFIG, x)['transformer']['token_embedding'])
                  for x in (low, wide))
  assert table.dtype == jnp.bfloat16 and exact.dtype == np.float32
  np.testing.assert_array_equal(table, exact.astype(jnp.bfloat16))


@pytest.mark.slow
def test_the_table_is_not_published_again(params):
  with pytest.raises(ValueError, match='from which the published tensors do not follow'):
    convert.publish(rules.get('janus_pro'), CONFIG, params)
