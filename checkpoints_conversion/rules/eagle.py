"""EAGLE drafters as LANTERN publishes them (arXiv 2410.03355), for three targets."""

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any

from checkpoints_conversion.rules import base, family, settings
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule
from checkpoints_conversion.rules.settings import Free, Must, Sizes
from cspd_jax.files import store
from cspd_jax.models import early_fusion
from cspd_jax.models.eagle import EagleConfig

# Published targets with one vocabulary of text and images, by the form of the drafter.
_EARLY_FUSION = {'anole': 'anole_7b', 'lumina_mgpt': 'lumina_mgpt_7b_768'}
# Number of image tokens by the `input_type` of LlamaGen's drafters.
_NUM_TOKENS = {'c2i': 576, 't2i': 256, 't2i2': 1024}
_OF_THE_TARGET = Free('only the target reads it')
_FIXED_ROPE = Free('the official drafter of LlamaGen rotates with base 10000 in any case')

_SHARED: settings.Table = {
    **settings.llama(), **settings.NO_BIASES, 'bias': Must((True,)),
    'qkv_bias': settings.NO_BIAS,
    'tie_word_embeddings': Free('a drafter has no output matrix')}
LLAMAGEN_FIELDS: settings.Table = {
    **_SHARED, 'model_type': Must(('llama',)), 'input_type': Sizes(
        lambda name: {'num_tokens': _NUM_TOKENS[name]} if str(name) in _NUM_TOKENS
        else f'{name!r:.80}; it must be one of {", ".join(_NUM_TOKENS)}'),
    **dict.fromkeys(('rope_theta', 'rope_scaling', 'rope_parameters', 'rope_base'), _FIXED_ROPE),
    **dict.fromkeys(('caption_dim', 'block_size', 'cls_token_num'), _OF_THE_TARGET)}
CHAMELEON_FIELDS: settings.Table = {
    **_SHARED, 'model_type': Must(('chameleon',)), 'model_parallel_size': settings.OF_SHAPES,
    **dict.fromkeys(('swin_norm', 'vq_config', 'vocabulary_map', 'boi_token_id', 'eoi_token_id',
                     'mask_image_logits'), _OF_THE_TARGET)}

_LLAMAGEN = EagleConfig(own_embedding=True)
_ANOLE = EagleConfig(
    family='chameleon', num_tokens=1024, row_width=32, num_outputs=8192, dim=4096, num_heads=32,
    ffn_dim=11008, vocab_size=65536, norm_eps=1e-5, own_embedding=True)
# The drafters published with LANTERN (arXiv 2410.03355), by the name of their target.
PRESETS: dict[str, EagleConfig] = {
    'llamagen_t2i_256': _LLAMAGEN,
    'llamagen_t2i_512': dataclasses.replace(_LLAMAGEN, num_tokens=1024, row_width=32),
    'anole': _ANOLE,
    # Rows end with a newline token, and the image with one more.
    'lumina_mgpt_768': dataclasses.replace(
        _ANOLE, num_tokens=48 * 49 + 1, row_width=49, num_outputs=8194)}


def _rules(config: EagleConfig, form: str, num_norm_shards: int | None = None) -> list[Rule]:
  is_chameleon, source, destination = config.family == 'chameleon', 'layers.0.', 'layer/'
  heads = config.num_heads, config.num_kv_heads or config.num_heads
  target = _target(form, config.vocab_size)
  return [
      *base.layer('fc', 'fc', MATRIX),
      *base.llama_layer(source, destination, *heads, is_chameleon),
      *base.head_norms(source, destination, *heads, num_norm_shards),
      Rule('embed_tokens.weight', ('token_embedding',),
           # To the order of the target's tokens.
           KEEP if target is None else base.reorder(early_fusion.order(target)))]


def _target(form: str, vocab_size: int) -> early_fusion.EarlyFusionConfig | None:
  """Returns the published target of a drafter, if its vocabulary is one of text and images."""
  target = early_fusion.PRESETS.get(_EARLY_FUSION.get(form, ''))
  return target if target is not None and target.vocab_size == vocab_size else None


