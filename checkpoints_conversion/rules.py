"""Rule tables: which published tensor becomes which parameter, and how.

A rule names one published tensor and the parameters it becomes. Names may hold
placeholders such as `{i}` for numbers; a rule stands for every parameter of the
model whose path fits. Paths join the keys of the parameter tree with '/'.
Every transform has an exact inverse, so that the published names and shapes of
any size follow from the model itself.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from cspd_jax.models.eagle import EagleConfig
from cspd_jax.models.kl_vae import KLVAEConfig
from cspd_jax.models.llamagen import LlamaGenConfig
from cspd_jax.models.mar import MARConfig
from cspd_jax.models.vq import VQConfig


class Transform(NamedTuple):
  """An exact rearrangement of numbers.

  Attributes:
    forward: a published array to a tuple of parameters.
    inverse: those parameters to the published array.
  """

  forward: Callable[[Any], tuple[Any, ...]]
  inverse: Callable[..., Any]


class Rule(NamedTuple):
  """One published tensor and the parameters it becomes.

  Attributes:
    source: published name.
    destinations: paths of the parameters, in the order of the transform.
    transform: how to get from one to the other.
  """

  source: str
  destinations: tuple[str, ...]
  transform: Transform


KEEP = Transform(lambda x: (x,), lambda x: x)
# PyTorch stores matrices as [out, in] and convolutions as [out, in, height, width].
MATRIX = Transform(lambda x: (x.T,), lambda x: x.T)
CONVOLUTION = Transform(lambda x: (x.transpose(2, 3, 1, 0),), lambda x: x.transpose(3, 2, 0, 1))
# A 1x1 convolution is a matrix.
POINTWISE = Transform(lambda x: (x[:, :, 0, 0].T,), lambda x: x.T[:, :, None, None])


def split_heads(num_heads: int, num_kv_heads: int, head_dim: int) -> Transform:
  """`[(H + 2 K) E, D]`, rows query then key then value, to three `[D, heads, E]`."""
  counts = (num_heads, num_kv_heads, num_kv_heads)
  bounds = np.cumsum([count * head_dim for count in counts])[:-1].tolist()

  def forward(fused):
    return tuple(
        part.reshape(count, head_dim, -1).transpose(2, 0, 1)
        for part, count in zip(np.split(fused, bounds), counts))

  def inverse(*parts):
    # `concatenate` of the arrays' own library: the shapes of big models are traced with JAX.
    library = parts[0].__array_namespace__()
    return library.concatenate(
        [part.transpose(1, 2, 0).reshape(-1, part.shape[0]) for part in parts])

  return Transform(forward, inverse)


def join_heads(num_heads: int, head_dim: int) -> Transform:
  """`[D, H E]` to `[H, E, D]`."""
  return Transform(lambda x: (x.T.reshape(num_heads, head_dim, -1),),
                   lambda x: x.reshape(num_heads * head_dim, -1).T)


def split_head_biases(num_heads: int) -> Transform:
  """`[3 H E]`, query then key then value, to three `[H, E]`."""

  def forward(fused):
    return tuple(fused.reshape(3, num_heads, -1))

  def inverse(*parts):
    library = parts[0].__array_namespace__()
    return library.concatenate([part.reshape(-1) for part in parts])

  return Transform(forward, inverse)


def separate_heads(num_heads: int, head_dim: int, halves: bool) -> Transform:
  """`[H E, D]` to `[D, H, E]`; with `halves`, from rotated halves to rotated pairs.

  Some published models rotate number `i` of a head together with number `i + E / 2`, here it is
  `2 i` with `2 i + 1`. The same order of queries and keys leaves their products as they are.
  """
  def forward(x):
    x = x.reshape(num_heads, head_dim, -1)
    return ((_to_pairs(x) if halves else x).transpose(2, 0, 1),)

  def inverse(x):
    x = x.transpose(1, 2, 0)
    return (_to_halves(x) if halves else x).reshape(num_heads * head_dim, -1)

  return Transform(forward, inverse)


def head_norm(num_heads: int, num_shards: int) -> Transform:
  """`[num_shards, E]`, a row for the heads of a shard, to `[H, E]`, from halves to pairs."""
  repeats = num_heads // num_shards
  return Transform(lambda x: (_to_pairs(x).repeat(repeats, axis=0),),
                   lambda x: _to_halves(x[::repeats]))


def _to_pairs(x):
  """Axis 1 from first half and second half to pairs of both."""
  return x.reshape(x.shape[0], 2, -1, *x.shape[2:]).swapaxes(1, 2).reshape(x.shape)


def _to_halves(x):
  return x.reshape(x.shape[0], -1, 2, *x.shape[2:]).swapaxes(1, 2).reshape(x.shape)


def llamagen(config: LlamaGenConfig) -> list[Rule]:
  """LlamaGen's transformers, class- and text-conditional."""
  sizes = config.transformer
  heads = (sizes.num_heads, sizes.num_kv_heads, sizes.head_dim)
  layer, block = 'transformer/layers_{i}/', 'layers.{i}.'
  rules = [
      Rule('tok_embeddings.weight', ('transformer/token_embedding',), KEEP),
      Rule(block + 'attention_norm.weight', (layer + 'attention_norm/scale',), KEEP),
      Rule(block + 'attention.wqkv.weight',
           (layer + 'query', layer + 'key', layer + 'value'), split_heads(*heads)),
      Rule(block + 'attention.wo.weight', (layer + 'out',),
           join_heads(sizes.num_heads, sizes.head_dim)),
      Rule(block + 'ffn_norm.weight', (layer + 'ffn_norm/scale',), KEEP),
      Rule(block + 'feed_forward.w1.weight', (layer + 'gate',), MATRIX),
      Rule(block + 'feed_forward.w3.weight', (layer + 'up',), MATRIX),
      Rule(block + 'feed_forward.w2.weight', (layer + 'down',), MATRIX),
      Rule('norm.weight', ('transformer/norm/scale',), KEEP),
      Rule('output.weight', ('transformer/output',), MATRIX),
  ]
  if config.conditioning == 'class':
    return rules + [Rule('cls_embedding.embedding_table.weight', ('label_embedding',), KEEP)]
  return rules + [
      Rule('cls_embedding.uncond_embedding', ('null_caption',), KEEP),
      Rule('cls_embedding.cap_proj.fc1.weight', ('caption_in',), MATRIX),
      Rule('cls_embedding.cap_proj.fc2.weight', ('caption_out',), MATRIX),
  ]


