"""Janus-Pro (arXiv 2501.17811), transformer and image tokenizer, as DeepSeek and transformers
publish them."""

import functools
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkpoints_conversion.rules import base, family, settings, vq
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule, Transform
from checkpoints_conversion.rules.settings import Free, Must, Part, Size
from cspd_jax.core.tracing import is_concrete
from cspd_jax.models.janus import PRESETS, JanusConfig
from cspd_jax.models.vq import VQConfig

_TITLE, _TITLE_VQ = 'a Janus-Pro model', 'the image tokenizer of Janus-Pro'
# Parts of names, DeepSeek's and those of transformers.
_NAMES = (
    ('language_model.model.', 'model.language_model.'),
    ('gen_embed.', 'model.generation_embeddings.'),
    ('gen_aligner.layers.0.', 'model.generation_aligner.fc1.'),
    ('gen_aligner.layers.2.', 'model.generation_aligner.hidden_layers.0.'),
    ('gen_head.output_mlp_projector.', 'model.generation_head.proj_out.'),
    ('gen_head.vision_head.', 'model.generation_head.vision_head.'))
# Prefixes of the image tokenizer: DeepSeek's, with names of LlamaGen, and that of transformers.
_VQ, _VQ_OF_TRANSFORMERS = 'gen_vision_model.', 'model.vqmodel.'
_EMBEDDING = 'language_model.model.embed_tokens.weight'
_CODES = ('gen_embed.weight', *(f'gen_aligner.layers.{layer}.{name}' for layer in (0, 2)
                                for name in ('weight', 'bias')))
# Numbers of the vector of a code, in both published models.
_CODE_DIM = 8

_of_transformers = functools.partial(base.replaced, parts=_NAMES)


def _in_deepseek(shapes: family.Shapes) -> family.Shapes:
  return {base.replaced(name, _NAMES, backwards=True): shape for name, shape in shapes.items()}


def rules(config: JanusConfig, code_dim: int = _CODE_DIM, is_transformers: bool = False
          ) -> list[Rule]:
  """Returns the rule table of a model, with names of transformers or DeepSeek's.

  The vector of a code has `code_dim` numbers.
  """
  assert config.num_kv_heads is not None  # Set in its `__post_init__`.
  table = [
      Rule((*_CODES, _EMBEDDING), ('transformer/token_embedding',), _table(config, code_dim)),
      *base.llama_layer('language_model.model.layers.{i}.', 'transformer/layers_{i}/',
                        config.num_heads, config.num_kv_heads),
      Rule('language_model.model.norm.weight', ('transformer/norm/scale',), KEEP),
      *base.layer('gen_head.output_mlp_projector', 'head/hidden', MATRIX),
      *base.layer('gen_head.vision_head', 'head', MATRIX)]
  return base.renamed(table, _of_transformers) if is_transformers else table


def _table(config: JanusConfig, code_dim: int) -> Transform:
  """Returns the transform of the embeddings of codes and of text to one table of tokens.

  The vectors of codes go through their network in float32, and the result is rounded once, to the
  dtype of the table of text. The vectors cannot be restored: the inverse gives the shapes of their
  tensors, and no numbers.
  """
  def forward(*tensors):
    *codes, text = tensors
    image = _aligned(*(np.asarray(x, np.float32) for x in codes))
    return (np.concatenate([np.asarray(image).astype(text.dtype), text]),)

  def inverse(table):
    if is_concrete(table):
      raise ValueError('the table of tokens holds computed embeddings of codes, from which the '
                       'published tensors do not follow; use the published files.')
    size, dim = config.num_codes, config.dim
    shapes = (size, code_dim), (dim, code_dim), (dim,), (dim, dim), (dim,)
    return (*(jnp.zeros(shape, table.dtype) for shape in shapes), table[size:])

  return Transform(forward, inverse)


@jax.jit
def _aligned(codes, weight, bias, weight_2, bias_2):
  """Returns the embeddings `[V, D]` of the vectors `[V, N]` of codes."""
  with jax.default_matmul_precision('highest'):
    hidden = jax.nn.gelu(codes @ weight.T + bias, approximate=False)
    return hidden @ weight_2.T + bias_2


