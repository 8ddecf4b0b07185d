"""Emu3.5 (arXiv 2510.26583), transformer and image tokenizer, as BAAI publishes them.

The transformer has the names of Emu3 and two norms more in every layer; the image tokenizer is IBQ
(arXiv 2412.02692) with the names of taming-transformers.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import blocks, early_fusion, family, settings
from checkpoints_conversion.rules.settings import Free, Must, Size
from cspd_jax.models import early_fusion as model
from cspd_jax.models.vq import IBQ, VQConfig

_PRESET = 'emu3_5_34b'
_TITLE, _TITLE_VQ = f'a transformer like {_PRESET}', 'the image tokenizer of Emu3.5'

FIELDS: settings.Table = {
    **{name: entry for name, entry in early_fusion.EMU3_SETTINGS['config.json'].items()
       if name not in ('vocabulary_map', 'text_config', 'vq_config')},
    'model_type': Must(('Emu3',)),
    'image_area': Free('the official program has rows and columns in its own configuration'),
    # The class of the official program for vLLM has these fields too.
    **settings.WINDOWS,
}
_LOSS = Free('a term of the loss')
FIELDS_VQ: settings.Table = {
    **settings.COMMON, **settings.TAMING,
    'model_type': Must(('Emu3p5VisionVQ',)),
    'codebook_size': Size('codebook_size'), 'n_embed': Size('codebook_size'),
    'embed_dim': Size('codebook_dim'), 'out_ch': Size('in_channels'),
    'double_z': Must((False,)), 'resamp_with_conv': Must((True,)), 'give_pre_end': Must((False,)),
    'l2_normalize': Must((False,)), 'remap': Must(()),
    # `_vq_settings` combines these two.
    'attn_resolutions': Size('attn_resolutions', tuple), 'resolution': Size('resolution'),
    'beta': _LOSS, 'use_entropy_loss': _LOSS, 'cosine_similarity': _LOSS,
    'entropy_temperature': _LOSS, 'sample_minimization_weight': _LOSS,
    'batch_maximization_weight': _LOSS,
}


# The official text-to-image configuration, for both releases.
_OPTIONS = {'temperature': 1.0, 'top_p': 1.0, 'top_k': 5120}


def _vq_settings(contents: settings.Contents) -> dict[str, Any]:
  """Reads config.json, whose pixels of levels with attention and of images tell these levels."""
  sizes = settings.read({'config.json': FIELDS_VQ}, contents)
  side, sides = sizes.pop('resolution', None), sizes.pop('attn_resolutions', None)
  if side is None or sides is None:
    return sizes
  count = len(sizes.get('ch_mult', IBQ.ch_mult))
  levels = [level for level in range(count) if side // 2**level in sides]
  if levels not in ([], [count - 1]):
    settings.refuse([f'config.json: attn_resolutions is {list(sides)}, attention at levels '
                     f'{levels} of images of {side} pixels; it can be at the last one, '
                     f'{count - 1}'])
  return {**sizes, 'level_attention': bool(levels)}


def _infer_vq(shapes: family.Shapes, options: Mapping[str, Any]) -> VQConfig:
  attention = options.get('level_attention', IBQ.level_attention)
  return blocks.taming_vq_config(
      _TITLE_VQ, shapes, dataclasses.replace(IBQ, level_attention=attention))


def _near(*files: str) -> tuple[str, ...]:
  """Returns the paths of files in the folder of a transformer and in the one above."""
  return tuple(f'{folder}{file}' for folder in ('', '../') for file in files)


FAMILY = early_fusion.EMU3._replace(
    name='emu3_5', title=_TITLE, infer=functools.partial(early_fusion.infer, _PRESET),
    presets={_PRESET: model.PRESETS[_PRESET]},
    settings=functools.partial(settings.read, {'config.json': FIELDS}),
    # Their published values have not been seen.
    needed={'norm_eps': '"rms_norm_eps": ...', 'rope_base': '"rope_theta": ...'},
    variant=functools.partial(early_fusion.variant, _PRESET),
    assumed=functools.partial(early_fusion.assumed, 16),
    sampling=lambda config: {'pictures': {**_OPTIONS, 'guidance_scale': 5.0},  # Emu3.5-Image.
                             'emu3_5': {**_OPTIONS, 'guidance_scale': 2.0}},
    licence='Apache-2.0 (code)',
    layout=lambda name: {
        'emu3_5': ('.',),
        'emu3_5_vq': _near('Emu3.5-VisionTokenizer/model.safetensors',
                           'Emu3.5-VisionTokenizer/model.ckpt'),
        'emu3_5_text': (*_near('emu3.tiktoken', 'tokenizer_emu3_ibq/emu3.tiktoken'),
                        # The official program has its weights in `weights`.
                        '../../src/tokenizer_emu3_ibq/emu3.tiktoken')})
VQ = family.FileFamily(
    name='emu3_5_vq', title=_TITLE_VQ, kind='vq', rules=blocks.taming_vq, infer=_infer_vq,
    presets={'ibq_131072': IBQ}, model='early_fusion',
    settings=_vq_settings)
