"""The parts that families of decoder-only models with discrete tokens share, and their drafts."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from cspd_jax.decoding import prefix as prefix_lib
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.drafters import Heads, Network
from cspd_jax.decoding.specification import CORRECTORS
from cspd_jax.families.family import Family, Parts, is_described
from cspd_jax.files.store import Kind, Loaded
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import DraftNetwork, ImageTokenizer, PromptKind, Teacher
from cspd_jax.models import decoder_only, eagle, local, medusa, neighbours, transformer, vq
from cspd_jax.models.ends import Ends


def build(parts: Parts, family: Family, forward: Callable[..., tuple[jax.Array, jax.Array]],
          prompt_kind: PromptKind, tokenizer: ImageTokenizer | None) -> Model:
  """Builds a model of networks that belong together, of a family with one form of EAGLE layers.

  `forward` is `logits_and_features` of the target's module.
  """
  loaded = parts.loaded['target']
  config = loaded.config
  target = lambda config, guided: decoder_only.target(config, guided=guided)
  layers = decoder_only.first_layers(loaded.params, config, max(1, config.num_layers // 8))
  ends = decoder_only.ends(config)
  return Model(
      name=parts.name, family=family.name, config=config, params=loaded.params,
      grid=(config.height, config.width), build_target=functools.partial(target, config),
      prompt_kind=prompt_kind, tokenizer=tokenizer, drafts=discrete(parts, target, layers, ends),
      teacher=Teacher(lambda params, *args: forward(params, config, *args), ends,
                      next(iter(family.eagle_layers)), target(config, False).forced),
      defaults=parts.defaults, metadata=loaded.metadata)


def pair(parts: Parts, codes: str, draft_sizes: Sequence[str]) -> None:
  """Checks that networks fit their target; raises ValueError if not.

  `codes` is the field of the target's config with the codes of an image tokenizer, `draft_sizes`
  those that a smaller model must share.
  """
  parts.pair('tokenizer', codebook_size=codes)
  for role in ('eagle', 'corrector'):
    parts.pair(role, 'vocab_size', 'num_tokens', 'dim', num_outputs='num_image_tokens')
  parts.pair('medusa', 'dim', vocab_size='num_image_tokens')
  parts.pair('neighbours', 'num_tokens', 'row_width', vocab_size='num_image_tokens')
  parts.pair('local', 'num_tokens', 'row_width', vocab_size='num_image_tokens', feature_dim='dim')
  parts.pair('draft', *draft_sizes)


def resize(loaded: Mapping[str, Loaded], grid: tuple[int, int]) -> dict[str, Loaded]:
  """Returns the networks for images of another grid of tokens, with the same parameters."""
  own = dict(zip(('height', 'width'), grid))
  target = dataclasses.replace(loaded['target'].config, **own)
  tokens = dict(num_tokens=target.num_tokens, row_width=target.row_width)
  sizes = {loaded['target'].kind: own} | dict.fromkeys(('eagle', 'neighbours', 'local'), tokens)
  return {role: part._replace(config=dataclasses.replace(part.config, **sizes.get(part.kind, {})))
          for role, part in loaded.items()}


def image_tokenizer(
    loaded: Loaded | None, config: Any,
    to_codes: Callable[[jax.Array], jax.Array] = lambda tokens: tokens,
    to_tokens: Callable[[jax.Array], jax.Array] = lambda codes: codes,
    of_tokens: Callable[[jax.Array], jax.Array] = lambda vectors: vectors) -> ImageTokenizer | None:
  """Returns the image tokenizer of a target with this config, None if it is only described.

  `to_codes` maps tokens `[B, T]` to codes `[B, height * width]`, `to_tokens` back, and `of_tokens`
  the vectors of all codes to the vectors of all tokens; by default tokens are codes.
  """
  if loaded is None or is_described(loaded):
    return None
  sizes = loaded.config
  return ImageTokenizer(
      sizes, loaded.params,
      decode=lambda params, tokens: vq.decode(
          params, sizes, to_codes(tokens).reshape(-1, config.height, config.width)),
      encode=lambda params, images: to_tokens(
          vq.encode(params, sizes, images).reshape(len(images), -1)),
      codebook=lambda params: of_tokens(vq.codebook(params, sizes)),
      features=lambda params, images: vq.features(params, sizes, images))


Params = Any
# Matrices of drafters: a target's, and every other linear layer's.
_PRODUCTS = transformer.PRODUCTS | {r'(.*/)?(fc|in|out|gain|residual|hidden_\d+)/kernel': 1}
# Kinds of the networks, by role, that `discrete` builds drafts from.
EAGLE = {'eagle': Kind(eagle.EagleConfig, eagle.init, transformer.SPLIT, orders=transformer.ORDERS,
                       products=_PRODUCTS)}
MEDUSA = {'medusa': Kind(medusa.MedusaConfig, medusa.init, products=_PRODUCTS)}
NEIGHBOURS = {'neighbours': Kind(
    neighbours.NeighboursConfig, neighbours.init, products=_PRODUCTS)}
LOCAL = {'local': Kind(local.LocalConfig, local.init, products=_PRODUCTS)}
DRAFTS = {'eagle': EAGLE, 'medusa': MEDUSA, 'neighbours': NEIGHBOURS, 'local': LOCAL,
          'corrector': EAGLE}


def kind(config: type, init: Callable[[Any, jax.Array], Params]) -> Kind:
  """Returns the kind of a target, a transformer with this class of configs."""
  return Kind(config, init, transformer.SPLIT, transformer.MATRICES, transformer.ORDERS,
              transformer.PRODUCTS)


def discrete(parts: Parts, draft_target: Callable[[Any, bool], Target],
             layers: tuple[Params, Callable[[bool], Network]], ends: Ends
             ) -> dict[str, DraftNetwork]:
  """Returns drafts, of networks that belong together, by the keys of `Table.networks`.

  `draft_target` is `(config, guided) -> Target` of a smaller model; `layers` has the parameters of
  the target's first layers, and a function of `guided` that returns the network of them.
  """
  loaded, target_params = parts.loaded, parts.loaded['target'].params
  drafts = {}

  def of_eagle(trained: Loaded) -> DraftNetwork:
    network = eagle.network(trained.config, ends)
    return DraftNetwork(
        lambda guided, prefix_length=0: prefix_lib.network(network, prefix_length),
        eagle.attach(target_params, trained.params))

  if 'draft' in loaded:
    draft = loaded['draft']
    drafts['model'] = DraftNetwork(
        lambda guided, prefix_length=0: prefix_lib.target(
            draft_target(draft.config, guided), prefix_length),
        draft.params)
  if 'eagle' in loaded:
    drafts['eagle'] = of_eagle(loaded['eagle'])
  if 'medusa' in loaded:
    sizes = loaded['medusa'].config
    heads = Heads(medusa.heads, sizes.num_heads, sizes.vocab_size)
    drafts['medusa'] = DraftNetwork(lambda guided, prefix_length=0: heads, loaded['medusa'].params)
  if 'neighbours' in loaded:
    config = loaded['neighbours'].config
    drafts['neighbours'] = DraftNetwork(
        lambda guided, prefix_length=0: neighbours.corrector(
            dataclasses.replace(config, num_tokens=config.num_tokens - prefix_length)),
        loaded['neighbours'].params)
  if 'local' in loaded:
    near = loaded['local'].config
    drafts['local'] = DraftNetwork(
        lambda guided, prefix_length=0: local.corrector(
            dataclasses.replace(near, num_tokens=near.num_tokens - prefix_length), ends),
        local.attach(target_params, loaded['local'].params))
  drafts['layers'] = DraftNetwork(
      lambda guided, prefix_length=0: prefix_lib.network(layers[1](guided), prefix_length),
      layers[0])
  # The available corrector that commits most: a trained one, or else another network.
  if 'corrector' in loaded:
    name, network = 'eagle', of_eagle(loaded['corrector'])
  else:
    name, network = next((name, drafts[name]) for name in ('eagle', 'local', 'neighbours', 'layers')
                         if name in drafts)
  correct = CORRECTORS[name]
  drafts['corrector'] = DraftNetwork(
      lambda guided, prefix_length=0: correct(network.build(guided, prefix_length)),
      network.params)
  return drafts


def published(config: Any, eagle_layer: str) -> dict[str, tuple[str, Any]]:
  """Returns kind and config, by role, of the networks that are trained for a target.

  The corrector has two EAGLE layers with a learned correction, like the shipped one; `eagle_layer`
  is the form of both networks.
  """
  layer = eagle.EagleConfig(
      family=eagle_layer, num_tokens=config.num_tokens, row_width=config.row_width, dim=config.dim,
      num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, ffn_dim=config.ffn_dim,
      vocab_size=config.vocab_size, rope_base=config.rope_base, norm_eps=config.norm_eps,
      num_outputs=config.num_image_tokens)
  corrector = dataclasses.replace(layer, num_layers=2, correction_dim=layer.dim)
  return {
      'eagle': ('eagle', layer), 'corrector': ('eagle', corrector),
      'neighbours': ('neighbours', neighbours.NeighboursConfig(
          config.num_image_tokens, config.num_tokens, config.row_width,
          getattr(config, 'small', (0, 0)))),
      'local': ('local', local.LocalConfig(
          config.num_image_tokens, config.num_tokens, config.row_width,
          getattr(config, 'small', (0, 0)), feature_dim=config.dim))}


def with_medusa(config: Any, eagle_layer: str) -> dict[str, tuple[str, Any]]:
  """Returns `published` and Medusa heads, for targets whose head is one matrix."""
  sizes = medusa.MedusaConfig(dim=config.dim, vocab_size=config.num_image_tokens)
  return published(config, eagle_layer) | {'medusa': ('medusa', sizes)}
