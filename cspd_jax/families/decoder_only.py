"""The parts that families of decoder-only models with discrete tokens share."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from cspd_jax.families import drafts
from cspd_jax.families.family import Family, Parts, is_described
from cspd_jax.files.store import Loaded
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Conditions, Teacher, Tokenizer
from cspd_jax.models import decoder_only, eagle, vq


def build(parts: Parts, family: Family, forward: Callable[..., tuple[jax.Array, jax.Array]],
          conditions: Conditions, tokenizer: Tokenizer | None) -> Model:
  """Builds a model of networks that belong together.

  Args:
    parts: the networks.
    family: the model's family, which has one form of EAGLE layers.
    forward: `logits_and_features` of the target's module.
    conditions: the prompts that the model supports.
    tokenizer: the image tokenizer.
  """
  target = parts.loaded['target']
  config = target.config
  layers = decoder_only.first_layers(target.params, config, max(1, config.num_layers // 8))
  ends = decoder_only.ends(config)
  return Model(
      name=parts.name, family=family.name, config=config, params=target.params,
      grid=(config.height, config.width), engine=family.engine,
      target=lambda *, guided: decoder_only.target(config, guided=guided),
      conditions=conditions, tokenizer=tokenizer,
      drafts=drafts.discrete(
          parts, lambda config, guided: decoder_only.target(config, guided=guided), layers, ends),
      teacher=Teacher(lambda params, *args: forward(params, config, *args), ends,
                      next(iter(family.eagle_layers))), defaults=parts.defaults,
      metadata=target.metadata)


def pair_prompted(parts: Parts, draft_sizes: Sequence[str]) -> None:
  """Checks that the networks fit a target whose condition is a `Prompt`.

  Args:
    parts: the networks.
    draft_sizes: fields of the config that a smaller model must share.

  Raises:
    ValueError: if one does not.
  """
  parts.pair('tokenizer', 'codebook_size', 'num_codes')
  for role in ('eagle', 'corrector'):
    for size in ('vocab_size', 'num_tokens', 'dim'):
      parts.pair(role, size)
    parts.pair(role, 'num_outputs', 'num_image_tokens')
  for size in ('num_tokens', 'row_width'):
    parts.pair('neighbours', size)
  parts.pair('neighbours', 'vocab_size', 'num_image_tokens')
  for size in draft_sizes:
    parts.pair('draft', size)


def published_prompted(config: Any, eagle_layer: str) -> dict[str, tuple[str, Any]]:
  """Returns the networks of `drafts.published` for a target whose condition is a `Prompt`."""
  return drafts.published(eagle.EagleConfig(
      family=eagle_layer, num_tokens=config.num_tokens, row_width=config.row_width, dim=config.dim,
      num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, ffn_dim=config.ffn_dim,
      vocab_size=config.vocab_size, rope_base=config.rope_base, norm_eps=config.norm_eps,
      num_outputs=config.num_image_tokens))


def vq_tokenizer(loaded: Loaded | None, config: Any) -> Tokenizer | None:
  """Returns a `vq` image tokenizer whose codes are the tokens of a target with this config."""
  if loaded is None or is_described(loaded):
    return None
  sizes = loaded.config
  return Tokenizer(
      sizes, loaded.params,
      decode=lambda params, tokens: vq.decode(
          params, sizes, tokens.reshape(-1, config.height, config.width)),
      encode=lambda params, images: vq.encode(params, sizes, images).reshape(len(images), -1),
      codebook=lambda params: vq.codebook(params, sizes),
      features=lambda params, images: vq.features(params, sizes, images))
