"""The image tokenizer of Chameleon (arXiv 2405.09818), a VQGAN, alone or with the transformer."""

import functools
import re
from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import base, blocks, family, settings
from checkpoints_conversion.rules.settings import Free, Must, Part, Size
from cspd_jax.models.vq import CHAMELEON, VQConfig

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


FAMILY = family.FileFamily(
    name='chameleon_vqgan', title=_TITLE, kind='vq', rules=blocks.taming_vq, infer=infer,
    presets={'vqgan': CHAMELEON}, leftovers=r'loss\..*', variant=_variant, model='early_fusion',
    # Releases of transformers store the encoder alone.
    inside=rf'{_PREFIX}decoder\.conv_out\.weight', licence='Chameleon Research License')
