"""Networks of evaluations: CLIP, and the Inception network of the Frechet inception distance.

CLIP has the names of OpenAI's state dict (also OpenCLIP's) or of transformers, Inception those of
pytorch-fid.
"""

import functools
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
from flax import traverse_util

from checkpoints_conversion.rules import base, blocks, family, settings
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule
from checkpoints_conversion.rules.settings import Free, Must, Size
from cspd_jax.metrics import clip as clip_metrics
from cspd_jax.metrics.clip import CLIPConfig
from cspd_jax.metrics.inception import InceptionConfig
from cspd_jax.models import clip, inception

_TITLE = 'a CLIP network with a vision transformer'


def _encoder_fields(name: str) -> settings.Table:
  return {
      **settings.COMMON,
      'hidden_size': Size(f'{name}_dim'), 'intermediate_size': Size(f'{name}_ffn'),
      'num_hidden_layers': Size(f'{name}_layers'),
      'num_attention_heads': Size(f'{name}_heads'),
      'hidden_act': Size('activation', str, 'quick_gelu'),
      'layer_norm_eps': Size('norm_eps', float, 1e-5),
      'projection_dim': Free('both encoders have the one of the whole network')}


_TEXT_FIELDS: settings.Table = {
    **_encoder_fields('text'), 'model_type': Must(('clip_text_model',)),
    'vocab_size': Size('vocab_size'), 'max_position_embeddings': Size('context')}
_IMAGE_FIELDS: settings.Table = {
    **_encoder_fields('image'), 'model_type': Must(('clip_vision_model',)),
    'image_size': Size('image_size'), 'patch_size': Size('patch_size'),
    'num_channels': Must((3,))}
CLIP_FIELDS: settings.Table = {
    **settings.COMMON, 'model_type': Must(('clip',)), 'projection_dim': Size('feature_dim'),
    'logit_scale_init_value': Free('scores are cosines, without the scale'),
    'text_config': settings.Part(_TEXT_FIELDS), 'text_config_dict': settings.Part(_TEXT_FIELDS),
    'vision_config': settings.Part(_IMAGE_FIELDS),
    'vision_config_dict': settings.Part(_IMAGE_FIELDS)}


def _side(value: Any) -> Mapping[str, int] | str:
  """Reads the side of square images: a number, or an object with one or two equal ones."""
  sides = list(value.values()) if isinstance(value, Mapping) else [value]
  if not sides or any(type(side) is not int or side != sides[0] for side in sides):
    return f'{value!r:.80}; it must be the side of square images in pixels'
  return {'image_size': sides[0]}


# Images are prepared as OpenAI published it, see `metrics.clip.prepared`.
PREPROCESSOR_FIELDS: settings.Table = {
    'size': settings.Sizes(_side), 'crop_size': settings.Sizes(_side),
    'image_mean': Must((clip_metrics.MEAN.tolist(),)),
    'image_std': Must((clip_metrics.DEVIATION.tolist(),)),
    'resample': Must((3,), ', the bicubic filter of Pillow'), 'rescale_factor': Must((1 / 255,)),
    **dict.fromkeys(('do_resize', 'do_center_crop', 'do_rescale', 'do_normalize',
                     'do_convert_rgb'), Must((True,))),
    **dict.fromkeys(('feature_extractor_type', 'image_processor_type', 'processor_class'),
                    Free('names of classes'))}

# Parts of OpenAI's names and what transformers calls them, replaced in this order.
_NAMES = {
    'visual.conv1.': 'vision_model.embeddings.patch_embedding.',
    'visual.class_embedding': 'vision_model.embeddings.class_embedding',
    'visual.positional_embedding': 'vision_model.embeddings.position_embedding.weight',
    'visual.ln_pre': 'vision_model.pre_layrnorm', 'visual.ln_post': 'vision_model.post_layernorm',
    'visual.proj': 'visual_projection.weight', 'visual.transformer.': 'vision_model.encoder.',
    'token_embedding.': 'text_model.embeddings.token_embedding.',
    'positional_embedding': 'text_model.embeddings.position_embedding.weight',
    'ln_final': 'text_model.final_layer_norm', 'text_projection': 'text_projection.weight',
    'transformer.': 'text_model.encoder.'}
