"""Early fusion: the layers of Qwen3, the grammar of images, published ids."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.files import store
from cspd_jax.models import causal, early_fusion
from tests.builders import published
from tests.models import cases

pytestmark = pytest.mark.usefixtures('precise')


def test_logits_agree_with_qwen3_of_transformers():
  """Its layers are those of Emu3.5, and the names of its tensors too."""
  transformers, torch = pytest.importorskip('transformers'), pytest.importorskip('torch')
  network = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
      vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
      num_attention_heads=4, num_key_value_heads=2, head_dim=24, rms_norm_eps=1e-5,
      rope_parameters={'rope_type': 'default', 'rope_theta': 1e6}, tie_word_embeddings=False))
  case = cases.case('emu3_5')
  config, tokens, condition = case.config, case.tokens, case.condition
  weights = published.tensors('emu3_5', config, 71)
  network.load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()})
  row = slice(0, 1)  # Without padding.
  order = early_fusion.order(config)
  ids = order[np.concatenate([condition.tokens[row, 0], tokens[row, :-1]], axis=1)]
  with torch.no_grad():
    want = network.eval()(torch.from_numpy(ids)).logits[:, 11:, 40:88].numpy()
  logits, _ = early_fusion.logits_and_features(
      case.params, config, jax.tree.map(lambda x: x[row], condition), tokens[row],
      np.zeros(1, bool))
  np.testing.assert_allclose(logits[..., :48], want, atol=3e-5)


@pytest.mark.slow
def test_where_the_grammar_forces_what():
  lumina, anole, emu3 = (
      dataclasses.replace(early_fusion.PRESETS[name], height=2, width=3)
      for name in ('lumina_mgpt_7b_768', 'anole_7b', 'emu3_gen_8b'))
  at = lambda config, count: np.asarray(early_fusion.forced(config, jnp.arange(count))).tolist()
  assert lumina.num_tokens == 9
  assert at(lumina, 11) == [-1, -1, -1, 8192, -1, -1, -1, 8192, 8193, 8193, 8193]
  assert emu3.num_tokens == 11
  assert at(emu3, 12) == [-1, -1, -1, 32768, -1, -1, -1, 32768, 32769, 32770, 32771, 32771]
  assert anole.num_tokens == 6 and early_fusion.target(anole, guided=True).forced is None
  tokens = jnp.array([[5, 6, 7, 8192, 1, 2, 3, 8192, 8193]])
  assert early_fusion.codes(lumina, tokens).tolist() == [[5, 6, 7, 1, 2, 3]]
  emu3_5 = dataclasses.replace(early_fusion.PRESETS['emu3_5_34b'], height=2, width=3)
  assert at(emu3_5, 9) == [-1, -1, -1, 131072, -1, -1, -1, 131073, 131073]


def test_published_images_and_ids():
  count = {name: config.num_tokens for name, config in early_fusion.PRESETS.items()}
  assert count == {'lumina_mgpt_7b_512': 1057, 'lumina_mgpt_7b_768': 2353,
                   'lumina_mgpt_7b_1024': 4161, 'lumina_mgpt_2_7b': 9313, 'anole_7b': 1024,
                   'emu3_gen_8b': 8193, 'emu3_5_34b': 4160, 'simplear_0_5b': 4096,
                   'simplear_1_5b': 4096, 'liquid_7b': 1024}
  order = early_fusion.order(early_fusion.PRESETS['lumina_mgpt_7b_768'])
  assert order[:2].tolist() == [4, 5] and order[8191:8195].tolist() == [8195, 8803, 8196, 0]
  order = early_fusion.order(early_fusion.PRESETS['lumina_mgpt_2_7b'])
  assert order[16383:16387].tolist() == [171383, 151670, 151666, 0]
  order = early_fusion.order(early_fusion.PRESETS['emu3_gen_8b'])
  assert order[32767:32773].tolist() == [184621, 151846, 151847, 151853, 151850, 0]
  order = early_fusion.order(early_fusion.PRESETS['emu3_5_34b'])
  assert order[131070:131075].tolist() == [282924, 282925, 151846, 151853, 0]
  for config in early_fusion.PRESETS.values():
    np.testing.assert_array_equal(np.sort(early_fusion.order(config)), np.arange(config.vocab_size))


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """A saved and loaded model of images of three rows."""
  folder = tmp_path_factory.mktemp('early_fusion') / 'target'
  case = cases.case('chameleon')
  store.save(folder, 'early_fusion', dataclasses.replace(case.config, height=3, width=4),
             case.params)
  return cspd_jax.load(folder)


@pytest.mark.parametrize('prompts, message', [
    ([3], r"prompts is '\[3\]'; this model accepts no words because it lacks the part text"),
    (causal.Prompt(np.full((1, 2, 3), 96), np.ones((1, 2, 3), bool)), 'tokens from 96 to 96'),
    (causal.Prompt(np.ones((1, 1, 3), int), np.ones((1, 1, 3), bool)), 'this target requires'),
    (causal.Prompt(np.ones((1, 2, 3), int), np.zeros((1, 2, 3), bool)), 'visible must be')])
def test_prompts_that_cannot_be(model, prompts, message):
  with pytest.raises(ValueError, match=message):
    model.generate(prompts, guidance_scale=2.0, decoder='vanilla')
