"""PyTorch to compare with: a plain decoder-only transformer, and the official code of a model.

PyTorch is optional and imported on use.
"""

import importlib
import os
import sys
from typing import Any

from cspd_jax.files import paths
from cspd_jax.measure import timing
from cspd_jax.models.transformer import TransformerConfig

_DEVIATION = 0.02


def import_official(repo: str, url: str, file: str, needs: str) -> tuple[Any, Any]:
  """Imports PyTorch, set to one thread per core, and a module of a model's official code.

  Args:
    repo: folder of a clone of the official repository.
    url: URL of the repository, for messages.
    file: path of the module in the clone.
    needs: the packages to install, for messages.

  Raises:
    ValueError: if the code or a package that it imports is missing.
  """
  folder = paths.find('repo', repo)
  if not (folder / file).exists():
    raise ValueError(f'repo is {repo!r}, which does not contain {file}; give a clone of {url}.')
  sys.path.insert(0, str(folder))
  try:
    name = file.removesuffix('.py').replace('/', '.')
    torch, module = importlib.import_module('torch'), importlib.import_module(name)
  except ImportError as error:
    raise ValueError(f'the official code cannot be imported ({error}); run pip install {needs}.'
                     ) from error
  torch.set_num_threads(os.cpu_count())
  return torch, module


def perturb(torch: Any, model: Any) -> None:
  """Replaces parameters that were initialised with zeros by random numbers, in place."""
  for parameter in model.parameters():
    if not parameter.abs().max():
      torch.nn.init.normal_(parameter, std=_DEVIATION)


def seconds_per_token(config: TransformerConfig, *, rows: int, slots: int, dtype: str,
                      compiled: bool, tokens: int, repeats: int) -> float:
  """Measures the median seconds of a token in the middle of an image of `slots` tokens.

  The transformer has random weights and is written in the usual way for PyTorch: static caches, one
  projection for query, key and value, `scaled_dot_product_attention`. It generates one token at a
  time.

  Args:
    config: sizes of the transformer.
    rows: images times guidance streams.
    slots: tokens of an image.
    dtype: of weights and cache: 'float32' or 'bfloat16'.
    compiled: whether to compile the step by `torch.compile(mode='reduce-overhead')`.
    tokens: tokens of a timed run.
    repeats: timed runs.
  """
  import torch  # Optional, and slow to import.
  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  step, state = _step(torch, config, rows, slots, getattr(torch, dtype), device)
  if compiled:
    step = torch.compile(step, mode='reduce-overhead')
  first = slots // 2
  tokens = min(tokens, slots - first)

  def run():
    current = torch.zeros((rows, 1), dtype=torch.long, device=device)
    for position in range(first, first + tokens):
      current = step(current, torch.tensor([position], device=device), *state).clone()
    if device == 'cuda':
      torch.cuda.synchronize()

  with torch.inference_mode():  # The first two runs compile and warm up.
    return timing.measure({'run': run}, repeats, warmup=2)['run'].median / tokens


def _step(torch: Any, config: TransformerConfig, rows: int, slots: int, dtype: Any, device: str):
  """Returns a function of a token, its position, weights and cache; and the weights and cache."""
  functional = torch.nn.functional
  heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
  random = lambda *shape: _DEVIATION * torch.randn(shape, dtype=dtype, device=device)
  ones = lambda size: torch.ones(size, dtype=dtype, device=device)
  layers = [dict(
      attention_norm=ones(config.dim), ffn_norm=ones(config.dim),
      qkv=random((heads + 2 * kv_heads) * width, config.dim),
      out=random(config.dim, heads * width), gate_up=random(2 * config.ffn_dim, config.dim),
      down=random(config.dim, config.ffn_dim)) for _ in range(config.num_layers)]
  caches = [(random(rows, kv_heads, slots, width), random(rows, kv_heads, slots, width))
            for _ in layers]
  table, output = random(config.vocab_size, config.dim), random(config.num_outputs, config.dim)
  angles = torch.outer(torch.arange(slots), 1e4 ** -(torch.arange(0, width, 2) / width)).to(device)
  cos, sin = angles.cos(), angles.sin()

  def norm(x, scale):
    return functional.rms_norm(x, (x.shape[-1],), scale, config.norm_eps)

  def rotate(x, position):
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    rotated = (even * cos[position] - odd * sin[position],
               odd * cos[position] + even * sin[position])
    return torch.stack(rotated, -1).flatten(-2).to(x.dtype)

  def step(tokens, position, layers, caches, table, output):
    x = table[tokens]
    visible = (torch.arange(slots, device=device) <= position)[None, None, None]
    for layer, (keys, values) in zip(layers, caches):
      parts = functional.linear(norm(x, layer['attention_norm']), layer['qkv'])
      parts = parts.unflatten(-1, (-1, width)).transpose(1, 2)
      query, key, value = parts.split((heads, kv_heads, kv_heads), 1)
      keys.index_copy_(2, position, rotate(key, position))
      values.index_copy_(2, position, value)
      attended = functional.scaled_dot_product_attention(
          rotate(query, position), keys, values, attn_mask=visible,
          enable_gqa=heads != kv_heads)
      x = x + functional.linear(attended.transpose(1, 2).flatten(2), layer['out'])
      gate, up = functional.linear(norm(x, layer['ffn_norm']), layer['gate_up']).chunk(2, -1)
      x = x + functional.linear(functional.silu(gate) * up, layer['down'])
    return functional.linear(x, output).float().argmax(-1)

  return step, (layers, caches, table, output)
