"""Encoders of T5 (arXiv 1910.10683) with gated feed-forward layers, as transformers stores them."""

import functools
from collections.abc import Mapping

from checkpoints_conversion.rules import base, family
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule
from cspd_jax.models import t5
from cspd_jax.models.t5 import T5Config

_WHAT = 'a T5 encoder with gated feed-forward layers'
_FIRST = 'encoder.block.0.layer.'


def rules(config: T5Config) -> list[Rule]:
  """Returns the rule table of an encoder."""
  heads, width = config.num_heads, config.head_dim
  ours, theirs = 'layers_{i}/', 'encoder.block.{i}.layer.'
  separate = base.separate_heads(heads, width, False)
  return [
      Rule('shared.weight', ('token_embedding',), KEEP),
      Rule(_FIRST + '0.SelfAttention.relative_attention_bias.weight', ('distance_bias',), KEEP),
      Rule(theirs + '0.SelfAttention.q.weight', (ours + 'query',), separate),
      Rule(theirs + '0.SelfAttention.k.weight', (ours + 'key',), separate),
      Rule(theirs + '0.SelfAttention.v.weight', (ours + 'value',), separate),
      Rule(theirs + '0.SelfAttention.o.weight', (ours + 'out',), base.join_heads(heads, width)),
      Rule(theirs + '0.layer_norm.weight', (ours + 'attention_norm/scale',), KEEP),
      Rule(theirs + '1.DenseReluDense.wi_0.weight', (ours + 'gate',), MATRIX),
      Rule(theirs + '1.DenseReluDense.wi_1.weight', (ours + 'up',), MATRIX),
      Rule(theirs + '1.DenseReluDense.wo.weight', (ours + 'down',), MATRIX),
      Rule(theirs + '1.layer_norm.weight', (ours + 'ffn_norm/scale',), KEEP),
      Rule('encoder.final_layer_norm.weight', ('norm/scale',), KEEP),
  ]


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> T5Config:
  """Infers the sizes of an encoder from its shapes, which tell everything.

  Raises:
    ConversionError: if the shapes are not those of such an encoder.
  """
  del options
  shape = functools.partial(family.shape, _WHAT, shapes)
  vocab_size, dim = shape('shared.weight', 2)
  num_distances, num_heads = shape(
      _FIRST + '0.SelfAttention.relative_attention_bias.weight', 2)
  return T5Config(
      vocab_size=vocab_size, dim=dim,
      num_layers=family.count(
          shapes, r'encoder\.block\.(\d+)\.layer\.0\.SelfAttention\.q\.weight'),
      num_heads=num_heads, head_dim=shape(_FIRST + '0.SelfAttention.q.weight', 2)[0] // num_heads,
      ffn_dim=shape(_FIRST + '1.DenseReluDense.wi_0.weight', 2)[0], num_distances=num_distances)


FAMILY = family.FileFamily(
    name='t5', what=_WHAT, kind='t5', rules=rules, infer=infer, presets=t5.PRESETS,
    # The second name of the token embedding, and the decoder, which image models do not read.
    leftovers=r'(encoder|decoder)\.embed_tokens\.weight|decoder\..*|lm_head\.weight',
    model='llamagen')