_NAMES_OF_LAYERS = (('resblocks.', 'layers.'), ('.ln_', '.layer_norm'),
                    ('.attn.', '.self_attn.'), ('.c_fc.', '.fc1.'), ('.c_proj.', '.fc2.'))


def _of_transformers(name: str) -> str:
  """Returns the name of a tensor in the format of transformers, from OpenAI's."""
  part = next((part for part in _NAMES if name.startswith(part)), '')
  return base.replaced(_NAMES.get(part, '') + name.removeprefix(part), _NAMES_OF_LAYERS)


def _rules(config: CLIPConfig, is_transformers: bool = False) -> list[Rule]:
  projection = MATRIX if is_transformers else KEEP
  table = [
      Rule('visual.conv1.weight', ('image/patch/kernel',), base.CONVOLUTION),
      Rule('visual.class_embedding', ('image/class_token',), KEEP),
      Rule('visual.positional_embedding', ('image/positions',), KEEP),
      *base.norm('visual.ln_pre', 'image/first_norm'),
      *_layer('visual.transformer.', 'image/', config.image_heads, is_transformers),
      *base.norm('visual.ln_post', 'image/norm'),
      Rule('visual.proj', ('image/projection/kernel',), projection),
      Rule('token_embedding.weight', ('text/tokens',), KEEP),
      Rule('positional_embedding', ('text/positions',), KEEP),
      *_layer('transformer.', 'text/', config.text_heads, is_transformers),
      *base.norm('ln_final', 'text/norm'),
      Rule('text_projection', ('text/projection/kernel',), projection)]
  return base.renamed(table, _of_transformers) if is_transformers else table


def _layer(source: str, destination: str, heads: int, is_transformers: bool) -> list[Rule]:
  source, destination = source + 'resblocks.{i}.', destination + 'layers_{i}'
  projections = blocks.fused(source + 'attn.in_proj_', destination, heads)
  if is_transformers:
    separate = base.separate_heads(heads)
    projections = [rule for name in ('query', 'key', 'value') for rule in base.layer(
        f'{source}attn.{name[0]}_proj', f'{destination}/{name}', separate, separate)]
  return projections + blocks.vision_layer(
      source, destination, heads, ('ln_1', 'attn.out_proj', 'ln_2', 'mlp.c_fc', 'mlp.c_proj'))


def _is_of_transformers(shapes: family.Shapes) -> bool:
  return any(name.startswith('vision_model.') for name in shapes)


