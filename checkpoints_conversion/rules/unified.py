"""Transformers over one vocabulary of text and images, as transformers stores them: Lumina-mGPT
(arXiv 2408.02657), Anole (arXiv 2407.06135) and Emu3 (arXiv 2409.18869)."""

import functools
from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import base, family
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule, Transform
from cspd_jax.models import unified
from cspd_jax.models.unified import UnifiedConfig


def rules(config: UnifiedConfig, num_norm_shards: int | None = None) -> list[Rule]:
  """Returns the rule table of a transformer.

  Args:
    config: the model's sizes.
    num_norm_shards: rows of the norms of queries and keys; None means one for every head.
  """
  heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.dim // config.num_heads
  ours, theirs = 'transformer/layers_{i}/', 'model.layers.{i}.'
  table = [
      Rule('model.embed_tokens.weight', ('transformer/token_embedding',),
           base.reorder(unified.order(config))),
      Rule(theirs + 'self_attn.q_proj.weight', (ours + 'query',),
           base.separate_heads(heads, width, True)),
      Rule(theirs + 'self_attn.k_proj.weight', (ours + 'key',),
           base.separate_heads(kv_heads, width, True)),
      Rule(theirs + 'self_attn.v_proj.weight', (ours + 'value',),
           base.separate_heads(kv_heads, width, False)),
      Rule(theirs + 'self_attn.o_proj.weight', (ours + 'out',), base.join_heads(heads, width)),
      Rule(theirs + 'input_layernorm.weight', (ours + 'attention_norm/scale',), KEEP),
      Rule(theirs + 'post_attention_layernorm.weight', (ours + 'ffn_norm/scale',), KEEP),
      Rule(theirs + 'mlp.gate_proj.weight', (ours + 'gate',), MATRIX),
      Rule(theirs + 'mlp.up_proj.weight', (ours + 'up',), MATRIX),
      Rule(theirs + 'mlp.down_proj.weight', (ours + 'down',), MATRIX),
      Rule('model.norm.weight', ('transformer/norm/scale',), KEEP),
      Rule('lm_head.weight', ('transformer/output',), _codes_only(config)),
  ]
  if config.qk_norm:
    for letter, name, count in (('q', 'query', heads), ('k', 'key', kv_heads)):
      transform = base.head_norm(count, num_norm_shards or count)
      norm = f'{theirs}self_attn.{letter}_norm.'
      table += [Rule(norm + 'weight', (f'{ours}{name}_norm/scale',), transform),
                Rule(norm + 'bias', (f'{ours}{name}_norm/bias',), transform)]
  return table


def _codes_only(config: UnifiedConfig) -> Transform:
  """The rows of the codes as columns; the inverse has zeros in place of the others."""
  first, after = config.first_code, config.first_code + config.num_codes

  def inverse(x):
    library = x.__array_namespace__()
    zeros = lambda count: library.zeros((count, x.shape[0]), dtype=x.dtype)
    return library.concatenate([zeros(first), x.T, zeros(config.vocab_size - after)])

  return Transform(lambda x: (x[first:after].T,), inverse)


def infer(preset: str, shapes: family.Shapes, options: Mapping[str, int]) -> UnifiedConfig:
  """Infers the sizes of a transformer.

  Args:
    preset: name of the published model whose vocabulary and grammar it has.
    shapes: of its published tensors.
    options: `height` and `width` of its images in codes, `num_heads`; the published ones if they
      are not given.

  Raises:
    ConversionError: if the shapes and options do not tell all sizes, or another vocabulary.
  """
  known = unified.PRESETS[preset]
  shape = functools.partial(family.shape, _what(preset), shapes)
  vocab_size, dim = shape('model.embed_tokens.weight', 2)
  if vocab_size != known.vocab_size:
    raise family.ConversionError(
        f'The file has {vocab_size} tokens; {_what(preset)} has {known.vocab_size}.')
  num_heads = family.num_heads(
      options, known.num_heads if dim == known.dim else None, dim, f'width {dim}')
  width = dim // num_heads
  return UnifiedConfig(
      height=options.get('height', known.height), width=options.get('width', known.width),
      vocab_size=vocab_size, num_codes=known.num_codes, first_code=known.first_code,
      row_end=known.row_end, image_ends=known.image_ends, dim=dim,
      num_layers=family.count(shapes, r'model\.layers\.(\d+)\.self_attn\.q_proj\.weight'),
      num_heads=num_heads,
      num_kv_heads=shape('model.layers.0.self_attn.k_proj.weight', 2)[0] // width,
      ffn_dim=shape('model.layers.0.mlp.gate_proj.weight', 2)[0],
      qk_norm='model.layers.0.self_attn.q_norm.weight' in shapes, rope_base=known.rope_base,
      norm_eps=known.norm_eps)


def _sampling(options: Mapping[str, Any], config: UnifiedConfig) -> Mapping[str, Any]:
  del config
  return {'pictures': {'temperature': 1.0, 'top_p': 1.0, **options}}


def _what(preset: str) -> str:
  return f'a transformer like {preset}'


def _chameleon(name: str) -> tuple[str, ...]:
  """Where Chameleon's tokenizers are in Meta's download, and as the official programs want it."""
  return tuple(f'{folder}{name}' for folder in (
      '', 'tokenizer/', 'chameleon/tokenizer/', '../tokenizer/', '../chameleon/tokenizer/'))


def _family(name: str, presets: tuple[str, ...], sampling: Mapping[str, Any],
            others: Mapping[str, tuple[str, ...]], num_norm_shards: int | None = None,
            ) -> family.FileFamily:
  return family.FileFamily(
      name=name, what=_what(presets[0]), kind='unified',
      rules=functools.partial(rules, num_norm_shards=num_norm_shards),
      infer=functools.partial(infer, presets[0]),
      presets={preset: unified.PRESETS[preset] for preset in presets},
      options={'height': 'Rows of codes of an image.', 'width': 'Codes of a row of an image.',
               **family.NUM_HEADS},
      # The image tokenizer is a network of its own; rotary tables are not weights.
      leftovers=r'model\.vqmodel\..*|.*rotary_emb\.inv_freq',
      model='unified', sampling=functools.partial(_sampling, sampling),
      layout=lambda model: {name: ('.',), **others})


# Guidance and cuts of the official samplers.
LUMINA_MGPT = _family(
    'lumina_mgpt', tuple(f'lumina_mgpt_7b_{size}' for size in (768, 512, 1024)),
    {'guidance_scale': 4.0, 'top_k': 2000}, num_norm_shards=1,
    others={'chameleon_vqgan': _chameleon('vqgan.ckpt'),
            'lumina_mgpt_text': _chameleon('text_tokenizer.json')})
ANOLE = _family(
    'anole', ('anole_7b',), {'guidance_scale': 3.0, 'top_k': 2000},
    others={'chameleon_vqgan': _chameleon('vqgan.ckpt'),
            'anole_text': _chameleon('text_tokenizer.json')})
EMU3 = _family(
    'emu3', ('emu3_gen_8b',), {'guidance_scale': 3.0, 'top_k': 2048},
    others={'emu3_vq': ('Emu3-VisionTokenizer', '../Emu3-VisionTokenizer'),
            'emu3_text': ('emu3.tiktoken',)})
