"""Networks of published families at tiny sizes.

The outputs recorded in `tests/data` for whole prompts are those of the sizes of the first group.
"""

import dataclasses

from cspd_jax.models import (
  clip,
  cosmos,
  eagle,
  early_fusion,
  glm_image,
  janus,
  kl_vae,
  llamagen,
  mammothmoda2,
  mar,
  nextstep,
  t5,
  tar,
  vq,
)

_small = dict(dim=16, num_layers=2, num_heads=2, num_kv_heads=2, ffn_dim=16)
_of = lambda name, **changes: dataclasses.replace(
    early_fusion.PRESETS[name], **{**_small, **changes})
LUMINA_MGPT = _of('lumina_mgpt_7b_768', height=4, width=6)
LUMINA_MGPT_2 = _of('lumina_mgpt_2_7b', height=4, width=8)
ANOLE = _of('anole_7b', height=3, width=4)
EMU3 = _of('emu3_gen_8b', height=2, width=3, num_kv_heads=1)
EMU3_5 = _of('emu3_5_34b', height=2, width=3, attention_dim=24, num_kv_heads=1)
SIMPLEAR = _of('simplear_0_5b', height=2, width=3, num_kv_heads=1, ffn_dim=24)
LIQUID = _of('liquid_7b', height=3, width=4, attention_dim=24, ffn_dim=24)
T2I = llamagen.LlamaGenConfig(
    conditioning='text', height=3, width=3, dim=16, num_layers=2, num_heads=2, ffn_dim=24,
    vocab_size=48, caption_dim=40)
T5 = t5.T5Config(vocab_size=320, dim=40, num_layers=2, num_heads=4, head_dim=12, ffn_dim=56)

_tiny_vq = dict(num_res_blocks=1, z_channels=4, codebook_dim=4)
CHAMELEON_VQ = vq.VQConfig(
    ch_mult=(1,), codebook_size=8192, level_attention=False, normalized=False, **_tiny_vq)
MOVQGAN = vq.VQConfig(
    ch_mult=(1, 1), codebook_size=16384, normalized=False, spatial_norm=True, **_tiny_vq)
EMU3_VQ = dataclasses.replace(vq.EMU3, ch=128, ch_mult=(1, 1), num_res_blocks=1)
EMU3_5_VQ = dataclasses.replace(vq.IBQ, ch=128, ch_mult=(1, 1), **_tiny_vq)
COSMOS = cosmos.CosmosConfig(ch=8, ch_mult=(1, 1, 1), num_res_blocks=1, z_channels=4)
# Of LlamaGen with words, and of Tar.
T2I_VQ = vq.VQConfig(ch_mult=(1,), codebook_size=48, **_tiny_vq)

JANUS = dataclasses.replace(
    janus.PRESETS['janus_pro_1b'], height=3, width=4, num_codes=12, text_size=300, output_dim=16,
    **{**_small, 'ffn_dim': 24})
JANUS_VQ = vq.VQConfig(
    ch_mult=(1, 1), num_res_blocks=1, z_channels=4, codebook_size=12, codebook_dim=8)
# Grids of 1x2 and 3x4 tokens.
GLM_IMAGE = glm_image.GlmImageConfig(
    height=3, width=4, small_side=2, dim=32, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=24,
    vocab_size=320, num_codes=40, image_end=41, output_size=48, sections=(1, 1, 2))
MAMMOTHMODA2 = dataclasses.replace(
    mammothmoda2.PRESETS['mammothmoda2_preview'], height=4, width=10, image_layers=(1, 2),
    **{**_small, 'num_kv_heads': 1, 'ffn_dim': 24})
NEXTSTEP_1 = dataclasses.replace(
    nextstep.PRESETS['nextstep_1_512'], height=3, width=4, latent_channels=4, dim=32, num_layers=2,
    num_heads=4, num_kv_heads=2, ffn_dim=48, head_width=24, head_layers=2)
NEXTSTEP_1_1 = dataclasses.replace(NEXTSTEP_1, token_norm=False, num_levels=28, last_step=None)
NEXTSTEP_VAE_AS_PUBLISHED = kl_vae.KLVAEConfig(
    ch_mult=(1, 2, 4, 4), scale=1.0, shift=0.0, quant_conv=False, level_attention=False,
    normalized=True)
NEXTSTEP_VAE = dataclasses.replace(
    NEXTSTEP_VAE_AS_PUBLISHED, ch_mult=(1, 1), num_res_blocks=1, z_channels=4, scale=0.9, shift=0.1)
TAR_CODES = 40
TAR = dataclasses.replace(
    tar.PRIORS['tar_1_5b'], height=9, width=9, vocab_size=265 + TAR_CODES, num_codes=TAR_CODES,
    first_code=265, **{**_small, 'num_kv_heads': 1, 'ffn_dim': 24})
TA_TOK = tar.BridgeConfig(
    num_codes=TAR_CODES, code_dim=8, normalized=True, dim=12, num_layers=1, ffn_dim=16, side=4)
# 4x4 tokens behind 81 codes.
AR_DTOK = tar.ArDtokConfig(
    height=4, width=4, dim=16, num_layers=2, num_heads=2, ffn_dim=24, vocab_size=48,
    condition_dim=12, num_positions=96)

# Smaller ones, for what depends on names, shapes and settings alone.
_least = dict(dim=16, num_heads=2, ffn_dim=24)
LLAMAGEN = llamagen.LlamaGenConfig(
    height=2, width=2, vocab_size=9, num_classes=3, num_layers=1, **_least)
VQ = vq.VQConfig(ch_mult=(1,), num_res_blocks=1, z_channels=4, codebook_size=9, codebook_dim=2)
EAGLE = eagle.EagleConfig(
    num_tokens=4, row_width=2, num_kv_heads=1, vocab_size=9, own_embedding=True, **_least)
EAGLE_ANOLE = dataclasses.replace(EAGLE, family='chameleon', num_kv_heads=2, norm_eps=1e-5)
MAR = mar.MARConfig(height=2, width=2, token_dim=4, dim=8, num_layers=1, num_heads=2,
                    head_width=12, head_layers=1, num_classes=3, buffer_size=2)
KL_VAE = kl_vae.KLVAEConfig(ch_mult=(1, 2), num_res_blocks=1, z_channels=2)
MAR_VAE = dataclasses.replace(KL_VAE, z_channels=MAR.token_dim)
NEXTSTEP = nextstep.NextStepConfig(
    height=2, width=2, vocab_size=9, latent_channels=2, dim=16, num_layers=2, num_heads=4,
    num_kv_heads=2, ffn_dim=12, head_width=8, head_layers=2)
CLIP = clip.CLIPConfig(
    image_size=8, patch_size=4, image_dim=24, image_layers=1, image_heads=3, image_ffn=8,
    vocab_size=9, context=5, text_dim=16, text_layers=2, text_heads=2, text_ffn=12, feature_dim=6,
    activation='gelu')
# By family of files, what shapes do not determine.
OPTIONS = {'llamagen': {'image_size': 32, 'num_heads': 2}, 'llamagen_vq': {},
           'eagle_llamagen': {'image_size': 32, 'num_heads': 2}, 'eagle_anole': {'image_size': 32},
           'eagle_lumina_mgpt': {'image_size': 32}, 'mar': {'num_heads': 2}, 'kl_vae': {},
           'nextstep': {'height': 2, 'width': 2}}
