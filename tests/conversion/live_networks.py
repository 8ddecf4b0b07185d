"""Tiny networks of the installed transformers, with random numbers for everything."""

import math

import pytest
import torch
import transformers

_tiny = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2)
# Left out: a vocabulary map, which only images that are read need.
_IMAGE = {'vocabulary_map': {'<image>': 5}}
_MODULES = {'Emu3': 'emu3', 'Janus': 'janus', 'GlmImage': 'glm_image'}


def config_class(name):
  """A class of settings; those of parts of a network are not among the public names."""
  family = next((module for prefix, module in _MODULES.items() if name.startswith(prefix)), None)
  if family is None or hasattr(transformers, name):
    return getattr(transformers, name)
  return getattr(pytest.importorskip(f'transformers.models.{family}.configuration_{family}'), name)


def redraw(network):
  """Random numbers for everything, so that nothing has the value of its initialization."""
  generator = torch.Generator().manual_seed(0)
  normal = lambda x: torch.randn(x.shape, generator=generator)
  with torch.no_grad():
    for parameter in network.parameters():
      parameter.copy_(normal(parameter) / math.sqrt(math.prod(parameter.shape[1:]))
                      if parameter.ndim > 1 else 1 + 0.2 * normal(parameter))
    for name, buffer in network.named_buffers():
      if 'running_' in name:
        buffer.copy_(0.5 + normal(buffer).abs() if 'var' in name else 0.3 * normal(buffer))
  return network.eval()


def _chameleon(**changes):
  vq = dict(base_channels=32, channel_multiplier=[1], num_res_blocks=1, embed_dim=4,
            latent_channels=4, num_embeddings=16)
  return transformers.ChameleonForConditionalGeneration(
      transformers.ChameleonConfig(**_tiny, **_IMAGE, vq_config=vq, **changes))


def _emu3_text(**changes):
  return config_class('Emu3TextConfig')(**_tiny, **changes)


def _emu3(**changes):
  return transformers.Emu3ForCausalLM(_emu3_text(**changes))


def emu3_hf(**changes):
  vq = config_class('Emu3VQVAEConfig')(
      base_channels=128, channel_multiplier=[1, 1], num_res_blocks=1, attn_resolutions=[1],
      hidden_size=128, codebook_size=32768)
  return transformers.Emu3ForConditionalGeneration(transformers.Emu3Config(
      text_config=_emu3_text(**changes), vq_config=vq, **_IMAGE))


CASES = {
    'chameleon': ('anole', _chameleon, dict(swin_norm=True, rms_norm_eps=1e-2)),
    'emu3': ('emu3', _emu3, dict(rms_norm_eps=1e-2)),
    'emu3-hf': ('emu3', emu3_hf, dict(rms_norm_eps=1e-2))}
