"""MoVQGAN (arXiv 2209.09002), the image tokenizer of Lumina-mGPT 2.0, as ai-forever stores it."""

from collections.abc import Mapping

from checkpoints_conversion.rules import base, blocks, family
from cspd_jax.models.vq import MOVQGAN, VQConfig

_TITLE = 'a MoVQGAN image tokenizer'


def rules(config: VQConfig) -> list[base.Rule]:
  """Returns the rule table of a tokenizer."""
  return blocks.taming_vq(config, blocks.spatial_norm)


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  """Infers the sizes of a tokenizer from its shapes alone.

  Raises:
    ConversionError: if the shapes are not those of such a tokenizer.
  """
  del options
  # All other tokenizers with these names have norms without vectors of the tokens.
  family.shape(_TITLE, shapes, 'decoder.norm_out.conv_y.weight', 4)
  return blocks.taming_vq_config(_TITLE, shapes, MOVQGAN)


FAMILY = family.FileFamily(
    name='movqgan', title=_TITLE, kind='vq', rules=rules, infer=infer,
    presets={'movqgan_270m': MOVQGAN}, leftovers=r'loss\..*|ema_\w+\..*', model='early_fusion')
