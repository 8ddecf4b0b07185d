"""Unified models: one vocabulary for text and images, as Lumina-mGPT, Anole and Emu3 have."""

import jax
import numpy as np

from cspd_jax.core.checkpoint import Kind
from cspd_jax.families import drafts, engines
from cspd_jax.families.family import Family, Parts
from cspd_jax.families.model import Conditions, Model
from cspd_jax.models import eagle, neighbours, unified
from cspd_jax.models.causal import Prompt


def build(parts: Parts) -> Model:
  """Joins the networks of a unified model.

  Raises:
    ValueError: if they do not belong together.
  """
  target = parts.loaded['target']
  config = target.config
  for role in ('eagle', 'corrector'):
    for size in ('vocab_size', 'num_tokens', 'dim'):
      parts.pair(role, size)
    parts.pair(role, 'num_outputs', 'num_image_tokens')
  for size in ('num_tokens', 'row_width'):
    parts.pair('neighbours', size)
  parts.pair('neighbours', 'vocab_size', 'num_image_tokens')
  for size in ('height', 'width', 'num_codes', 'row_end', 'image_ends', 'vocab_size'):
    parts.pair('draft', size)
  layers = unified.first_layers(target.params, config, max(1, config.num_layers // 8))
  return Model(
      name=parts.name, family=FAMILY.name, config=config, params=target.params,
      grid=(config.height, config.width), engine=engines.DISCRETE,
      target=lambda *, guided: unified.target(config, guided=guided),
      conditions=_prompts(config),
      drafts=drafts.discrete(
          parts, lambda config, guided: unified.target(config, guided=guided), layers),
      forward=lambda params, condition, tokens, drop: unified.logits_and_features(
          params, config, condition, tokens, drop),
      defaults=parts.defaults, metadata=target.metadata)


def _prompts(config: unified.UnifiedConfig) -> Conditions:
  """Prompts in tokens, with their published ids."""
  place = np.argsort(unified.order(config))

  def encode(prompts):
    if not isinstance(prompts, Prompt):
      raise ValueError(
          f'prompts is a {type(prompts).__name__}; this model takes a causal.Prompt of published '
          'token ids, one stream with the prompt and one with what guidance leads away from.')
    tokens = np.asarray(prompts.tokens)
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < config.vocab_size:
      raise ValueError(f'prompts holds tokens from {tokens.min()} to {tokens.max()}; this model '
                       f'knows 0 to {config.vocab_size - 1}.')
    return Prompt(jax.numpy.asarray(place[tokens], jax.numpy.int32),
                  jax.numpy.asarray(prompts.visible, bool))

  return Conditions(
      encode, lambda prompts: [f'prompt {i}' for i in range(np.shape(prompts.tokens)[0])], ())


FAMILY = Family(
    name='unified',
    kinds={
        'unified': Kind(unified.UnifiedConfig, unified.init),
        'eagle': Kind(eagle.EagleConfig, eagle.init),
        'neighbours': Kind(neighbours.NeighboursConfig, neighbours.init),
    },
    roles={'target': ('unified',), 'draft': ('unified',), 'eagle': ('eagle',),
           'neighbours': ('neighbours',), 'corrector': ('eagle',)},
    build=build)
