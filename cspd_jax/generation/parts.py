"""The parts of a model besides its target: prompts, image tokenizer, drafting networks.

In the shape descriptions, `B` is the number of images.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from cspd_jax.models.ends import Ends

Params = Any


class Conditions(NamedTuple):
  """The prompts that a model supports."""

  # `prompts -> condition` that the target's `prefill` (or `transform`) accepts, with a leading axis
  # `B`; raises ValueError for prompts that are not supported.
  encode: Callable[[Any], Any]
  titles: Callable[[Any], list[str]]  # `prompts -> [B]` a title per image: its prompt in words.
  prompts: Sequence[Any]  # Examples, such as the names of the model's classes.
  # `prompt in words -> ` the words in it that do not reach the model, because its tokenizer has no
  # tokens for them or its preparation of prompts removes them.
  unknown_words: Callable[[str], list[str]] = lambda prompt: []


class Tokenizer(NamedTuple):
  """The image tokenizer."""

  config: Any
  params: Params
  # `(params, tokens [B, T, ...]) -> [B, H, W, 3]` in [-1, 1].
  decode: Callable[[Params, jax.Array], jax.Array]
  # `(params, images [B, H, W, 3] in [-1, 1]) -> tokens [B, T]`; None for continuous tokens, or
  # without an encoder.
  encode: Callable[[Params, jax.Array], jax.Array] | None = None
  # `params -> [V, C]` the vectors of the tokens; None for continuous tokens.
  codebook: Callable[[Params], jax.Array] | None = None
  # `(params, images) -> [B, F]` features for the Frechet distance; None without an encoder.
  features: Callable[[Params, jax.Array], jax.Array] | None = None


class Drafts(NamedTuple):
  """A network that a drafter of the target uses."""

  # `(guided, prefix_length=0) -> ` the network: a `Target`, a `Network`, `Heads` or a `Corrector`.
  # It drafts the tokens that follow a prefix of `prefix_length` tokens; only `Model.with_prefix`
  # sets it. Networks of continuous tokens have no such argument.
  build: Callable[..., Any]
  params: Params  # What a decoder accepts as `draft_params`.


class Teacher(NamedTuple):
  """The functions of a target that drafters and correctors are trained with."""

  # `(params, condition, tokens [B, T], drop [B]) -> (logits [B, T, V], features [B, C + T - 1, F])`
  # of whole images, with the null condition where `drop`; features are those of `C` condition
  # tokens and of all image tokens but the last.
  forward: Callable[..., tuple[jax.Array, jax.Array]]
  ends: Ends  # The target's embedding and head, which drafters share.
  eagle_layer: str | None = None  # Of its EAGLE layers, a key of `models.eagle.LAYERS`.