def _infer(shapes: family.Shapes, options: Mapping[str, Any]) -> CLIPConfig:
  shape = functools.partial(family.shape, _TITLE, shapes)
  is_transformers = _is_of_transformers(shapes)
  named = _of_transformers if is_transformers else lambda name: name
  up = named('.mlp.c_fc.weight')
  image, text = named('visual.transformer.resblocks.'), named('transformer.resblocks.')
  image_dim, _, patch_size, _ = shape(named('visual.conv1.weight'), 4)
  vocab_size, text_dim = shape(named('token_embedding.weight'), 2)
  layers = lambda prefix: family.count(shapes, rf'{re.escape(prefix)}(\d+){re.escape(up)}')
  length = lambda name: shape(named(name), 2)[0]
  # Without the field, the class of transformers has its default; heads of OpenAI are 64 wide.
  heads = lambda name, dim, default: options.get(
      f'{name}_heads', default if is_transformers else max(dim // 64, 1))
  return CLIPConfig(
      image_size=patch_size * math.isqrt(length('visual.positional_embedding') - 1),
      patch_size=patch_size, image_dim=image_dim, image_layers=layers(image),
      image_heads=heads('image', image_dim, 12),
      image_ffn=shape(f'{image}0{up}', 2)[0], vocab_size=vocab_size,
      context=length('positional_embedding'), text_dim=text_dim, text_layers=layers(text),
      text_heads=heads('text', text_dim, 8),
      text_ffn=shape(f'{text}0{up}', 2)[0],
      feature_dim=shape(named('visual.proj'), 2)[0 if is_transformers else 1],
      activation=options.get('activation', 'quick_gelu'),
      norm_eps=options.get('norm_eps', 1e-5))


CLIP = family.FileFamily(
    name='clip', title=_TITLE, kind='clip', rules=_rules, infer=_infer, presets=clip.PRESETS,
    hub={'vit_b_32': 'openai/clip-vit-base-patch32', 'vit_b_16': 'openai/clip-vit-base-patch16',
         'vit_l_14': 'openai/clip-vit-large-patch14'},
    variant=lambda shapes: {'rules': functools.partial(
        _rules, is_transformers=_is_of_transformers(shapes))},
    written=family.Written(
        forms=({'rules': functools.partial(_rules, is_transformers=True)},),
        files=settings.files(CLIP_FIELDS)),
    settings=functools.partial(settings.read, {
        'config.json': CLIP_FIELDS, 'preprocessor_config.json': PREPROCESSOR_FIELDS}),
    # OpenCLIP's networks of the same shapes have another activation.
    needed={'activation': '"text_config": {"hidden_act": "quick_gelu"}'},
    # Buffers, and the scale of logits: scores are cosines.
    leftovers=r'logit_scale|input_resolution|context_length|vocab_size|attn_mask|'
    r'(text|vision)_model\.embeddings\.position_ids')


_FID_TITLE = 'the Inception network of the FID'
# Published names of the parameters of a convolution and its normalisation.
_LEAVES = {'kernel': 'conv.weight', 'scale': 'bn.weight', 'bias': 'bn.bias',
           'mean': 'bn.running_mean', 'variance': 'bn.running_var'}


def _inception_rules(config: InceptionConfig) -> list[Rule]:
  params = jax.eval_shape(lambda: inception.init(config, jax.random.key(0)))
  table = [Rule('fc.weight', ('fc/kernel',), MATRIX)]
  for path in traverse_util.flatten_dict(params, sep='/'):
    *names, leaf = path.split('/')
    if names != ['fc']:
      source = '.'.join([names[0].capitalize(), *names[1:], _LEAVES[leaf]])
      table.append(Rule(source, (path,), base.CONVOLUTION if leaf == 'kernel' else KEEP))
  return table


def _infer_inception(shapes: family.Shapes, options: Mapping[str, int]) -> InceptionConfig:
  shape = functools.partial(family.shape, _FID_TITLE, shapes)
  width = shape('Conv2d_1a_3x3.conv.weight', 4)[0]
  if width % 2:
    raise family.ConversionError(
        f'The file is not {_FID_TITLE}: Conv2d_1a_3x3 has {width} channels, which must be even.')
  classes = shape('fc.weight', 2)[0]
  if classes == 1000:
    raise family.ConversionError(
        f'The file is not {_FID_TITLE}: it has 1000 classes, as the Inception of torchvision, '
        'whose features are other ones. That of the FID has 1008; convert '
        'pt_inception-2015-12-05-6726825d.pth, which pytorch-fid and torch-fidelity use.')
  return InceptionConfig(unit=width // 2, num_classes=classes)


INCEPTION = family.FileFamily(
    name='inception', title=_FID_TITLE, kind='inception', rules=_inception_rules,
    infer=_infer_inception, presets={'inception_2015_12_05': InceptionConfig()},
    # The inception score uses logits without the bias.
    leftovers=r'fc\.bias|.*\.num_batches_tracked')
