"""The image tokenizer of Chameleon (arXiv 2405.09818), a VQGAN."""

from collections.abc import Mapping

from checkpoints_conversion.rules import base, blocks, family
from cspd_jax.models.vq import CHAMELEON, VQConfig

_TITLE = 'an image tokenizer of Chameleon'


def rules(config: VQConfig) -> list[base.Rule]:
  """Returns the rule table of a tokenizer."""
  return blocks.taming(len(config.ch_mult)) + [
      base.Rule('quantize.embedding.weight', ('codebook/embedding',), base.KEEP)]


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  """Infers the sizes of a tokenizer from its shapes alone.

  Raises:
    ConversionError: if the shapes are not those of such a tokenizer.
  """
  del options
  sizes = blocks.taming_sizes(_TITLE, shapes)
  if not any(name.startswith('decoder.') for name in shapes):
    raise family.ConversionError(
        'The file has no decoder, so it cannot generate images; use the original vqgan.ckpt of '
        "Chameleon, which is in Meta's download and in those of Lumina-mGPT and Anole.")
  codebook_size, codebook_dim = family.shape(_TITLE, shapes, 'quantize.embedding.weight', 2)
  last = len(sizes['ch_mult']) - 1
  return VQConfig(
      z_channels=family.shape(_TITLE, shapes, 'quant_conv.weight', 4)[1],
      codebook_size=codebook_size, codebook_dim=codebook_dim, normalized=False,
      level_attention=f'encoder.down.{last}.attn.0.norm.weight' in shapes, **sizes)


FAMILY = family.FileFamily(
    name='chameleon_vqgan', title=_TITLE, kind='vq', rules=rules, infer=infer,
    presets={'vqgan': CHAMELEON}, leftovers=r'loss\..*', model='early_fusion')