def eagle(config: EagleConfig, num_norm_shards: int | None = None) -> list[Rule]:
  """EAGLE drafters as LANTERN publishes them.

  Args:
    config: the drafter's sizes.
    num_norm_shards: rows of the norms of queries and keys, 'chameleon' only; None means one for
      every head.
  """
  chameleon, width = config.family == 'chameleon', config.head_dim
  source = 'layers.0.'
  rules = [
      Rule('fc.weight', ('fc/kernel',), MATRIX),
      Rule('fc.bias', ('fc/bias',), KEEP),
      Rule(source + 'self_attn.q_proj.weight', ('layer/query',),
           separate_heads(config.num_heads, width, chameleon)),
      Rule(source + 'self_attn.k_proj.weight', ('layer/key',),
           separate_heads(config.num_kv_heads, width, chameleon)),
      Rule(source + 'self_attn.v_proj.weight', ('layer/value',),
           separate_heads(config.num_kv_heads, width, False)),
      Rule(source + 'self_attn.o_proj.weight', ('layer/out',), join_heads(config.num_heads, width)),
      Rule(source + 'post_attention_layernorm.weight', ('layer/ffn_norm/scale',), KEEP),
      Rule(source + 'mlp.gate_proj.weight', ('layer/gate',), MATRIX),
      Rule(source + 'mlp.up_proj.weight', ('layer/up',), MATRIX),
      Rule(source + 'mlp.down_proj.weight', ('layer/down',), MATRIX),
      Rule('embed_tokens.weight', ('token_embedding',), KEEP),
  ]
  if not chameleon:
    return rules
  rules.append(
      Rule(source + 'input_layernorm.weight', ('layer/attention_norm/scale',), KEEP))
  for theirs, ours, count in (('q', 'query', config.num_heads), ('k', 'key', config.num_kv_heads)):
    transform = head_norm(count, num_norm_shards or count)
    norm = f'{source}self_attn.{theirs}_norm.'
    rules += [Rule(norm + 'weight', (f'layer/{ours}_norm/scale',), transform),
              Rule(norm + 'bias', (f'layer/{ours}_norm/bias',), transform)]
  return rules


