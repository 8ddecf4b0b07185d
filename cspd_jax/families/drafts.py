"""What drafts for a model of discrete tokens, made from its networks."""

import dataclasses
from collections.abc import Callable
from typing import Any

from cspd_jax.checkpoints.kinds import Kind
from cspd_jax.decoding import continued
from cspd_jax.decoding.decoders import CORRECTORS
from cspd_jax.decoding.drafters import Network, from_network
from cspd_jax.families.family import Parts
from cspd_jax.generation.model import Drafts
from cspd_jax.models import eagle, medusa, neighbours, transformer
from cspd_jax.models.ends import Ends

Params = Any
# Kinds of the networks by the roles that `discrete` builds drafts for.
EAGLE = {'eagle': Kind(eagle.EagleConfig, eagle.init, transformer.SPLIT, orders=transformer.ORDERS)}
MEDUSA = {'medusa': Kind(medusa.MedusaConfig, medusa.init)}
NEIGHBOURS = {'neighbours': Kind(neighbours.NeighboursConfig, neighbours.init)}


def discrete(parts: Parts, draft_target: Callable[[Any, bool], Any],
             layers: tuple[Params, Callable[[bool], Network]], ends: Ends) -> dict[str, Drafts]:
  """Drafts by the names that decoders ask for; networks that belong together.

  Args:
    parts: the networks of a model.
    draft_target: `(config, guided) -> Target` of a smaller model.
    layers: the target's first layers: parameters, and the network that takes them.
    ends: the target's embedding and head.
  """
  loaded, target_params = parts.loaded, parts.loaded['target'].params
  drafts = {}
  if 'draft' in loaded:
    draft = loaded['draft']
    drafts['model'] = Drafts(
        lambda guided, given=0: continued.target(draft_target(draft.config, guided), given),
        draft.params)
  if 'eagle' in loaded:
    network = eagle.network(loaded['eagle'].config, ends)
    drafts['eagle'] = Drafts(
        lambda guided, given=0: continued.network(network, given),
        eagle.attach(target_params, loaded['eagle'].params))
  if 'medusa' in loaded:
    heads = medusa.drafting_heads(loaded['medusa'].config)
    drafts['medusa'] = Drafts(lambda guided, given=0: heads, loaded['medusa'].params)
  if 'neighbours' in loaded:
    near = loaded['neighbours'].config
    drafts['neighbours'] = Drafts(
        lambda guided, given=0: neighbours.corrector(
            dataclasses.replace(near, num_tokens=near.num_tokens - given)),
        loaded['neighbours'].params)
  drafts['layers'] = Drafts(
      lambda guided, given=0: continued.network(layers[1](guided), given), layers[0])
  drafts['corrector'] = _corrector(target_params, loaded.get('corrector'), drafts, ends)
  return drafts


def published(layer: eagle.EagleConfig) -> dict[str, tuple[str, Any]]:
  """Kind and sizes, by role, of the networks that are made for a target.

  The corrector is two layers of EAGLE with a learned correction, as the shipped one.

  Args:
    layer: sizes of the target's EAGLE network.
  """
  corrector = dataclasses.replace(layer, num_layers=2, correction_dim=layer.dim)
  return {
      'eagle': ('eagle', layer), 'corrector': ('eagle', corrector),
      'neighbours': ('neighbours', neighbours.NeighboursConfig(
          layer.num_outputs, layer.num_tokens, layer.row_width))}


def _corrector(target_params: Params, own: Any, drafts: dict[str, Drafts], ends: Ends) -> Drafts:
  """What corrects best: the network that is trained for it, or else what there is."""
  if own is not None:
    network = eagle.network(own.config, ends)
    return Drafts(lambda guided, given=0: from_network(continued.network(network, given)),
                  eagle.attach(target_params, own.params))
  name = next(name for name in ('eagle', 'neighbours', 'layers') if name in drafts)
  other, correct = drafts[name], CORRECTORS[name]
  return Drafts(lambda guided, given=0: correct(other.build(guided, given)), other.params)
