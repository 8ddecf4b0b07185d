"""A model small enough for tests: a table of conditionals, whose prompts are class numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Conditions, Tokenizer
from cspd_jax.testing import tabular

# Pixels are one grey level per token, and features those of the first two tokens.
TOKENIZER = Tokenizer(
    None, np.float32(1.0),
    decode=lambda params, tokens: jnp.broadcast_to(
        params * tokens[:, None, :, None] / 2.0 - 0.5, (len(tokens), 1, tokens.shape[1], 3)),
    features=lambda params, images: params * 2 * images[:, 0, :2, 0])


def model(seed: int = 0, length: int = 4, tokenizer: Tokenizer | None = TOKENIZER) -> Model:
  """Returns a random model with three classes and four tokens."""
  table = tabular.tabular(jax.random.key(seed), vocab_size=4, length=length, num_classes=3)
  return Model(
      'tiny', 'tiny', None, table.params, (1, length), lambda guided: table.target, Conditions(
          lambda prompts: jnp.asarray(prompts, jnp.int32), lambda prompts: list(map(str, prompts)),
          [0, 1, 2]), tokenizer)


def rows(results: Any) -> list:
  """Returns the results of every image as nested lists."""
  leaves = jax.tree.leaves(results)
  return [[np.asarray(leaf[i]).tolist() for leaf in leaves] for i in range(len(leaves[0]))]
