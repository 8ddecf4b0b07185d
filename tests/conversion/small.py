"""Tiny networks of families of files, and published files of them with random numbers."""

import dataclasses
import json

import safetensors.numpy

from checkpoints_conversion import convert, rules
from cspd_jax.models import cosmos, eagle, early_fusion, kl_vae, llamagen, mar, nextstep, vq
from tests.models import published

_sizes = dict(dim=16, num_layers=1, num_heads=2, ffn_dim=24)
LLAMAGEN = llamagen.LlamaGenConfig(height=2, width=2, vocab_size=9, num_classes=3, **_sizes)
CAPTIONS = llamagen.LlamaGenConfig(
    conditioning='text', height=2, width=2, vocab_size=9, caption_dim=6, **_sizes)
VQ = vq.VQConfig(ch_mult=(1,), num_res_blocks=1, z_channels=4, codebook_size=9, codebook_dim=2)
EAGLE = eagle.EagleConfig(num_tokens=4, row_width=2, dim=16, num_heads=2, num_kv_heads=1,
                          ffn_dim=24, vocab_size=9, own_embedding=True)
EAGLE_ANOLE = dataclasses.replace(EAGLE, family='chameleon', num_kv_heads=2, norm_eps=1e-5)
MAR = mar.MARConfig(height=2, width=2, token_dim=4, dim=8, num_layers=1, num_heads=2,
                    head_width=12, head_layers=1, num_classes=3, buffer_size=2)
KL_VAE = kl_vae.KLVAEConfig(ch_mult=(1, 2), num_res_blocks=1, z_channels=2)
ANOLE = dataclasses.replace(early_fusion.PRESETS['anole_7b'], height=2, width=3, num_kv_heads=1,
                            **_sizes)
EMU3 = dataclasses.replace(early_fusion.PRESETS['emu3_gen_8b'], num_kv_heads=2, **_sizes)
NEXTSTEP = nextstep.NextStepConfig(
    height=2, width=2, vocab_size=9, latent_channels=2, dim=16, num_layers=2, num_heads=4,
    num_kv_heads=2, ffn_dim=12, head_width=8, head_layers=2)
COSMOS = cosmos.CosmosConfig(ch=16, ch_mult=(1, 2, 2), num_res_blocks=1, z_channels=8)
# By family of files, what shapes do not determine.
OPTIONS = {'llamagen': {'image_size': 32, 'num_heads': 2}, 'llamagen_vq': {},
           'eagle_llamagen': {'image_size': 32, 'num_heads': 2}, 'eagle_anole': {'image_size': 32},
           'eagle_lumina_mgpt': {'image_size': 32}, 'mar': {'num_heads': 2}, 'kl_vae': {},
           'nextstep': {'height': 2, 'width': 2}}


def tensors(family, config, seed=0):
  """Published tensors by name."""
  return published.weights(convert.published_shapes(rules.get(family), config), seed)


def save(folder, family, config, settings=None, seed=0, without=()):
  """Writes a published file, without some tensors and with settings next to it; returns its path.
  """
  folder.mkdir(parents=True, exist_ok=True)
  drawn = {name: x for name, x in tensors(family, config, seed).items() if name not in without}
  safetensors.numpy.save_file(drawn, folder / 'x.safetensors')
  if settings is not None:
    (folder / 'config.json').write_text(json.dumps(settings))
  return folder / 'x.safetensors'