def infer(form: str, shapes: family.Shapes, options: Mapping[str, Any]) -> EagleConfig:
  """Infers the sizes of a drafter; with wrong `norm_eps` or `rope_base` it loses speed."""
  shape = functools.partial(family.shape, _title(form), shapes)
  vocab_size, dim = shape('embed_tokens.weight', 2)
  projections = {name: shape(f'layers.0.self_attn.{name}_proj.weight', 2)[0] for name in ('q', 'k')}
  ffn_dim = shape('layers.0.mlp.gate_proj.weight', 2)[0]
  if form == 'llamagen':
    architecture, norm_eps = 'llamagen', 1e-6
    find_head_dim = lambda: dim // family.num_heads(options, _presets(form).values(), dim)
  else:
    architecture, norm_eps = 'chameleon', 1e-5
    find_head_dim = lambda: shape('layers.0.self_attn.q_norm.weight', 2)[1]
  target = _target(form, vocab_size)
  head_dim, side = family.determined(find_head_dim, lambda: family.tokens_per_side(options))
  # Lumina-mGPT ends rows and the image with tokens of their own.
  width, ends = (side + 1, 1) if form == 'lumina_mgpt' else (side, 0)
  return EagleConfig(
      family=architecture, num_tokens=side * width + ends, row_width=width, dim=dim,
      num_heads=projections['q'] // head_dim, num_kv_heads=projections['k'] // head_dim,
      ffn_dim=ffn_dim, vocab_size=vocab_size, rope_base=options.get('rope_base', 10000.0),
      norm_eps=options.get('norm_eps', norm_eps), own_embedding=True,
      num_outputs=None if target is None else target.num_image_tokens)


def _complete(drafter: store.Loaded, target: store.Loaded) -> store.Loaded:
  """Returns a drafter with an embedding of its own, which is that of the target if it shares it."""
  if drafter.config.own_embedding:
    return drafter
  return drafter._replace(
      config=dataclasses.replace(drafter.config, own_embedding=True),
      params={**drafter.params, 'token_embedding': target.params['transformer/token_embedding']})


def _files(form: str, config: EagleConfig, others: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the files next to the weights; the program of LlamaGen's requires the kind of input."""
  del others
  if form != 'llamagen':
    return {'config.json': settings.write(CHAMELEON_FIELDS, config)}
  names = {count: name for name, count in _NUM_TOKENS.items()}
  return {'config.json': settings.write(
      LLAMAGEN_FIELDS, config, input_type=names.get(config.num_tokens))}


def _assumed(form: str, config: EagleConfig, specified: Collection[str]) -> list[str]:
  # The official drafter of LlamaGen has one base, and norms have the heads of the others.
  fields = ('norm_eps',) if form == 'llamagen' else ('norm_eps', 'rope_base')
  lines = family.assumed_heads(config, specified) if form == 'llamagen' else []
  if values := [f'{name} {getattr(config, name)}' for name in fields if name not in specified]:
    lines.append(f'assumed {" and ".join(values)}, as in the published drafters; a config.json '
                 'next to the weights specifies others')
  return lines


def _title(form: str) -> str:
  return f'an EAGLE drafter for {form}'


def _presets(form: str) -> dict[str, EagleConfig]:
  return {name: preset for name, preset in PRESETS.items() if name.startswith(form)}


def _family(form: str, options: dict[str, str], num_norm_shards: int | None = None,
            model: str | None = None) -> family.FileFamily:
  return family.FileFamily(
      name=f'eagle_{form}', title=_title(form), kind='eagle',
      rules=functools.partial(_rules, form=form, num_norm_shards=num_norm_shards),
      infer=functools.partial(infer, form), presets=_presets(form),
      options=family.IMAGE_SIZE | options, settings=functools.partial(settings.read, {
          'config.json': LLAMAGEN_FIELDS if form == 'llamagen' else CHAMELEON_FIELDS}),
      assumed=functools.partial(_assumed, form), model=model,
      written=family.Written(files=functools.partial(_files, form), complete=_complete))


LLAMAGEN = _family('llamagen', family.NUM_HEADS, model='llamagen')
ANOLE = _family('anole', {}, model='early_fusion')
LUMINA_MGPT = _family('lumina_mgpt', {}, num_norm_shards=1, model='early_fusion')
