"""Tar (arXiv 2506.18898): its language model, a Qwen2, as transformers stores it, and the bridge
and AR-DTok in PyTorch files, which hold the name and the arguments of their class."""

import functools
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from checkpoints_conversion.rules import (
  base,
  blocks,
  family,
  language_models,
  llamagen,
  settings,
  text,
  vq,
)
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule
from checkpoints_conversion.rules.settings import Free, Must, Part, Size, Sizes
from cspd_jax.models import tar
from cspd_jax.models.tar import ArDtokConfig, BridgeConfig

# The part of a file with the weights, and with the name and the arguments of their class.
_MODEL = 'model'
_OF_READING = Free('it belongs to the network that reads images, which is not converted')
_IGNORED = Free('the published class ignores arguments that it does not know')



def _all(entry: Free, names: str) -> settings.Table:
  return dict.fromkeys(names.split(), entry)


PRIOR_FIELDS: settings.Table = {
    **language_models.SIMPLEAR_FIELDS, 'model_type': Must(('qwen2', 'llava_qwen')),
    'image_start_token_id': Size('first_code'), 'num_image_tokens': Size('num_codes'),
    # Its training program, derived from LLaVA's, writes these next to the fields of Qwen2.
    **_all(Free('tokens are found by their names in the tokenizer file'),
           'image_end_token_id image_start_tag_id image_end_tag_id scale_start_token_id '
           'scale_end_token_id num_scale_tokens num_new_tokens'),
    **_all(_OF_READING,
           'mm_vision_tower vision_tower_pretrained use_mm_proj mm_hidden_size '
           'mm_vision_select_layer mm_vision_select_feature mm_patch_merge_type'),
    **_all(settings.OF_TRAINING, 'use_pos_skipping pos_skipping_range max_sequence_length')}


def _prior_assumed(config: Any, specified: Collection[str]) -> list[str]:
  """Returns the assumptions; codes describe an image without being its tokens."""
  lines = family.assumed_heads(config, specified)
  if not {'height', 'width'} <= set(specified):
    sides = ', '.join(f'{side}x{side}' for side in tar.SIDES)
    lines.append(f'assumed {config.height}x{config.width} codes, which describe an image; '
                 f'--height=ROWS --width=COLUMNS specify others of {sides}')
  return lines


_PRIOR_SAMPLING = {'temperature': 1.0, 'top_k': 1200, 'top_p': 0.95}
PRIOR = language_models.of_presets(
    'tar', tar.PRIORS, fields=PRIOR_FIELDS, gemma=False, sampling=_PRIOR_SAMPLING,
    others={'tar_text': ('tokenizer.json',)},
    needed={'norm_eps': '"rms_norm_eps": 1e-06', 'rope_base': '"rope_theta": 1000000.0',
            'num_heads': '"num_attention_heads": 12'})._replace(
                title='the language model of Tar', kind='tar_prior', model='tar',
                assumed=_prior_assumed,
                licence='Apache-2.0', hub={
                    'tar_1_5b': 'csuhan/Tar-1.5B', 'tar_7b': 'csuhan/Tar-7B'})


# Of `--to`: the arguments of the published classes are not stored.
_WRITTEN = family.Written('.pth', lines=lambda config: [
    'the file holds the weights alone; the official program reads a .pth whose part model has, '
    'next to the weights sd, the name and the arguments args of the class, so cspd-convert alone '
    'reads this one'])


# Depth, heads and width by the names of the published class.
_NETWORKS = {'XXXL': (48, 40, 2560), 'XXL': (48, 24, 1536), 'XL': (36, 20, 1280),
             'LP': (30, 20, 1280), 'L': (24, 16, 1024), 'B': (12, 12, 768), 'S': (12, 6, 384)}


def _network(name: Any) -> Mapping[str, Any] | str:
  sizes = {f'llama-abs-{size}': numbers for size, numbers in _NETWORKS.items()}.get(name)
  if sizes is None:
    return f'{name!r:.80}; it must be llama-abs- and one of {", ".join(_NETWORKS)}'
  return dict(zip(('num_layers', 'num_heads', 'dim'), sizes))


