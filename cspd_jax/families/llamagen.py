"""LlamaGen: an autoregressive transformer over VQ tokens, conditioned on classes or captions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cspd_jax.core.checkpoint import Kind
from cspd_jax.decoding.correctors import CORRECTORS
from cspd_jax.decoding.drafters import from_network
from cspd_jax.families import classes, engines
from cspd_jax.families.family import Family, Parts
from cspd_jax.families.model import Conditions, Drafts, Model, Tokenizer
from cspd_jax.metrics import frechet
from cspd_jax.models import eagle, llamagen, medusa, neighbours, vq


def build(parts: Parts) -> Model:
  """Joins the networks of a LlamaGen model.

  Raises:
    ValueError: if they do not belong together.
  """
  loaded, target = parts.loaded, parts.loaded['target']
  config = target.config
  parts.pair('tokenizer', 'codebook_size', 'vocab_size')
  for size in ('vocab_size', 'height', 'width', 'num_classes', 'conditioning'):
    parts.pair('draft', size)
  for role, sizes in (('eagle', ('vocab_size', 'num_tokens', 'dim')),
                      ('corrector', ('vocab_size', 'num_tokens', 'dim')),
                      ('medusa', ('vocab_size', 'dim'))):
    for size in sizes:
      parts.pair(role, size)
  for size, target_size in (('vocab_size', None), ('num_tokens', None), ('row_width', 'width')):
    parts.pair('neighbours', size, target_size)
  drafts = {}
  if 'draft' in loaded:
    draft = loaded['draft']
    drafts['model'] = Drafts(
        lambda guided: llamagen.target(draft.config, guided=guided), draft.params)
  if 'eagle' in loaded:
    network = eagle.network(loaded['eagle'].config)
    drafts['eagle'] = Drafts(
        lambda guided: network, eagle.attach(target.params, loaded['eagle'].params))
  if 'medusa' in loaded:
    heads = medusa.drafting_heads(loaded['medusa'].config)
    drafts['medusa'] = Drafts(lambda guided: heads, loaded['medusa'].params)
  if 'neighbours' in loaded:
    near = neighbours.corrector(loaded['neighbours'].config)
    drafts['neighbours'] = Drafts(lambda guided: near, loaded['neighbours'].params)
  layers, build_layers = llamagen.first_layers(
      target.params, config, max(1, config.num_layers // 8))
  drafts['layers'] = Drafts(build_layers, layers)
  drafts |= _corrector(target.params, loaded.get('corrector'), drafts)
  conditions = (
      classes.conditions(config.num_classes, target.metadata.get('labels', ()))
      if config.conditioning == 'class' else _captions())
  return Model(
      name=parts.name, family=FAMILY.name, config=config, params=target.params,
      grid=(config.height, config.width), engine=engines.DISCRETE,
      target=lambda *, guided: llamagen.target(config, guided=guided), conditions=conditions,
      tokenizer=_tokenizer(loaded.get('tokenizer'), config), drafts=drafts,
      forward=lambda params, condition, tokens, drop: llamagen.logits_and_features(
          params, config, condition, tokens, drop),
      defaults=parts.defaults, metadata=target.metadata)


def _corrector(target_params: Any, own: Any, drafts: Mapping[str, Drafts]) -> dict[str, Drafts]:
  """What corrects best: the network that is trained for it, or else what there is."""
  if own is not None:
    trained = from_network(eagle.network(own.config))
    return {'corrector': Drafts(
        lambda guided: trained, eagle.attach(target_params, own.params))}
  name = next(name for name in ('eagle', 'neighbours', 'layers') if name in drafts)
  other, correct = drafts[name], CORRECTORS[name]
  return {'corrector': Drafts(lambda guided: correct(other.build(guided)), other.params)}


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


def _captions() -> Conditions:
  """Text conditions: embeddings of captions, which a text encoder has made."""

  def encode(prompts):
    if not isinstance(prompts, llamagen.Caption):
      raise ValueError(
          f'prompts is a {type(prompts).__name__}; this text-conditional model takes a '
          'llamagen.Caption of T5 embeddings and their mask.')
    return prompts

  return Conditions(
      encode, lambda prompts: [f'caption {i}' for i in range(np.shape(prompts.mask)[0])], ())


FAMILY = Family(
    name='llamagen',
    kinds={
        'llamagen': Kind(llamagen.LlamaGenConfig, llamagen.init),
        'vq': Kind(vq.VQConfig, vq.init),
        'eagle': Kind(eagle.EagleConfig, eagle.init),
        'medusa': Kind(medusa.MedusaConfig, medusa.init),
        'neighbours': Kind(neighbours.NeighboursConfig, neighbours.init),
    },
    roles={'target': ('llamagen',), 'tokenizer': ('vq',), 'draft': ('llamagen',),
           'eagle': ('eagle',), 'medusa': ('medusa',), 'neighbours': ('neighbours',),
           'corrector': ('eagle',)},
    build=build)
