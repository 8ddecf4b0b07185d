"""Variational autoencoders of latent diffusion (arXiv 2112.10752), such as MAR's KL-16."""

import functools
from collections.abc import Collection, Mapping

from checkpoints_conversion.rules import base, blocks, family
from cspd_jax.models.kl_vae import KLVAEConfig

_TITLE = 'a variational autoencoder'


def rules(config: KLVAEConfig) -> list[base.Rule]:
  """Returns the rule table of an autoencoder."""
  return blocks.taming(len(config.ch_mult))


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> KLVAEConfig:
  """Infers the sizes of an autoencoder; the scale of its latents is that of KL-16.

  Raises:
    ConversionError: if the shapes are not those of such an autoencoder.
  """
  del options
  shape = functools.partial(family.shape, _TITLE, shapes)
  sizes = blocks.taming_sizes(_TITLE, shapes)
  return KLVAEConfig(z_channels=shape('post_quant_conv.weight', 4)[0], **sizes)


def _assumed(config: KLVAEConfig, specified: Collection[str]) -> list[str]:
  """Returns the assumption of the scale."""
  del specified
  return [f'assumed latents with the scale {config.scale} of KL-16 (--model=kl_16), the only '
          'supported one: with another autoencoder images have wrong colours']


FAMILY = family.FileFamily(
    name='kl_vae', title=_TITLE, kind='kl_vae', rules=rules, infer=infer,
    presets={'kl_16': KLVAEConfig()}, assumed=_assumed, leftovers=r'loss\..*', model='mar')
