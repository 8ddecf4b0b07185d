"""A model: its networks, and everything that decoding and image generation need.

In the shape descriptions, `B` is the number of images.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax import sharding
from cspd_jax.checkpoints.int8 import Int8
from cspd_jax.core import compiling
from cspd_jax.core.spec import Spec
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.generation import generate as generate_lib, prompts as prompts_lib
from cspd_jax.generation.engines import AnyDecoder, Engine, Options
from cspd_jax.generation.results import Generated, Partial
from cspd_jax.models import causal
from cspd_jax.models.ends import Ends

Params = Any


class Conditions(NamedTuple):
  """The prompts that a model supports.

  Attributes:
    encode: `prompts -> condition`: the condition that the target's `prefill` (or `transform`)
      accepts, with a leading axis `B`; raises ValueError for prompts that are not supported.
    titles: `prompts -> [B]` a title per image: its prompt in words.
    prompts: example prompts, such as the names of the model's classes.
    unknown_words: `prompt in words -> ` the words in it that do not reach the model, because its
      tokenizer has no tokens for them or its preparation of prompts removes them; by default none.
  """

  encode: Callable[[Any], Any]
  titles: Callable[[Any], list[str]]
  prompts: Sequence[Any]
  unknown_words: Callable[[str], list[str]] = lambda prompt: []


class Tokenizer(NamedTuple):
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


class Drafts(NamedTuple):
  """A network that a drafter of the target uses.

  Attributes:
    build: `(guided, prefix_length) -> ` the network: a `Target`, a `Network`, `Heads` or a
      `Corrector`. `prefix_length`, 0 by default, is as in `Model.decoder`.
    params: the parameters that a decoder accepts as `draft_params`.
  """

  build: Callable[..., Any]
  params: Params


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Model:
  """A model: parts to compose, and `generate`, which returns images.

  It consists of pure functions and their parameters. To build a decoder of your own, start from
  `model.target(guided=True)` and call the decoder with `model.params` and
  `model.condition(prompts)`; `model.pixels` decodes its tokens to images.

  Attributes:
    name: its name.
    family: name of its family.
    config: the target's config.
    params: the target's parameters.
    grid: rows and columns of tokens.
    engine: the engine with its decoders.
    target: `guided -> Target`, with or without the stream of the null condition.
    conditions: the prompts that it supports.
    tokenizer: the image tokenizer; None if the model was loaded without one.
    drafts: networks that draft or correct, by the keys of `decoding.specification.DRAFTS`.
    defaults: default sampling options by name, and 'decoder', a specification or several by device
      and number of images; see `generation.defaults`.
    forward: `(params, condition, tokens [B, T], drop [B]) -> (logits [B, T, V], features
      [B, C + T - 1, F])` of whole images, with the null condition where `drop`; features are those
      of `C` condition tokens and of all image tokens but the last. Drafters are trained on them;
      None if the family supports no trained drafters.
    ends: its embedding and its head, which drafters share; None if the family supports no trained
      drafters.
    eagle_layer: the form of its EAGLE layers, a key of `models.eagle.LAYERS`, or None.
    head_drafter: `(schedule, guided) -> [levels]` the blend of `exact_head`, or None;
      continuous tokens only.
    metadata: the metadata stored with the target.
    cache_dtype: dtype of the target's keys and values, 'int8', or None for that of the parameters.
    mesh: the devices that it is divided over; None for one device.
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
  cache_dtype: str | None = None
  mesh: jax.sharding.Mesh | None = None
  # Compiled programs, the newest last; see `core.programs.kept`.
  programs: dict[Hashable, Any] = dataclasses.field(default_factory=dict)
  # Bytes of an image's cache and of the rest, by decoder; see `generation.memory.estimate`.
  estimates: dict[Hashable, tuple[float, float]] = dataclasses.field(
      default_factory=dict, init=False)

  @property
  def num_tokens(self) -> int:
    """Number of tokens of one image."""
    return self.target(guided=False).num_tokens

  @property
  def device(self) -> Any:
    """The JAX device that the model runs on; the first if there are several."""
    leaf = next(iter(jax.tree.leaves(self.params)), None)
    return min(leaf.devices(), key=lambda device: device.id) if isinstance(
        leaf, jax.Array) else jax.devices()[0]

  @property
  def prompts(self) -> Sequence[Any]:
    """Example prompts, such as the names of the model's classes."""
    return self.conditions.prompts

  @usual_promotion
  def condition(self, prompts: Any) -> Any:
    """Returns the condition of images, one per prompt.

    Args:
      prompts: a prompt, a list of them, or the path of a file with one per line.

    Raises:
      ValueError: for prompts that the model does not support.
    """
    return self.conditions.encode(prompts_lib.listed(prompts))

  @property
  def precision(self) -> dict[str, str]:
    """The options of `cspd_jax.load` that round its numbers; without those that are None.

    That is `dtype`, of most of the target's parameters, `quantize` and `cache_dtype`.
    """
    leaves = jax.tree.leaves(self.params, is_leaf=lambda leaf: isinstance(leaf, Int8))
    whole = [leaf for leaf in leaves if not isinstance(leaf, Int8)]
    options = {} if not whole else dict(dtype=str(max(whole, key=lambda leaf: leaf.size).dtype))
    if len(whole) < len(leaves):
      options['quantize'] = 'int8'
    if self.cache_dtype is not None:
      options['cache_dtype'] = self.cache_dtype
    return options

  def cells(self, values: np.ndarray) -> np.ndarray:
    """Arranges values of tokens `[B, T]` as `[B, rows, columns]`, without grammar tokens."""
    rows, columns = self.grid
    if values.shape[1] != rows * columns:
      width = self.target(guided=False).row_width
      values = values[:, :rows * width].reshape(-1, rows, width)[:, :, :columns]
    return values.reshape(-1, rows, columns)

  @usual_promotion
  def tokens(self, images: jax.Array) -> jax.Array:
    """Encodes images `[B, H, W, 3]` in [-1, 1] to tokens `[B, T]`, including grammar tokens.

    Raises:
      ValueError: if the model has no image tokenizer of discrete tokens with an encoder.
    """
    return self._encode(images)

  @usual_promotion
  def pixels(self, tokens: jax.Array) -> jax.Array:
    """Decodes tokens `[B, T, ...]` to images `[B, H, W, 3]` in [-1, 1].

    Raises:
      ValueError: if the model was loaded without an image tokenizer.
    """
    return self._decode(tokens)

  @functools.cached_property
  def _encode(self) -> Callable[[jax.Array], jax.Array]:
    """The tokenizer's compiled encoder with its parameters; raises ValueError without one."""
    if self.tokenizer is None or self.tokenizer.encode is None:
      raise ValueError(f'model {self.name!r} has no image tokenizer with an encoder; pass tokens '
                       'instead of images.')
    return functools.partial(jax.jit(self.tokenizer.encode), self.tokenizer.params)

  @functools.cached_property
  def _decode(self) -> Callable[[jax.Array], jax.Array]:
    """The tokenizer's compiled decoder with its parameters; raises ValueError without one."""
    if self.tokenizer is None:
      raise ValueError(
          f'model {self.name!r} has no image tokenizer; load it with tokenizer=FOLDER.')
    decode = jax.jit(compiling.labelled('the image tokenizer', self.tokenizer.decode))
    return functools.partial(decode, self.tokenizer.params)

  @functools.cached_property
  def codebook(self) -> np.ndarray | None:
    """The vectors `[V, C]` of the tokens; None without an image tokenizer of discrete tokens."""
    if self.tokenizer is None or self.tokenizer.codebook is None:
      return None
    return np.asarray(self.tokenizer.codebook(self.tokenizer.params))

  def sampling(self, **options) -> Options:
    """Returns sampling options: the arguments, else the model's defaults, else the engine's.

    Returns:
      A `decoding.warp.Warp` or a `continuous.sampling.Sampling` of NumPy values.

    Raises:
      ValueError: for an unknown option.
    """
    return self.engine.sampling(self.defaults, options)

  def decoder(self, specification: str | Spec | None = None, *, guided: bool = True,
              batch_size: int = 1, prefix_length: int = 0, **parameters) -> AnyDecoder:
    """Builds a decoder of this model, to be jitted and called with the model's parameters.

    Args:
      specification: such as `'mc_sjd(window=32)'`; the model's default if None.
      guided: whether to run the null condition alongside the condition.
      batch_size: images that will be decoded together; the model's default may depend on it.
      prefix_length: the number of first tokens of an image, whole rows, that are a part of the
        condition; unless it is 0, the condition is a `decoding.prefix.Prefixed`.
      **parameters: parameters that the specification leaves open.

    Raises:
      ValueError: for a specification that is not supported, with the reason.
    """
    specification = self.specification(specification, batch_size=batch_size, **parameters)
    self.engine.check_drafts(specification, self.drafts, self.name)
    return self.engine.build(specification, self, guided, prefix_length)

  def specification(self, specification: str | Spec | None = None, *, batch_size: int = 1,
                    **parameters) -> Spec:
    """Parses the specification of a decoder and sets the parameters that it leaves open.

    Arguments as for `decoder`.
    """
    if specification is None:
      if self.mesh is not None:  # Every group of devices decodes its share of the images.
        batch_size = -(-batch_size // self.mesh.shape[sharding.DATA])
      specification = self.engine.default(
          self.defaults.get('decoder'), self.drafts, self.device, batch_size)
    return self.engine.specification(specification, parameters)

  def with_params(self, params: Params) -> 'Model':
    """Returns the model with other parameters of its target, which share its compiled programs.

    For training: sample from the parameters of every step. The drafts stay as they are; exact
    decoders sample the new parameters' distribution all the same, in more rounds the further the
    drafts are from it.

    Args:
      params: of the structure, shapes and dtypes of `Model.params`.

    Raises:
      ValueError: if they differ from those.
    """
    described = lambda tree: jax.tree.map(lambda leaf: (
        np.shape(leaf), str(jax.dtypes.result_type(leaf))), tree)
    old, new = (dict(jax.tree_util.tree_leaves_with_path(
        described(tree), is_leaf=lambda leaf: isinstance(leaf, tuple)))
                for tree in (self.params, params))
    if jax.tree.structure(params) != jax.tree.structure(self.params) or old != new:
      path = next((path for path in {**old, **new} if old.get(path) != new.get(path)), ())
      raise ValueError(
          f'params{jax.tree_util.keystr(path)} is {new.get(path)}, and that of model {self.name!r} '
          f'is {old.get(path)}; pass parameters of its structure, shapes and dtypes.')
    model = dataclasses.replace(self, params=params)
    # What is compiled and estimated depends on shapes only; a frozen dataclass can share it so.
    vars(model).update(estimates=self.estimates)
    if self.tokenizer is not None:
      vars(model).update(_decode=self._decode)
    return model

  def with_cache_dtype(self, dtype: str) -> 'Model':
    """Returns the model with another dtype of the target's keys and values: another target.

    Args:
      dtype: 'int8'; see `models.int8_cache`.

    Raises:
      ValueError: for any other dtype, and for models without a cache.
    """
    if dtype != 'int8':
      raise ValueError(f"cache_dtype is {dtype!r}; it must be 'int8', or None for the dtype of the "
                       'parameters.')
    if not self.has_cache:
      raise ValueError(f"cache_dtype is 'int8', but a {self.family!r} model has no cache; leave it "
                       'out.')
    if self.cache_dtype == dtype:
      return self

    def target(*, guided: bool) -> Any:
      built = self.target(guided=guided)
      # The functions of continuous tokens are in a field.
      part = getattr(built, 'cached', built)
      part = part._replace(prefill=causal.with_int8_cache(part.prefill))
      return built._replace(cached=part) if hasattr(built, 'cached') else part

    return dataclasses.replace(self, target=target, cache_dtype=dtype, programs={})

  @property
  def has_cache(self) -> bool:
    """Whether the target caches keys and values; masked models do not."""
    return getattr(self.target(guided=False), 'transform', None) is None

  def draft_params(self, specification: str | Spec) -> Params:
    """Returns the `draft_params` of a specification's decoder; None if it drafts alone."""
    required = self.engine.needs(specification)
    return None if required is None else self.drafts[required].params

  def generate(self, prompts: Any = None, **options) -> Generated:
    """Generates one image per prompt; see `generation.generate.generate`."""
    return generate_lib.generate(self, prompts, **options)

  def stream(self, prompts: Any = None, **options) -> Iterator[Partial]:
    """Generates images and yields them round by round; see `generation.generate.stream`."""
    return generate_lib.stream(self, prompts, **options)

  def __repr__(self) -> str:
    drafts = ', '.join(self.drafts) or 'none'
    tokenizer = 'no tokenizer' if self.tokenizer is None else 'tokenizer'
    return (f'Model({self.name!r}, family {self.family}, {self.grid[0]}x{self.grid[1]} tokens, '
            f'{tokenizer}, drafts: {drafts})')
