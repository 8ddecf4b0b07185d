"""MAR's transformers and their diffusion heads (arXiv 2406.11838)."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import base, blocks, family, settings
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule
from cspd_jax.models.mar import PRESETS, MARConfig

_TITLE = 'a MAR model'
# Guidance scales of the official evaluation, by width and depth.
_FID_SCALES = {(768, 12): 2.9, (1024, 16): 3.0, (1280, 20): 3.2}
_EMBEDDINGS = {
    'class_emb.weight': 'class_embedding', 'fake_latent': 'null_embedding',
    'encoder_pos_embed_learned': 'encoder_positions', 'mask_token': 'mask_token',
    'decoder_pos_embed_learned': 'decoder_positions', 'diffusion_pos_embed_learned': 'z_positions'}


def _rules(config: MARConfig) -> list[Rule]:
  table = [Rule(published, (ours,), KEEP) for published, ours in _EMBEDDINGS.items()]
  table += base.layer('z_proj', 'token_in', MATRIX) + base.norm('z_proj_ln', 'token_norm')
  table += base.layer('decoder_embed', 'decoder_in', MATRIX)
  for part in ('encoder', 'decoder'):
    published, ours = f'{part}_blocks.{{i}}.', f'{part}_layers_{{i}}'
    table += blocks.fused(f'{published}attn.qkv.', ours, config.num_heads)
    table += blocks.vision_layer(
        published, ours, config.num_heads, ('norm1', 'attn.proj', 'norm2', 'mlp.fc1', 'mlp.fc2'))
    table += base.norm(f'{part}_norm', f'{part}_norm')
  return table + blocks.rules('diffloss.net.', config.head_width, config.head_layers)


def _infer(shapes: family.Shapes, options: Mapping[str, int]) -> MARConfig:
  shape = functools.partial(family.shape, _TITLE, shapes)
  num_classes, dim = shape('class_emb.weight', 2)
  num_tokens = shape('diffusion_pos_embed_learned', 3)[1]
  side = math.isqrt(num_tokens)
  if side**2 != num_tokens:
    raise family.ConversionError(
        f'The model has {num_tokens} tokens; it must have a square grid of them.')
  num_layers = family.count(shapes, r'encoder_blocks\.(\d+)\.norm1\.weight')
  return MARConfig(
      height=side, width=side, token_dim=shape('z_proj.weight', 2)[1], dim=dim,
      num_layers=num_layers, num_heads=family.num_heads(options, PRESETS.values(), dim, num_layers),
      head_width=shape('diffloss.net.cond_embed.weight', 2)[0],
      head_layers=family.count(shapes, r'diffloss\.net\.res_blocks\.(\d+)\.in_ln\.weight'),
      num_classes=num_classes,
      buffer_size=shape('encoder_pos_embed_learned', 3)[1] - num_tokens)


def _means(config: MARConfig, shapes: family.Shapes, contents: settings.Contents,
           options: Mapping[str, Any]) -> MARConfig:
  """Returns the config of a file with these tensors, with tokens of any patches of latents."""
  del contents
  return dataclasses.replace(_infer(shapes, options), patch_size=config.patch_size)


def _arguments(config: MARConfig) -> list[str]:
  """Returns a line with the arguments of the official class, which no file holds."""
  side = 16 * config.height * config.patch_size
  sizes = ', '.join(f'{part}_embed_dim={config.dim}, {part}_depth={config.num_layers}, '
                    f'{part}_num_heads={config.num_heads}' for part in ('encoder', 'decoder'))
  return [f'the official class is MAR(img_size={side}, vae_stride=16, '
          f'patch_size={config.patch_size}, {sizes}, mlp_ratio=4, '
          f'class_num={config.num_classes}, buffer_size={config.buffer_size}, '
          f'vae_embed_dim={config.token_dim // config.patch_size**2}, '
          f'diffloss_d={config.head_layers}, diffloss_w={config.head_width})']


def _sampling(config: MARConfig) -> Mapping[str, family.Defaults]:
  # Those of the notebook, and those of the published FID.
  steps = min(64, config.height * config.width)
  presets = {'pictures': {
      'guidance_scale': 4.0, 'temperature': 1.0,
      'decoder': f'exact_head(num_iter={steps}, guidance=constant)'}}
  if scale := _FID_SCALES.get((config.dim, config.num_layers)):
    presets['fid'] = {'guidance_scale': scale, 'temperature': 1.0,
                      'decoder': 'exact_head(guidance=linear)'}
  return presets


FAMILY = family.FileFamily(
    name='mar', title=_TITLE, kind='mar', rules=_rules, infer=_infer, presets=PRESETS,
    options=family.NUM_HEADS, assumed=family.assumed_heads,
    # The published results use the averaged weights.
    prefer='model_ema', model='mar', sampling=_sampling,
    # The official program resumes from both.
    written=family.Written('.pth', ('model_ema', 'model'), means=_means, lines=_arguments),
    metadata=lambda config: base.metadata(config.num_classes),
    licence='MIT',
    layout=lambda model: {
        'mar': ('checkpoint-last.pth',),
        'kl_vae': ('kl16.ckpt', 'vae/kl16.ckpt', '../vae/kl16.ckpt', '../../vae/kl16.ckpt')})
