"""MammothModa2's autoregressive part, `llm_model` of the published folders of Preview and Dev."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from checkpoints_conversion.rules import base, early_fusion as fusion_rules, family, settings, text
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule, Transform
from checkpoints_conversion.rules.settings import Free, Must, Part, Size, Sizes
from cspd_jax.core import fields
from cspd_jax.families.mammothmoda2 import FORMS
from cspd_jax.models import early_fusion
from cspd_jax.models.mammothmoda2 import CODE_PIXELS, PRESETS, MammothConfig

_TITLE = 'the autoregressive part of MammothModa2'
_MODEL = 'llm_model.model.language_model.'
_TEXT_TABLE, _IMAGE_TABLE = f'{_MODEL}embed_tokens.weight', f'{_MODEL}gen_embed_tokens.weight'
_LAYER, _OUTPUT = f'{_MODEL}layers.{{i}}.', 'llm_model.gen_head.weight'
_GENERATION = 't2i_generation_config.json'
_PREVIEW, _DEV = PRESETS


def rules(config: MammothConfig) -> list[Rule]:
  """Returns the rule table of a model."""
  assert config.num_kv_heads is not None  # Set in its `__post_init__`.
  ours = 'transformer/layers_{i}/'
  return [
      Rule((_TEXT_TABLE, _IMAGE_TABLE), ('transformer/token_embedding',), _tables(config)),
      *base.llama_layer(_LAYER, ours, config.num_heads, config.num_kv_heads),
      *(Rule(f'{_LAYER}gen_mlp.{name}_proj.weight', (f'{ours}image_{name}',), MATRIX)
        for name in ('gate', 'up', 'down')),
      *(Rule(f'{_LAYER}self_attn.{name[0]}_norm.weight', (f'{ours}{name}_rms/scale',),
             base.separate_shared_norm(halves=True)) for name in ('query', 'key')),
      Rule(f'{_MODEL}norm.weight', ('transformer/norm/scale',), KEEP),
      Rule(_OUTPUT, ('transformer/output',), base.only_rows(
          config.first_code - config.text_size, config.num_codes, config.image_vocab_size))]


def _tables(config: MammothConfig) -> Transform:
  """Returns the transform of the tables of text and of images to one, in this library's order."""
  joined, size = base.reorder(early_fusion.order(config)), config.text_size

  def inverse(table):
    rows = joined.inverse(table)
    return rows[:size], rows[size:]

  return Transform(lambda *tables: joined.forward(np.concatenate(tables)), inverse)


def _infer(shapes: family.Shapes, options: Mapping[str, Any]) -> MammothConfig:
  shape = functools.partial(family.shape, _TITLE, shapes)
  text_size, _ = shape(_TEXT_TABLE, 2)
  preset = _DEV if f'{_LAYER.format(i=0)}self_attn.q_norm.weight' in shapes else _PREVIEW
  like = dataclasses.replace(
      PRESETS[preset], vocab_size=text_size + shape(_IMAGE_TABLE, 2)[0], text_size=text_size,
      **{name: options[name] for name in ('first_code', 'row_end', 'image_layers')
         if name in options})
  return fusion_rules.infer_like(
      like, preset, {name.replace(_MODEL, 'model.'): size for name, size in shapes.items()},
      options)


def _image_layers(value: Any) -> Mapping[str, Any] | str:
  """Reads the layers with a second feed-forward network, such as `ffn-14:28`; `ffn` is all."""
  match = re.fullmatch(r'ffn(?:-(\d{1,3}):(\d{1,3}))?', str(value))
  if match is None:
    return (f'{value!r:.80}; it must be ffn or a range of layers such as ffn-14:28, because '
            'attention is the same for text and images here')
  return {'image_layers': (int(match[1] or 0), int(match[2] or fields.MOST_LAYERS))}


def _is_dev(suffix: str = '') -> Sizes:
  names = f'mammothmoda2_qwen2_5_vl{suffix}', f'mammothmoda2_qwen3_vl{suffix}'
  return Sizes(lambda value: {'qk_rms_norm': value == names[1]} if value in names else
               f'{value!r:.80}; it must be {" or ".join(names)}')


_OF_PIXELS = Free('the diffusion program reads it')
_OF_READING = Free('images are generated from words, so the network that reads them is not '
                   'converted')
_PLAIN = Free('without an image in the prompt all axes of the rotation are the same')
_ANGLES: settings.Table = {
    'rope_type': Must(('default',)), 'type': Must(('mrope', 'default')),
    'mrope_section': _PLAIN, 'mrope_interleaved': _PLAIN}
# The defaults of the published classes are sizes of other models, so that none is used.
_TEXT: settings.Table = {
    **settings.llama(), **settings.WINDOWS, **settings.NO_BIASES,
    'model_type': _is_dev('_text'), 'rms_norm_eps': Size('norm_eps', float),
    'rope_theta': Size('rope_base', float), 'rope_scaling': Part(_ANGLES),
    'vocab_size': Size('text_size'), 'gen_vocab_start_index': Size('text_size'),
    'gen_vocab_size': Size('image_vocab_size'), 'extra_gen_vocab': Must((True,)),
    'moe_type': Sizes(_image_layers), 'tie_word_embeddings': settings.OWN_OUTPUT,
    **dict.fromkeys(('video_token_id', 'vision_start_token_id', 'vision_end_token_id',
                     'vision_token_id'), _OF_READING)}
