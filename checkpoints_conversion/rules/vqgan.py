"""VQGANs: the image tokenizers of Chameleon (arXiv 2405.09818) and of Lumina-mGPT 2.0.

The former may be in one file with the transformer. The latter is MoVQGAN (arXiv 2209.09002), as
ai-forever stores it.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import base, blocks, family, settings
from checkpoints_conversion.rules.settings import Free, Must, Part, Size
from cspd_jax.models.vq import CHAMELEON, MOVQGAN, VQConfig

_TITLE = 'an image tokenizer of Chameleon'
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


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  """Infers the sizes of a tokenizer from its shapes alone.

  Raises:
    ConversionError: if the shapes are not those of such a tokenizer.
  """
  del options
  config = blocks.taming_vq_config(_TITLE, shapes, CHAMELEON)
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
          'infer': lambda shapes, options: infer(
              {name.removeprefix(prefix): shape for name, shape in shapes.items()
               if name.startswith(prefix)}, options),
          'leftovers': rf'(?!{re.escape(prefix)}).*',
          'settings': functools.partial(settings.read, {'config.json': FIELDS})}


def _prefixed(prefix: str, config: VQConfig) -> list[base.Rule]:
  return [rule._replace(source=f'{prefix}{rule.source}') for rule in blocks.taming_vq(config)]


CHAMELEON_FAMILY = family.FileFamily(
    name='chameleon_vqgan', title=_TITLE, kind='vq', rules=blocks.taming_vq, infer=infer,
    presets={'vqgan': CHAMELEON}, leftovers=r'loss\..*', variant=_variant, model='early_fusion',
    # Releases of transformers store the encoder alone.
    inside=rf'{_PREFIX}decoder\.conv_out\.weight', licence='Chameleon Research License')


_MOVQGAN_TITLE = 'a MoVQGAN image tokenizer'


def _movqgan(config: VQConfig) -> list[base.Rule]:
  """Returns the rule table of a tokenizer."""
  return blocks.taming_vq(config, blocks.spatial_norm)


def _infer_movqgan(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  """Infers the sizes of a tokenizer from its shapes alone.

  Raises:
    ConversionError: if the shapes are not those of such a tokenizer.
  """
  del options
  # All other tokenizers with these names have norms without vectors of the tokens.
  family.shape(_MOVQGAN_TITLE, shapes, 'decoder.norm_out.conv_y.weight', 4)
  return blocks.taming_vq_config(_MOVQGAN_TITLE, shapes, MOVQGAN)


MOVQGAN_FAMILY = family.FileFamily(
    name='movqgan', title=_MOVQGAN_TITLE, kind='vq', rules=_movqgan, infer=_infer_movqgan,
    presets={'movqgan_270m': MOVQGAN}, leftovers=r'loss\..*|ema_\w+\..*', model='early_fusion')
