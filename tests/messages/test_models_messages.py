"""Messages of networks: sizes, conditions, images and codes that cannot be."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core import fields
from cspd_jax.models import (
    causal,
    conditions,
    cosmos,
    eagle,
    early_fusion,
    ends,
    glm_image,
    kl_vae,
    llamagen,
    local,
    mar,
    medusa,
    neighbours,
    nextstep,
    t5,
    tar,
    transformer,
    vq,
)
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import bpe
from tests.messages import said
from tests.messages.said import each

NAN, INF = float('nan'), float('inf')
MODULES = (eagle, early_fusion, kl_vae, llamagen, local, mar, medusa, neighbours, t5, transformer,
           vq, bpe)
SIZES = {'TransformerConfig': (8, 8, 1, 1, 1, 8, 8)}  # It has no defaults.
CONFIGS = {name: kind(*SIZES.get(name, ())) for module in MODULES
           for name, kind in vars(module).items()
           if name.endswith('Config') and dataclasses.is_dataclass(kind)}
WRONG = {int: (-1, 10**12, True, 2.5, 4.0, '4', NAN, (4,), 10**30),
         float: (0, 0.0, -1e-5, NAN, INF, -INF, True, '1e-5'),
         bool: (1, 0, 'False', None), str: (3, None, b'class'),
         tuple: ('12', 12, (1, '2'), (1, 2.0), (True, 2), (-1,))}
WRONG[type(None)] = WRONG[int]
# Fields for which some of these are right.
ANY_NUMBER, ANY_NAME = {('KLVAEConfig', 'shift')}, {('TextConfig', 'first_token')}
CASES = [(name, field.name, value) for name, config in CONFIGS.items()
         for field in dataclasses.fields(config) for value in WRONG[
             type(getattr(config, field.name))]
         if ((name, field.name) not in ANY_NUMBER or value not in (0, -1e-5) or value is False)
         and ((name, field.name) not in ANY_NAME or not isinstance(value, str))]


@pytest.mark.parametrize('name', CONFIGS)
def test_every_field_of_every_config(name):
  for config, field, value in CASES:
    if config == name:
      try:
        dataclasses.replace(CONFIGS[name], **{field: value})
      except ValueError as error:
        assert str(error).startswith(f'{field} is '), (field, value)
      else:
        pytest.fail(f'{field}={value!r} is not refused')


def test_lists_in_configs_become_tuples():
  config = vq.VQConfig(ch=np.int64(32), ch_mult=[1, 2])
  assert config.ch_mult == (1, 2) and hash(config)


def test_tuples_and_none():
  @dataclasses.dataclass
  class Config:
    """Attributes: some."""

    many: tuple[int, ...] = ()
    few: int | None = None

  fields.check(Config((2, 3), 4))
  with pytest.raises(ValueError, match='few is 0; it must be a whole number from 1 to .* or None'):
    fields.check(Config((), 0))
  with pytest.raises(ValueError, match=r'many is \(5,\); it must be a tuple.* from 1 to 4'):
    fields.check(Config((5,)), many=(1, 4))


_TRANSFORMER = dict(vocab_size=11, dim=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6,
                    ffn_dim=20)
_EARLY = dict(vocab_size=96, num_codes=48, dim=64, num_layers=2, num_heads=4, ffn_dim=96)
_GLM = dict(height=8, width=6, dim=64, num_layers=3, num_heads=4, num_kv_heads=2, ffn_dim=96,
            small_side=4, vocab_size=96, num_codes=40, image_end=41, output_size=48,
            sections=(1, 1, 2))
SMALL = dict(height=8, width=8, dim=16, num_layers=1, num_heads=2, ffn_dim=16)
FUSION = early_fusion.EarlyFusionConfig(
    height=5, width=4, vocab_size=33, num_codes=19, first_code=4, row_end=30, dim=24, num_layers=2,
    num_heads=4, ffn_dim=20)
# By name: targets with guidance.
TARGETS = {
    'classes': llamagen.target(llamagen.LlamaGenConfig(num_classes=10, **SMALL), guided=True),
    'captions': llamagen.target(llamagen.LlamaGenConfig(
        conditioning='text', caption_dim=40, **SMALL), guided=True),
    'prompts': early_fusion.target(FUSION, guided=True),
    'levels': nextstep.target(nextstep.NextStepConfig(
        vocab_size=50, latent_channels=4, head_width=8, head_layers=1, num_kv_heads=1, **SMALL),
                              guided=True),
    'codes': tar.target(tar.TarConfig(
        vocab_size=40, condition_dim=24, num_positions=96, bridge=tar.BridgeConfig(
            num_codes=50, code_dim=12, dim=24, num_layers=2), **SMALL | dict(height=4, width=4)),
                        guided=True)}
HEADS = transformer.TransformerConfig(vocab_size=9, num_outputs=7, dim=8, num_layers=2, num_heads=2,
                                      num_kv_heads=2, head_dim=4, ffn_dim=8)
NO_HEAD, FEATURES = dataclasses.replace(HEADS, num_outputs=0), jnp.ones((2, 3, 8))
NO_TABLES, EMPTY = dataclasses.replace(NO_HEAD, vocab_size=0), {'transformer': {}}
OWN = ends.make(NO_HEAD, logits=lambda params, features: features, num_outputs=7)
SPECIAL = dataclasses.replace(vq.EMU3, ch=128, ch_mult=(1, 2), codebook_size=96)
COSMOS = cosmos.CosmosConfig(ch=16, ch_mult=(1, 2, 2), num_res_blocks=1, z_channels=8)
VAE = kl_vae.KLVAEConfig(ch_mult=(1, 2))


def _prompt(shape, value=0, visible=None):
  return Prompt(np.full(shape, value), np.ones(shape, bool) if visible is None else visible)


def _of_one_stream(at):
  """A condition of two streams, where the target has one."""
  target = causal.target(FUSION.causal(1)._replace(
      embed_condition=lambda params, prompt, count: causal.embed_prompt(
          params, FUSION.transformer, prompt)), 1)
  params = jax.eval_shape(lambda: early_fusion.init(FUSION, jax.random.key(0)))
  jax.eval_shape(lambda params: target.prefill(
      params, Prompt(jnp.zeros((2, 2, 3), int), jnp.ones((2, 2, 3), bool)), 4), params)


CALLS = [
    *each(lambda at, config, sizes, changes: config(**{**sizes, **changes}),
    (transformer.TransformerConfig, _TRANSFORMER, dict(dim=0), 'dim is 0'),
    (transformer.TransformerConfig, _TRANSFORMER, dict(num_kv_heads=3), 'num_kv_heads is 3'),
    (transformer.TransformerConfig, _TRANSFORMER, dict(head_dim=5), 'head_dim is 5'),
    (transformer.TransformerConfig, _TRANSFORMER, dict(num_outputs=-1), 'num_outputs is -1'),
    (transformer.TransformerConfig, _TRANSFORMER, dict(num_outputs=12), 'num_outputs is 12'),
    (llamagen.LlamaGenConfig, {}, dict(conditioning='image'), "conditioning is 'image'"),
    (llamagen.LlamaGenConfig, {}, dict(height=0), 'height is 0'),
    (llamagen.LlamaGenConfig, {}, dict(dim=100), 'dim is 100'),
    (llamagen.LlamaGenConfig, {}, dict(num_kv_heads=5), 'num_kv_heads is 5'),
    (mar.MARConfig, {}, dict(buffer_size=0), 'buffer_size is 0'),
    (mar.MARConfig, {}, dict(num_heads=7), 'num_heads is 7.*768'),
    (mar.MARConfig, {}, dict(token_dim=6, patch_size=2), 'must be a multiple of the 4 latents'),
    (nextstep.NextStepConfig, {}, dict(num_levels=1), 'num_levels is 1'),
    (nextstep.NextStepConfig, {}, dict(last_step=1.0), 'last_step is 1.0'),
    (nextstep.NextStepConfig, {}, dict(shift=0.0), 'shift is 0.0'),
    (nextstep.NextStepConfig, {}, dict(num_kv_heads=3), 'num_kv_heads is 3; it must divide'),
    (early_fusion.EarlyFusionConfig, _EARLY, dict(dim=65, first_code=4),
     'dim is 65 with num_heads 4; it must be a multiple of 2'),
    (early_fusion.EarlyFusionConfig, _EARLY, dict(first_code=60),
     'first_code is 60 with 48 codes; they must lie within the 96'),
    (early_fusion.EarlyFusionConfig, _EARLY, dict(first_code=4, row_end=10),
     'must be different tokens of the vocabulary and not codes'),
    (early_fusion.EarlyFusionConfig, _EARLY, dict(first_code=4, row_end=60, image_ends=(60,)),
     'must be different'),
    (early_fusion.EarlyFusionConfig, _EARLY, dict(num_codes=0), 'num_codes is 0'),
    (glm_image.GlmImageConfig, _GLM, dict(height=1, width=17),
     'small grid of an image this narrow has 0x16 tokens'),
    (glm_image.GlmImageConfig, _GLM, dict(image_end=30),
     'num_codes is 40, image_end 30, output_size 48 and vocab_size 96; the'),
    (glm_image.GlmImageConfig, _GLM, dict(output_size=97), 'these must lie within the vocabulary'),
    (glm_image.GlmImageConfig, _GLM, dict(sections=(1, 1)),
     r'sections is \(1, 1\); it must be three numbers of pairs'),
    (glm_image.GlmImageConfig, _GLM, dict(sections=(4, 4, 4)), 'of the 8 of a head'),
    (eagle.EagleConfig, {}, dict(family='emu'), "family is 'emu'; it must be one of llamagen"),
    (eagle.EagleConfig, {}, dict(dim=90, num_heads=3), 'dim is 90 with num_heads 3; it must be a'),
    (eagle.EagleConfig, {}, dict(row_width=15), 'num_tokens is 256; it must be a multiple of'),
    (eagle.EagleConfig, {}, dict(correction_dim=-1), 'correction_dim is -1; it must be a whole'),
    (medusa.MedusaConfig, dict(num_heads=3, dim=8, vocab_size=12), dict(dim=0), 'dim is 0'),
    (t5.T5Config, {}, dict(num_distances=6), 'num_distances is 6'),
    (t5.T5Config, {}, dict(num_distances=512), 'multiple of 4 below 512'),
    (t5.T5Config, {}, dict(max_distance=8), 'multiple of 4 below 32, which is 4'),
    (t5.T5Config, {}, dict(norm_eps=0.0), 'norm_eps is'),
    (kl_vae.KLVAEConfig, {}, dict(scale=0.0), 'scale is 0.0; it must be a finite number above 0'),
    (kl_vae.KLVAEConfig, {}, dict(ch_mult=()), 'ch_mult'),
    (kl_vae.KLVAEConfig, {}, dict(ch=130), 'normalisation groups'),
    (cosmos.CosmosConfig, {}, dict(patch_size=3), 'patch_size is 3; it must be a power of 2'),
    (cosmos.CosmosConfig, {}, dict(factor=2), 'factor is 2; it must be a power of 2 of at least 4'),
    (cosmos.CosmosConfig, {}, dict(time_factor=6), 'time_factor is 6; it must be a power'),
    (cosmos.CosmosConfig, {}, dict(factor=64, ch_mult=(1, 2, 2)), 'factor is 64 with patch_size 4'),
    (cosmos.CosmosConfig, {}, dict(levels=(1, 8)), r'levels is \(1, 8\)'),
          (tar.PriorConfig, {}, dict(height=20, width=20), '20 and 20; .* the grids 27x27, 13'),
          (tar.PriorConfig, {}, dict(height=27, width=13), 'height and width are 27 and 13'),
          (tar.ArDtokConfig, {}, dict(num_positions=4000), 'num_positions is 4000; images of 4096'),
          (tar.BridgeConfig, {}, dict(num_heads=7), 'num_heads is 7; it must be a divisor of dim')),
    *each(lambda at, name, condition: TARGETS[name].check_condition(condition), *(
        (name, *row) for name, rows in {
            'classes': [
    (np.array([0, 10, -1]), r'class labels \[-1, 10\].*0 to 9'),
                (np.array([0.5]), 'dtype float64'),
                (np.array(3), r'shape \(\)')],
            'captions': [(llamagen.Caption(np.asarray(embeddings), np.asarray(mask)), words)
                         for embeddings, mask, words in [
    (np.zeros((1, 119, 40)), np.ones((1, 119)), 'requires .B, 120, 40.'),
                (np.zeros((1, 120, 40)), np.ones((2, 120)), r'mask \(2, 120\)'),
                (np.zeros((1, 120, 40)), np.arange(120)[None] < 5, 'padded on the left'),
                (np.full((1, 120, 40), np.nan), np.ones((1, 120)), 'not finite')]] + [
        (np.array([1]), 'llamagen.Caption')],
            'codes': [
    (np.zeros((2, 81), np.float32), 'requires the codes of one square grid per image, integers'),
                (np.zeros((2, 80), int), r'condition has shape \(2, 80\).*one square grid per'),
                (np.zeros(81, int), r'condition has shape \(81,\)'),
                (np.full((1, 81), 50), 'holds codes from 50 to 50; this model supports 0 to 49'),
                (np.full((1, 81), -1), 'holds codes from -1 to -1'),
                (np.zeros((1, 169), int), 'has 169 codes; the table of 96 positions has room for')],
            'levels': [(_prompt((1, 2, 3), 50), 'from 50 to 50; this model supports 0 to 49'),
                       (np.zeros(2, int), 'requires a models.conditions.Prompt')],
            'prompts': [
                (Prompt(np.zeros((1, 3), int), np.ones((1, 3), bool)),
                 r'tokens \(1, 3\).*requires \[B, 2, C\]'),
                (_prompt((1, 1, 3)), r'tokens \(1, 1, 3\)'),
                (_prompt((1, 2, 3), 0, np.ones((1, 2, 2), bool)), r'visible \(1, 2, 2\)'),
                (_prompt((1, 2, 3), 0, np.arange(3) < [[[2], [3]]]), 'padded on the left'),
                (_prompt((1, 2, 3), 0, np.array([[[1, 0, 1], [1, 1, 1]]], bool)), 'on the left'),
                (_prompt((1, 2, 0)), 'at least one token'),
                (_prompt((1, 2, 3), 33), 'tokens from 33 to 33.*0 to 32'),
                ([[20, 25]], 'condition is a list; this model requires a models.con')],
        }.items() for row in rows)),
    *each(lambda at, call: call(at),
          (_of_one_stream, '4 rows for 2 images; this target has 1 guidance streams'),
          *((lambda at, ids=ids: conditions.renumbered(
              Prompt(np.array(ids), np.ones((1, 1, 1), bool)), np.array([2, 0, 1])), words)
            for ids, words in [
    ([[[3]]], 'tokens from 3 to 3; this model supports 0 to 2'),
                ([[[-1]]], 'tokens from -1 to -1'),
                ([[[1.0]]], 'tokens of dtype float64; they must be integers')]),
          # Images and codes.
          (lambda at: vq.encode({}, SPECIAL, np.zeros((1, 3, 4, 3), np.float32)),
           'must be multiples of 2, got 3x4'),
          (lambda at: vq.encode({}, COSMOS, np.zeros((1, 16, 24, 3), np.float32)),
           'must be multiples of 16, got 16x24'),
          *((lambda at, config=config: vq.decode({}, config, np.zeros((1, 4), int)),
             'indices must be integers') for config in (SPECIAL, COSMOS)),
          (lambda at: kl_vae.encode({}, VAE, jnp.zeros((2, 16, 20))), r'3\], got'),
          (lambda at: kl_vae.encode({}, VAE, jnp.zeros((2, 16, 21, 3))), 'of 2, got 16x21'),
          # Heads and drafters.
          (lambda at: ends.make(HEADS, logits=lambda params, features: features, num_outputs=7),
           'output matrix of 7 columns in the transformer'),
          (lambda at: ends.make(NO_HEAD, logits=lambda params, features: features),
           'num_outputs None .*requires its num_outputs'),
          (lambda at: ends.make(HEADS, num_outputs=6),
           'num_outputs is 6, but the output matrix .* has 7 columns'),
          (lambda at: OWN.logits({}, FEATURES), r'logits returned \(2, 3, 8\) .* \(2, 3, 7\)'),
          (lambda at: ends.make(NO_TABLES).embed(EMPTY, jnp.zeros((1, 1), int)),
           'no table of tokens .vocab_size is 0'),
          (lambda at: ends.make(NO_TABLES).logits(EMPTY, FEATURES),
           'no output matrix .num_outputs is 0'),
          (lambda at: medusa.from_target(OWN, EMPTY, medusa.MedusaConfig(
              num_heads=3, dim=8, vocab_size=7)), 'head of the target is not one matrix'),
          (lambda at: eagle.network(eagle.EagleConfig(
              dim=8, num_heads=2, ffn_dim=8, vocab_size=9, num_outputs=6), ends.make(HEADS)),
           'num_outputs is 6, but the head of the target is for 7'),
          (lambda at: eagle.register('llamagen', eagle.Layer()),
           "EAGLE layer is 'llamagen', which is registered with Layer")),
]


@pytest.mark.parametrize('call, words', CALLS)
def test_what_is_refused(at, call, words):
  said.check(lambda: call(at), words)


def test_conditions_of_the_right_kind_are_accepted():
  eagle.register('llamagen', eagle.LAYERS['llamagen'])
  assert OWN.matrix is None
  for name, condition in (('classes', np.array([0, 9])), ('prompts', _prompt((2, 2, 3))),
                          ('captions', llamagen.Caption(np.zeros((1, 120, 40)), np.ones((1, 120)))),
                          ('codes', np.zeros((1, 81), int)), ('levels', _prompt((1, 2, 3), 49))):
    TARGETS[name].check_condition(condition)
