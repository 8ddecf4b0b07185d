"""Builds the drafts of a model of discrete tokens from its networks."""

import dataclasses
from collections.abc import Callable
from typing import Any

from cspd_jax.decoding import prefix as prefix_lib
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.decoders import CORRECTORS
from cspd_jax.decoding.drafters import Network, from_network
from cspd_jax.families.family import Parts
from cspd_jax.files.kinds import Kind
from cspd_jax.files.store import Loaded
from cspd_jax.generation.parts import Drafts
from cspd_jax.models import eagle, medusa, neighbours, transformer
from cspd_jax.models.ends import Ends

Params = Any
# Kinds of the networks, by role, that `discrete` builds drafts from.
EAGLE = {'eagle': Kind(eagle.EagleConfig, eagle.init, transformer.SPLIT, orders=transformer.ORDERS)}
MEDUSA = {'medusa': Kind(medusa.MedusaConfig, medusa.init)}
NEIGHBOURS = {'neighbours': Kind(neighbours.NeighboursConfig, neighbours.init)}


def discrete(parts: Parts, draft_target: Callable[[Any, bool], Target],
             layers: tuple[Params, Callable[[bool], Network]], ends: Ends) -> dict[str, Drafts]:
  """Returns drafts by the keys of `decoding.specification.SOURCES`.

  Args:
    parts: the networks of a model, which must belong together.
    draft_target: `(config, guided) -> Target` of a smaller model.
    layers: parameters of the target's first layers, and `guided -> ` the network that uses them.
    ends: the target's embedding and head.
  """
  loaded, target_params = parts.loaded, parts.loaded['target'].params
  drafts = {}
  if 'draft' in loaded:
    draft = loaded['draft']
    drafts['model'] = Drafts(
        lambda guided, prefix_length=0: prefix_lib.target(
            draft_target(draft.config, guided), prefix_length),
        draft.params)
  if 'eagle' in loaded:
    network = eagle.network(loaded['eagle'].config, ends)
    drafts['eagle'] = Drafts(
        lambda guided, prefix_length=0: prefix_lib.network(network, prefix_length),
        eagle.attach(target_params, loaded['eagle'].params))
  if 'medusa' in loaded:
    heads = medusa.drafting_heads(loaded['medusa'].config)
    drafts['medusa'] = Drafts(lambda guided, prefix_length=0: heads, loaded['medusa'].params)
  if 'neighbours' in loaded:
    config = loaded['neighbours'].config
    drafts['neighbours'] = Drafts(
        lambda guided, prefix_length=0: neighbours.corrector(
            dataclasses.replace(config, num_tokens=config.num_tokens - prefix_length)),
        loaded['neighbours'].params)
  drafts['layers'] = Drafts(
      lambda guided, prefix_length=0: prefix_lib.network(layers[1](guided), prefix_length),
      layers[0])
  drafts['corrector'] = _corrector(target_params, loaded.get('corrector'), drafts, ends)
  return drafts


def published(layer: eagle.EagleConfig) -> dict[str, tuple[str, Any]]:
  """Returns kind and config, by role, of the networks that are trained for a target.

  The corrector has two EAGLE layers with a learned correction, like the shipped one.

  Args:
    layer: config of the target's EAGLE network.
  """
  corrector = dataclasses.replace(layer, num_layers=2, correction_dim=layer.dim)
  return {
      'eagle': ('eagle', layer), 'corrector': ('eagle', corrector),
      'neighbours': ('neighbours', neighbours.NeighboursConfig(
          layer.num_outputs or layer.vocab_size, layer.num_tokens, layer.row_width))}


def _corrector(target_params: Params, trained: Loaded | None, drafts: dict[str, Drafts],
               ends: Ends) -> Drafts:
  """Returns the best available corrector: a trained one, or else a drafting network."""
  if trained is not None:
    network = eagle.network(trained.config, ends)
    return Drafts(
        lambda guided, prefix_length=0: from_network(prefix_lib.network(network, prefix_length)),
        eagle.attach(target_params, trained.params))
  name = next(name for name in ('eagle', 'neighbours', 'layers') if name in drafts)
  other, correct = drafts[name], CORRECTORS[name]
  return Drafts(lambda guided, prefix_length=0: correct(other.build(guided, prefix_length)),
                other.params)
