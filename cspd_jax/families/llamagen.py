"""LlamaGen: an autoregressive transformer over VQ tokens, conditioned on classes or captions."""

from typing import Any

from cspd_jax.core.checkpoint import Kind
from cspd_jax.families import captions, classes, drafts, engines
from cspd_jax.families.family import Family, Parts
from cspd_jax.families.model import Conditions, Model, Tokenizer
from cspd_jax.metrics import frechet
from cspd_jax.models import eagle, llamagen, medusa, neighbours, t5, transformer, vq
from cspd_jax.text import bpe


def build(parts: Parts) -> Model:
  """Joins the networks of a LlamaGen model.

  Raises:
    ValueError: if they do not belong together.
  """
  loaded, target = parts.loaded, parts.loaded['target']
  config = target.config
  parts.pair('tokenizer', 'codebook_size', 'vocab_size')
  for size in ('vocab_size', 'height', 'width', 'num_classes', 'conditioning', 'caption_dim'):
    parts.pair('draft', size)
  for role, sizes in (('eagle', ('vocab_size', 'num_tokens', 'dim')),
                      ('corrector', ('vocab_size', 'num_tokens', 'dim')),
                      ('medusa', ('vocab_size', 'dim'))):
    for size in sizes:
      parts.pair(role, size)
  for size, target_size in (('vocab_size', None), ('num_tokens', None), ('row_width', 'width')):
    parts.pair('neighbours', size, target_size)
  layers = llamagen.first_layers(target.params, config, max(1, config.num_layers // 8))
  return Model(
      name=parts.name, family=FAMILY.name, config=config, params=target.params,
      grid=(config.height, config.width), engine=engines.DISCRETE,
      target=lambda *, guided: llamagen.target(config, guided=guided),
      conditions=_conditions(parts, config),
      tokenizer=_tokenizer(loaded.get('tokenizer'), config),
      drafts=drafts.discrete(
          parts, lambda config, guided: llamagen.target(config, guided=guided), layers),
      forward=lambda params, condition, tokens, drop: llamagen.logits_and_features(
          params, config, condition, tokens, drop),
      defaults=parts.defaults, metadata=target.metadata)


def _tokenizer(loaded: Any, config: llamagen.LlamaGenConfig) -> Tokenizer | None:
  if loaded is None:
    return None
  sizes = loaded.config
  return Tokenizer(
      sizes, loaded.params,
      decode=lambda params, tokens: vq.decode(
          params, sizes, tokens.reshape(-1, config.height, config.width)),
      codebook=lambda params: vq.codebook(params, sizes),
      features=lambda params, images: frechet.features(params, sizes, images))


def _conditions(parts: Parts, config: llamagen.LlamaGenConfig) -> Conditions:
  """Classes or captions.

  Raises:
    ValueError: if the parts that read words do not belong to the target.
  """
  if config.conditioning == 'text':
    parts.pair('t5', 'dim', 'caption_dim')
    text = parts.text(('t5',))
    return captions.conditions(config.caption_dim, parts.loaded.get('t5'), text)
  if words := [role for role in ('t5', 'text') if role in parts.loaded]:
    raise ValueError(f'model {parts.name!r} has the part {words[0]!r}, but its target is '
                     f'class-conditional and reads no words; load it with {words[0]}=None.')
  return classes.conditions(
      config.num_classes, parts.loaded['target'].metadata.get('labels', ()))


FAMILY = Family(
    name='llamagen',
    kinds={
        'llamagen': Kind(llamagen.LlamaGenConfig, llamagen.init, transformer.SPLIT),
        'vq': Kind(vq.VQConfig, vq.init),
        't5': Kind(t5.T5Config, t5.init, transformer.SPLIT),
        'text': Kind(bpe.TextConfig, bpe.init),
        'eagle': Kind(eagle.EagleConfig, eagle.init, transformer.SPLIT),
        'medusa': Kind(medusa.MedusaConfig, medusa.init),
        'neighbours': Kind(neighbours.NeighboursConfig, neighbours.init),
    },
    roles={'target': ('llamagen',), 'tokenizer': ('vq',), 't5': ('t5',), 'text': ('text',),
           'draft': ('llamagen',), 'eagle': ('eagle',), 'medusa': ('medusa',),
           'neighbours': ('neighbours',), 'corrector': ('eagle',)},
    build=build)
