"""Janus-Pro against transformers, in both published formats: greedy tokens, pixels, its table."""

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from cspd_jax.models import janus, vq
from tests.models import cases

torch = pytest.importorskip('torch')
pytest.importorskip('transformers', '5')

from tests.models import janus_reference  # noqa: E402  (It requires both.)

pytestmark = pytest.mark.usefixtures('precise')

CONFIG, VQ = janus_reference.CONFIG, janus_reference.VQ


@pytest.fixture(params=[True, False], ids=['deepseek', 'transformers'])
def tensors(request):
  return janus_reference.tensors(cases.janus_network(), request.param)


@pytest.fixture(params=['janus of DeepSeek', 'janus'])
def case(request):
  return cases.case(request.param)


@pytest.mark.slow
def test_greedy_tokens_are_those_of_its_own_loop(case):
  """`generate` of transformers, with guidance, and its own padding of the second context."""
  reference = cases.janus_network()
  reference.generation_config.guidance_scale = 5.0
  reference.generation_config.generation_kwargs = {'boi_token_id': janus_reference.IMAGE}
  ids = torch.from_numpy(cases.janus_prompts()[:, 0])
  with torch.no_grad():
    made = reference.generate(
        ids, attention_mask=torch.ones_like(ids), generation_mode='image', do_sample=False,
        pad_token_id=janus_reference.PAD, bos_token_id=janus_reference.BEGIN).numpy()
  assert made.shape == (2, CONFIG.num_tokens) and len(np.unique(made)) > 8
  first, second = (janus.logits_and_features(
      case.params, CONFIG, case.condition, jnp.asarray(made), jnp.full(2, drop))[0]
                   for drop in (False, True))
  np.testing.assert_array_equal(jnp.argmax(second + 5 * (first - second), axis=-1), made)


@pytest.mark.slow
def test_pixels_and_codes_agree(tensors):
  params = cases.janus_converted('janus_pro_vq', VQ, tensors)
  model, tokens = cases.janus_network().model.vqmodel, np.array(cases.case('janus').tokens)
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
  table, exact = (np.asarray(cases.janus_converted('janus_pro', CONFIG, x)['transformer'][
      'token_embedding']) for x in (low, wide))
  assert table.dtype == jnp.bfloat16 and exact.dtype == np.float32
  np.testing.assert_array_equal(table, exact.astype(jnp.bfloat16))


@pytest.mark.slow
def test_the_table_is_not_published_again(case):
  with pytest.raises(ValueError, match='from which the published tensors do not follow'):
    convert.publish(rules.get('janus_pro'), CONFIG, case.params)
