"""Variational autoencoders of latent diffusion (arXiv 2112.10752), such as MAR's KL-16.

The image tokenizer of NextStep-1 (arXiv 2508.10711) is one, with names of its own.
"""

import functools
from collections.abc import Collection, Mapping
from typing import Any

from checkpoints_conversion.rules import base, blocks, family, settings
from checkpoints_conversion.rules.settings import Free, Must, Size
from cspd_jax.models.kl_vae import KLVAEConfig

_TITLE = 'a variational autoencoder'


def _rules(config: KLVAEConfig) -> list[base.Rule]:
  return blocks.taming(len(config.ch_mult))


def _infer(shapes: family.Shapes, options: Mapping[str, Any]) -> KLVAEConfig:
  """Infers the sizes of an autoencoder; the scale of its latents is that of KL-16."""
  del options
  shape = functools.partial(family.shape, _TITLE, shapes)
  sizes = blocks.taming_sizes(_TITLE, shapes)
  return KLVAEConfig(z_channels=shape('post_quant_conv.weight', 4)[0], **sizes)


def _assumed(config: KLVAEConfig, specified: Collection[str]) -> list[str]:
  del specified
  return [f'assumed latents with the scale {config.scale} of KL-16 (--model=kl_16), the only '
          'supported one: with another autoencoder images have wrong colours']


LATENT_DIFFUSION = family.FileFamily(
    name='kl_vae', title=_TITLE, kind='kl_vae', rules=_rules, infer=_infer,
    presets={'kl_16': KLVAEConfig()}, assumed=_assumed, leftovers=r'loss\..*', model='mar')

_NEXTSTEP_TITLE = 'an image tokenizer of NextStep-1'
NEXTSTEP_FIELDS: settings.Table = {
    'in_channels': Size('in_channels'), 'out_ch': Size('in_channels'), 'ch': Size('ch'),
    'ch_mult': Size('ch_mult', tuple), 'num_res_blocks': Size('num_res_blocks'),
    'z_channels': Size('z_channels'), 'scaling_factor': Size('scale', float),
    'shift_factor': Size('shift', float), 'encoder_norm': Size('normalized', bool),
    # Patches of one latent, whose channels are normalised together.
    'psz': Must((1,)),
    'resolution': Free('the network is convolutional; only training uses it'),
    'deterministic': Free('images are encoded as means or as samples, as the caller chooses'),
    '*': Free('the official program reads the arguments of its network and ignores all others'),
}


def _infer_nextstep(shapes: family.Shapes, options: Mapping[str, Any]) -> KLVAEConfig:
  """Infers the sizes of an autoencoder; config.json specifies scale, shift and normalisation."""
  shape = functools.partial(family.shape, _NEXTSTEP_TITLE, shapes)
  return KLVAEConfig(
      z_channels=shape('decoder.conv_in.weight', 4)[1], quant_conv=False, level_attention=False,
      **{name: options[name] for name in ('scale', 'shift', 'normalized') if name in options},
      **blocks.taming_sizes(_NEXTSTEP_TITLE, shapes))


NEXTSTEP = family.FileFamily(
    name='nextstep_vae', title=_NEXTSTEP_TITLE, kind='kl_vae', rules=_rules,
    infer=_infer_nextstep, presets={},
    settings=functools.partial(settings.read, {'config.json': NEXTSTEP_FIELDS}),
    # With other values images have wrong colours; versions of the official code differ in defaults.
    needed={'scale': '"scaling_factor"', 'shift': '"shift_factor"'}, model='nextstep')
