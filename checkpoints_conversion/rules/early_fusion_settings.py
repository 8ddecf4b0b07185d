"""The settings of transformers over one vocabulary: lists of their fields; see `settings`.

`CHAMELEON` is for the files of Chameleon, Lumina-mGPT and Anole, as transformers, Alpha-VLLM and
Meta store them, `EMU3` for those of Emu3, as BAAI and transformers do.
"""

from collections.abc import Mapping

from checkpoints_conversion.rules import settings
from checkpoints_conversion.rules.settings import Check, Free, Must, Part, Size, Table
from cspd_jax.models import early_fusion

_TIED = Must((False,), ': the output matrix is the token embedding then; save it a second time, '
             'as lm_head.weight, and set the field to false')
_OF_THE_TOKENIZER = Free('the image tokenizer is a network of its own')


def _image_tokens(preset: str, prefix: str, *, ordered: bool) -> Check:
  """Checks that the names of image tokens stand for the ids of the model.

  Args:
    preset: name of a published model with the ids.
    prefix: how the names of image tokens begin.
    ordered: whether the order of the names is that of the ids.
  """
  config = early_fusion.PRESETS[preset]
  first, count = config.first_code, config.num_codes

  def problem(value):
    if not isinstance(value, Mapping) or not all(type(id_) is int for id_ in value.values()):
      return f'{value!r:.80}; it must have the ids of tokens by their names'
    ids = [id_ for name, id_ in sorted(value.items()) if name.startswith(prefix)]
    if not ids or (ids if ordered else sorted(ids)) == list(range(first, first + count)):
      return None
    return (f'a vocabulary with {len(ids)} image tokens from {min(ids)} to {max(ids)}; they must '
            f'be {first} to {first + count - 1}' + (' in their order' if ordered else ''))

  return Check(problem)


def _transformers(rope_base: float) -> Table:
  """Fields that both families have."""
  return {
      **settings.COMMON, **settings.rope(rope_base),
      'vocab_size': Size('vocab_size'), 'hidden_size': Size('dim'),
      'intermediate_size': Size('ffn_dim'), 'num_hidden_layers': Size('num_layers'),
      'num_attention_heads': Size('num_heads'), 'num_key_value_heads': Size('num_kv_heads'),
      'head_dim': Size('head_dim'), 'rms_norm_eps': Size('norm_eps', float, 1e-5),
      'hidden_act': settings.SILU, 'attention_bias': settings.NO_BIAS,
      'mlp_bias': settings.NO_BIAS, 'tie_word_embeddings': _TIED,
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
    'mask_image_logits': Free('images are sampled without the mask, as the official programs do'),
}

_ARGUMENTS: Table = {
    'dim': Size('dim'), 'n_layers': Size('num_layers'), 'n_heads': Size('num_heads'),
    'n_kv_heads': Size('num_kv_heads'), 'vocab_size': Size('vocab_size'),
    'norm_eps': Size('norm_eps', float, 1e-5), **settings.rope(10000.0),
    'swin_norm': Size('swin_norm', bool, False), 'qk_normalization': Size('qk_norm', bool),
    'use_scaled_rope': Must((False,)), 'multiple_of': settings.OF_SHAPES,
    'ffn_dim_multiplier': settings.OF_SHAPES,
    'model_parallel_size': Free('files are counted, and joined'),
    '*': Free("Meta's program takes out the arguments of its network and leaves all others"),
}

CHAMELEON: Mapping[str, Table] = {
    'config.json': _CHAMELEON,
    'params.json': {**_ARGUMENTS, 'model': Part(_ARGUMENTS)},
    'consolidate_params.json': _ARGUMENTS,
}

_EMU3: Table = {
    **_transformers(1e6),
    'model_type': Must(('Emu3', 'emu3', 'emu3_text_model')),
    'vocabulary_map': _image_tokens('emu3_gen_8b', '<|visual token ', ordered=True),
    'img_token_id': Must((151851,)), 'boi_token_id': Must((151852,)),
    'eoi_token_id': Must((151853,)), 'eol_token_id': Must((151846,)),
    'eof_token_id': Must((151847,)),
    'image_area': Free('rows and columns of an image are given, and do not depend on weights'),
}

EMU3: Mapping[str, Table] = {'config.json': {**_EMU3, 'text_config': Part(_EMU3)}}

# What only these files tell, and how config.json writes it of the published models.
NEEDED = {'norm_eps': '"rms_norm_eps": 1e-05', 'rope_base': '"rope_theta": 10000.0',
          'swin_norm': '"swin_norm": false'}
NEEDED_EMU3 = {'norm_eps': '"rms_norm_eps": 1e-05', 'rope_base': '"rope_theta": 1000000.0',
               'num_heads': '"num_attention_heads": 32'}

