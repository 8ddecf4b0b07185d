"""The strict conversion driver and the families it knows.

Every published tensor must be used or be on the family's short list of known
leftovers, every parameter must be made, and every shape must fit; all that is
wrong is reported at once.
"""

import functools
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from checkpoints_conversion import read as read_lib
from checkpoints_conversion import rules as rules_lib
from cspd_jax.core import checkpoint
from cspd_jax.models import eagle
from cspd_jax.models import mar
from cspd_jax.models.eagle import EagleConfig
from cspd_jax.models.kl_vae import KLVAEConfig
from cspd_jax.models.llamagen import LlamaGenConfig
from cspd_jax.models.llamagen import PRESETS
from cspd_jax.models.vq import VQConfig

Params = Any
Shapes = Mapping[str, tuple[int, ...]]

_VERSION = 1


class ConversionError(ValueError):
  """Weights that do not belong to the model; the message lists all that is wrong."""


class Family(NamedTuple):
  """What the driver needs to know about a family of models.

  Attributes:
    kind: the kind of checkpoint that is written, a key of `checkpoint.KINDS`.
    rules: `config -> rules`.
    infer: `(shapes, options) -> config`: the sizes of the model, from the
      shapes of its published tensors and from what only a person can know.
    presets: published models by name.
    leftovers: a regular expression for names of tensors that are not weights.
    prefer: see `read.read`.
  """

  kind: str
  rules: Callable[[Any], list[rules_lib.Rule]]
  infer: Callable[[Shapes, Mapping[str, Any]], Any]
  presets: Mapping[str, Any]
  leftovers: str
  prefer: str | None = None


def convert(family: Family, config: Any, tensors: Mapping[str, np.ndarray]) -> Params:
  """Converts published tensors to parameters.

  Args:
    family: the family of the model.
    config: its sizes.
    tensors: published arrays by name.

  Returns:
    The parameters as host arrays, in the dtypes of the published ones.

  Raises:
    ConversionError: naming every missing, unexpected or mis-shaped tensor.
  """
  rules, template = _rules(family, config)
  wanted = published_shapes(family, config)
  found = {name: tuple(tensor.shape) for name, tensor in tensors.items()
           if name in wanted or not re.fullmatch(family.leftovers, name)}
  problems = [f'missing: {name} {wanted[name]}' for name in wanted if name not in found]
  problems += [f'unexpected: {name} {found[name]}' for name in found if name not in wanted]
  problems += [f'mis-shaped: {name} is {found[name]}, the model asks for {wanted[name]}'
               for name in wanted if name in found and found[name] != wanted[name]]
  problems += [f'not floating-point: {name} is {tensors[name].dtype}' for name in wanted
               if name in found and not jax.numpy.issubdtype(tensors[name].dtype, np.floating)]
  if problems:
    raise ConversionError(
        f'The tensors do not belong to this {family.kind} model ({config}):\n  ' +
        '\n  '.join(problems))
  made = {}
  for rule in rules:
    made.update(zip(rule.destinations, rule.transform.forward(tensors[rule.source])))
  paths, treedef = template
  return jax.tree.unflatten(treedef, [made[path] for path in paths])


def publish(family: Family, config: Any, params: Params) -> dict[str, np.ndarray]:
  """The inverse of `convert`: parameters under their published names and layouts."""
  rules, (paths, _) = _rules(family, config)
  leaves = dict(zip(paths, jax.tree.leaves(jax.device_get(params))))
  return {rule.source: np.ascontiguousarray(
      rule.transform.inverse(*(leaves[path] for path in rule.destinations))) for rule in rules}


