"""Settings against the installed transformers: every field of its configs, and what it computes.

A network is saved by `save_pretrained` and converted from the folder, so that names, spellings and
defaults are those that people have.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints_conversion import convert, rules, torch_classes
from checkpoints_conversion.rules import (
  eagle,
  early_fusion as fusion_rules,
  glm_image,
  janus,
  language_models,
  nextstep,
  settings,
  tar as tar_rules,
  text as text_rules,
  vq as vq_rules,
)
from cspd_jax.files import store
from cspd_jax.models import causal, early_fusion, t5, vq

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers', '5')  # Versions before write other fields.

from tests.conversion import live_networks  # noqa: E402  (It requires transformers.)

pytestmark = pytest.mark.usefixtures('precise')

_CHAMELEON = fusion_rules.CHAMELEON_SETTINGS['config.json']
_EMU3 = fusion_rules.EMU3_SETTINGS['config.json']
TABLES = [
    ('ChameleonConfig', _CHAMELEON), ('ChameleonConfig', eagle.CHAMELEON_FIELDS),
    ('LlamaConfig', eagle.LLAMAGEN_FIELDS), ('Emu3Config', _EMU3),
    ('Emu3Config', vq_rules.EMU3_FIELDS),
    ('Emu3TextConfig', _EMU3['text_config'].fields), ('T5Config', text_rules.T5_FIELDS),
    ('Emu3VQVAEConfig', vq_rules.EMU3_FIELDS['vq_config'].fields),
    ('Qwen2Config', language_models.SIMPLEAR_FIELDS), ('Qwen2Config', tar_rules.PRIOR_FIELDS),
    ('GemmaConfig', language_models.LIQUID_FIELDS)]
# Classes of which published files have other defaults.
OTHERS = [
    ('LlamaConfig', nextstep.FIELDS), ('Qwen2Config', nextstep.FIELDS),
    ('JanusConfig', janus.FIELDS), ('JanusConfig', janus.VQ_FIELDS),
    ('JanusVQVAEConfig', janus.FIELDS['vq_config'].fields),
    ('JanusVQVAEConfig', janus.VQ_FIELDS['vq_config'].fields),
    ('LlamaConfig', janus.FIELDS['text_config'].fields),
    ('GlmImageConfig', glm_image.FIELDS),
    ('GlmImageTextConfig', glm_image.FIELDS['text_config'].fields),
    ('GlmImageVQVAEConfig', glm_image.FIELDS['vq_config'].fields)]


@pytest.mark.parametrize('name, table', TABLES + OTHERS)
def test_every_field_of_the_installed_version_is_on_the_list(name, table):
  kind = live_networks.config_class(name)
  fields = {field.name for field in dataclasses.fields(kind)} | kind().to_dict().keys()
  assert {field for field in fields if not field.startswith('_')} <= table.keys()


@pytest.mark.parametrize('name, table', TABLES)
def test_defaults_are_those_of_the_installed_version(name, table):
  for field, entry in table.items():
    default = getattr(live_networks.config_class(name)(), field, None)
    is_derived = field in ('dense_act_fn', 'is_gated_act')  # Of T5, from `feed_forward_proj`.
    if isinstance(entry, settings.Must) and default is not None and not is_derived and (
        default not in entry.values):
      assert entry.default == default, field


def _converted(family, network, folder, **options):
  network.save_pretrained(folder)
  convert.convert_file(family, folder, folder / family, options=options)
  return store.load(folder / family)


@pytest.mark.slow
@pytest.mark.parametrize('name', live_networks.CASES)
def test_logits_are_those_of_what_transformers_saved(name, tmp_path):
  family, make, changes = live_networks.CASES[name]
  network = live_networks.redraw(make(**{**changes, 'rope_parameters': {
      'rope_type': 'default', 'rope_theta': 37.0}}))
  loaded = _converted(family, network, tmp_path, height=4, width=5)
  config = loaded.config
  rng = np.random.default_rng(1)
  prompt = rng.integers(0, config.first_code, (2, 6))
  tokens = np.array(early_fusion.with_grammar(config, rng.integers(0, config.num_codes, (2, 20))))
  with torch.no_grad():
    want = np.stack([torch_classes.after_prompt(network, config, *row).numpy()
                     for row in zip(prompt, tokens)])
  place = np.argsort(early_fusion.order(config))
  prompts = causal.Prompt(*(np.stack([part] * 2, axis=1) for part in (
      place[prompt], np.ones(prompt.shape, bool))))
  logits, _ = early_fusion.logits_and_features(
      loaded.params, config, prompts, jnp.asarray(tokens), np.zeros(2, bool))
  free = tokens[0] < config.num_codes
  np.testing.assert_allclose(
      logits[:, free, :config.num_codes], want[:, 5:-1][:, free], atol=1e-5)


@pytest.mark.parametrize('name', live_networks.CASES)
def test_other_rotations_are_refused_as_transformers_writes_them(name, tmp_path):
  family, make, _ = live_networks.CASES[name]
  make(rope_parameters={'rope_type': 'linear', 'rope_theta': 37.0, 'factor': 2.0}).save_pretrained(
      tmp_path)
  with pytest.raises(rules.ConversionError, match="rope_parameters.rope_type is 'linear'"):
    convert.open_source(family, tmp_path)


@pytest.mark.slow
def test_the_image_tokenizer_of_the_same_folder(tmp_path):
  network = live_networks.redraw(live_networks.emu3_hf())
  loaded = _converted('emu3_vq', network, tmp_path)
  rng, theirs = np.random.default_rng(2), network.model.vqmodel
  codes = rng.integers(0, 32768, (2, 4, 6))
  images = rng.uniform(-1, 1, (2, 8, 12, 3)).astype(np.float32)
  with torch.no_grad():
    pixels = theirs.decode(torch.tensor(codes)).numpy().transpose(0, 2, 3, 1)
    tokens = torch.stack(theirs.encode(
        torch.tensor(images.transpose(0, 3, 1, 2)), torch.tensor([[8, 12]] * 2)).image_tokens)
  vectors = vq.codebook(loaded.params, loaded.config)[codes]
  np.testing.assert_allclose(
      vq.decode_vectors(loaded.params, loaded.config, vectors), pixels, atol=1e-4)
  np.testing.assert_array_equal(vq.encode(loaded.params, loaded.config, images), tokens)


@pytest.mark.slow
@pytest.mark.parametrize('changes', [
    dict(layer_norm_epsilon=0.1), dict(relative_attention_max_distance=40),
    dict(relative_attention_num_buckets=8)], ids=lambda changes: ' '.join(changes))
def test_text_features_are_those_of_what_transformers_saved(changes, tmp_path):
  network = live_networks.redraw(transformers.T5EncoderModel(transformers.T5Config(
      vocab_size=96, d_model=40, d_kv=12, d_ff=56, num_layers=2, num_heads=4,
      feed_forward_proj='gated-gelu', **changes)))
  loaded = _converted('t5', network, tmp_path)
  tokens = np.random.default_rng(3).integers(0, 96, (2, 150))
  visible = np.arange(150) < np.array([[150], [91]])
  with torch.no_grad():
    want = network(torch.tensor(tokens), torch.tensor(visible)).last_hidden_state.numpy()
  features = np.asarray(t5.encode(loaded.params, loaded.config, tokens, visible))
  np.testing.assert_allclose(features[visible], want[visible], atol=2e-5)
