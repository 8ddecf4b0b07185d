"""A decoder-only transformer in PyTorch that makes one token at a time, to compare with.

Written as PyTorch users do it: static keys and values, one projection for query, key and value,
`scaled_dot_product_attention`. The weights are made up; only the time counts. PyTorch is optional
and imported when it is asked for.
"""

import time
from typing import Any

import numpy as np

_DEVIATION = 0.02


def seconds_per_token(config: Any, *, rows: int, slots: int, dtype: str, compiled: bool,
                      tokens: int, repeats: int) -> float:
  """Median seconds of a token in the middle of an image.

  Args:
    config: a `models.TransformerConfig`.
    rows: images times guidance streams.
    slots: tokens of an image.
    dtype: of weights and cache: 'float32' or 'bfloat16'.
    compiled: whether `torch.compile(mode='reduce-overhead')` prepares the step.
    tokens: of a timed run.
    repeats: timed runs.

  Raises:
    ImportError: if PyTorch is not installed.
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
    for place in range(first, first + tokens):
      current = step(current, torch.tensor([place], device=device), *state).clone()
    if device == 'cuda':
      torch.cuda.synchronize()

  with torch.inference_mode():
    seconds = []
    for turn in range(repeats + 2):  # Two turns compile and warm up.
      start = time.perf_counter()
      run()
      if turn >= 2:
        seconds.append(time.perf_counter() - start)
  return float(np.median(seconds)) / tokens


def _step(torch, config, rows, slots, dtype, device):
  """A function of a token, its place, weights and cache, and these."""
  functional = torch.nn.functional
  heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
  made = lambda *shape: _DEVIATION * torch.randn(shape, dtype=dtype, device=device)
  ones = lambda size: torch.ones(size, dtype=dtype, device=device)
  layers = [dict(
      attention_norm=ones(config.dim), ffn_norm=ones(config.dim),
      qkv=made((heads + 2 * kv_heads) * width, config.dim), out=made(config.dim, heads * width),
      gate_up=made(2 * config.ffn_dim, config.dim), down=made(config.dim, config.ffn_dim))
            for _ in range(config.num_layers)]
  caches = [(made(rows, kv_heads, slots, width), made(rows, kv_heads, slots, width))
            for _ in layers]
  table, output = made(config.vocab_size, config.dim), made(config.num_outputs, config.dim)
  angles = torch.outer(torch.arange(slots), 1e4 ** -(torch.arange(0, width, 2) / width)).to(device)
  cos, sin = angles.cos(), angles.sin()

  def norm(x, scale):
    return functional.rms_norm(x, (x.shape[-1],), scale, config.norm_eps)

  def rotate(x, place):
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = (even * cos[place] - odd * sin[place], odd * cos[place] + even * sin[place])
    return torch.stack(turned, -1).flatten(-2).to(x.dtype)

  def step(tokens, place, layers, caches, table, output):
    x = table[tokens]
    seen = (torch.arange(slots, device=device) <= place)[None, None, None]
    for layer, (keys, values) in zip(layers, caches):
      parts = functional.linear(norm(x, layer['attention_norm']), layer['qkv'])
      parts = parts.unflatten(-1, (-1, width)).transpose(1, 2)
      query, key, value = parts.split((heads, kv_heads, kv_heads), 1)
      keys.index_copy_(2, place, rotate(key, place))
      values.index_copy_(2, place, value)
      attended = functional.scaled_dot_product_attention(
          rotate(query, place), keys, values, attn_mask=seen, enable_gqa=heads != kv_heads)
      x = x + functional.linear(attended.transpose(1, 2).flatten(2), layer['out'])
      gate, up = functional.linear(norm(x, layer['ffn_norm']), layer['gate_up']).chunk(2, -1)
      x = x + functional.linear(functional.silu(gate) * up, layer['down'])
    return functional.linear(x, output).float().argmax(-1)

  return step, (layers, caches, table, output)
