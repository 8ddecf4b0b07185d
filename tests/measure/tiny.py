"""A model small enough for tests, with the attributes that programs use."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import specification
from cspd_jax.decoding.warp import Warp
from cspd_jax.generation import engines
from cspd_jax.testing import tabular


@dataclasses.dataclass(frozen=True, eq=False)
class TinyModel:
  """A table of conditionals as a model; its prompts are class numbers."""

  table: Any = None
  name: str = 'tiny'
  programs: dict = dataclasses.field(default_factory=dict)
  estimates: dict = dataclasses.field(default_factory=dict)
  mesh: Any = None
  cache_dtype: str | None = None
  grid: tuple[int, int] = (1, 4)
  config: Any = None
  engine: Any = engines.DISCRETE

  @property
  def params(self):
    return self.table.params

  def target(self, guided):
    del guided
    return self.table.target

  def condition(self, prompts):
    return jnp.asarray(prompts, jnp.int32)

  def sampling(self, **options):
    return Warp(**options)

  def specification(self, text):
    if text not in ('vanilla', 'sjd'):
      raise ValueError(f'decoder is {text!r}; it must be vanilla or sjd.')
    return text

  def decoder(self, text, guided):
    del guided
    return specification.build(specification.complete(text, window=3), self.table.target)

  def draft_params(self, text):
    del text

  def pixels(self, tokens):
    """Returns images with one grey level per token."""
    return jnp.broadcast_to(tokens[:, :, None, None] / 2.0 - 0.5, (*tokens.shape, 1, 3))


def model(seed: int = 0, length: int = 4) -> TinyModel:
  """Returns a random model with three classes and four tokens."""
  return TinyModel(tabular.tabular(
      jax.random.key(seed), vocab_size=4, length=length, num_classes=3))


def rows(results: Any) -> list:
  """Returns the results of every image as nested lists."""
  leaves = jax.tree.leaves(results)
  return [[np.asarray(leaf[i]).tolist() for leaf in leaves] for i in range(len(leaves[0]))]