def vq(config: VQConfig) -> list[Rule]:
  """LlamaGen's image tokenizers."""
  del config
  rules = [Rule('quantize.embedding.weight', ('codebook/embedding',), KEEP)]
  rules += _layer('quant_conv', 'quant_conv', POINTWISE)
  rules += _layer('post_quant_conv', 'post_quant_conv', POINTWISE)
  for part, level, resample in (('encoder', 'down_{i}', 'downsample'),
                                ('decoder', 'up_{i}', 'upsample')):
    blocks = f'{part}.conv_blocks.{{i}}'
    rules += _layer(f'{part}.conv_in', f'{part}/conv_in', CONVOLUTION)
    rules += _residual(f'{blocks}.res.{{j}}', f'{part}/{level}/res_{{j}}')
    rules += _attention(f'{blocks}.attn.{{j}}', f'{part}/{level}/attn_{{j}}')
    rules += _layer(f'{blocks}.{resample}.conv', f'{part}/{level}/{resample}', CONVOLUTION)
    rules += _residual(f'{part}.mid.0', f'{part}/mid/res_0')
    rules += _attention(f'{part}.mid.1', f'{part}/mid/attn_0')
    rules += _residual(f'{part}.mid.2', f'{part}/mid/res_1')
    rules += _norm(f'{part}.norm_out', f'{part}/norm_out')
    rules += _layer(f'{part}.conv_out', f'{part}/conv_out', CONVOLUTION)
  return rules


def mar(config: MARConfig) -> list[Rule]:
  """MAR's transformers with their diffusion heads."""
  heads, head_dim = config.num_heads, config.dim // config.num_heads
  names = {
      'class_emb.weight': 'class_embedding', 'fake_latent': 'null_embedding',
      'encoder_pos_embed_learned': 'encoder_positions', 'mask_token': 'mask_token',
      'decoder_pos_embed_learned': 'decoder_positions',
      'diffusion_pos_embed_learned': 'z_positions',
  }
  rules = [Rule(theirs, (ours,), KEEP) for theirs, ours in names.items()]
  rules += _layer('z_proj', 'token_in', MATRIX) + _norm('z_proj_ln', 'token_norm')
  rules += _layer('decoder_embed', 'decoder_in', MATRIX)
  for part in ('encoder', 'decoder'):
    block, layer = f'{part}_blocks.{{i}}', f'{part}_layers_{{i}}'
    parts = [f'{layer}/{name}' for name in ('query', 'key', 'value')]
    rules += [
        Rule(f'{block}.attn.qkv.weight', tuple(f'{path}/kernel' for path in parts),
             split_heads(heads, heads, head_dim)),
        Rule(f'{block}.attn.qkv.bias', tuple(f'{path}/bias' for path in parts),
             split_head_biases(heads)),
    ]
    rules += _layer(f'{block}.attn.proj', f'{layer}/out', join_heads(heads, head_dim))
    rules += _layer(f'{block}.mlp.fc1', f'{layer}/mlp_in', MATRIX)
    rules += _layer(f'{block}.mlp.fc2', f'{layer}/mlp_out', MATRIX)
    rules += _norm(f'{block}.norm1', f'{layer}/attention_norm')
    rules += _norm(f'{block}.norm2', f'{layer}/mlp_norm') + _norm(f'{part}_norm', f'{part}_norm')
  names = {
      'time_embed.mlp.0': 'time_in', 'time_embed.mlp.2': 'time_out', 'cond_embed': 'condition',
      'input_proj': 'state', 'res_blocks.{i}.mlp.0': 'mlp_in_{i}',
      'res_blocks.{i}.mlp.2': 'mlp_out_{i}',
      'res_blocks.{i}.adaLN_modulation.1': 'modulation_{i}',
      'final_layer.adaLN_modulation.1': 'out_modulation', 'final_layer.linear': 'out',
  }
  for theirs, ours in names.items():
    rules += _layer(f'diffloss.net.{theirs}', f'head/{ours}', MATRIX)
  return rules + _norm('diffloss.net.res_blocks.{i}.in_ln', 'head/norm_{i}')