def published_shapes(family: Family, config: Any) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the published tensors of a model of any size, nothing allocated."""
  rules, (paths, _) = _rules(family, config)
  leaves = dict(zip(paths, jax.tree.leaves(_template(family.kind, config))))
  return {rule.source: jax.eval_shape(
      rule.transform.inverse, *(leaves[path] for path in rule.destinations)).shape
          for rule in rules}


def convert_file(
    family_name: str,
    source: str | os.PathLike,
    output: str | os.PathLike,
    *,
    model: str | None = None,
    options: Mapping[str, Any] | None = None,
    key: str | None = None,
    dtype: Any = None,
) -> Any:
  """Converts a published file to a checkpoint folder.

  Args:
    family_name: a key of `FAMILIES`.
    source: see `read.read`.
    output: the folder to write.
    model: name of a published model; None infers the sizes from the shapes.
    options: what the shapes do not tell, for instance `image_size`; only
      without `model`.
    key: see `read.read`.
    dtype: the dtype to store; None keeps the published one.

  Returns:
    The config of the converted model.

  Raises:
    ValueError: (or a subclass) for anything that is wrong with the input.
  """
  if family_name not in FAMILIES:
    raise ConversionError(
        f'family is {family_name!r}; it must be one of: {", ".join(sorted(FAMILIES))}.')
  family, options = FAMILIES[family_name], options or {}
  options = {name: value for name, value in options.items() if value is not None}
  if model is not None and model not in family.presets:
    raise ConversionError(
        f'model is {model!r}; the published {family_name} models are: '
        f'{", ".join(sorted(family.presets))}. Leave it out to infer the sizes from the file.')
  if model is not None and options:
    raise ConversionError(
        f'{", ".join(sorted(options))}: only without model, which sets the sizes itself.')
  tensors, key = read_lib.read(source, key=key, prefer=family.prefer)
  shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
  config = family.presets[model] if model else family.infer(shapes, options)
  params = convert(family, config, tensors)
  extra = {'source': os.path.basename(os.path.abspath(source)), 'model': model, 'key': key,
           'sha256': read_lib.sha256(source), 'converter': _VERSION}
  checkpoint.save(output, family.kind, config, params, dtype=dtype, extra=extra)
  return config


def infer_llamagen(shapes: Shapes, options: Mapping[str, Any]) -> LlamaGenConfig:
  """Sizes of a LlamaGen transformer.

  Args:
    shapes: of its published tensors.
    options: `image_size` in pixels, which no weight depends on; `num_heads`,
      where width and depth are not those of a published size.

  Raises:
    ConversionError: if the shapes and options do not tell all sizes.
  """
  what = 'a LlamaGen transformer'
  vocab_size, dim = _shape(shapes, 'tok_embeddings.weight', 2, what)
  num_layers = _count(shapes, r'layers\.(\d+)\.attention\.wqkv\.weight')
  fused = _shape(shapes, 'layers.0.attention.wqkv.weight', 2, what)[0]
  ffn_dim = _shape(shapes, 'layers.0.feed_forward.w1.weight', 2, what)[0]
  sizes = {(preset.dim, preset.num_layers): preset.num_heads for preset in PRESETS.values()}
  num_heads = options.get('num_heads', sizes.get((dim, num_layers)))
  if num_heads is None:
    raise ConversionError(
        f'num_heads cannot be told from the weights, and width {dim} with {num_layers} layers is '
        'not a published size; give it.')
  image_size = options.get('image_size')
  if image_size is None:
    raise ConversionError(
        'image_size cannot be told from the weights; give it in pixels (published: 256, 384 and '
        f'512), or give model, one of: {", ".join(PRESETS)}.')
  if image_size < 16 or image_size % 16:
    raise ConversionError(f'image_size is {image_size}; it must be a positive multiple of 16.')
  if num_heads < 1 or dim % num_heads:
    raise ConversionError(f'num_heads is {num_heads}; it must divide the width, {dim}.')
  condition = {'conditioning': 'class'}
  if 'cls_embedding.uncond_embedding' in shapes:
    condition = {'conditioning': 'text',
                 'caption_dim': _shape(shapes, 'cls_embedding.uncond_embedding', 2, what)[1]}
  else:
    table = _shape(shapes, 'cls_embedding.embedding_table.weight', 2, what)
    condition['num_classes'] = table[0] - 1
  return LlamaGenConfig(
      height=image_size // 16, width=image_size // 16, dim=dim, num_layers=num_layers,
      num_heads=num_heads, num_kv_heads=(fused - dim) // (2 * (dim // num_heads)),
      ffn_dim=ffn_dim, vocab_size=vocab_size, **condition)


def infer_vq(shapes: Shapes, options: Mapping[str, Any]) -> VQConfig:
  """Sizes of a LlamaGen image tokenizer.

  Args:
    shapes: of its published tensors.
    options: must be empty; the shapes tell everything.

  Raises:
    ConversionError: if the shapes are not those of such a tokenizer.
  """
  what = 'a LlamaGen image tokenizer'
  if options:
    raise ConversionError(f'{", ".join(sorted(options))}: not for {what}, whose shapes tell all.')
  ch, in_channels = _shape(shapes, 'encoder.conv_in.weight', 4, what)[:2]
  levels = _count(shapes, r'encoder\.conv_blocks\.(\d+)\.res\.0\.conv1\.weight')
  widths = [_shape(shapes, f'encoder.conv_blocks.{i}.res.0.conv1.weight', 4, what)[0]
            for i in range(levels)]
  codebook_size, codebook_dim = _shape(shapes, 'quantize.embedding.weight', 2, what)
  _refuse_narrow(widths)
  return VQConfig(
      in_channels=in_channels, ch=ch, ch_mult=tuple(width // ch for width in widths),
      num_res_blocks=_count(shapes, r'encoder\.conv_blocks\.0\.res\.(\d+)\.conv1\.weight'),
      z_channels=_shape(shapes, 'quant_conv.weight', 4, what)[1],
      codebook_size=codebook_size, codebook_dim=codebook_dim)


def infer_mar(shapes: Shapes, options: Mapping[str, Any]) -> mar.MARConfig:
  """Sizes of a MAR transformer with its diffusion head.

  Args:
    shapes: of its published tensors.
    options: `num_heads`, where width and depth are not those of a published size.

  Raises:
    ConversionError: if the shapes and options do not tell all sizes.
  """
  what = 'a MAR model'
  if unknown := options.keys() - {'num_heads'}:
    raise ConversionError(f'{", ".join(sorted(unknown))}: not for {what}, whose shapes tell it.')
  num_classes, dim = _shape(shapes, 'class_emb.weight', 2, what)
  num_tokens = _shape(shapes, 'diffusion_pos_embed_learned', 3, what)[1]
  side = math.isqrt(num_tokens)
  if side**2 != num_tokens:
    raise ConversionError(f'The model has {num_tokens} tokens; only square grids are known.')
  num_layers = _count(shapes, r'encoder_blocks\.(\d+)\.norm1\.weight')
  num_heads = options.get('num_heads') or {
      (preset.dim, preset.num_layers): preset.num_heads for preset in mar.PRESETS.values()
  }.get((dim, num_layers))
  if num_heads is None:
    raise ConversionError(
        f'num_heads cannot be told from the weights, and width {dim} with {num_layers} layers is '
        'not a published size; give it.')
  return mar.MARConfig(
      height=side, width=side, token_dim=_shape(shapes, 'z_proj.weight', 2, what)[1], dim=dim,
      num_layers=num_layers, num_heads=num_heads,
      head_width=_shape(shapes, 'diffloss.net.cond_embed.weight', 2, what)[0],
      head_layers=_count(shapes, r'diffloss\.net\.res_blocks\.(\d+)\.in_ln\.weight'),
      num_classes=num_classes,
      buffer_size=_shape(shapes, 'encoder_pos_embed_learned', 3, what)[1] - num_tokens)


def infer_kl_vae(shapes: Shapes, options: Mapping[str, Any]) -> KLVAEConfig:
  """Sizes of a variational autoencoder; the scale of its latents is taken to be KL-16's.

  Args:
    shapes: of its published tensors.
    options: must be empty; the shapes tell everything.

  Raises:
    ConversionError: if the shapes are not those of such an autoencoder.
  """
  what = 'a variational autoencoder'
  if options:
    raise ConversionError(f'{", ".join(sorted(options))}: not for {what}, whose shapes tell all.')
  ch, in_channels = _shape(shapes, 'encoder.conv_in.weight', 4, what)[:2]
  levels = _count(shapes, r'encoder\.down\.(\d+)\.block\.0\.conv1\.weight')
  widths = [_shape(shapes, f'encoder.down.{i}.block.0.conv1.weight', 4, what)[0]
            for i in range(levels)]
  _refuse_narrow(widths)
  return KLVAEConfig(
      in_channels=in_channels, ch=ch, ch_mult=tuple(width // ch for width in widths),
      num_res_blocks=_count(shapes, r'encoder\.down\.0\.block\.(\d+)\.conv1\.weight'),
      z_channels=_shape(shapes, 'post_quant_conv.weight', 4, what)[0])


def _refuse_narrow(widths: list[int]) -> None:
  """Raises ConversionError for convolutional tokenizers that cspd_jax would run differently."""
  if min(widths, default=0) < 128:
    # The published architectures normalise in 32 groups whatever the width is.
    raise ConversionError(
        f'The levels of the tokenizer are {widths} channels wide; below 128 channels its '
        'normalisation groups differ from those of cspd_jax, and it cannot be converted.')


def infer_eagle(form: str, shapes: Shapes, options: Mapping[str, Any]) -> EagleConfig:
  """Sizes of an EAGLE drafter.

  Args:
    form: the model it drafts for: 'llamagen', 'anole' or 'lumina_mgpt'.
    shapes: of its published tensors.
    options: `image_size` in pixels; `num_heads`, where neither shapes nor a published width tell.

  Raises:
    ConversionError: if the shapes and options do not tell all sizes.
  """
  what = f'an EAGLE drafter for {form}'
  vocab_size, dim = _shape(shapes, 'embed_tokens.weight', 2, what)
  projections = {name: _shape(shapes, f'layers.0.self_attn.{name}_proj.weight', 2, what)[0]
                 for name in ('q', 'k')}
  ffn_dim = _shape(shapes, 'layers.0.mlp.gate_proj.weight', 2, what)[0]
  if form == 'llamagen':
    family, norm_eps = 'llamagen', 1e-6
    known = {preset.dim: preset.num_heads for preset in eagle.PRESETS.values()
             if preset.family == 'llamagen'}
    num_heads = options.get('num_heads', known.get(dim))
    if num_heads is None:
      raise ConversionError(
          f'num_heads cannot be told from the weights, and {dim} is not a published width; '
          'give it.')
    if num_heads < 1 or dim % num_heads:
      raise ConversionError(f'num_heads is {num_heads}; it must divide the width, {dim}.')
    head_dim = dim // num_heads
  else:
    family, norm_eps = 'chameleon', 1e-5
    if 'num_heads' in options:
      raise ConversionError(f'num_heads: not for {what}, whose shapes tell it.')
    head_dim = _shape(shapes, 'layers.0.self_attn.q_norm.weight', 2, what)[1]
  image_size = options.get('image_size')
  if image_size is None:
    raise ConversionError(
        'image_size cannot be told from the weights; give it in pixels, or give model, one of: '
        f'{", ".join(_drafters(form))}.')
  if image_size < 16 or image_size % 16:
    raise ConversionError(f'image_size is {image_size}; it must be a positive multiple of 16.')
  side = image_size // 16
  # Lumina-mGPT ends rows and the image with tokens of their own.
  width, ends = (side + 1, 1) if form == 'lumina_mgpt' else (side, 0)
  return EagleConfig(
      family=family, num_tokens=side * width + ends, row_width=width, dim=dim,
      num_heads=projections['q'] // head_dim, num_kv_heads=projections['k'] // head_dim,
      ffn_dim=ffn_dim, vocab_size=vocab_size, norm_eps=norm_eps, own_embedding=True)


def compare_embedding(params: Params, target_params: Params) -> dict[str, float]:
  """Which of its target's tables a drafter's own token embedding is.

  The published LlamaGen drafters may hold the output matrix in this place.

  Args:
    params: a converted EAGLE drafter with a token embedding of its own.
    target_params: the converted target.

  Returns:
    For 'token_embedding' and 'output', the largest difference to that table of the target in
    units of its largest number. 0 means equal; the rounding of bfloat16 is below 0.004.

  Raises:
    ConversionError: if the sizes differ.
  """
  own = np.asarray(params['token_embedding'], np.float32)
  tables, differences = target_params['transformer'], {}
  for name in ('token_embedding', 'output'):
    table = np.asarray(tables[name], np.float32)
    table = table.T if name == 'output' else table
    if table.shape != own.shape:
      raise ConversionError(
          f"The drafter's token embedding is {own.shape}, but the target's {name} is for "
          f'{table.shape}; this drafter belongs to another target.')
    differences[name] = float(np.abs(own - table).max() / np.abs(table).max())
  return differences


def _drafters(form: str) -> dict[str, EagleConfig]:
  return {name: preset for name, preset in eagle.PRESETS.items() if name.startswith(form)}


def _eagle_family(form: str, num_norm_shards: int | None = None) -> Family:
  return Family(
      kind='eagle', rules=functools.partial(rules_lib.eagle, num_norm_shards=num_norm_shards),
      infer=functools.partial(infer_eagle, form), presets=_drafters(form), leftovers=r'(?!)')


FAMILIES: dict[str, Family] = {
    'eagle_llamagen': _eagle_family('llamagen'),
    'eagle_anole': _eagle_family('anole'),
    'eagle_lumina_mgpt': _eagle_family('lumina_mgpt', num_norm_shards=1),
    'kl_vae': Family(
        kind='kl_vae', rules=rules_lib.kl_vae, infer=infer_kl_vae,
        presets={'kl_16': KLVAEConfig()}, leftovers=r'loss\..*'),
    'llamagen': Family(
        kind='llamagen', rules=rules_lib.llamagen, infer=infer_llamagen, presets=PRESETS,
        leftovers=r'(.*\.)?(freqs_cis|causal_mask|kv_cache\.[kv]_cache)'),
    'llamagen_vq': Family(
        kind='vq', rules=rules_lib.vq, infer=infer_vq,
        presets={'vq_16': VQConfig(), 'vq_8': VQConfig(ch_mult=(1, 2, 2, 4))},
        leftovers=r'quantize\.codebook_used'),
    'mar': Family(
        kind='mar', rules=rules_lib.mar, infer=infer_mar, presets=mar.PRESETS,
        # The averaged weights are the ones that the published results use.
        leftovers=r'(?!)', prefer='model_ema'),
}


def _shape(shapes: Shapes, name: str, rank: int, what: str) -> tuple[int, ...]:
  if len(shapes.get(name, ())) != rank:
    raise ConversionError(
        f'The file is not {what}: {name} is {shapes.get(name, "missing")}, it must have {rank} '
        f'axes. The file holds {len(shapes)} tensors: {", ".join(sorted(shapes)[:8])}, ...')
  return shapes[name]


def _count(shapes: Shapes, pattern: str) -> int:
  """One more than the largest number at the pattern's group."""
  numbers = [int(match[1]) for name in shapes if (match := re.fullmatch(pattern, name))]
  return max(numbers, default=-1) + 1


@functools.lru_cache(maxsize=8)  # Tracing a big model takes seconds.
def _template(kind: str, config: Any) -> Params:
  init = checkpoint.KINDS[kind].init
  return jax.eval_shape(lambda: init(config, jax.random.key(0)))


def _rules(family: Family, config: Any):
  """The rules of one model; its parameters' paths and tree structure."""
  flat, treedef = jax.tree_util.tree_flatten_with_path(_template(family.kind, config))
  paths = ['/'.join(key.key for key in path) for path, _ in flat]
  return rules_lib.expand(family.rules(config), paths), (paths, treedef)
