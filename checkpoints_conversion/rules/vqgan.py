"""The image tokenizer of Chameleon (arXiv 2405.09818), a VQGAN."""

from collections.abc import Mapping

from checkpoints_conversion.rules import blocks, family
from cspd_jax.models.vq import CHAMELEON, VQConfig

_TITLE = 'an image tokenizer of Chameleon'


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


FAMILY = family.FileFamily(
    name='chameleon_vqgan', title=_TITLE, kind='vq', rules=blocks.taming_vq, infer=infer,
    presets={'vqgan': CHAMELEON}, leftovers=r'loss\..*', model='early_fusion',
    licence='Chameleon Research License')
