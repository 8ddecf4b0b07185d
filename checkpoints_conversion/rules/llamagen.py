"""LlamaGen's transformers, class- and text-conditional (arXiv 2406.06525)."""

import functools
from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import base, family, settings
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule
from checkpoints_conversion.rules.settings import Free, Size
from cspd_jax.models.llamagen import PRESETS, LlamaGenConfig

_TITLE = 'a LlamaGen transformer'
# Guidance scales of the official evaluation of class-conditional models, by width and depth.
_FID_SCALES = {(768, 12): 2.0, (1024, 24): 2.0, (1280, 36): 1.75, (1536, 48): 1.75,
               (3200, 24): 1.65}


# The arguments of the official class, which the folders of the hub and modules in memory have.
FIELDS: settings.Table = {
    'dim': Size('dim'), 'n_layer': Size('num_layers'), 'n_head': Size('num_heads'),
    'n_kv_head': Size('num_kv_heads'), 'vocab_size': Size('vocab_size'),
    'rope_base': Size('rope_base', float), 'norm_eps': Size('norm_eps', float),
    'num_classes': Size('num_classes'), 'caption_dim': Size('caption_dim'),
    'cls_token_num': Size('num_condition_tokens'), 'block_size': Size('num_tokens'),
    **dict.fromkeys(('model_type', 'multiple_of', 'ffn_dim_multiplier'), settings.OF_SHAPES),
    **dict.fromkeys((
        'initializer_range', 'token_dropout_p', 'attn_dropout_p', 'resid_dropout_p',
        'ffn_dropout_p', 'drop_path_rate', 'class_dropout_prob', 'max_batch_size', 'max_seq_len'),
        Free('only training and the caches of the official program use it'))}


def layers(num_heads: int, num_kv_heads: int) -> list[Rule]:
  """Returns the rules of the transformer, with its table of tokens and its output matrix."""
  ours, published = 'transformer/layers_{i}/', 'layers.{i}.'
  return [
      Rule('tok_embeddings.weight', ('transformer/token_embedding',), KEEP),
      Rule(published + 'attention_norm.weight', (ours + 'attention_norm/scale',), KEEP),
      Rule(published + 'attention.wqkv.weight', (ours + 'query', ours + 'key', ours + 'value'),
           base.split_heads(num_heads, num_kv_heads)),
      Rule(published + 'attention.wo.weight', (ours + 'out',), base.join_heads(num_heads)),
      Rule(published + 'ffn_norm.weight', (ours + 'ffn_norm/scale',), KEEP),
      *(Rule(f'{published}feed_forward.{name}.weight', (ours + parameter,), MATRIX)
        for name, parameter in (('w1', 'gate'), ('w3', 'up'), ('w2', 'down'))),
      Rule('norm.weight', ('transformer/norm/scale',), KEEP),
      Rule('output.weight', ('transformer/output',), MATRIX)]


def _rules(config: LlamaGenConfig) -> list[Rule]:
  return [
      *layers(config.transformer.num_heads, config.transformer.num_kv_heads),
      # Of class-conditional models, and of text-conditional ones.
      Rule('cls_embedding.embedding_table.weight', ('label_embedding',), KEEP),
      Rule('cls_embedding.uncond_embedding', ('null_caption',), KEEP),
      Rule('cls_embedding.cap_proj.fc1.weight', ('caption_in',), MATRIX),
      Rule('cls_embedding.cap_proj.fc2.weight', ('caption_out',), MATRIX)]


