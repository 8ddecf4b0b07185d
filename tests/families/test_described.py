"""Models without numbers: `families.describe`."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax import families
from tests.marks import representative


def test_published_sizes():
  whole = families.describe('c2i_b_256')
  assert whole.params['transformer']['output'].dtype == jnp.bfloat16
  assert set(whole.drafts) >= {
      'model', 'eagle', 'neighbours', 'local', 'corrector', 'layers', 'medusa'}
  small = families.describe('c2i_b_256', layers=2, dtype='float32')
  assert 'layers_1' in small.params['transformer']
  assert 'layers_2' not in small.params['transformer']
  assert small.drafts['eagle'].params['target']['transformer']['output'].dtype == np.float32


@pytest.mark.slow
def test_drafts_stay_whole():
  # The layers that correct are those of the whole model.
  deep = families.describe('lumina_mgpt_7b_768', layers=1)
  assert 'layers_3' in deep.drafts['layers'].params['transformer']
  assert deep.draft_params('corrected')['correction']


_SIZES = [
    ('demo', {'model', 'eagle', 'medusa', 'neighbours', 'local', 'corrector', 'layers'}, 256, 2,
     {('transformer', 'output'): (192, 1024)}),
    ('janus_pro_7b', {'eagle', 'corrector', 'neighbours', 'local', 'layers'}, 576, 2,
     {('head', 'hidden', 'kernel'): (4096, 4096),
      ('transformer', 'token_embedding'): (16384 + 102400, 4096)}),
    ('tar_7b', {'eagle', 'corrector', 'neighbours', 'local', 'medusa', 'layers'}, 729, 1,
     {('transformer', 'layers_27', 'key_bias'): (4, 128),
      ('transformer', 'output'): (3584, 65536)}),
    ('ar_dtok_1024', {'eagle', 'corrector', 'neighbours', 'local', 'medusa', 'layers'}, 4096, 2,
     {('positions',): (4824, 1280), ('condition', 'kernel'): (1152, 1280),
      ('bridge', 'codebook'): (65536, 1536), ('transformer', 'layers_29', 'up'): (1280, 3584)}),
    ('glm_image_9b', {'eagle', 'corrector', 'neighbours', 'local', 'medusa', 'layers'},
     256 + 1024 + 1, 1, {('transformer', 'layers_39', 'key'): (4096, 2, 128),
      ('transformer', 'layers_39', 'down'): (13696, 4096),
      ('transformer', 'output'): (4096, 16384)})]


@pytest.mark.parametrize(
    'name, roles, num_tokens, streams, shapes', representative(_SIZES, _SIZES[0]))
def test_sizes(name, roles, num_tokens, streams, shapes):
  whole = families.describe(name)
  assert set(whole.drafts) == roles and whole.num_tokens == num_tokens
  assert whole.target(guided=True).num_streams == streams
  for path, shape in shapes.items():
    assert functools.reduce(lambda tree, key: tree[key], path, whole.params).shape == shape
