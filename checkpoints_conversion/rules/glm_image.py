"""GLM-Image's autoregressive part, as transformers stores it in `vision_language_encoder`."""

import functools
from collections.abc import Collection, Mapping
from typing import Any

from checkpoints_conversion.rules import base, family, settings
from checkpoints_conversion.rules.base import KEEP, Rule, Transform
from checkpoints_conversion.rules.settings import Free, Must, Part, Size
from cspd_jax.models.glm_image import CODE_PIXELS, PRESETS, GlmImageConfig, order

_TITLE = 'the autoregressive part of GLM-Image'
_MODEL = 'model.language_model.'
_EMBEDDING, _OUTPUT = f'{_MODEL}embed_tokens.weight', 'lm_head.weight'
_LAYER = f'{_MODEL}layers.{{i}}.'
# The folder of a repository with the weights, and parts of names in its other folders of weights.
_FOLDER = 'vision_language_encoder'
_OTHERS = {'transformer_blocks.': 'transformer, the diffusion decoder', 'decoder.up_blocks.': 'vae',
           'encoder.block.': 'text_encoder'}


def rules(config: GlmImageConfig) -> list[Rule]:
  """Returns the rule table of a model."""
  assert config.num_kv_heads is not None  # Set in its `__post_init__`.
  ours = 'transformer/layers_{i}/'
  layer = [rule for rule in base.llama_layer(
      _LAYER, ours, config.num_heads, config.num_kv_heads, rotary=2 * sum(config.sections))
           if not rule.destinations[0].endswith(('gate', 'up'))]
  return [
      Rule(_EMBEDDING, ('transformer/token_embedding',), base.reorder(order(config))), *layer,
      Rule(f'{_LAYER}mlp.gate_up_proj.weight', (f'{ours}gate', f'{ours}up'), _GATE_AND_UP),
      *(Rule(f'{_LAYER}{name}.weight', (f'{ours}{norm}/scale',), KEEP) for name, norm in (
          ('post_self_attn_layernorm', 'attention_post_norm'),
          ('post_mlp_layernorm', 'ffn_post_norm'))),
      Rule(f'{_MODEL}norm.weight', ('transformer/norm/scale',), KEEP),
      Rule(_OUTPUT, ('transformer/output',),
           base.only_rows(0, config.num_codes, config.output_size))]


# `[2 F, D]`, the gate first, to two matrices `[D, F]`.
_GATE_AND_UP = Transform(
    lambda x: (x[:len(x) // 2].T, x[len(x) // 2:].T),
    lambda gate, up: gate.__array_namespace__().concatenate([gate.T, up.T]))


def _variant(shapes: family.Shapes) -> Mapping[str, Any]:
  """Changes nothing; raises ConversionError for the other folders of a repository, by name."""
  if _EMBEDDING not in shapes:
    for part, folder in _OTHERS.items():
      if any(name.startswith(part) for name in shapes):
        raise family.ConversionError(
            f'The file is from the folder {folder}, which draws no tokens; the source is '
            f'the folder {_FOLDER}, or the one that holds both.')
  return {}


def _infer(shapes: family.Shapes, options: Mapping[str, Any]) -> GlmImageConfig:
  shape = functools.partial(family.shape, _TITLE, shapes)
  vocab_size, dim = shape(_EMBEDDING, 2)
  layer = _LAYER.format(i=0)
  width = shape(f'{layer}self_attn.q_proj.weight', 2)[0]
  num_heads = family.num_heads(options, PRESETS.values(), dim, width=width)
  pattern = _LAYER.replace('.', r'\.').format(i=r'(\d+)')
  specified = ('height', 'width', 'rope_base', 'norm_eps', 'sections', 'num_codes', 'image_end')
  return GlmImageConfig(
      vocab_size=vocab_size, dim=dim, num_heads=num_heads, output_size=shape(_OUTPUT, 2)[0],
      num_layers=family.count(shapes, rf'{pattern}self_attn\.q_proj\.weight'),
      num_kv_heads=shape(f'{layer}self_attn.k_proj.weight', 2)[0] // (width // num_heads),
      ffn_dim=shape(f'{layer}mlp.down_proj.weight', 2)[1],
      qkv_bias=f'{layer}self_attn.q_proj.bias' in shapes,
      **{name: options[name] for name in specified if name in options})


def _assumed(config: GlmImageConfig, specified: Collection[str]) -> list[str]:
  return [*family.assumed_heads(config, specified),
          *family.assumed_grid(config, specified, CODE_PIXELS)]


_OF_READING = Free('images are generated from words, so the networks that read them are not '
                   'converted')
_ANGLES: settings.Table = {
    'rope_theta': Size('rope_base', float, 10000.0), 'rope_type': Must(('default',)),
    'partial_rotary_factor': Size('rotary_factor', float, 1.0),
    'mrope_section': Size('sections', tuple, (8, 12, 12))}
_TEXT: settings.Table = {
    **settings.llama(1e-5), 'model_type': Must(('glm_image_text',)),
    'attention_bias': Size('qkv_bias', bool, True), 'vision_vocab_size': Size('output_size'),
    'rope_parameters': Part(_ANGLES), 'tie_word_embeddings': settings.OWN_OUTPUT,
    # Earlier names of the rotation, of which no published file of this model has any.
    **dict.fromkeys(('rope_theta', 'rope_scaling', 'partial_rotary_factor'), Must(()))}
FIELDS: settings.Table = {
    **settings.COMMON, 'model_type': Must(('glm_image',)), 'text_config': Part(_TEXT),
    'image_start_token_id': Size('image_start', int, 16384),
    'image_end_token_id': Size('image_end', int, 16385),
    'tie_word_embeddings': settings.OWN_OUTPUT,
    'vision_config': Part({
        **settings.COMMON, 'model_type': Must(('glm_image_vision',)), '*': _OF_READING}),
    'vq_config': Part({
        **settings.COMMON, 'model_type': Must(('glm_image_vqmodel',)),
        'num_embeddings': Size('num_codes'),
        **dict.fromkeys(('embed_dim', 'latent_channels', 'in_channels'), _OF_READING)})}

FAMILY = family.FileFamily(
    name='glm_image', title=_TITLE, kind='glm_image', rules=rules, infer=_infer, presets=PRESETS,
    options={'height': 'Rows of codes of an image.', 'width': 'Codes of a row of an image.',
             **family.NUM_HEADS},
    variant=_variant, settings=functools.partial(settings.read, {'config.json': FIELDS}),
    needed={'norm_eps': '"rms_norm_eps": 1e-05', 'rope_base': '"rope_theta": 10000.0'},
    assumed=_assumed,
    # The networks that read images, for editing.
    leftovers=r'model\.(visual|vqmodel)\..*|.*rotary_emb\..*inv_freq', model='glm_image',
    # As its authors' servers and generation_config.json are said to sample; there is no guidance.
    sampling=lambda config: {'pictures': {'temperature': 0.9, 'top_p': 0.75}},
    layout=lambda model: {
        'glm_image': (_FOLDER, '.'), 'glm_image_text': (
            'processor/tokenizer.json', '../processor/tokenizer.json', 'tokenizer.json')},
    written=family.Written(files=settings.files(
        FIELDS, architectures=['GlmImageForConditionalGeneration'])),
    elsewhere=('transformer/*', 'vae/*', 'text_encoder/*'), licence='MIT',
    hub={'glm_image_9b': 'zai-org/GLM-Image'})
