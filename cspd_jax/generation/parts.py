"""The parts of a model besides its target: prompts, image tokenizer, drafting networks.

In the shape descriptions, `B` is the number of images.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.core import contracts, matrices
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.generation.same_rounding import SameRounding
from cspd_jax.models.ends import Ends

Params = Any


class PromptKind(NamedTuple):
  """The prompts that a model supports, and how they become conditions.

  Attributes:
    encode: maps prompts to the condition that the target's `prefill` (or `transform`) accepts, with
      a leading axis `B`; raises ValueError for prompts that are not supported.
    titles: maps prompts to a title per image `[B]`: its prompt in words.
    prompts: example prompts, such as the names of the model's classes.
    unknown_words: maps a prompt in words to the words in it that do not reach the model, because
      its tokenizer has no tokens for them or its preparation of prompts removes them; by default
      none.
    params: parameters of what turns words into features; None if nothing does.
    words: the words that reach the model, if only some do, such as a small vocabulary;
      None if it reads any.
  """

  encode: Callable[[Any], Any]
  titles: Callable[[Any], list[str]]
  prompts: Sequence[Any]
  unknown_words: Callable[[str], list[str]] = lambda prompt: []
  params: Params = None
  words: Sequence[str] | None = None


class ImageTokenizer(NamedTuple):
  """The image tokenizer.

  Attributes:
    config: its config.
    params: its parameters.
    decode: `(params, tokens [B, T, ...]) -> [B, H, W, 3]` in [-1, 1].
    encode: `(params, images [B, H, W, 3] in [-1, 1]) -> tokens [B, T]`; None for continuous tokens,
      or without an encoder.
    codebook: `params -> [V, C]` the vectors of the tokens; None for continuous tokens.
    features: `(params, images [B, H, W, 3]) -> [B, F]` features for the Frechet distance; None
      if the tokenizer has no encoder.
  """

  config: Any
  params: Params
  decode: Callable[[Params, jax.Array], jax.Array]
  encode: Callable[[Params, jax.Array], jax.Array] | None = None
  codebook: Callable[[Params], jax.Array] | None = None
  features: Callable[[Params, jax.Array], jax.Array] | None = None


class Handover(NamedTuple):
  """How the tokens of images are handed to another program, which draws their pixels.

  Attributes:
    arrays: maps tokens `[B, T]` to NumPy arrays by name with a leading axis `B`, as that program
      takes them.
    token_side: pixels of a cell of the grid along each side.
    advice: how pixels are drawn from a saved file, in one line.
    first_cell: number of tokens before the grid.
  """

  arrays: Callable[[np.ndarray], dict[str, np.ndarray]]
  token_side: int
  advice: str
  first_cell: int = 0


class DraftNetwork(NamedTuple):
  """A network that a drafter of the target uses.

  Attributes:
    build: `build(guided, prefix_length=0)` returns the network: a `Target`, a `Network`, `Heads` or
      a `Corrector`. It drafts the tokens that follow a prefix of `prefix_length` tokens; only
      `Model.with_prefix` sets it. Networks of continuous tokens have no such argument.
    params: the parameters that a decoder accepts as `draft_params`.
  """

  build: Callable[..., Any]
  params: Params

  def __repr__(self) -> str:
    sizes = [np.size(leaf) for leaf in jax.tree.leaves(self.params)]
    return f'DraftNetwork({len(sizes)} arrays, {sum(sizes):,} parameters)'


class Teacher(NamedTuple):
  """The functions of a target that drafters and correctors are trained with.

  Attributes:
    forward: `(params, condition, tokens [B, T], drop [B]) -> (logits [B, T, V], features
      [B, C + T - 1, F])` of whole images, with the null condition where `drop`; features are those
      of `C` condition tokens and of all image tokens but the last.
    ends: the target's embedding and head, which drafters share.
    eagle_layer: the form of its EAGLE layers, a key of `models.eagle.LAYERS`, or None.
    forced: the tokens that its grammar forces, as in `decoding.base.Target`.
  """

  forward: Callable[..., tuple[jax.Array, jax.Array]]
  ends: Ends
  eagle_layer: str | None = None
  forced: Callable[[jax.Array], jax.Array] | None = None

  def probs(self, logits: jax.Array, sampling: SamplingParams, positions: jax.Array) -> jax.Array:
    """Returns the distributions of `warp.probabilities` with the target's grammar."""
    forced = contracts.forced_tokens(self, positions)
    return warp_lib.probabilities(logits, sampling, positions, forced)


def role_of(network: str) -> str:
  """Returns the role, in a model folder, of a network, a key of `Table.networks`."""
  return 'draft' if network == 'model' else network


def load_it(network: str) -> str:
  """Returns what gives a model a network that it lacks, as the end of a sentence."""
  return f'load it with {role_of(network)}=FOLDER'


@dataclasses.dataclass(frozen=True)
class Kept:
  """What a model keeps between calls; copies that share its programs share it.

  Attributes:
    programs: compiled programs by `sampler.ProgramKey`, the newest last.
    estimates: bytes of an image's cache and of the rest, by decoder; see `memory.estimate`.
    same_rounding: whether seed-exact decoders round as their baseline does.
  """

  programs: dict[Hashable, Any] = dataclasses.field(default_factory=dict)
  estimates: dict[Hashable, tuple[float, float]] = dataclasses.field(default_factory=dict)
  same_rounding: SameRounding = dataclasses.field(default_factory=SameRounding)


def check_like(params: Params, model: Any) -> None:
  """Raises ValueError unless parameters have the structure, shapes and dtypes of a `Model`'s."""
  trees = [jax.eval_shape(matrices.plain, tree) for tree in (model.params, params)]
  old, new = ({jax.tree_util.keystr(path): (leaf.shape, str(leaf.dtype))
               for path, leaf in jax.tree_util.tree_leaves_with_path(tree)} for tree in trees)
  if jax.tree.structure(trees[0]) != jax.tree.structure(trees[1]) or old != new:
    name = next((name for name in {**old, **new} if old.get(name) != new.get(name)), '')
    raise ValueError(f'params{name} is {new.get(name)}, and that of model {model.name!r} is '
                     f'{old.get(name)}; pass parameters of its structure, shapes and dtypes.')