def _variant(shapes: family.Shapes) -> Mapping[str, Any]:
  codes = _in_deepseek(shapes).get('gen_embed.weight', ())
  return {'rules': functools.partial(
      rules, code_dim=codes[-1] if codes else _CODE_DIM,
      is_transformers=_of_transformers('gen_embed.weight') in shapes)}


def _infer(shapes: family.Shapes, options: Mapping[str, Any]) -> JanusConfig:
  shapes = _in_deepseek(shapes)
  shape = functools.partial(family.shape, _TITLE, shapes)
  text_size, dim = shape(_EMBEDDING, 2)
  num_heads = family.num_heads(options, PRESETS.values(), dim)
  layer = 'language_model.model.layers.0.'
  return JanusConfig(
      num_codes=shape('gen_embed.weight', 2)[0], text_size=text_size, dim=dim, num_heads=num_heads,
      num_layers=family.count(
          shapes, r'language_model\.model\.layers\.(\d+)\.self_attn\.q_proj\.weight'),
      num_kv_heads=shape(f'{layer}self_attn.k_proj.weight', 2)[0] // (dim // num_heads),
      ffn_dim=shape(f'{layer}mlp.gate_proj.weight', 2)[0],
      output_dim=shape('gen_head.vision_head.weight', 2)[1],
      **{name: options[name] for name in ('rope_base', 'norm_eps') if name in options})


_UNDERSTANDING = Free('images are generated, so the networks that read them are not converted')
_OF_TEXT = Free('the output matrix of text is not converted')
_LLAMA: settings.Table = {
    **settings.llama(), **settings.NO_BIASES, 'model_type': Must(('llama',)),
    'vocab_size': Size('text_size'),
    # Absent in the published file of the larger model.
    'num_attention_heads': Size('num_heads', int, 32), 'tie_word_embeddings': _OF_TEXT}
# DeepSeek's description of a network: its class, and the arguments of this class.
_PARAMS: Mapping[str, tuple[str, settings.Table]] = {
    'gen_aligner_config': ('MlpProjector', {
        'projector_type': Must(('mlp_gelu',)), 'depth': Must((2,), default=1),
        'input_dim': settings.OF_SHAPES, 'n_embed': Size('dim')}),
    'gen_head_config': ('vision_head', {
        'image_token_embed': Size('output_dim'), 'image_token_size': Size('num_codes'),
        'n_embed': Size('dim')}),
    'gen_vision_config': ('VQ-16', {
        'image_token_size': Size('num_codes'), 'n_embed': settings.OF_SHAPES})}
_BOTH: settings.Table = {
    **settings.COMMON, 'model_type': Must(('multi_modality', 'janus')),
    'aligner_config': _UNDERSTANDING, 'tie_word_embeddings': _OF_TEXT}


def _params(name: str, fields: settings.Table) -> Part:
  return Part({**settings.COMMON, 'model_type': Must((name.removesuffix('_config'),)),
               'cls': Must((_PARAMS[name][0],)), 'params': Part(fields)})


# The grid of an image in transformers, which is that of the published models.
_GRID: settings.Table = {'image_size': Must((384,)), 'patch_size': Must((16,)),
                         'num_image_tokens': Must((576,)), '*': _UNDERSTANDING}
_CONVERTED_ELSEWHERE = Free('the image tokenizer is another network')
_NUM_PATCHES = Must((24,), ', the rows and columns of published images', default=32)
FIELDS: settings.Table = {
    **_BOTH, 'language_config': Part(_LLAMA), 'text_config': Part(_LLAMA),
    **{name: _params(name, fields) for name, (_, fields) in _PARAMS.items()},
    'vision_config': Part(_GRID),
    'vq_config': Part({
        **settings.COMMON, **dict.fromkeys(
            (*settings.VQGAN, 'embed_dim', 'beta'), _CONVERTED_ELSEWHERE),
        'model_type': Must(('janus_vqgan',)), 'num_embeddings': Size('num_codes'),
        'num_patches': _NUM_PATCHES, 'projection_dim': Size('dim'),
        'image_token_embed_dim': Size('dim'), 'num_hidden_layers': Must((2,)), 'depth': Must((2,)),
        'hidden_act': Must(('gelu',))})}
