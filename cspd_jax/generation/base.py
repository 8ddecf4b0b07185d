"""Everything of a model but `generate` and `stream`: networks, prompts, pixels and decoders.

In the shape descriptions, `B` is the number of images.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from cspd_jax import sharding
from cspd_jax.core import programs as programs_lib, progress
from cspd_jax.core.spec import Resources, Spec
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.decoding import prefix as prefix_lib
from cspd_jax.decoding.specification import SOURCES
from cspd_jax.decoding.warp import Warp
from cspd_jax.files import matrices
from cspd_jax.generation import prompts as prompts_lib
from cspd_jax.generation.engines import AnyDecoder, Engine, Options
from cspd_jax.generation.parts import Conditions, Drafts, Handover, Params, Teacher, Tokenizer
from cspd_jax.models import causal


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BaseModel:
  """The base of `Model`, which is its only subclass: what requests are made of and run with.

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
    drafts: networks that draft or correct, by the keys of `decoding.specification.SOURCES`.
    defaults: default sampling options by name, and 'decoder', a specification or several by device
      and number of images.
    teacher: what its drafters are trained on; None if the family supports no trained drafters.
    head_drafter: `(schedule, guided) -> [levels]` the blend of `exact_head`, or None;
      continuous tokens only.
    metadata: the metadata stored with the target.
    cache_dtype: dtype of the target's keys and values, 'int8', or None for that of the parameters.
    mesh: the devices that it is divided over; None for one device.
    prefix: `[P]` or `[B, P]` the first tokens of its images; None without. See `with_prefix`.
    handover: how another program draws the pixels of its tokens; None if an image tokenizer does.
    first_cell: number of tokens before those of the grid.
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
  teacher: Teacher | None = None
  head_drafter: Callable[..., np.ndarray | None] | None = None
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  cache_dtype: str | None = None
  mesh: jax.sharding.Mesh | None = None
  prefix: np.ndarray | None = None
  handover: Handover | None = None
  first_cell: int = 0
  # Compiled programs, the newest last; see `core.programs.kept`.
  programs: dict[Hashable, Any] = dataclasses.field(default_factory=dict)
  # Bytes of an image's cache and of the rest, by decoder; see `generation.memory.estimate`.
  estimates: dict[Hashable, tuple[float, float]] = dataclasses.field(
      default_factory=dict, init=False)

  def __post_init__(self):
    # Pictures, answers and figures have it, and it may be the name of a folder.
    object.__setattr__(self, 'name', progress.unicode(self.name))

  @property
  def num_tokens(self) -> int:
    """Number of tokens of one image, without those of the prefix."""
    return self.target(guided=False).num_tokens

  @property
  def devices(self) -> list[Any]:
    """The JAX devices that the model runs on."""
    if self.mesh is not None:
      return list(self.mesh.devices.flat)
    leaf = next(iter(jax.tree.leaves(self.params)), None)
    return sorted(leaf.devices(), key=lambda device: device.id) if isinstance(
        leaf, jax.Array) else jax.devices()[:1]

  @property
  def device(self) -> Any:
    """The first of the devices."""
    return self.devices[0]

  @property
  def where(self) -> str:
    """The devices in words, such as `cpu` or `4 x NVIDIA H100`."""
    count = 1 if self.mesh is None else self.mesh.size
    return f'{count} x {self.device.device_kind}' if count > 1 else self.device.device_kind

  @property
  def precision(self) -> dict[str, str]:
    """The options of `load` that round numbers, if set: dtype (of most), quantize, cache_dtype."""
    leaves = jax.tree.leaves(self.params, is_leaf=lambda leaf: isinstance(leaf, matrices.Int8))
    whole = [leaf for leaf in leaves if not isinstance(leaf, matrices.Int8)]
    options = {} if not whole else dict(dtype=str(max(whole, key=lambda leaf: leaf.size).dtype))
    if len(whole) < len(leaves):
      options['quantize'] = 'int8'
    return options if self.cache_dtype is None else options | dict(cache_dtype=self.cache_dtype)

  @property
  def prompts(self) -> Sequence[Any]:
    """Example prompts, such as the names of the model's classes."""
    return self.conditions.prompts

  @property
  def image_size(self) -> tuple[int, int]:
    """Height and width of an image of discrete tokens in pixels; ValueError without a tokenizer."""
    tokens = jax.ShapeDtypeStruct((1, self.prefix_length + self.num_tokens), np.int32)
    _, height, width, _ = jax.eval_shape(self.pixels, tokens).shape
    return height, width

  @property
  def row_width(self) -> int:
    """Number of tokens of a row of an image; raises ValueError for models without prefixes."""
    target = self.target(guided=False)
    if not hasattr(target, 'row_width'):
      raise ValueError(f'prefix is set, but a {self.family!r} model has continuous tokens, and its '
                       'decoders support no prefix; leave it out.')
    return target.row_width

  @property
  def prefix_length(self) -> int:
    """Number of tokens of the prefix; 0 without one."""
    return 0 if self.prefix is None else self.prefix.shape[-1]

  @usual_promotion
  def condition(self, prompts: Any) -> Any:
    """Returns the condition of images, one per prompt: a prompt, a list, or the path of a file.

    Raises ValueError for prompts that the model does not support, or that are not as many as the
    prefixes of the model.
    """
    with jax.ensure_compile_time_eval():  # Prompts are no tracers, in a function under `jit` too.
      condition = self.conditions.encode(prompts_lib.listed(prompts))
    if self.prefix is None:
      return condition
    count = len(jax.tree.leaves(condition)[0])
    if self.prefix.ndim == 2 and len(self.prefix) not in (1, count):
      raise ValueError(f'prefix has {len(self.prefix)} images for {count} prompts; pass one for '
                       'all, or one for each.')
    return prefix_lib.Prefixed(
        condition, np.broadcast_to(self.prefix, (count, self.prefix_length)))

  def cells(self, values: np.ndarray) -> np.ndarray:
    """Arranges values of tokens `[B, T]` as `[B, rows, columns]`, without grammar tokens."""
    rows, columns = self.grid
    values = values[:, self.first_cell:]
    if values.shape[1] != rows * columns:
      values = values[:, :rows * self.row_width].reshape(-1, rows, self.row_width)[:, :, :columns]
    return values.reshape(-1, rows, columns)

  @usual_promotion
  def tokens(self, images: jax.Array) -> jax.Array:
    """Encodes images `[B, H, W, 3]` in [-1, 1] to tokens `[B, T]`, including grammar tokens.

    Raises ValueError if the model has no image tokenizer of discrete tokens with an encoder.
    """
    return self._encode(images)

  @usual_promotion
  def pixels(self, tokens: jax.Array) -> jax.Array:
    """Decodes tokens `[B, T, ...]` to images `[B, H, W, 3]` in [-1, 1], if it has a tokenizer."""
    return self._decode(tokens)

  def image_tokens(self, tokens: Any) -> dict[str, np.ndarray]:
    """Returns the tokens of images `[B, T]` as the program takes them that draws their pixels.

    These are arrays by name with a leading axis `B`; see `parts.Handover`. Raises ValueError for
    models with an image tokenizer, whose `pixels` decodes them.
    """
    if self.handover is None:
      raise ValueError(f'model {self.name!r} is a {self.family!r} model, whose tokens no other '
                       'program draws; decode them with pixels.')
    return self.handover.arrays(np.asarray(tokens))

  @functools.cached_property
  def _encode(self) -> Callable[[jax.Array], jax.Array]:
    """The tokenizer's compiled encoder with its parameters; raises ValueError without one."""
    if self.tokenizer is None or self.tokenizer.encode is None:
      raise ValueError(f'model {self.name!r} has no image tokenizer with an encoder; pass tokens '
                       'instead of images.')
    encode = programs_lib.jit_unless_traced(self.tokenizer.encode)
    return functools.partial(encode, self.tokenizer.params)

  @functools.cached_property
  def _decode(self) -> Callable[[jax.Array], jax.Array]:
    """The tokenizer's compiled decoder with its parameters; raises ValueError without one."""
    if self.tokenizer is None:
      remedy = ('load it with tokenizer=FOLDER' if self.handover is None else
                f'another program draws the pixels of its tokens: {self.handover.advice}')
      raise ValueError(f'model {self.name!r} has no image tokenizer; {remedy}.')
    decode = programs_lib.jit_unless_traced(self.tokenizer.decode, label='the image tokenizer')
    return functools.partial(decode, self.tokenizer.params)

  @functools.cached_property
  def codebook(self) -> np.ndarray | None:
    """The vectors `[V, C]` of the tokens; None without an image tokenizer of discrete tokens."""
    if self.tokenizer is None or self.tokenizer.codebook is None:
      return None
    return np.asarray(self.tokenizer.codebook(self.tokenizer.params))

  def sampling(self, **options) -> Options:
    """Returns sampling options: the arguments, else the model's defaults, else the engine's.

    They are a `decoding.warp.Warp` or a `continuous.sampling.Sampling`; see `Engine.sampling`.
    """
    return self.engine.sampling(self.defaults, options)

  @usual_promotion
  def settled(self, sampling: Options) -> Options:
    """Returns sampling options, or rows of them, in the form that the decoders require.

    Options that are off become None, so that the compiled program omits them, and positions count
    from the end of the prefix, which excludes some: they raise ValueError.
    """
    if isinstance(sampling, Warp):
      sampling = prefix_lib.sampling(sampling, self.prefix_length)
    return self.engine.settled(sampling)

  def decoder(self, specification: str | Spec | None = None, *, guided: bool = True,
              batch_size: int = 1, **parameters) -> AnyDecoder:
    """Builds a decoder of this model, to be jitted and called with the model's parameters.

    Args:
      specification: such as `'mc_sjd(window=32)'`; the model's default if None.
      guided: whether to run the null condition alongside the condition.
      batch_size: images that will be decoded together; the model's default may depend on it.
      **parameters: parameters that the specification leaves open.

    Raises:
      ValueError: for a specification that is not supported, with the reason.
    """
    specification = self.specification(specification, batch_size=batch_size, **parameters)
    target, drafts = self.target(guided=guided), dict[str, Any]()
    if reason := self.engine.unsupported(specification, target):
      others = [name for name in self.engine.decoders
                if self.engine.unsupported(name, target) is None]
      raise ValueError(f'decoder is {str(specification)!r}, which cannot decode model '
                       f'{self.name!r}: {reason}; use one of: {", ".join(others)}.')
    if (required := self.engine.needs(specification)) is not None:
      if required not in self.drafts:
        raise ValueError(f'decoder is {str(specification)!r}, which drafts with '
                         f'{SOURCES[required]}; model {self.name!r} has none: load it with '
                         f'{"draft" if required == "model" else required}=FOLDER.')
      drafts[required] = self.drafts[required].build(guided)
    rho = self.head_drafter and functools.partial(self.head_drafter, guided=guided)
    return self.engine.build(
        specification, target, Resources(drafts, self.codebook, rho))

  def specification(self, specification: str | Spec | None = None, *, batch_size: int = 1,
                    **parameters) -> Spec:
    """Parses a specification and sets the parameters that it leaves open; see `decoder`."""
    if specification is None:
      if self.mesh is not None:  # Every group of devices decodes its share of the images.
        batch_size = -(-batch_size // self.mesh.shape[sharding.DATA])
      specification = self.engine.default(
          self.defaults.get('decoder'), self.drafts, self.device, batch_size)
    return self.engine.specification(specification, parameters)

  def with_prefix(self, tokens: Any) -> Self:
    """Returns the model of images that begin with these tokens; its decoders generate the others.

    It is another target, whose distribution is that of the model given the prefix. Its conditions
    are `decoding.prefix.Prefixed`; `pixels` and `cells` take tokens of whole images. Prefixes of
    the same length share compiled programs.

    `tokens` are `[P]` for all images or `[B, P]`, one for each prompt, whole rows of an image; see
    `generation.prefix.tokens` for those of pictures. Another number of them, and models of
    continuous tokens or with a prefix, raise ValueError.
    """
    prefix = np.asarray(tokens)
    if self.prefix is not None:
      raise ValueError(f'model {self.name!r} has a prefix of {self.prefix_length} tokens; call '
                       'with_prefix of the model without one.')
    _ = self.row_width  # Raises for continuous tokens.
    if prefix.ndim not in (1, 2) or not np.issubdtype(prefix.dtype, np.integer):
      raise ValueError(f'tokens is {prefix.dtype}{list(prefix.shape)}; it must be whole numbers, '
                       '[P] or [B, P].')
    length = prefix.shape[-1]
    prefix_lib.check_length(self.target(guided=False), length)
    return self._sharing(
        prefix=prefix_lib.narrow(prefix), target=lambda *, guided: prefix_lib.target(
            self.target(guided=guided), length),
        drafts={name: part._replace(build=functools.partial(part.build, prefix_length=length))
                for name, part in self.drafts.items()})

  def _sharing(self, **changes: Any) -> Self:
    """Returns the model with other fields, which shares its programs and estimates."""
    model = dataclasses.replace(self, **changes)
    # A frozen dataclass can share it so; the names of programs and estimates state the prefix.
    vars(model).update(estimates=self.estimates)
    if self.tokenizer is not None:
      vars(model).update(_decode=self._decode)
    return model

  def with_params(self, params: Params) -> Self:
    """Returns the model with other parameters of its target, which share its compiled programs.

    For training: sample from the parameters of every step. The drafts stay as they are; exact
    decoders sample the new parameters' distribution all the same, in more rounds the further the
    drafts are from it. Another structure, shape or dtype than in `Model.params` raises ValueError,
    but for arrays in place of matrices in a form of `files.matrices`, which are copied into it.
    """
    trees = [jax.eval_shape(matrices.plain, tree) for tree in (self.params, params)]
    old, new = ({jax.tree_util.keystr(path): (leaf.shape, str(leaf.dtype))
                 for path, leaf in jax.tree_util.tree_leaves_with_path(tree)} for tree in trees)
    if jax.tree.structure(trees[0]) != jax.tree.structure(trees[1]) or old != new:
      name = next((name for name in {**old, **new} if old.get(name) != new.get(name)), '')
      raise ValueError(f'params{name} is {new.get(name)}, and that of model {self.name!r} is '
                       f'{old.get(name)}; pass parameters of its structure, shapes and dtypes.')
    # What is compiled depends on shapes only.
    return self._sharing(params=matrices.like(params, self.params))

  def with_cache_dtype(self, dtype: str) -> Self:
    """Returns the model with keys and values in 'int8': another target; ValueError without them."""
    if dtype != 'int8':
      raise ValueError(f"cache_dtype is {dtype!r}; it must be 'int8', or None for the dtype of the "
                       'parameters.')
    if not self.has_cache:
      raise ValueError(f"cache_dtype is 'int8', but a {self.family!r} model has no cache; leave it "
                       'out.')
    if self.cache_dtype == dtype:
      return self
    if self.prefix is not None:
      raise ValueError(f'model {self.name!r} has a prefix; call with_cache_dtype of the model '
                       'without one.')

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

  def __repr__(self) -> str:
    drafts = ', '.join(self.drafts) or 'none'
    tokenizer = 'no tokenizer' if self.tokenizer is None else 'tokenizer'
    return (f'Model({self.name!r}, family {self.family}, {self.grid[0]}x{self.grid[1]} tokens, '
            f'{tokenizer}, drafts: {drafts})')
