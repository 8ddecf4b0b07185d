"""Language models with codes added to their vocabulary, as transformers stores them.

SimpleAR (arXiv 2504.11455) is a Qwen2.5, Liquid (arXiv 2412.04332) a Gemma. Their embeddings may be
tied: without an output matrix in the file, the rows of the codes are the output matrix too. Gemma
multiplies embeddings by the root of their width and adds one to the scales of its norms; the
converted parameters contain both.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from checkpoints_conversion.rules import early_fusion, family, settings
from checkpoints_conversion.rules.base import Rule, Transform
from checkpoints_conversion.rules.settings import Free, Must
from cspd_jax.models.early_fusion import EarlyFusionConfig, order

_EMBEDDING, _OUTPUT = 'model.embed_tokens.weight', 'lm_head.weight'


def rules(config: EarlyFusionConfig, *, tied: bool, gemma: bool) -> list[Rule]:
  """Returns the rule table of a model, of a Gemma or not.

  If `tied`, the embeddings of the codes are the output matrix.
  """
  table = []
  for rule in early_fusion.rules(config, early_fusion.Format()):
    name = str(rule.source)
    if name == _EMBEDDING:
      output = ('transformer/output',) if tied else ()
      rule = Rule(name, (*rule.destinations, *output), _table(config, tied, gemma))
    elif gemma and name.endswith('norm.weight'):
      rule = rule._replace(transform=_SCALE)
    if not (tied and name == _OUTPUT):
      table.append(rule)
  return table


def _table(config: EarlyFusionConfig, tied: bool, gemma: bool) -> Transform:
  """Returns the transform of embeddings to the table of tokens and, if tied, the output matrix.

  Gemma rounds the root of the width to the dtype of its activations. That is bfloat16 for the
  published weights, and here the dtype of the file. The inverse divides, so it is exact only for
  tied codes.
  """
  ids, count = order(config), config.num_codes
  place = np.argsort(ids)
  factor = config.dim ** 0.5 if gemma else 1.0

  def forward(x):
    table = x[ids] * np.asarray(factor, x.dtype)
    return (table, x[ids[:count]].T) if tied else (table,)

  def inverse(table, *output):
    library = table.__array_namespace__()
    rows = table / np.asarray(factor, table.dtype)
    return library.concatenate([output[0].T, rows[count:]])[place] if tied else rows[place]

  return Transform(forward, inverse)


# Float32 preserves the digits of small numbers next to one; a dtype to store may round them.
_SCALE = Transform(lambda x: (x.astype(np.float32) + 1,), lambda x: x - 1)


def _infer(presets: Mapping[str, EarlyFusionConfig], shapes: family.Shapes,
           options: Mapping[str, Any]) -> EarlyFusionConfig:
  """Infers the sizes of a model, whose codes are the last tokens unless settings say otherwise."""
  preset = next(iter(presets))
  size, dim = family.shape(f'a transformer like {preset}', shapes, _EMBEDDING, 2)
  preset = next((name for name, config in presets.items() if config.dim == dim), preset)
  count = options.get('num_codes', presets[preset].num_codes)
  if size <= count:
    raise family.ConversionError(f'The file has {size} tokens; a transformer like {preset} has '
                                 f'{count} codes after those of text.')
  like = dataclasses.replace(
      presets[preset], vocab_size=size, num_codes=count,
      first_code=options.get('first_code', size - count))
  return early_fusion.infer_like(like, preset, shapes, options)


def of_presets(name: str, presets: Mapping[str, EarlyFusionConfig], *, fields: settings.Table,
               gemma: bool, **arguments: Any) -> family.FileFamily:
  """Returns the family of language models like some published ones, of a Gemma or not.

  The other arguments are those of `early_fusion.family_of`.
  """
  like = early_fusion.family_of(name, presets, fields={'config.json': fields}, **arguments)
  architectures = ['GemmaForCausalLM' if gemma else 'Qwen2ForCausalLM']
  untied = _variant(fields, gemma, {_OUTPUT: ()})
  return like._replace(
      rules=functools.partial(rules, tied=True, gemma=gemma),
      written=family.Written(
          files=settings.files(fields, architectures=architectures), forms=({}, {
              **untied, 'written': family.Written(files=settings.files(
                  fields, architectures=architectures, tie_word_embeddings=False))})),
      infer=functools.partial(_infer, presets),
      variant=functools.partial(_variant, fields, gemma),
      without_words=functools.partial(_first_code, name), leftovers=r'.*rotary_emb\.inv_freq',
      layout=lambda model: {name: ('.',), **arguments['others']}, shares={},
      sampling=lambda config: {'pictures': dict(arguments['sampling'])})


def _first_code(name: str, config: EarlyFusionConfig) -> str:
  return (f'assumed that the text tokenizer has {config.first_code} tokens, so that the last '
          f'{config.num_codes} of {config.vocab_size} rows are the codes; cspd-convert '
          f'--family={name}_text adds its file, and compares the numbers')


def _variant(fields: settings.Table, gemma: bool, shapes: family.Shapes) -> Mapping[str, Any]:
  if _OUTPUT not in shapes:
    return {}
  return {'rules': functools.partial(rules, tied=False, gemma=gemma),
          'settings': functools.partial(settings.read, {'config.json': {
              **fields, 'tie_word_embeddings': settings.OWN_OUTPUT}})}


_OF_READING = Free('images are generated, so the settings of networks that read them are not used')
_TIED = Must((True,), f': the file has no {_OUTPUT}, so its embeddings are the output matrix; '
             'download all of its parts')
_LLAVA = (
    'image_aspect_ratio image_grid_pinpoints image_crop_resolution image_split_resolution '
    'tokenizer_padding_side tokenizer_model_max_length mm_newline_position add_faster_video '
    'faster_token_stride add_time_instruction force_sample mm_spatial_pool_stride '
    'tune_mm_mlp_adapter tune_mm_vision_resampler freeze_mm_mlp_adapter '
    'freeze_mm_vision_resampler unfreeze_mm_vision_tower mm_tunable_parts mm_use_im_start_end '
    'mm_projector_lr mm_vision_tower_lr mm_use_im_patch_token')
SIMPLEAR_FIELDS: settings.Table = {
    **settings.llama(), **settings.WINDOWS, 'model_type': Must(('qwen2',)),
    'use_mrope': Must((False,)), 'tie_word_embeddings': _TIED._replace(default=False),
    # Its training program, derived from LLaVA's, writes these next to the fields of Qwen2.
    **dict.fromkeys(_LLAVA.split(), _OF_READING)}
LIQUID_FIELDS: settings.Table = {
    **settings.llama(), 'model_type': Must(('gemma',)),
    'attention_bias': settings.NO_BIAS, 'tie_word_embeddings': _TIED,
    # Gemma's first configuration states `gelu`; transformers computes its approximation by tanh.
    'hidden_act': Must(('gelu', 'gelu_pytorch_tanh')),
    'hidden_activation': Must(('gelu_pytorch_tanh',)),
    'use_bidirectional_attention': Must((False,))}

_COSMOS = 'Cosmos-1.0-Tokenizer-DV8x16x16'
# With the options of the official programs. Top-k of all codes changes nothing, so it is left out.
SIMPLEAR = of_presets(
    'simplear', early_fusion.named('simplear_1_5b', 'simplear_0_5b'), fields=SIMPLEAR_FIELDS,
    gemma=False,
    sampling={'guidance_scale': 6.0, 'temperature': 1.0, 'top_p': 1.0},
    others={'cosmos_dv': (_COSMOS, f'../{_COSMOS}'), 'simplear_text': ('tokenizer.json',)},
    # The default of the class is another number of heads than those of published models.
    needed={'norm_eps': '"rms_norm_eps": 1e-06', 'rope_base': '"rope_theta": 1000000.0',
            'num_heads': '"num_attention_heads": 14'})._replace(licence='MIT', hub={
                f'simplear_{size.replace(".", "_").lower()}': f'Daniel0724/SimpleAR-{size}-RL'
                for size in ('1.5B', '0.5B')})
LIQUID = of_presets(
    'liquid', early_fusion.named('liquid_7b'), fields=LIQUID_FIELDS, gemma=True,
    sampling={'guidance_scale': 7.0, 'temperature': 0.99, 'top_k': 4096, 'top_p': 0.96},
    others={'chameleon_vqgan': tuple(f'{folder}vqgan.ckpt' for folder in (
        '', 'chameleon/', '../', '../chameleon/')), 'liquid_text': ('tokenizer.json',)},
    needed={'norm_eps': '"rms_norm_eps": 1e-06', 'rope_base': '"rope_theta": 10000.0'})._replace(
        licence="MIT and Gemma's terms of use", hub={'liquid_7b': 'Junfeng5/Liquid_V1_7B'})