_NEEDED = {'num_heads': '"num_attention_heads": 16', 'norm_eps': '"rms_norm_eps": 1e-06',
           'rope_base': '"rope_theta": 10000.0'}

FAMILY = family.FileFamily(
    name='janus_pro', title=_TITLE, kind='janus', rules=rules, infer=_infer, presets=PRESETS,
    options=family.NUM_HEADS, variant=_variant,
    settings=functools.partial(settings.read, {'config.json': FIELDS}), needed=_NEEDED,
    # The networks that read images, the output matrix of text and the image tokenizer.
    leftovers=r'(model\.)?(vision_model|aligner|vqmodel)\..*|gen_vision_model\..*|'
              r'(language_model\.)?lm_head\.weight|.*rotary_emb\.inv_freq',
    model='janus_pro',
    sampling=lambda config: {'pictures': {
        'guidance_scale': 5.0, 'temperature': 1.0, 'top_p': 1.0}},
    # The file of transformers or DeepSeek's, of which the names are for downloads.
    layout=lambda model: {
        'janus_pro': ('.', 'pytorch_model*.bin', 'pytorch_model.bin.index.json'),
        'janus_pro_vq': ('.',), 'janus_pro_text': ('tokenizer.json',)},
    licence='DeepSeek License Agreement 1.0',
    hub={f'janus_pro_{size}b': f'deepseek-community/Janus-Pro-{size}B' for size in (1, 7)})


def _vq_rules(config: VQConfig, is_transformers: bool = False) -> list[Rule]:
  prefix = _VQ_OF_TRANSFORMERS if is_transformers else _VQ
  name = vq.taming_name if is_transformers else str
  return base.renamed(vq.rules(config), lambda source: prefix + name(source))


def _vq_infer(shapes: family.Shapes, options: Mapping[str, Any]) -> VQConfig:
  return vq.infer({name.removeprefix(prefix): shape for prefix in (_VQ, _VQ_OF_TRANSFORMERS)
                   for name, shape in shapes.items() if name.startswith(prefix)}, options)


_CODEBOOK: settings.Table = {
    'image_token_size': Size('codebook_size'), 'n_embed': Size('codebook_dim')}
_OF_THE_HEAD = Free('the target, which is another network, has this layer')
VQ_FIELDS: settings.Table = {
    **dict.fromkeys(FIELDS, Free('it describes another network')), 'quantization_config':
    settings.COMMON['quantization_config'], 'model_type': _BOTH['model_type'],
    'gen_vision_config': _params('gen_vision_config', _CODEBOOK),
    'vq_config': Part({
        **settings.COMMON, **settings.VQGAN, 'model_type': Must(('janus_vqgan',)),
        'embed_dim': Size('codebook_dim'), 'num_embeddings': Size('codebook_size'),
        'num_patches': _NUM_PATCHES,
        'beta': settings.COMMON['initializer_range'],
        **dict.fromkeys(('projection_dim', 'image_token_embed_dim', 'num_hidden_layers', 'depth',
                         'hidden_act'), _OF_THE_HEAD)})}
VQ = family.FileFamily(
    name='janus_pro_vq', title=_TITLE_VQ, kind='vq', rules=_vq_rules, infer=_vq_infer,
    presets={'vq_16': VQConfig()},
    variant=lambda shapes: {'rules': functools.partial(_vq_rules, is_transformers=any(
        name.startswith(_VQ_OF_TRANSFORMERS) for name in shapes))},
    settings=functools.partial(settings.read, {'config.json': VQ_FIELDS}),
    # Everything outside the image tokenizer, and a count of the uses of codes.
    leftovers=rf'(?!{re.escape(_VQ)}|{re.escape(_VQ_OF_TRANSFORMERS)}).*|'
              rf'{re.escape(_VQ)}quantize\.codebook_used',
    model='janus_pro')
