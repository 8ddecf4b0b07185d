"""Models without numbers: `families.describe`."""

import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax import families


def test_published_sizes():
  whole = families.describe('c2i_b_256')
  assert whole.params['transformer']['output'].dtype == jnp.bfloat16
  assert set(whole.drafts) >= {'model', 'eagle', 'neighbours', 'corrector', 'layers', 'medusa'}
  small = families.describe('c2i_b_256', layers=2, dtype='float32')
  assert 'layers_1' in small.params['transformer']
  assert 'layers_2' not in small.params['transformer']
  assert small.drafts['eagle'].params['target']['transformer']['output'].dtype == np.float32


def test_drafts_stay_whole():
  # The layers that correct are those of the whole model.
  deep = families.describe('lumina_mgpt_7b_768', layers=1)
  assert 'layers_3' in deep.drafts['layers'].params['transformer']
  assert deep.draft_params('corrected')['correction']


def test_folders():
  shipped = families.describe('demo')
  assert shipped.params['transformer']['output'].shape == (192, 1024)


def test_mistakes():
  with pytest.raises(ValueError, match='layers is 13.*1 to 12'):
    families.describe('c2i_b_256', layers=13)
  with pytest.raises(ValueError, match=r'Published sizes are: .*c2i_b_256'):
    families.describe('nothing of this name')
