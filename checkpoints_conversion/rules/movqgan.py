"""MoVQGAN (arXiv 2209.09002), the image tokenizer of Lumina-mGPT 2.0, as ai-forever stores it."""

from collections.abc import Mapping

from checkpoints_conversion.rules import base, blocks, family
from cspd_jax.models.vq import MOVQGAN, VQConfig

_TITLE = 'a MoVQGAN image tokenizer'
# A level of the encoder has attention if the file has this tensor.
_ATTENTION = 'encoder.down.{}.attn.0.norm.weight'


def rules(config: VQConfig) -> list[base.Rule]:
  """Returns the rule table of a tokenizer."""
  return blocks.taming(len(config.ch_mult), blocks.spatial_norm) + [
      base.Rule('quantize.embedding.weight', ('codebook/embedding',), base.KEEP)]


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  """Infers the sizes of a tokenizer from its shapes alone.

  Raises:
    ConversionError: if the shapes are not those of such a tokenizer.
  """
  del options
  sizes = blocks.taming_sizes(_TITLE, shapes)
  # All other tokenizers with these names have norms without vectors of the tokens.
  family.shape(_TITLE, shapes, 'decoder.norm_out.conv_y.weight', 4)
  codebook_size, codebook_dim = family.shape(_TITLE, shapes, 'quantize.embedding.weight', 2)
  return VQConfig(
      z_channels=family.shape(_TITLE, shapes, 'quant_conv.weight', 4)[1],
      codebook_size=codebook_size, codebook_dim=codebook_dim, normalized=False,
      level_attention=_ATTENTION.format(len(sizes['ch_mult']) - 1) in shapes, spatial_norm=True,
      **sizes)


FAMILY = family.FileFamily(
    name='movqgan', title=_TITLE, kind='vq', rules=rules, infer=infer,
    presets={'movqgan_270m': MOVQGAN}, leftovers=r'loss\..*|ema_\w+\..*', model='early_fusion')
