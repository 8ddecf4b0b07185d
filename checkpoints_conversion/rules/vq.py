"""VQ image tokenizers of LlamaGen, of Chameleon and of Lumina-mGPT 2.0.

LlamaGen: arXiv 2406.06525. Chameleon: arXiv 2405.09818; it may be in one file with the transformer.
Lumina-mGPT 2.0 has MoVQGAN (arXiv 2209.09002), as ai-forever stores it.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import base, blocks, family, settings
from checkpoints_conversion.rules.base import CONVOLUTION, POINTWISE
from checkpoints_conversion.rules.settings import Free, Must, Part, Size
from cspd_jax.models import vq
from cspd_jax.models.vq import VQConfig

_LLAMAGEN_TITLE = 'a LlamaGen image tokenizer'
_CHAMELEON_TITLE = 'an image tokenizer of Chameleon'
_MOVQGAN_TITLE = 'a MoVQGAN image tokenizer'


def rules(config: VQConfig) -> list[base.Rule]:
  """Returns the rule table, which is the same for all sizes."""
  del config
  table = [base.Rule('quantize.embedding.weight', ('codebook/embedding',), base.KEEP)]
  table += base.layer('quant_conv', 'quant_conv', POINTWISE)
  table += base.layer('post_quant_conv', 'post_quant_conv', POINTWISE)
  for part, level, resample in (('encoder', 'down_{i}', 'downsample'),
                                ('decoder', 'up_{i}', 'upsample')):
    published, ours = f'{part}.conv_blocks.{{i}}', f'{part}/{level}'
    table += base.layer(f'{part}.conv_in', f'{part}/conv_in', CONVOLUTION)
    table += blocks.residual(f'{published}.res.{{j}}', f'{ours}/res_{{j}}')
    table += blocks.attention(f'{published}.attn.{{j}}', f'{ours}/attn_{{j}}')
    table += base.layer(f'{published}.{resample}.conv', f'{ours}/{resample}', CONVOLUTION)
    table += blocks.residual(f'{part}.mid.0', f'{part}/mid/res_0')
    table += blocks.attention(f'{part}.mid.1', f'{part}/mid/attn_0')
    table += blocks.residual(f'{part}.mid.2', f'{part}/mid/res_1')
    table += base.norm(f'{part}.norm_out', f'{part}/norm_out')
    table += base.layer(f'{part}.conv_out', f'{part}/conv_out', CONVOLUTION)
  return table


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  """Infers the sizes of a tokenizer from its shapes alone."""
  del options
  # By the names of taming-transformers.
  renamed = {name.replace('.conv_blocks.', '.down.').replace('.res.', '.block.'): shape
             for name, shape in shapes.items()}
  return blocks.taming_vq_config(_LLAMAGEN_TITLE, renamed, VQConfig())


LLAMAGEN = family.FileFamily(
    name='llamagen_vq', title=_LLAMAGEN_TITLE, kind='vq', rules=rules, infer=infer,
    presets={'vq_16': VQConfig(), 'vq_8': VQConfig(ch_mult=(1, 2, 2, 4))},
    leftovers=r'quantize\.codebook_used', model='llamagen')

# Prefix of all names in a file that also holds the transformer.
_PREFIX = r'(?:model\.)?vqmodel\.'

# Of config.json, next to a file that also holds the transformer.
FIELDS: settings.Table = {
    'vq_config': Part({
        **settings.COMMON, 'model_type': Must(('chameleon_vqgan', 'chameleon')),
        'embed_dim': Size('codebook_dim'), 'num_embeddings': Size('codebook_size'),
        'latent_channels': Size('z_channels'), 'double_latent': Must((False,)),
        'in_channels': Size('in_channels'), 'base_channels': Size('ch'),
        'channel_multiplier': Size('ch_mult', tuple), 'num_res_blocks': Size('num_res_blocks'),
        'attn_type': Must(('vanilla',)), 'attn_resolutions': settings.OF_SHAPES,
        'resolution': settings.OF_SHAPES}),
    '*': Free('the transformer is another network')}


def _infer_chameleon(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  del options
  config = blocks.taming_vq_config(_CHAMELEON_TITLE, shapes, vq.CHAMELEON)
  if not any(name.startswith('decoder.') for name in shapes):
    raise family.ConversionError(
        'The file has no decoder, so it cannot generate images; use the original vqgan.ckpt of '
        "Chameleon, which is in Meta's download and in those of Lumina-mGPT and Anole.")
  return config


def _variant(shapes: family.Shapes) -> Mapping[str, Any]:
  """Returns the rules and settings for a file that also holds the transformer."""
  prefix = next((match[0] for name in shapes if (match := re.match(_PREFIX, name))), '')
  if not prefix:
    return {}
  return {'rules': functools.partial(_prefixed, prefix),
          'infer': lambda shapes, options: _infer_chameleon(
              {name.removeprefix(prefix): shape for name, shape in shapes.items()
               if name.startswith(prefix)}, options),
          'leftovers': rf'(?!{re.escape(prefix)}).*',
          'settings': functools.partial(settings.read, {'config.json': FIELDS})}


def _prefixed(prefix: str, config: VQConfig) -> list[base.Rule]:
  return [rule._replace(source=f'{prefix}{rule.source}') for rule in blocks.taming_vq(config)]


CHAMELEON = family.FileFamily(
    name='chameleon_vqgan', title=_CHAMELEON_TITLE, kind='vq', rules=blocks.taming_vq,
    infer=_infer_chameleon, presets={'vqgan': vq.CHAMELEON}, leftovers=r'loss\..*',
    variant=_variant, model='early_fusion',
    # Releases of transformers store the encoder alone.
    inside=rf'{_PREFIX}decoder\.conv_out\.weight', licence='Chameleon Research License')


def _infer_movqgan(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  del options
  # All other tokenizers with these names have norms without vectors of the tokens.
  family.shape(_MOVQGAN_TITLE, shapes, 'decoder.norm_out.conv_y.weight', 4)
  return blocks.taming_vq_config(_MOVQGAN_TITLE, shapes, vq.MOVQGAN)


MOVQGAN = family.FileFamily(
    name='movqgan', title=_MOVQGAN_TITLE, kind='vq', infer=_infer_movqgan,
    rules=functools.partial(blocks.taming_vq, norm=blocks.spatial_norm),
    presets={'movqgan_270m': vq.MOVQGAN}, leftovers=r'loss\..*|ema_\w+\..*', model='early_fusion')
