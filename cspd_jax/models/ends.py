"""The two ends of a decoder-only model: how its tokens are embedded, and its head.

Drafters that continue a target's features share both with it. They ask these functions, so that
neither has to be a table.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.models.transformer import Transformer, TransformerConfig

Params = Any
Embed = Callable[[Params, jax.Array], jax.Array]
Logits = Callable[[Params, jax.Array], jax.Array]

_IMPOSSIBLE = -1e30


class Ends(NamedTuple):
  """An embedding and a head; `params` are those of the model, with or without its layers.

  Attributes:
    embed: `(params, tokens [...]) -> [..., D]`.
    logits: `(params, features [..., D]) -> [..., V]` float32, of all tokens of an image.
    vocab_size: `V`, the number of tokens that can stand in an image.
    matrix: `params -> [D, outputs]`, the head if it is one matrix; None if it is not.
  """

  embed: Embed
  logits: Logits
  vocab_size: int
  matrix: Callable[[Params], jax.Array] | None


def make(sizes: TransformerConfig, embed: Embed | None = None, logits: Logits | None = None,
         num_outputs: int | None = None, num_forced: int = 0) -> Ends:
  """The ends of a model, those of its transformer where it has none of its own.

  Args:
    sizes: of the transformer.
    embed: see `causal.Causal`; the others too.
    logits: see there.
    num_outputs: see there.
    num_forced: see there.

  Raises:
    ValueError: if a head of its own stands beside an output matrix, or has no number of outputs.
  """
  if logits is not None and (sizes.num_outputs or not num_outputs):
    raise ValueError(
        f'logits is given, with num_outputs {num_outputs} and an output matrix of '
        f'{sizes.num_outputs} columns in the transformer; a model with a head of its own needs its '
        'num_outputs, and num_outputs=0 in its TransformerConfig.')
  if logits is None and num_outputs not in (None, sizes.num_outputs):
    raise ValueError(f'num_outputs is {num_outputs}, but the output matrix of the transformer has '
                     f'{sizes.num_outputs} columns; leave it out.')

  def own(method):
    return lambda params, x: Transformer(sizes).apply(
        {'params': params['transformer']}, x, method=method)

  outputs, head = num_outputs or sizes.num_outputs or 0, logits or own('logits')

  def all_logits(params, features):
    found = head(params, features)
    if found.shape != (*features.shape[:-1], outputs):
      raise ValueError(f'logits returned {found.shape} for features {features.shape}; it must '
                       f'return {(*features.shape[:-1], outputs)}, for num_outputs is {outputs}.')
    return _padded(found, num_forced)

  return Ends(embed or own('embed'), all_logits, outputs + num_forced,
              None if logits else lambda params: params['transformer']['output'])


def first_layers(params: Params, num_layers: int) -> Params:
  """Parameters of a model with the first layers of its transformer alone; nothing is copied.

  With 0 layers they are what its ends may read.
  """
  kept = {name: part for name, part in params['transformer'].items()
          if not name.startswith('layers_') or int(name.removeprefix('layers_')) < num_layers}
  return dict(params, transformer=kept)


def _padded(logits: jax.Array, num_forced: int) -> jax.Array:
  """Logits with those of some more tokens, so low that these are impossible."""
  if not num_forced:
    return logits
  # Finite, because guidance subtracts the streams.
  room = [(0, 0)] * (logits.ndim - 1) + [(0, num_forced)]
  return jnp.pad(logits, room, constant_values=_IMPOSSIBLE)