def _infer(shapes: family.Shapes, options: Mapping[str, Any]) -> LlamaGenConfig:
  shape = functools.partial(family.shape, _TITLE, shapes)
  vocab_size, dim = shape('tok_embeddings.weight', 2)
  num_layers = family.count(shapes, r'layers\.(\d+)\.attention\.wqkv\.weight')
  fused = shape('layers.0.attention.wqkv.weight', 2)[0]
  ffn_dim = shape('layers.0.feed_forward.w1.weight', 2)[0]
  num_heads, side = family.determined(
      lambda: family.num_heads(options, PRESETS.values(), dim, num_layers),
      lambda: family.tokens_per_side(options))
  others = {name: options[name] for name in ('rope_base', 'norm_eps', 'num_classes', 'caption_dim')
            if name in options}
  if 'cls_embedding.uncond_embedding' in shapes:
    others |= dict(conditioning='text', caption_dim=shape('cls_embedding.uncond_embedding', 2)[1])
  else:
    table = shape('cls_embedding.embedding_table.weight', 2)
    others |= dict(conditioning='class', num_classes=table[0] - 1)
  return LlamaGenConfig(
      height=side, width=side, dim=dim, num_layers=num_layers, num_heads=num_heads,
      num_kv_heads=(fused - dim) // (2 * (dim // num_heads)), ffn_dim=ffn_dim,
      vocab_size=vocab_size, **others)


def _sampling(config: LlamaGenConfig) -> Mapping[str, family.Defaults]:
  # Those of the demonstrations, and those of the published FID; both guide every token.
  plain = {'temperature': 1.0, 'top_p': 1.0}
  if config.conditioning == 'text':
    return {'pictures': {'guidance_scale': 7.5, 'top_k': 1000, **plain}}
  presets = {'pictures': {'guidance_scale': 4.0, 'top_k': 2000, **plain}}
  if scale := _FID_SCALES.get((config.dim, config.num_layers)):
    presets['fid'] = {'guidance_scale': scale, 'top_k': 0, **plain}
  return presets


def _layout(model: str | None) -> Mapping[str, tuple[str, ...]]:
  """Returns where the official programs expect the files of a model."""
  if model not in PRESETS:
    return {}
  form, size, pixels = model.split('_')
  stage = f'stage{1 if pixels == "256" else 2}_' if form == 't2i' else ''
  encoders = ('t5-ckpt/flan-t5-xl', 'flan-t5-xl', '../flan-t5-xl')
  return {
      'llamagen': (f'{form}_{size.upper()}_{stage}{pixels}.pt',),
      'llamagen_vq': (f'vq_ds16_{form}.pt',),
      **({'t5': encoders, 't5_text': tuple(f'{folder}/tokenizer.json' for folder in encoders)}
         if form == 't2i' else {})}


def _arguments(config: LlamaGenConfig) -> list[str]:
  """Returns a line with the arguments of the official class, which no file holds."""
  content = settings.write(FIELDS, config, num_tokens=None)
  # The class multiplies the width by 8/3 and rounds up to a multiple.
  usual = 8 * config.dim // 3
  if usual > (config.ffn_dim or 0):
    content['ffn_dim_multiplier'] = (config.ffn_dim or 0) / usual
  content |= {'multiple_of': config.ffn_dim,
              'model_type': 'c2i' if config.conditioning == 'class' else 't2i'}
  arguments = ', '.join(f'{name}={value!r}' for name, value in content.items())
  return [f'the official class is GPT(ModelArgs({arguments}))']


FAMILY = family.FileFamily(
    name='llamagen', title=_TITLE, kind='llamagen', rules=_rules, infer=_infer, presets=PRESETS,
    options=family.IMAGE_SIZE | family.NUM_HEADS, assumed=family.assumed_heads,
    settings=functools.partial(settings.read, {'config.json': FIELDS}),
    leftovers=r'(.*\.)?(freqs_cis|causal_mask|kv_cache\.[kv]_cache)',
    model='llamagen', sampling=_sampling, layout=_layout, licence='MIT',
    written=family.Written('.pt', ('model',), lines=_arguments),
    hub={name: 'FoundationVision/LlamaGen' if name.startswith('c2i') else 'peizesun/llamagen_t2i'
         for name in PRESETS},
    metadata=lambda config: (
        base.metadata(config.num_classes) if config.conditioning == 'class' else {}),
    # The image tokenizer, and what reads captions.
    others=lambda config: (
        'llamagen_vq', *(('t5', 't5_text') if config.conditioning == 'text' else ())))