AR_DTOK_FIELDS: settings.Table = {
    'name': Sizes(_network), 'args': Part({
        'model_type': Must(('clip_cond',), ', whose condition is features of codes',
                           default='class_cond'),
        'frame_prediction': Must((False,)),
        'cond_dim': Size('condition_dim', int, 1152), 'vocab_size': Size('vocab_size', int, 8192),
        'cls_token_num': Size('num_codes', int, 1), 'max_seq_len': Size('num_tokens', int, 2048),
        'n_kv_head': Size('num_kv_heads'), 'norm_eps': Size('norm_eps', float, 1e-5),
        **dict.fromkeys(('multiple_of', 'ffn_dim_multiplier'), settings.OF_SHAPES),
        'use_fixed_pe': Free('the file holds the table of positions, learned or not'),
        **dict.fromkeys(('rope_base', 'num_classes', 'cond_vocab_size'),
                        Free('networks of this model_type do not use it')),
        **_all(settings.OF_TRAINING,
               'initializer_range token_dropout_p attn_dropout_p resid_dropout_p ffn_dropout_p '
               'drop_path_rate class_dropout_prob max_batch_size')})}


def _ar_dtok_settings(contents: settings.Contents) -> dict[str, Any]:
  """Reads the arguments of the class, whose table has a row for all codes and all tokens but one.
  """
  sizes = settings.read({_MODEL: AR_DTOK_FIELDS}, contents)
  if _MODEL not in contents:
    return {}
  # The program that draws images uses other numbers of codes with the same table.
  codes = sizes.pop('num_codes')
  if math.isqrt(sizes['num_tokens'])**2 != sizes['num_tokens']:
    settings.refuse([f'{_MODEL}: args.max_seq_len is {sizes["num_tokens"]}; it must be the number '
                     'of tokens of a square image'])
  return sizes | {'num_positions': sizes['num_tokens'] + codes - 1}


def _ar_dtok_rules(config: ArDtokConfig) -> list[Rule]:
  return [
      *llamagen.layers(config.transformer.num_heads, config.transformer.num_kv_heads),
      Rule('abs_pe', ('positions',), base.Transform(lambda x: (x[0],), lambda x: x[None])),
      *base.layer('clip_proj', 'condition', MATRIX)]


def _ar_dtok_infer(shapes: family.Shapes, options: Mapping[str, Any]) -> ArDtokConfig:
  shape = functools.partial(family.shape, AR_DTOK.title, shapes)
  vocab_size, dim = shape('tok_embeddings.weight', 2)
  num_layers = family.count(shapes, r'layers\.(\d+)\.attention\.wqkv\.weight')
  num_heads, side = family.determined(
      lambda: family.num_heads(options, AR_DTOK.presets.values(), dim, num_layers),
      lambda: family.tokens_per_side(options))
  fused = shape('layers.0.attention.wqkv.weight', 2)[0]
  return ArDtokConfig(
      height=side, width=side, dim=dim, num_layers=num_layers, num_heads=num_heads,
      num_kv_heads=(fused - dim) // (2 * (dim // num_heads)),
      ffn_dim=shape('layers.0.feed_forward.w1.weight', 2)[0], vocab_size=vocab_size,
      condition_dim=shape('clip_proj.weight', 2)[1], num_positions=shape('abs_pe', 3)[1],
      **{name: options[name] for name in ('norm_eps',) if name in options})


def _ar_dtok_sampling(config: ArDtokConfig) -> Mapping[str, family.Defaults]:
  prior = {f'prior_{name}': value for name, value in _PRIOR_SAMPLING.items()}
  return {'pictures': {'guidance_scale': 4.0, 'temperature': 1.0, 'top_k': 0, 'top_p': 1.0,
                       **prior}}


AR_DTOK = family.FileFamily(
    name='ar_dtok', title='AR-DTok of Tar', kind='ar_dtok', rules=_ar_dtok_rules,
    infer=_ar_dtok_infer, presets=tar.PRESETS, options=family.IMAGE_SIZE | family.NUM_HEADS,
    settings=_ar_dtok_settings, assumed=family.assumed_heads, model='tar',
    sampling=_ar_dtok_sampling, written=_WRITTEN,
    layout=lambda model: {} if model is None else {
        'ar_dtok': (f'ar_dtok_lp_{model.removeprefix("ar_dtok_")}px.pth',),
        'ta_tok': ('ta_tok.pth',)},
    others=lambda config: ('ta_tok', 'tar', 'tar_text', 'tar_vq'), licence='Apache-2.0',
    # The largest images first.
    hub=dict.fromkeys([*tar.PRESETS][::-1], 'csuhan/TA-Tok'))


_VISION = 'decoder.vision_model.'
_LAYER = f'{_VISION}encoder.layers.'
_QUANTIZER = 'bottleneck.regularizer.'


