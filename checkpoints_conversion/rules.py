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

from cspd_jax.models.llamagen import LlamaGenConfig
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
