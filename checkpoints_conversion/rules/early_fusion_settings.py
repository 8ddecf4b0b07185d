"""Tables of the settings of transformers over one vocabulary of text and images.

`CHAMELEON` is for the files of Chameleon, Lumina-mGPT and Anole by transformers, Alpha-VLLM and
Meta, `LUMINA_MGPT_2` for those of Lumina-mGPT 2.0 by Alpha-VLLM, `EMU3` for those of Emu3 by BAAI
and transformers.
"""

from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import settings
from checkpoints_conversion.rules.settings import Check, Free, Must, Part, Size, Sizes, Table
from cspd_jax.core import fields
from cspd_jax.models import early_fusion

_OF_THE_TOKENIZER = Free('the image tokenizer is another network')


def _image_tokens(preset: str, prefix: str, *, ordered: bool) -> Check:
  """Returns a check that the image tokens have the ids of a published model.

  Args:
    preset: name of the published model.
    prefix: prefix of the names of image tokens.
    ordered: whether the ids must be in the order of the names.
  """
  config = early_fusion.PRESETS[preset]
  first, count = config.first_code, config.num_codes

  def problem(value):
    if not isinstance(value, Mapping) or not all(type(id_) is int for id_ in value.values()):
      return f'{value!r:.80}; it must contain ids of tokens by name'
    ids = [id_ for name, id_ in sorted(value.items()) if name.startswith(prefix)]
    if not ids or (ids if ordered else sorted(ids)) == list(range(first, first + count)):
      return None
    return (f'a vocabulary with {len(ids)} image tokens from {min(ids)} to {max(ids)}; they must '
            f'be {first} to {first + count - 1}' + (' in their order' if ordered else ''))

  return Check(problem)


def _transformers(rope_base: float) -> Table:
  """Returns the fields that both families have."""
  return {
      **settings.COMMON, **settings.rope(rope_base),
      'vocab_size': Size('vocab_size'), 'hidden_size': Size('dim'),
      'intermediate_size': Size('ffn_dim'), 'num_hidden_layers': Size('num_layers'),
      'num_attention_heads': Size('num_heads'), 'num_key_value_heads': Size('num_kv_heads'),
      'head_dim': Size('head_dim'), 'rms_norm_eps': Size('norm_eps', float, 1e-5),
      'hidden_act': settings.SILU, 'attention_bias': settings.NO_BIAS,
      'mlp_bias': settings.NO_BIAS, 'tie_word_embeddings': settings.OWN_OUTPUT,
      'max_position_embeddings': Free('rotation by any position is computed when it is needed'),
      'vq_config': _OF_THE_TOKENIZER,
  }


_CHAMELEON: Table = {
    **_transformers(10000.0),
    'model_type': Must(('chameleon',)),
    'swin_norm': Size('swin_norm', bool, False),
    'qk_layernorm': Size('qk_norm', bool),
    'model_parallel_size': settings.OF_SHAPES,  # Rows of the norms of queries and keys.
    'vocabulary_map': _image_tokens('anole_7b', 'IMGIMG', ordered=False),
    'boi_token_id': Must((8197,)), 'eoi_token_id': Must((8196,)),
    'mask_image_logits': Free('images are sampled without the mask, as in the official programs'),
}

_ARGUMENTS: Table = {
    'dim': Size('dim'), 'n_layers': Size('num_layers'), 'n_heads': Size('num_heads'),
    'n_kv_heads': Size('num_kv_heads'), 'vocab_size': Size('vocab_size'),
    'norm_eps': Size('norm_eps', float, 1e-5), **settings.rope(10000.0),
    'swin_norm': Size('swin_norm', bool, False),
    'qk_normalization': Size('qk_norm', bool, False),
    'use_scaled_rope': Must((False,)), 'multiple_of': settings.OF_SHAPES,
    'ffn_dim_multiplier': settings.OF_SHAPES,
    'model_parallel_size': Free('the files are counted and joined'),
    '*': Free("Meta's program reads the arguments of its network and ignores all others"),
}

CHAMELEON: Mapping[str, Table] = {
    'config.json': _CHAMELEON,
    'params.json': {**_ARGUMENTS, 'model': Part(_ARGUMENTS)},
    # Its arguments replace some of those in params.json.
    'consolidate_params.json': {**_ARGUMENTS, 'qk_normalization': Size('qk_norm', bool)},
}

_FIXED = Free('the official program has fixed ids, and reads those of no file')

LUMINA_MGPT_2: Mapping[str, Table] = {'config.json': {
    **_CHAMELEON, 'vocabulary_map': _FIXED, 'boi_token_id': _FIXED, 'eoi_token_id': _FIXED}}

# Pixels of a token of Emu3 along each side, and the most tokens.
_TOKEN_SIDE, _MOST_TOKENS = 8, fields.MOST_SIDE


def _square(area: Any) -> Mapping[str, int] | str:
  """Returns rows and columns of square images as `Emu3Processor.calculate_generate_size` does.

  Args:
    area: pixels of an image, which the official program reads from `image_area`.
  """
  is_area = type(area) is int and 0 < area <= (_TOKEN_SIDE * _MOST_TOKENS)**2
  if is_area and (side := round(area**0.5 / _TOKEN_SIDE)):
    return {'height': side, 'width': side}
  return (f'{area!r:.80}; it must be the number of pixels of an image, with 1 to {_MOST_TOKENS} '
          f'tokens of {_TOKEN_SIDE} pixels along each side')


_EMU3: Table = {
    **_transformers(1e6),
    'model_type': Must(('Emu3', 'emu3', 'emu3_text_model')),
    'vocabulary_map': _image_tokens('emu3_gen_8b', '<|visual token ', ordered=True),
    'img_token_id': Must((151851,)), 'boi_token_id': Must((151852,)),
    'eoi_token_id': Must((151853,)), 'eol_token_id': Must((151846,)),
    'eof_token_id': Must((151847,)),
    'image_area': Sizes(_square),
}

EMU3: Mapping[str, Table] = {'config.json': {**_EMU3, 'text_config': Part(_EMU3)}}

# Fields that only settings determine, with their published values in config.json.
NEEDED = {'norm_eps': '"rms_norm_eps": 1e-05', 'rope_base': '"rope_theta": 10000.0',
          'swin_norm': '"swin_norm": false'}
NEEDED_EMU3 = {'norm_eps': '"rms_norm_eps": 1e-05', 'rope_base': '"rope_theta": 1000000.0',
               'num_heads': '"num_attention_heads": 32'}