def kl_vae(config: KLVAEConfig) -> list[Rule]:
  """Variational autoencoders of latent diffusion."""
  rules = _layer('quant_conv', 'quant_conv', POINTWISE)
  rules += _layer('post_quant_conv', 'post_quant_conv', POINTWISE)
  levels = range(len(config.ch_mult))
  # The published decoder numbers its levels like the encoder's, ours in execution order.
  for part, theirs, ours, resample in (
      ('encoder', 'down', [f'down_{level}' for level in levels], 'downsample'),
      ('decoder', 'up', [f'up_{level}' for level in reversed(levels)], 'upsample')):
    rules += _layer(f'{part}.conv_in', f'{part}/conv_in', CONVOLUTION)
    for level in levels:
      source, destination = f'{part}.{theirs}.{level}', f'{part}/{ours[level]}'
      rules += _residual(f'{source}.block.{{j}}', f'{destination}/res_{{j}}')
      rules += _attention(f'{source}.attn.{{j}}', f'{destination}/attn_{{j}}')
      rules += _layer(f'{source}.{resample}.conv', f'{destination}/{resample}', CONVOLUTION)
    rules += _residual(f'{part}.mid.block_1', f'{part}/mid/res_0')
    rules += _attention(f'{part}.mid.attn_1', f'{part}/mid/attn_0')
    rules += _residual(f'{part}.mid.block_2', f'{part}/mid/res_1')
    rules += _norm(f'{part}.norm_out', f'{part}/norm_out')
    rules += _layer(f'{part}.conv_out', f'{part}/conv_out', CONVOLUTION)
  return rules


def _layer(source: str, destination: str, transform: Transform) -> list[Rule]:
  return [Rule(f'{source}.weight', (f'{destination}/kernel',), transform),
          Rule(f'{source}.bias', (f'{destination}/bias',), KEEP)]


def _norm(source: str, destination: str) -> list[Rule]:
  return [Rule(f'{source}.weight', (f'{destination}/scale',), KEEP),
          Rule(f'{source}.bias', (f'{destination}/bias',), KEEP)]


def _residual(source: str, destination: str) -> list[Rule]:
  rules = []
  for number in (1, 2):
    rules += _norm(f'{source}.norm{number}', f'{destination}/norm_{number}')
    rules += _layer(f'{source}.conv{number}', f'{destination}/conv_{number}', CONVOLUTION)
  return rules + _layer(f'{source}.nin_shortcut', f'{destination}/shortcut', POINTWISE)


def _attention(source: str, destination: str) -> list[Rule]:
  rules = _norm(f'{source}.norm', f'{destination}/norm')
  for theirs, ours in (('q', 'query'), ('k', 'key'), ('v', 'value'), ('proj_out', 'out')):
    rules += _layer(f'{source}.{theirs}', f'{destination}/{ours}', POINTWISE)
  return rules


def expand(rules: Iterable[Rule], paths: Iterable[str]) -> list[Rule]:
  """The rules for one model, without placeholders, in the order of its parameters.

  Args:
    rules: a table.
    paths: paths of all parameters of the model.

  Returns:
    One rule per published tensor.

  Raises:
    ValueError: if a parameter is made by no rule, or by more than one.
  """
  rules, found, made = list(rules), [], []
  paths = list(paths)
  patterns = [_pattern(rule.destinations[0]) for rule in rules]
  for path in paths:
    for rule, pattern in zip(rules, patterns):
      if match := pattern.fullmatch(path):
        numbers = match.groupdict()
        destinations = tuple(name.format(**numbers) for name in rule.destinations)
        found.append(Rule(rule.source.format(**numbers), destinations, rule.transform))
        made.extend(destinations)
  if sorted(made) != sorted(paths):
    wrong = sorted(path for path in {*made, *paths} if made.count(path) != paths.count(path))
    raise ValueError(f'The rules do not make each of these parameters once: {wrong}.')
  return found


def _pattern(destination: str) -> re.Pattern[str]:
  return re.compile(re.sub(r'\\\{(\w)\\\}', r'(?P<\1>\\d+)', re.escape(destination)))
