"""A model with everything that belongs to it.

In the shape descriptions, `B` is the number of images.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax import sharding
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.generation import generate as generate_lib, prompts as prompts_lib
from cspd_jax.generation.engines import Engine
from cspd_jax.generation.results import Generated
from cspd_jax.models.ends import Ends

Params = Any


class Conditions(NamedTuple):
  """What images can be asked for.

  Attributes:
    encode: `prompts -> condition`: what the target's `prefill` (or `transform`) takes,
      with a leading axis `B`; raises ValueError for prompts the model does not know.
    captions: `prompts -> [B]` what every image shows, for people.
    prompts: prompts that show what the model can do, such as the names of its classes.
  """

  encode: Callable[[Any], Any]
  captions: Callable[[Any], list[str]]
  prompts: Sequence[Any]


class Tokenizer(NamedTuple):
  """The image tokenizer.

  Attributes:
    config: its sizes.
    params: its parameters.
    decode: `(params, tokens [B, T, ...]) -> [B, H, W, 3]` in [-1, 1].
    encode: `(params, images [B, H, W, 3] in [-1, 1]) -> tokens [B, T]`; None for continuous tokens,
      or without an encoder.
    codebook: `params -> [V, C]` the vectors of the tokens; None for continuous tokens.
    features: `(params, images [B, H, W, 3]) -> [B, F]` what the Frechet distance looks
      at; None if the tokenizer has no encoder.
  """

  config: Any
  params: Params
  decode: Callable[[Params, jax.Array], jax.Array]
  encode: Callable[[Params, jax.Array], jax.Array] | None = None
  codebook: Callable[[Params], jax.Array] | None = None
  features: Callable[[Params, jax.Array], jax.Array] | None = None


class Drafts(NamedTuple):
  """Something that drafts for the target.

  Attributes:
    build: `(guided, given) -> ` what the drafter takes: a `Target`, a `Network`, `Heads`, a
      `Corrector`; `given`, 0 if left out, is as in `Model.decoder`.
    params: the parameters that a decoder takes as `draft_params`.
  """

  build: Callable[..., Any]
  params: Params


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Model:
  """A model: parts to compose, and `generate` for those who want images.

  It only carries pure functions and their parameters. Build a decoder of your own from
  `model.target(guided=True)` and call it with `model.params` and
  `model.condition(prompts)`; `model.pixels` turns its tokens into images.

  Attributes:
    name: what it is called.
    family: name of its family.
    config: the target's sizes.
    params: the target's parameters.
    grid: rows and columns of tokens.
    engine: the decoders that it can be decoded with.
    target: `guided -> Target`, with the null condition's stream beside the other or not.
    conditions: what images can be asked for.
    tokenizer: the image tokenizer; None if the model was loaded without one.
    drafts: what drafts for it or corrects, by the name that decoders ask for it by.
    defaults: what suits the model: sampling options by name, and 'decoder', a specification or
      several by device and number of images; see `generation.defaults`.
    forward: `(params, condition, tokens [B, T], drop [B]) -> (logits [B, T, V], features
      [B, C + T - 1, F])` of whole images, with the null condition where `drop`; features are those
      of `C` condition tokens and of the image tokens but the last. What drafters learn from; None
      if none are trained for the family.
    ends: its embedding and its head, which drafters share; None if none are trained for the family.
    eagle_layer: the form of EAGLE's layer that suits it, a key of `models.eagle.LAYERS`; None if
      there is none.
    head_drafter: `(schedule, guided) -> [levels]` the blend of `exact_head`, or None;
      continuous tokens only.
    metadata: what was stored with the target.
    mesh: the devices that it is divided over; None if there is only one.
  """

  name: str
  family: str
  config: Any
  params: Params
  grid: tuple[int, int]
  engine: Engine
  target: Callable[..., Any]
  conditions: Conditions
  tokenizer: Tokenizer | None = None
  drafts: Mapping[str, Drafts] = dataclasses.field(default_factory=dict)
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  forward: Callable[..., tuple[jax.Array, jax.Array]] | None = None
  ends: Ends | None = None
  eagle_layer: str | None = None
  head_drafter: Callable[..., np.ndarray | None] | None = None
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  mesh: jax.sharding.Mesh | None = None
  # Compiled programs, the newest last; see `core.programs.kept`.
  programs: dict = dataclasses.field(default_factory=dict)

  @property
  def num_tokens(self) -> int:
    """Tokens of one image."""
    return self.target(guided=False).num_tokens

  @property
  def device(self) -> Any:
    """The JAX device that the model runs on, the first of several."""
    leaf = next(iter(jax.tree.leaves(self.params)), None)
    return min(leaf.devices(), key=lambda device: device.id) if isinstance(
        leaf, jax.Array) else jax.devices()[0]

  @property
  def prompts(self) -> Sequence[Any]:
    """Prompts that show what the model can do, such as the names of its classes."""
    return self.conditions.prompts

  @usual_promotion
  def condition(self, prompts: Any) -> Any:
    """The condition of images, one per prompt.

    Args:
      prompts: a prompt, a list of them, or the path of a file with one per line.

    Raises:
      ValueError: for prompts that the model does not know.
    """
    return self.conditions.encode(prompts_lib.listed(prompts))

  def cells(self, values: np.ndarray) -> np.ndarray:
    """Values of tokens `[B, T]` by row and column `[B, rows, columns]`, without the grammar's."""
    rows, columns = self.grid
    if values.shape[1] != rows * columns:
      width = self.target(guided=False).row_width
      values = values[:, :rows * width].reshape(-1, rows, width)[:, :, :columns]
    return values.reshape(-1, rows, columns)

  @usual_promotion
  def tokens(self, images: jax.Array) -> jax.Array:
    """Tokens `[B, T]` of images `[B, H, W, 3]` in [-1, 1], those of the grammar included.

    Raises:
      ValueError: if the model has no image tokenizer of discrete tokens with an encoder.
    """
    if self.tokenizer is None or self.tokenizer.encode is None:
      raise ValueError(f'model {self.name!r} has no image tokenizer that reads images; give '
                       'tokens.')
    return self._encode(self.tokenizer.params, images)

  @usual_promotion
  def pixels(self, tokens: jax.Array) -> jax.Array:
    """Images `[B, H, W, 3]` in [-1, 1] of tokens `[B, T, ...]`.

    Raises:
      ValueError: if the model was loaded without an image tokenizer.
    """
    if self.tokenizer is None:
      raise ValueError(
          f'model {self.name!r} has no image tokenizer; load it with tokenizer=FOLDER.')
    return self._decode(self.tokenizer.params, tokens)

  @functools.cached_property
  def _decode(self) -> Callable:
    return jax.jit(self.tokenizer.decode)

  @functools.cached_property
  def _encode(self) -> Callable:
    return jax.jit(self.tokenizer.encode)

  @functools.cached_property
  def codebook(self) -> np.ndarray | None:
    """The vectors `[V, C]` of the tokens; None if there are none."""
    if self.tokenizer is None or self.tokenizer.codebook is None:
      return None
    return np.asarray(self.tokenizer.codebook(self.tokenizer.params))

  def sampling(self, **options) -> Any:
    """Sampling options: those given, then the model's defaults, then the engine's.

    Returns:
      A `decoding.warp.Warp`, or a `continuous.sampling.Sampling`, of NumPy values.

    Raises:
      ValueError: for an unknown option.
    """
    return self.engine.sampling(self.defaults, options)

  def decoder(self, specification: Any = None, *, guided: bool = True, batch_size: int = 1,
              given: int = 0, **parameters) -> Any:
    """A decoder of this model, to be jitted and called with its parameters.

    Args:
      specification: such as `'mc_sjd(window=32)'`; the model's default if None.
      guided: whether to run the null condition beside the condition.
      batch_size: images that will be decoded together, on which the model's default may depend.
      given: the first tokens of the images that are a part of the condition, which is a
        `decoding.continued.Continued` if there are any; whole rows.
      **parameters: parameters that the specification leaves open.

    Raises:
      ValueError: for a specification that cannot work, saying why.
    """
    specification = self.specification(specification, batch_size=batch_size, **parameters)
    self.engine.check_drafts(specification, self.drafts, self.name)
    return self.engine.build(specification, self, guided, given)

  def specification(self, specification: Any = None, *, batch_size: int = 1,
                    **parameters) -> Any:
    """The parsed specification of a decoder, with parameters filled in where it leaves them open.

    Arguments as for `decoder`.
    """
    if specification is None:
      if self.mesh is not None:  # Every group of devices takes its share.
        batch_size = -(-batch_size // self.mesh.shape[sharding.DATA])
      specification = self.engine.default(
          self.defaults.get('decoder'), self.drafts, self.device, batch_size)
    return self.engine.specification(specification, parameters)

  def draft_params(self, specification: Any) -> Params:
    """What a decoder of this specification takes as `draft_params`: None if it needs none."""
    needed = self.engine.needs(specification)
    return None if needed is None else self.drafts[needed].params

  def generate(self, prompts: Any = None, **options) -> Generated:
    """Generates one image per prompt; see `generation.generate.generate`."""
    return generate_lib.generate(self, prompts, **options)

  def stream(self, prompts: Any = None, **options) -> Iterator[Any]:
    """Generates images and shows them as they come about; see `generation.generate.stream`."""
    return generate_lib.stream(self, prompts, **options)

  def __repr__(self) -> str:
    drafts = ', '.join(self.drafts) or 'none'
    tokenizer = 'no tokenizer' if self.tokenizer is None else 'tokenizer'
    return (f'Model({self.name!r}, family {self.family}, {self.grid[0]}x{self.grid[1]} tokens, '
            f'{tokenizer}, drafts: {drafts})')
