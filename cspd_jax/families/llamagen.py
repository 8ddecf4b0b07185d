"""LlamaGen: an autoregressive transformer over VQ tokens, conditioned on classes or captions."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from cspd_jax.families import decoder_only, prompt_kinds
from cspd_jax.families.family import Family, Parts, Published
from cspd_jax.files.store import Kind
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import PromptKind
from cspd_jax.models import eagle, llamagen, t5, transformer, vq
from cspd_jax.text import bpe


def build(parts: Parts) -> Model:
  """Builds a LlamaGen model of its networks; raises ValueError unless they belong together."""
  config = parts.loaded['target'].config
  decoder_only.pair(parts, 'vocab_size', (
      'vocab_size', 'height', 'width', 'num_classes', 'conditioning', 'caption_dim'))
  return decoder_only.build(
      parts, FAMILY, llamagen.logits_and_features, _prompt_kind(parts, config),
      decoder_only.image_tokenizer(parts.loaded.get('tokenizer'), config))


def _prompt_kind(parts: Parts, config: llamagen.LlamaGenConfig) -> PromptKind:
  """Returns the prompts; raises ValueError if text parts do not belong to the target."""
  if config.conditioning == 'text':
    parts.pair('t5', dim='caption_dim')
    text = parts.text(('t5',))
    captions = prompt_kinds.captions(config.caption_dim, parts.loaded.get('t5'), text)
    return captions._replace(params={
        role: parts.loaded[role].params for role in ('t5', 'text') if role in parts.loaded})
  if words := [role for role in ('t5', 'text') if role in parts.loaded]:
    raise ValueError(f'model {parts.name!r} has the part {words[0]!r}, but its target is '
                     f'class-conditional and accepts no words; load it with {words[0]}=None.')
  return prompt_kinds.classes(config.num_classes, parts.loaded['target'].metadata.get('labels', ()))


def _networks(config: llamagen.LlamaGenConfig) -> dict[str, tuple[str, Any]]:
  """Networks for a target: every family's, Medusa heads and a smaller LlamaGen."""
  small = llamagen.PRESETS['c2i_b_256']
  draft = dataclasses.replace(
      config, dim=small.dim, num_layers=small.num_layers, num_heads=small.num_heads,
      num_kv_heads=small.num_kv_heads, ffn_dim=small.ffn_dim)
  return decoder_only.with_medusa(config, 'llamagen') | {'draft': ('llamagen', draft)}


def _condition(config: llamagen.LlamaGenConfig, count: int) -> Any:
  if config.conditioning == 'class':
    return jax.ShapeDtypeStruct((count,), np.int32)
  size = (count, config.num_condition_tokens)
  return llamagen.Caption(jax.ShapeDtypeStruct((*size, config.caption_dim), np.float32),
                          jax.ShapeDtypeStruct(size, bool))


_LLAMAGEN = {'llamagen': decoder_only.kind(llamagen.LlamaGenConfig, llamagen.init)}
FAMILY = Family(
    name='llamagen',
    roles={'target': _LLAMAGEN, 'tokenizer': {'vq': Kind(vq.VQConfig, vq.init)},
           't5': {'t5': Kind(t5.T5Config, t5.init, transformer.SPLIT)},
           'text': {'text': Kind(bpe.TextConfig, bpe.init)}, 'draft': _LLAMAGEN,
           **decoder_only.DRAFTS},
    build=build,
    published=Published(llamagen.PRESETS, _networks, _condition),
    # Names of control tokens.
    text_forms={'t5': functools.partial(
        bpe.Vocabulary, control=r'</s>|<pad>|<unk>|<extra_id_\d+>')},
    # As LANTERN publishes them (arXiv 2410.03355): the condition has no tokens and no positions.
    eagle_layers={'llamagen': eagle.Layer(by_grid=True, reads_prompt=False)})