def _bridge_rules(config: BridgeConfig) -> list[Rule]:
  heads = base.separate_heads(config.num_heads)
  return [
      Rule(f'{_QUANTIZER}embedding.weight', ('codebook',), KEEP),
      *base.layer(f'{_QUANTIZER}embedding_proj', 'code', MATRIX),
      *base.layer('bottleneck.out_linear', 'out_of_code', MATRIX),
      *base.layer(f'{_VISION}embeddings.patch_embedding', 'patch', MATRIX),
      Rule(f'{_VISION}embeddings.position_embedding.weight', ('positions',), KEEP),
      *(rule for name in ('query', 'key', 'value') for rule in base.layer(
          f'{_LAYER}{{i}}.self_attn.{name[0]}_proj', f'layers_{{i}}/{name}', heads, heads)),
      *blocks.vision_layer(f'{_LAYER}{{i}}.', 'layers_{i}', config.num_heads, (
          'layer_norm1', 'self_attn.out_proj', 'layer_norm2', 'mlp.fc1', 'mlp.fc2')),
      *base.norm(f'{_VISION}post_layernorm', 'norm'),
      *base.layer('decode_task_layer.0', 'task_in', MATRIX),
      *base.layer('decode_task_layer.2', 'task_out', MATRIX)]


def _bridge_infer(shapes: family.Shapes, options: Mapping[str, Any]) -> BridgeConfig:
  shape = functools.partial(family.shape, BRIDGE.title, shapes)
  num_codes, code_dim = shape(f'{_QUANTIZER}embedding.weight', 2)
  rows, dim = shape(f'{_VISION}embeddings.position_embedding.weight', 2)
  if math.isqrt(rows)**2 != rows:
    raise family.ConversionError(f'The file has a table of {rows} positions; it must be square.')
  return BridgeConfig(
      num_codes=num_codes, code_dim=code_dim, dim=dim, side=math.isqrt(rows),
      num_layers=family.count(shapes, rf'{re.escape(_LAYER)}(\d+)\.mlp\.fc1\.weight'),
      ffn_dim=shape(f'{_LAYER}0.mlp.fc1.weight', 2)[0],
      normalized=bool(options.get('normalized')))


_SIMVQ = Part({
    'codebook_size': Size('num_codes'), 'l2_normalized': Size('normalized', bool, False),
    'dim': Size('code_dim'), '*': _IGNORED, **dict.fromkeys(
        ('same_index_shape', 'stochastic', 'stochastic_temperature', 'token_nums'), _OF_READING)})
TA_TOK_FIELDS: settings.Table = {
    'name': _IGNORED, 'args': Part({
        'bottleneck': Part({'name': Must(('bottleneck',)), 'args': Part({
            'bottleneck_dim': Size('code_dim'), 'output_dim': Size('code_dim'),
            **dict.fromkeys(('input_dim', 'token_nums'), _OF_READING),
            'regularizer': Part({'name': Must(('simvq',)), 'args': _SIMVQ}), '*': _IGNORED})}),
        'decoder_depth': Size('num_layers', int, 3), '*': _IGNORED, **_all(
            _OF_READING,
            'bottleneck_token_num input_size teacher input_type pool_scale select_layer_id')})}
BRIDGE = family.FileFamily(
    name='ta_tok', title='the bridge of Tar', kind='ta_tok', rules=_bridge_rules,
    infer=_bridge_infer, presets={'ta_tok': BridgeConfig(normalized=True)}, model='tar',
    settings=functools.partial(settings.read, {_MODEL: TA_TOK_FIELDS}),
    options={'normalized': 'Whether projected vectors of codes have norm one: 1 or 0.'},
    needed={'normalized': ''}, written=_WRITTEN,
    # The networks that read images, the head of the vision transformer and a sampling temperature.
    leftovers=r'(teacher|encoder|encode_task_layer|scale_layer)\..*|bottleneck\.in_linear\..*|'
              r'decoder\.vision_model\.head\..*|'
              r'bottleneck\.regularizer\.stochastic_temperature_inv',
    licence='Apache-2.0')

VQ = vq.LLAMAGEN._replace(
    name='tar_vq', title='the image tokenizer of Tar', model='tar', licence='MIT',
    presets={'vq_16': vq.LLAMAGEN.presets['vq_16']}, hub={
        'vq_16': 'peizesun/llamagen_t2i:vq_ds16_t2i.pt'})
TEXT = text.of_form('tar', 'tar')