FIELDS: settings.Table = {
    **settings.COMMON, 'model_type': Must(('mammothmoda2',)),
    'llm_config': Part({
        'text_config': Part(_TEXT), **_TEXT, 'model_type': _is_dev(),
        'vision_config': _OF_READING}),
    **dict.fromkeys((
        'gen_vae_config', 'gen_dit_config', 'gen_condition_mode', 'gen_condition_layers',
        'gen_image_condition_refiner_config', 'gen_text_condition_with_answer',
        'gen_axes_dim_rope', 'gen_axes_lens', 'gen_transport_config'), _OF_PIXELS)}
GENERATION: settings.Table = {
    'eol_token_id': Size('row_end'), 'visual_token_start_id': Size('first_code'),
    'visual_token_end_id': Size('end'),
    'repetition_penalty': Must((1.0,), ', because another one depends on the tokens before'),
    '*': Free('the official loop reads no other field that changes the networks')}


def _settings(contents: settings.Contents) -> dict[str, Any]:
  """Reads the sizes; the end of the codes is the id of the last one, or the id behind it."""
  sizes = settings.read({'config.json': FIELDS, _GENERATION: GENERATION}, contents)
  count, end = PRESETS[_PREVIEW].num_codes, sizes.pop('end', None)
  if end is not None and end - sizes.get('first_code', end) not in (count - 1, count):
    settings.refuse([f'{_GENERATION}: visual_token_end_id is {end}; it must be {count} behind '
                     f'visual_token_start_id, as many as the image tokenizer has codes'])
  return sizes


def _defaults(contents: settings.Contents) -> dict[str, Any]:
  """Returns the sampling options that the file of the official loop states."""
  content = contents.get(_GENERATION, {})
  found = {name: content[name] for name in ('temperature', 'top_k', 'top_p')
           if content.get(name) is not None}
  return found | ({'temperature': 0.0} if content.get('do_sample') is False else {})


def _files(config: MammothConfig, others: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings next to the weights of a network, which `_settings` reads."""
  content = settings.write(FIELDS, config, architectures=['Mammothmoda2Model'])
  kind = 'mammothmoda2_qwen3_vl' if config.qk_rms_norm else 'mammothmoda2_qwen2_5_vl'
  first, stop = config.image_layers
  every = first == 0 and stop >= config.num_layers
  experts = {'moe_type': 'ffn' if every else f'ffn-{first}:{stop}'}
  llm = content['llm_config']
  content['llm_config'] = llm | experts | {'model_type': kind, 'text_config': (
      llm['text_config'] | experts | {'model_type': f'{kind}_text'})}
  return {'config.json': content, _GENERATION: {
      'eol_token_id': config.row_end, 'visual_token_start_id': config.first_code,
      'visual_token_end_id': config.first_code + config.num_codes}}


FAMILY = family.FileFamily(
    name='mammothmoda2', title=_TITLE, kind='mammothmoda2', rules=rules, infer=_infer,
    presets=PRESETS, options={
        'height': 'Rows of codes of an image.', 'width': 'Codes of a row of an image.',
        **family.NUM_HEADS},
    settings=_settings, defaults=_defaults,
    needed={'num_heads': '"num_attention_heads": 28', 'norm_eps': '"rms_norm_eps": 1e-06',
            'rope_base': '"rope_theta": 1000000.0', 'image_layers': '"moe_type": "ffn-14:28"'},
    assumed=lambda config, specified: family.assumed_grid(config, specified, CODE_PIXELS),
    # The head of text, and the networks that read images and draw pixels.
    leftovers=r'llm_model\.(lm_head|model\.visual)\..*|gen_(transformer|vae|tokenizer)\..*|'
              r'gen_image_condition_refiner\..*|.*rotary_emb\..*inv_freq',
    model='mammothmoda2',
    # The official examples, and the vocabulary to sample from as vllm-omni cuts it.
    sampling=lambda config: {'pictures': {
        'guidance_scale': 7.0, 'temperature': 1.0, 'top_k': 2048, 'top_p': 1.0}},
    layout=lambda model: {'mammothmoda2': ('.',), 'mammothmoda2_text': ('mammothu.tiktoken',)},
    written=family.Written(files=_files, lines=lambda config: [
        'the files hold the part that draws tokens, without lm_head and without the networks that '
        'read images and draw pixels, which the published folder has']),
    licence='Apache-2.0', hub={
        _PREVIEW: 'bytedance-research/MammothModa2-Preview',
        _DEV: 'bytedance-research/MammothModa2-Dev'})


def _form(contents: settings.Contents) -> dict[str, str]:
  """Reads from the chat template which side of a grid prompts state first, if it says so."""
  templates = (contents[name].get('chat_template') for name in (
      'chat_template.jinja', 'chat_template.json', 'tokenizer_config.json') if name in contents)
  _, start, rest = next((str(one) for one in templates if one), '').rpartition('<|image start|>')
  side = re.search(r'\bar_(width|height)\b', rest)
  return {'form': FORMS[1 + (side[1] == 'height')]} if start and side else {}


TEXT = text.of_form(FORMS[0], 'mammothmoda2')._replace(
    settings=_form, written=family.Written(lines=lambda config: [
        'the file ends with mammothu_vision_tokens.txt, so that cspd-convert alone reads it']),
    infer=lambda shapes, options: text.infer(options.get('form', FORMS[0]), shapes, {}),
    assumed=lambda config, specified: [] if 'form' in specified else [
        'assumed square grids, because no chat template beside the file states with ar_width and '
        'ar_height, behind <|image start|>, which side of a grid is first'])
