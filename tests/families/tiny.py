"""A family of models that is not in the package: everything that a new family must define.

A token depends on the class and on the token before it, by a table; a token is a square of one
colour.
"""

import dataclasses
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax import families
from cspd_jax.decoding.base import Target
from cspd_jax.families import prompt_kinds
from cspd_jax.files import store
from cspd_jax.files.store import Kind
from tests.builders import models


@dataclasses.dataclass(frozen=True)
class TinyConfig:
  """Attributes: rows and columns of tokens, colours, classes."""

  height: int = 4
  width: int = 4
  vocab_size: int = 6
  num_classes: int = 3


@dataclasses.dataclass(frozen=True)
class PaletteConfig:
  """Attributes: colours, and pixels along each side of a token."""

  vocab_size: int = 6
  side: int = 4


class Cache(NamedTuple):
  """Attributes: the rows' classes, `[S, B]`; the table needs no more of the past."""

  classes: jax.Array


def init(config, key):
  shape = (config.num_classes + 1, config.vocab_size + 1, config.vocab_size)
  return {'table': jax.random.normal(key, shape)}


def init_palette(config, key):
  return {'colours': jax.random.uniform(key, (config.vocab_size, 3), minval=-1, maxval=1)}


def target(config, *, guided):
  streams = 2 if guided else 1

  def logits(params, cache, tokens):
    rows = params['table'][cache.classes]
    return jnp.take_along_axis(
        rows, jnp.broadcast_to(tokens, (streams, *tokens.shape))[..., None], axis=2)

  def prefill(params, labels, num_slots):
    del num_slots
    cache = Cache(jnp.stack([labels, jnp.full_like(labels, config.num_classes)][:streams]))
    first = jnp.full((labels.shape[0], 1), config.vocab_size)
    return logits(params, cache, first)[:, :, 0], None, cache

  def score(params, cache, tokens, start, tree):
    del start, tree
    return logits(params, cache, tokens), None, cache

  return Target(
      prefill=prefill, score=score, commit=lambda cache, start, path: cache,
      vocab_size=config.vocab_size, num_tokens=config.height * config.width,
      row_width=config.width, num_streams=streams)


def build(parts):
  loaded, config = parts.loaded, parts.loaded['target'].config
  parts.pair('tokenizer', 'vocab_size')
  tokenizer = None
  if 'tokenizer' in loaded:
    side = loaded['tokenizer'].config.side

    def decode(params, tokens):
      colours = params['colours'][tokens].reshape(-1, config.height, config.width, 3)
      return colours.repeat(side, axis=1).repeat(side, axis=2)

    tokenizer = families.ImageTokenizer(
        loaded['tokenizer'].config, loaded['tokenizer'].params, decode,
        codebook=lambda params: params['colours'],
        features=lambda params, images: images.mean(axis=(1, 2)))
  return families.Model(
      name=parts.name, family='tiny', config=config, params=loaded['target'].params,
      grid=(config.height, config.width),
      build_target=lambda guided: target(config, guided=guided),
      prompt_kind=prompt_kinds.classes(config.num_classes, ('sand', 'sea', 'sky')),
      tokenizer=tokenizer, defaults=parts.defaults, metadata=loaded['target'].metadata)


FAMILY = families.Family(
    name='tiny',
    roles={'target': {'tiny': Kind(TinyConfig, init)},
           'tokenizer': {'palette': Kind(PaletteConfig, init_palette)}},
    build=build)


def saved(folder):
  """Registers the family and saves one of its models."""
  families.register(FAMILY)
  models.copied(pathlib.Path(folder), _save)
  return folder


def _save(folder):
  for role, kind, config, make in (('target', 'tiny', TinyConfig(), init),
                                   ('tokenizer', 'palette', PaletteConfig(), init_palette)):
    store.save(folder / role, kind, config, make(config, jax.random.key(0)))
  families.save(folder, 'tiny', {'target': 'target', 'tokenizer': 'tokenizer'},
                {'guidance_scale': 1.5})
