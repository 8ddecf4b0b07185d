"""Sizes that a network cannot have are refused by name."""

import pytest

from cspd_jax.models import (
  cosmos,
  eagle,
  early_fusion,
  glm_image,
  kl_vae,
  llamagen,
  mar,
  medusa,
  nextstep,
  t5,
  transformer,
)

_TRANSFORMER = dict(vocab_size=11, dim=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6,
                    ffn_dim=20)
_EARLY = dict(vocab_size=96, num_codes=48, dim=64, num_layers=2, num_heads=4, ffn_dim=96)
_GLM = dict(height=8, width=6, dim=64, num_layers=3, num_heads=4, num_kv_heads=2, ffn_dim=96,
            small_side=4, vocab_size=96, num_codes=40, image_end=41, output_size=48,
            sections=(1, 1, 2))


@pytest.mark.parametrize('config, sizes, changes, message', [
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
    (cosmos.CosmosConfig, {}, dict(levels=(1, 8)), r'levels is \(1, 8\)')])
def test_impossible_sizes_are_refused(config, sizes, changes, message):
  with pytest.raises(ValueError, match=message):
    config(**{**sizes, **changes})
