"""A model, and the way from prompts to images.

  model.generate(prompts, ...)   calls the two methods below
    Model.request                encodes the prompts, and finds or builds the sampler of the options
      Model.sampler              a decoder with sampling options, checked and built once
      Sampler.request            numbers the images and checks the condition
      Request.fitting            how many of them fit in memory at once
    Request.generate
      Request.decode             runs the compiled decoder on one batch after the other
      Request.result             converts tokens to pixels

`model.sampler(...)(prompts)` skips the search for the sampler. With a prior, a request has one of
the prior, `Request.prior`, whose tokens become its condition.

In the shape descriptions, `B` is the number of images.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import warnings
from collections.abc import (
  Callable,
  Collection,
  Hashable,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageOps

from cspd_jax import sharding
from cspd_jax.core import (
  batches,
  compilations,
  fields,
  guarantees,
  guesses,
  programs as programs_lib,
  progress as progress_lib,
  random as random_lib,
  tracing,
)
from cspd_jax.core.batches import Progress
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.sampling import SamplingParams, is_guided
from cspd_jax.core.spec import Spec
from cspd_jax.core.table import SOURCES, Resources
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.decoding import continuous_batching, prefix as prefix_lib
from cspd_jax.files import atomic, matrices, reading
from cspd_jax.generation import engines, memory, prompts as prompts_lib, results
from cspd_jax.generation.engines import AnyDecoder, Engine, with_raw_log_probs
from cspd_jax.generation.parts import Conditions, DraftNetwork, Handover, Params, Teacher, Tokenizer
from cspd_jax.generation.results import Generated
from cspd_jax.generation.same_rounding import SameRounding
from cspd_jax.models import causal


def role_of(network: str) -> str:
  """Returns the role, in a model folder, of a network of `core.table.SOURCES`."""
  return 'draft' if network == 'model' else network


# Batches of a prior's tokens that are decoded before the images: rows that are complete can start
# the next one, and a run that is stopped loses few of them.
_AHEAD = 4
# Between the decoder of a prior and that of its model.
_THEN = '|'
# The samplers that a model keeps for calls of `generate`.
_MOST_SAMPLERS = 8


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Model:
  """A model: pure functions and their parameters, and `generate`, which returns images.

  To build a decoder of your own, start from `model.target()` and call the decoder with
  `model.params` and `model.condition(prompts)`; `model.pixels` decodes its tokens to images.

  Attributes:
    name: its name.
    family: name of its family.
    config: the target's config.
    params: the target's parameters.
    grid: rows and columns of tokens.
    engine: the engine with its decoders.
    build_target: `(guided) -> Target`, with or without the stream of the null condition; call
      `target`, which builds each of them once.
    conditions: the prompts that it supports.
    tokenizer: the image tokenizer; None if the model was loaded without one.
    drafts: networks that draft or correct, by the keys of `core.table.SOURCES`.
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
    prior: the model that reads the prompts, and whose tokens are the condition of this one; None if
      it reads them itself. See `with_prior`.
    remedy: `key of drafts -> ` what gives the model this network if it has none, as the end of a
      sentence.
  """

  name: str
  family: str
  config: Any
  params: Params
  grid: tuple[int, int]
  engine: Engine
  build_target: Callable[[bool], Any]
  conditions: Conditions
  tokenizer: Tokenizer | None = None
  drafts: Mapping[str, DraftNetwork] = dataclasses.field(default_factory=dict)
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  teacher: Teacher | None = None
  head_drafter: Callable[..., np.ndarray | None] | None = None
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  cache_dtype: str | None = None
  mesh: jax.sharding.Mesh | None = None
  prefix: np.ndarray | None = None
  handover: Handover | None = None
  first_cell: int = 0
  prior: 'Model | None' = None
  remedy: Callable[[str], str] = lambda network: f'load it with {role_of(network)}=FOLDER'
  # Compiled programs, the newest last; see `core.programs.get_or_build`.
  programs: dict[Hashable, Any] = dataclasses.field(default_factory=dict)
  # Bytes of an image's cache and of the rest, by decoder; see `estimate`.
  estimates: dict[Hashable, tuple[float, float]] = dataclasses.field(
      default_factory=dict, init=False)
  # Whether seed-exact decoders round as their baseline does.
  same_rounding: SameRounding = dataclasses.field(default_factory=SameRounding)
  # What is built once: targets by `guided`, and the last samplers by their arguments.
  _targets: dict[bool, Any] = dataclasses.field(default_factory=dict, init=False)
  _samplers: dict[Hashable, 'Sampler'] = dataclasses.field(default_factory=dict, init=False)

  def __post_init__(self):
    # Pictures, answers and figures have it, and it may be the name of a folder.
    object.__setattr__(self, 'name', progress_lib.unicode(self.name))

  def __getattr__(self, name: str) -> Any:
    """Says what there is in place of an attribute that models of other packages have."""
    if isinstance(meant := guesses.ALIASES.get(name), str):
      raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}; {meant}.')
    return object.__getattribute__(self, name)  # With its own error, also that of a property.

  def __copy__(self) -> Self:
    return dataclasses.replace(self)

  def __reduce__(self) -> Any:
    """Refuses `pickle` and `copy.deepcopy`, which cannot copy functions and their programs."""
    raise TypeError(f'model {self.name!r} holds functions and compiled programs, which cannot be '
                    'pickled or deep-copied; pass the name of its folder, and load it there with '
                    'cspd_jax.load, or call model.with_params for a copy with other parameters.')

  def generate(self, prompts: Any = None, *, seed: Any = 0, decoder: str | Spec | None = None,
               prefix: Any = None, rows: int | None = None, batch_size: int | None = None,
               progress: Progress | bool | None = None, raw_log_probs: bool = False,
               **options: Any) -> Generated:
    """Generates one image per prompt.

    All arguments are checked before compilation. A decoder is compiled once per batch size and
    cached by the model; other prompts, seeds and values of sampling options do not compile again.

    Args:
      prompts: a prompt, a list, or the `pathlib.Path` of a file with one prompt per line;
        `model.prompts` if None.
      seed: an integer, under which the images are numbered, or one integer per image. With the same
        decoder an image depends, up to rounding, only on its own seed, number and prompt.
      decoder: a specification, such as `'seed_exact(window=16)'`; if None, the model's default for
        the device and the batch size, which may be another one for another batch size or, with
        `batch_size=None`, with other free memory. Of a model with a prior it is for both, or there
        is one for each, `'PRIOR | MODEL'`.
      prefix: the first rows of the images, which are then completed: tokens, an image or its path;
        see `prefix_tokens`. With every decoder, the other tokens are conditioned on them.
      rows: how many rows of tokens of `prefix` are used.
      batch_size: images decoded at once; if None, as many as fit in the memory of the device. With
        more images than that, a row that is complete starts the next one; see `Request.run`.
      progress: True shows a progress bar and the compiled programs on stderr; or a function, called
        with the number of finished images and the number of all images. None says what is compiled
        or done once that takes more than five seconds, and False nothing.
      raw_log_probs: whether the result has `Generated.raw_log_probs`; discrete tokens only.
      **options: sampling options (`guidance_scale`, `temperature`, ...), by default the model's,
        and parameters that the specification leaves open (`window`, ...). Those of a prior have
        names that begin with `prior_`, such as `prior_temperature`.

    Returns:
      The images with their tokens, settings and statistics.

    Raises:
      ValueError: for anything that is not supported, by the name of the argument, or if the images
        of a batch do not fit in memory.

    Warns of words that the model does not read.
    """
    request = self.request(
        prompts, options, seed=seed, decoder=decoder, prefix=prefix, rows=rows,
        batch_size=batch_size, raw_log_probs=raw_log_probs)
    request.warn()
    return request.generate(progress)

  def stream(self, prompts: Any = None, *, seed: Any = 0, decoder: str | Spec | None = None,
             prefix: Any = None, rows: int | None = None, every: int = 1, progress: bool = True,
             raw_log_probs: bool = False, **options: Any) -> Iterator['Partial']:
    """Generates images and yields, after the prefill and every few rounds, what is committed.

    The tokens and errors are those of `generate`, in one batch.

    Args:
      prompts: a prompt, a list, or the `pathlib.Path` of a file with one prompt per line;
        `model.prompts` if None.
      seed: an integer, under which the images are numbered, or one integer per image.
      decoder: a specification; the model's default for the device and the number of images if None.
      prefix: the first rows of the images, which are then completed; see `generate`.
      rows: how many rows of tokens of `prefix` are used.
      every: rounds between two results; the last one always has the complete images.
      progress: whether a line on stderr says what is compiled once that takes more than five
        seconds.
      raw_log_probs: whether the result has `Generated.raw_log_probs`; discrete tokens only.
      **options: sampling options, and parameters that the specification leaves open.

    Yields:
      The state of all images.
    """
    if not isinstance(every, (int, np.integer)) or every < 1:
      raise ValueError(f'every is {every!r}; it must be a whole number, at least 1.')
    if 'batch_size' in options:
      raise ValueError(f"batch_size is {options['batch_size']!r}, but all images of a stream are "
                       'decoded at once; leave it out.')
    request = self.request(
        prompts, options, seed=seed, decoder=decoder, prefix=prefix, rows=rows, all_at_once=True,
        raw_log_probs=raw_log_probs)
    request.warn()
    return request.stream(int(every), progress)

  def sampler(self, decoder: str | Spec | None = None, *, batch_size: int | None = None,
              sampling: SamplingParams | None = None, raw_log_probs: bool = False, **options: Any
              ) -> 'Sampler':
    """Returns a decoder of this model with sampling options, to be called with prompts.

    The last ones are kept, so that equal arguments build and check nothing again.

    Example:
      sampler = model.sampler('mc_sjd(window=32)', batch_size=4, temperature=0.9)
      images = sampler(['a fox on white', 'a bear on blue'], seed=4)

    Args:
      decoder: a specification; the model's default for the device and the batch size if None.
      batch_size: images decoded at once; as many as fit in the memory of the device if None.
      sampling: of `model.sampling(...)`, in place of sampling options among `options`.
      raw_log_probs: whether results have `Generated.raw_log_probs`; discrete tokens only.
      **options: sampling options, and parameters that the specification leaves open.

    Raises:
      ValueError: for anything that is not supported, by the name of the argument.
    """
    return self._sampler(decoder, batch_size, sampling, raw_log_probs, options)

  def _sampler(self, decoder: str | Spec | None, batch_size: int | None,
               sampling: SamplingParams | None,
               raw_log_probs: bool, options: Mapping[str, Any]) -> 'Sampler':
    """Returns `sampler`, which may be kept."""
    key = (decoder, batch_size, sampling, type(raw_log_probs), raw_log_probs,
           *((name, type(value), value) for name, value in options.items()))
    try:
      hash(key)
    except TypeError:  # Lists and arrays, with an option for every image, have no hash.
      return self._built_sampler(decoder, batch_size, sampling, raw_log_probs, options)
    sampler = self._samplers.pop(key, None)
    if sampler is None:
      sampler = self._built_sampler(decoder, batch_size, sampling, raw_log_probs, options)
    self._samplers[key] = sampler
    while len(self._samplers) > _MOST_SAMPLERS:
      del self._samplers[next(iter(self._samplers))]
    return sampler

  def _built_sampler(self, decoder: str | Spec | None, batch_size: int | None,
                     sampling: SamplingParams | None, raw_log_probs: bool,
                     options: Mapping[str, Any]) -> 'Sampler':
    _check_concrete(options, sampling)
    if batch_size is not None:
      fields.check_whole('batch_size', batch_size, 'a whole number, at least 1', least=1)
    if isinstance(decoder, str) and decoder.count(_THEN) >= (stages := self._num_stages):
      raise ValueError(f'decoder is {decoder!r:.200}, {decoder.count(_THEN) + 1} decoders, but '
                       f'model {self.name!r} has {stages} stage{"s"[:stages != 1]}; pass one '
                       'decoder for each, or one for all.')
    prior = None
    if self.prior is not None:
      of_prior = engines.of_prior(options)
      options = {name: value for name, value in options.items()
                 if not name.startswith(engines.PRIOR)}
      shared = {name: value for name, value in options.items() if name not in self.engine.options}
      first, decoder = _of_stages(decoder)
      with _named_for_prior({*self.prior.options, *of_prior}):
        prior = self.prior._sampler(first, batch_size, None, raw_log_probs, shared | of_prior)
    overrides = {name: value for name, value in options.items()
                 if name in self.engine.options}
    parameters = {name: value for name, value in options.items() if name not in overrides}
    if sampling is None:
      sampling = self.sampling(**overrides)
    elif not isinstance(sampling, SamplingParams):
      raise ValueError(f'sampling is {sampling!r:.80}; pass model.sampling(...), such as '
                       'model.sampling(temperature=0.9).')
    elif overrides:
      raise ValueError(f'{next(iter(overrides))} and sampling are both passed; pass only one of '
                       'them.')
    guided = is_guided(sampling)
    specification = self.specification(decoder, batch_size=batch_size or 1, **parameters)
    built = with_raw_log_probs(self.decoder(specification, guided=guided), raw_log_probs)
    built.check_sampling(sampling)  # type: ignore[arg-type]  # Both are of one engine.
    return Sampler(
        # A copy without samplers: one that held the model that keeps it would be a cycle, whose
        # parameters fill the device until Python collects it.
        model=self._sharing(), specification=specification, decoder=built,
        draft_params=self.draft_params(specification), guided=guided, sampling=sampling,
        active=self.drop_inactive(sampling), batch_size=batch_size, names=(str(specification),),
        function=built, prior=prior)

  def request(self, prompts: Any = None, options: Mapping[str, Any] = MappingProxyType({}), *,
              seed: Any = 0, decoder: str | Spec | None = None, prefix: Any = None,
              rows: int | None = None, batch_size: int | None = None,
              max_batch_size: int | None = None, all_at_once: bool = False, slots: bool = True,
              pixels: bool = True, condition: Any = None, sampling: SamplingParams | None = None,
              raw_log_probs: bool = False) -> 'Request':
    """Checks the arguments of `generate` and the memory that they need; compiles nothing.

    Args:
      prompts: as for `generate`, as are `decoder`, `prefix`, `rows`, `batch_size` and
        `raw_log_probs`.
      options: of `generate`, by name.
      seed: as for `generate`; without `pixels` also a random key: image `i` has its key `i`.
      max_batch_size: the most images decoded at once without a `batch_size`; None for all.
      all_at_once: whether all images are decoded together, in place of `batch_size`.
      slots: whether a row whose image is complete may start the next one.
      pixels: whether tokens become images, by the model's image tokenizer or another program.
      condition: of the prompts, if the caller has encoded them; None encodes them here.
      sampling: of `model.sampling(...)`, in place of sampling options among `options`.

    Raises:
      ValueError: for anything that is not supported or does not fit in memory, by the argument.
    """
    model, listed = self, prompts_lib.listed(self.prompts if prompts is None else prompts)
    if condition is None and (self.prior is None or _are_tokens(listed)):
      condition = self.condition(listed)
    # Arrays of a device would compile programs for every number of picked images.
    condition = jax.tree.map(np.asarray, condition)
    if self.prior is not None and _are_tokens(listed):
      _check_without_prior(options, decoder)
    count = len(self.conditions.titles(listed))
    if prefix is not None or rows is not None:
      first = self.prefix_tokens(prefix, rows, count)
      model = self.with_prefix(first)
      condition = None if condition is None else prefix_lib.Prefixed(condition, first)
    size, argument = batch_size, 'prompts' if all_at_once else 'batch_size'
    if batch_size is None:
      size = count if max_batch_size is None else min(count, max_batch_size)
    elif isinstance(batch_size, int | np.integer) and not isinstance(batch_size, bool):
      size = min(count, int(batch_size))
    while True:
      sampler = model._sampler(decoder, size, sampling, raw_log_probs, options)
      request = sampler.request(
          listed, seed=seed, condition=condition, pixels=pixels, slots=slots)
      fitting = request.fitting(None if batch_size is None and not all_at_once else argument)
      if fitting == size:
        return request
      size = fitting  # The default decoder may be another one for a smaller batch.

  def target(self, guided: bool = True) -> Any:
    """Returns the model as a `decoding.base.Target` or a `continuous.base.Target`.

    `guided` models run the null condition alongside the condition; without it, a decoder accepts
    the guidance scale 1 only.
    """
    if guided not in self._targets:
      self._targets[guided] = self.build_target(guided)
    return self._targets[guided]

  @functools.cached_property
  def num_tokens(self) -> int:
    """Number of tokens of one image, without those of the prefix."""
    return self.target(False).num_tokens

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

  @functools.cached_property
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

  @functools.cached_property
  def row_width(self) -> int:
    """Number of tokens of a row of an image; raises ValueError for models without prefixes."""
    target = self.target(False)
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
    return condition if self.prefix is None else self._prefixed(condition)

  def _prefixed(self, condition: Any) -> Any:
    """Returns a condition with the prefix, if there is one."""
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

  def check_pixels(self) -> None:
    """Raises ValueError if tokens cannot become images, here or by another program."""
    if self.tokenizer is None and self.handover is None:
      raise ValueError(f'model {self.name!r} has no image tokenizer; load it with '
                       'tokenizer=FOLDER.')

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
    if self.handover is not None:
      raise ValueError(f'model {self.name!r} has no image tokenizer; another program draws the '
                       f'pixels of its tokens: {self.handover.advice}.')
    self.check_pixels()
    assert self.tokenizer is not None
    decode = programs_lib.jit_unless_traced(self.tokenizer.decode, label='the image tokenizer')
    return functools.partial(decode, self.tokenizer.params)

  @functools.cached_property
  def codebook(self) -> np.ndarray | None:
    """The vectors `[V, C]` of the tokens; None without an image tokenizer of discrete tokens."""
    if self.tokenizer is None or self.tokenizer.codebook is None:
      return None
    return np.asarray(self.tokenizer.codebook(self.tokenizer.params))

  def sampling(self, **options) -> SamplingParams:
    """Returns sampling options: the arguments, else the model's defaults, else the engine's.

    Values are NumPy's, so that new ones do not compile again; see `Engine.sampling`.
    """
    return self.engine.sampling(self.defaults, options)

  @usual_promotion
  def drop_inactive(self, sampling: SamplingParams) -> SamplingParams:
    """Returns sampling options, or rows of them, in the form that the decoders require.

    Options that are off become None, so that the compiled program omits them, and positions count
    from the end of the prefix, which excludes some: they raise ValueError.
    """
    if isinstance(sampling, SamplingParams):
      sampling = prefix_lib.sampling(sampling, self.prefix_length)
    return self.engine.drop_inactive(sampling)

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
    target, drafts = self.target(guided), dict[str, Any]()
    if reason := self.engine.unsupported(specification, target):
      others = [name for name in self.engine.decoders
                if self.engine.unsupported(name, target) is None]
      raise ValueError(f'decoder is {str(specification)!r}, which cannot decode model '
                       f'{self.name!r}: {reason}; use one of: {", ".join(others)}.')
    if reason := self.lacks(specification):
      raise ValueError(f'decoder is {str(specification)!r}, which {reason}.')
    if (required := self.engine.needs(specification)) is not None:
      drafts[required] = self.drafts[required].build(guided)
    rho = self.head_drafter and functools.partial(self.head_drafter, guided=guided)
    return self.engine.build(
        specification, target, Resources(drafts, self.codebook, rho))

  def lacks(self, specification: str | Spec) -> str | None:
    """Returns which network of a decoder the model lacks and what to do; None if it lacks none."""
    required = self.engine.needs(specification)
    if required is None or required in self.drafts:
      return None
    return (f'drafts with {SOURCES[required]}; model {self.name!r} has none: '
            f'{self.remedy(required)}')

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

    `tokens` are `[P]` for all images or `[B, P]`, one for each prompt, whole rows of an image;
    `prefix_tokens` returns them for pictures. Another number of them, and models of continuous
    tokens or with a prefix, raise ValueError.
    """
    prefix = np.asarray(tokens)
    if self.prefix is not None:
      raise ValueError(f'model {self.name!r} has a prefix of {self.prefix_length} tokens; call '
                       'with_prefix of the model without one.')
    if prefix.ndim not in (1, 2) or not np.issubdtype(prefix.dtype, np.integer):
      raise ValueError(f'tokens is {prefix.dtype}{list(prefix.shape)}; it must be whole numbers, '
                       '[P] or [B, P].')
    length = prefix.shape[-1]
    prefix_lib.check_length(length, self.num_tokens, self.row_width)
    return self._sharing(
        prefix=prefix_lib.narrow(prefix),
        build_target=lambda guided: prefix_lib.target(self.target(guided), length),
        drafts={name: part._replace(build=functools.partial(part.build, prefix_length=length))
                for name, part in self.drafts.items()})

  def with_prior(self, prior: 'Model') -> Self:
    """Returns the model of what the tokens of a prior describe, which reads the prior's prompts.

    The condition of this model are tokens `[B, T]` of the prior. Each has a decoder of its own:
    `generate` runs the prior's first, with keys of its own from the same seeds. An array of tokens
    of the prior is a prompt too; `condition` draws them for other prompts, with the prior's default
    decoder and options and the seed 0.
    """
    own = self.conditions

    def encode(prompts: Any) -> Any:
      if _are_tokens(prompts):
        return own.encode(prompts)
      return own.encode(prior.request(prompts, pixels=False).decode().tokens)

    conditions = prior.conditions._replace(
        encode=encode, titles=lambda prompts: (
            own if _are_tokens(prompts) else prior.conditions).titles(prompts))
    prior = dataclasses.replace(prior, remedy=lambda network: (
        f'load it with {engines.PRIOR}{role_of(network)}=FOLDER'))
    return dataclasses.replace(self, prior=prior, conditions=conditions)

  @property
  def options(self) -> tuple[str, ...]:
    """The names of the sampling options, those of a prior included."""
    return self.engine.options + (() if self.prior is None else tuple(
        f'{engines.PRIOR}{name}' for name in self.prior.options))

  @property
  def _num_stages(self) -> int:
    return 1 if self.prior is None else 1 + self.prior._num_stages

  def _sharing(self, **changes: Any) -> Self:
    """Returns the model with other fields, which shares its programs and estimates."""
    model = dataclasses.replace(self, **changes)
    # A frozen dataclass can share it so; the names of programs and estimates state the prefix.
    vars(model).update(estimates=self.estimates)
    if self.tokenizer is not None:
      vars(model).update(_decode=self._decode)
    return model

  def prefix_tokens(self, prefix: Any, rows: int | None = None, count: int = 1
                    ) -> np.ndarray:
    """Returns the tokens of the prefix of images `[count, P]` int32, whole rows.

    The prefix is tokens `[P]`, or `[count, P]` with one row per image, as in `Generated.tokens`;
    images as in `Generated.images`, `[H, W, 3]` or `[count, H, W, 3]`, uint8, or floats in [-1, 1];
    or the path of an image file, which is turned as its EXIF orientation says, put on white where
    it is transparent, cropped to its centre and resized to the model's size. `rows` of tokens are
    used; None means all tokens, or half the rows of an image. Anything else raises ValueError.
    """
    if prefix is None:
      raise ValueError(f'rows is {rows}, but there is no prefix to take rows from; pass prefix, '
                       'or leave rows out.')
    if self.prefix is not None:
      raise ValueError(f'prefix is set, but model {self.name!r} has one of {self.prefix_length} '
                       'tokens; pass it to the model without one.')
    width, (num_rows, _) = self.row_width, self.grid
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, (int, np.integer))
                             or not 1 <= rows < num_rows):
      raise ValueError(f'rows is {rows!r:.80}; it must be a whole number from 1 to {num_rows - 1}, '
                       f'because an image has {num_rows} rows of tokens.')
    most = width * (num_rows // 2 if rows is None else rows)
    if isinstance(prefix, (str, os.PathLike)):
      prefix = _picture(pathlib.Path(prefix), self.image_size)
    array = np.asarray(prefix)
    if array.ndim in (3, 4) and array.shape[-1] == 3:
      result = self._tokens_of_images(array.reshape(-1, *array.shape[-3:]))[:, :most]
    elif array.ndim in (1, 2) and np.issubdtype(array.dtype, np.integer):
      result = prefix_lib.narrow(np.atleast_2d(array))
    else:
      raise ValueError(
          f'prefix is {array.dtype}{list(array.shape)}; it must be tokens, whole numbers [P] or '
          '[B, P], an image or images [B, H, W, 3], or the path of an image.')
    if rows is not None:
      result = result[:, :rows * width]
      if result.shape[1] < rows * width:
        raise ValueError(f'rows is {rows}, but prefix has {result.shape[1]} tokens, {width} per '
                         'row; pass more tokens, or fewer rows.')
    if len(result) not in (1, count):
      raise ValueError(f'prefix has {len(result)} images for {count} prompts; pass one for all, or '
                       'one for each.')
    return np.broadcast_to(result, (count, result.shape[1]))

  def _tokens_of_images(self, images: np.ndarray) -> np.ndarray:
    """Encodes images of a prefix `[B, H, W, 3]`, uint8 or in [-1, 1], to tokens `[B, T]`."""
    if images.shape[1:3] != self.image_size:
      raise ValueError(f'prefix has images of {images.shape[1]}x{images.shape[2]} pixels; model '
                       f'{self.name!r} generates {"x".join(map(str, self.image_size))}, so resize '
                       'them, or pass the path of a file.')
    if images.dtype == np.uint8:
      images = images / np.float32(127.5) - 1
    elif not np.issubdtype(images.dtype, np.floating) or not np.abs(images).max() <= 1:
      raise ValueError(f'prefix has images of {images.dtype} numbers that are not all in [-1, 1]; '
                       'pass uint8, or scale them.')
    return np.asarray(self.tokens(images.astype(np.float32)))

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

    def target(guided: bool) -> Any:
      built = self.target(guided)
      # The functions of continuous tokens are in a field.
      part = getattr(built, 'cached', built)
      part = part._replace(prefill=causal.with_int8_cache(part.prefill))
      return built._replace(cached=part) if hasattr(built, 'cached') else part

    prior = self.prior and self.prior.with_cache_dtype(dtype)
    return dataclasses.replace(
        self, build_target=target, cache_dtype=dtype, programs={},
        same_rounding=SameRounding(), prior=prior)

  @property
  def has_cache(self) -> bool:
    """Whether the target caches keys and values; masked models do not."""
    return getattr(self.target(False), 'transform', None) is None

  def draft_params(self, specification: str | Spec) -> Params:
    """Returns the `draft_params` of a specification's decoder; None if it drafts alone."""
    required = self.engine.needs(specification)
    return None if required is None else self.drafts[required].params

  def estimate(self, name: Hashable, decoder: AnyDecoder, condition: Any, sampling: SamplingParams,
               draft_params: Any = None, *, queue: int = 0) -> memory.Estimate:
    """Estimates the memory of a decode; see `memory.estimate`.

    The bytes per image are kept under the name of the decoder's program. Condition and options are
    arrays of at least one image. `queue` is the number of images, if rows that are complete start
    the next image; otherwise 0.
    """
    row = tuple(jax.tree.map(lambda leaf: leaf[:1] if np.ndim(leaf) else leaf, tree)
                for tree in (condition, sampling))
    key = name, jax.tree.structure(row), *((np.shape(leaf), jnp.result_type(leaf))
                                           for leaf in jax.tree.leaves(row))
    if key not in self.estimates:
      self.estimates[key] = memory.per_image(decoder, self.params, row[0], row[1], draft_params)
    groups = 1 if self.mesh is None else self.mesh.shape[sharding.DATA]
    return memory.estimate(self.estimates[key], (self.params, draft_params), self.devices,
                           decoder.intermediate, groups=groups, queue=queue)

  def check_memory(self, specification: str | Spec, needs: memory.Estimate, batch_size: int,
                   argument: str = 'batch_size') -> None:
    """Raises ValueError if decoding `batch_size` images at once clearly does not fit in memory.

    `argument` is the one that sets their number: 'batch_size' or 'prompts'.
    """
    options = []
    if self.device.platform != 'cpu':  # Narrow parameters have wider copies there.
      precision = self.precision
      options = [option for option, helps in {
          "dtype='bfloat16'": precision.get('dtype') == 'float32' and 'quantize' not in precision,
          "quantize='int8'": self.has_cache and 'quantize' not in precision,
          "cache_dtype='int8'": self.has_cache and 'cache_dtype' not in precision,
          'sharding, a mesh of several devices': len(jax.devices()) > len(self.devices),
      }.items() if helps]
    memory.check(str(specification), needs, batch_size, argument, self.device.device_kind, options)

  def __repr__(self) -> str:
    drafts = ', '.join(self.drafts) or 'none'
    tokenizer = 'no tokenizer' if self.tokenizer is None else 'tokenizer'
    return (f'Model({self.name!r}, family {self.family}, {self.grid[0]}x{self.grid[1]} tokens, '
            f'{tokenizer}, drafts: {drafts})')


def _picture(path: pathlib.Path, size: tuple[int, int]) -> np.ndarray:
  """Crops the image file of a prefix to its centre and resizes it to `[*size, 3]` uint8."""
  picture = reading.photograph(path, 'use another file', 'prefix', convert=reading.as_shown)
  return np.asarray(ImageOps.fit(picture, size[::-1], Image.Resampling.LANCZOS))


def _are_tokens(prompts: Any) -> bool:
  """Whether prompts are tokens of a prior; raises ValueError for lists of them."""
  if isinstance(prompts, list | tuple) and any(isinstance(row, list | tuple) for row in prompts):
    raise ValueError(f'prompts is {str(prompts):.60}, a list of lists; it must be prompts in '
                     'words, or tokens of the prior as an array: pass np.asarray(prompts).')
  return isinstance(prompts, np.ndarray | jax.Array) and prompts.ndim == 2


def _of_stages(decoder: str | Spec | None) -> tuple[Any, Any]:
  """Returns the specifications of a prior and of the model that it is for."""
  if not isinstance(decoder, str) or _THEN not in decoder:
    return decoder, decoder
  first, _, last = decoder.rpartition(_THEN)
  return first.strip(), last.strip()


def _check_without_prior(options: Mapping[str, Any], decoder: str | Spec | None) -> None:
  """Raises ValueError for options and a decoder of a prior, whose tokens are the prompts."""
  for name, value in options.items():
    if name.startswith(engines.PRIOR) and value is not None:
      raise ValueError(f'{name} is {value!r:.80}, but prompts are tokens of the prior, which then '
                       'draws none; leave it out.')
  if isinstance(decoder, str) and _THEN in decoder:
    raise ValueError(f'decoder is {decoder!r:.200}, but prompts are tokens of the prior, which '
                     f'then draws none; pass {_of_stages(decoder)[1]!r}.')


@contextlib.contextmanager
def _named_for_prior(options: Collection[str]) -> Iterator[None]:
  """Lets errors on options of a prior name them as callers do."""
  try:
    yield
  except ValueError as error:
    if str(error).partition(' ')[0] in options:
      names = '|'.join(map(re.escape, options))
      raise ValueError(re.sub(rf'\b({names})\b', rf'{engines.PRIOR}\1', str(error))) from error
    raise


def joined(samplers: Iterable['Sampler']) -> str:
  """Returns the specification of a model with priors, of the samplers of all stages."""
  return f' {_THEN} '.join(sampler.text for sampler in samplers)


def _check_concrete(*values: Any) -> None:
  """Raises ValueError under `jax.jit`, and if an argument is traced by another transformation."""
  if not tracing.is_concrete(jnp.zeros(()), *values):
    raise ValueError(
        'images were requested inside of a function that JAX traces, such as under jax.jit, '
        'jax.vmap or jax.grad; request them outside, or call model.decoder(...) there.')


class Program(NamedTuple):
  """The name of a compiled program of a model: all that determines it apart from shapes.

  `mode` is () for a whole decode of a batch, otherwise a word, and what it depends on.
  """

  decoders: tuple[str, ...]
  guided: bool
  prefix_length: int
  raw_log_probs: bool
  mode: tuple = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
  """A decoder of a model with sampling options; see `Model.sampler`, which checks and builds it.

  `sampler(prompts, seed=...)` returns one image per prompt.

  Attributes:
    model: the model; if images have a prefix, the one of `Model.with_prefix`.
    specification: of the decoder.
    decoder: built from the specification.
    draft_params: its drafter's parameters; None if it has none.
    guided: whether images are generated with guidance.
    sampling: the sampling options.
    active: the sampling options as the program takes them; see `Model.drop_inactive`.
    batch_size: images decoded at once; None for as many as fit in memory.
    names: specifications of the decoders that `function` contains: more than this one only in
      `measure.bench`, where decoders share a program.
    function: what is compiled: `(params, condition, keys [B], sampling, draft_params) -> result`,
      the decoder or one that contains it.
    prior: that of the model's prior; None without one.
  """

  model: Model
  specification: Spec
  decoder: AnyDecoder
  draft_params: Any
  guided: bool
  sampling: SamplingParams
  active: SamplingParams
  batch_size: int | None
  names: tuple[str, ...]
  function: Callable[..., Any]
  prior: 'Sampler | None' = None
  # Numbers of images and shapes of conditions that fit in memory, and that were measured.
  _fitting: set[Hashable] = dataclasses.field(default_factory=set, init=False)
  _measured: set[Hashable] = dataclasses.field(default_factory=set, init=False)

  def __call__(self, prompts: Any = None, *, seed: Any = 0, progress: Progress | bool | None = None
               ) -> Generated:
    """Generates one image per prompt; the arguments are those of `Model.generate`.

    Raises ValueError for prompts or seeds that are not supported, and for too little memory.
    """
    request = self.request(prompts, seed=seed)
    argument = None if self.batch_size is None else 'batch_size'
    while (size := request.fitting(argument)) < request.batch_size:
      request = request.with_batch_size(size)
    request.warn()
    return request.generate(progress)

  def request(self, prompts: Any = None, *, seed: Any = 0, condition: Any = None,
              pixels: bool = True, slots: bool = True) -> 'Request':
    """Returns the request of one image per prompt, whatever memory it needs.

    The arguments and errors are those of `Model.request`.
    """
    _check_concrete(seed)
    model = self.model
    prompts, prior = prompts_lib.listed(model.prompts if prompts is None else prompts), None
    if condition is None and self.prior is not None and not _are_tokens(prompts):
      with _named_for_prior(self.prior.model.options):
        prior = self.prior.request(prompts, seed=seed, pixels=False, slots=slots).before()
      # What it draws replaces these; all checks and estimates are of shapes.
      tokens = np.zeros((len(prior), self.prior.model.num_tokens), np.int32)
      condition = jax.tree.map(np.asarray, model._prefixed(tokens))
    elif condition is None:
      condition = jax.tree.map(np.asarray, model.condition(prompts))
    titles = model.conditions.titles(prompts)
    count = len(titles)
    for name, value in self.sampling._asdict().items():
      if np.shape(value) not in ((), (count,)):
        raise ValueError(f'{name} has shape {np.shape(value)}; it must be a number, or one for '
                         f'each of {count} images.')
    self.decoder.check_condition(condition)
    if pixels:
      model.check_pixels()
    return Request(
        self, prompts, condition, titles,
        prompts_lib.unknown_words(model.conditions, prompts, count),
        prompts_lib.seeds(seed, count) if pixels else prompts_lib.seeds_or_keys(seed, count),
        self.sampling, self.active, min(count, self.batch_size or count), slots, prior)

  @functools.cached_property
  def text(self) -> str:
    """The specification as text."""
    return str(self.specification)

  @property
  def stages(self) -> tuple['Sampler', ...]:
    """The samplers of the prior, if there is one, and of the model."""
    return (self,) if self.prior is None else (*self.prior.stages, self)

  @functools.cached_property
  def recorded(self) -> dict[str, Any]:
    """The sampling options by name as plain numbers and lists, as images record them."""
    return atomic.plain(self.model.engine.named(self.sampling))

  @property
  def guarantee(self) -> Guarantee:
    """How images relate to the model's distribution, as far as the programs so far show."""
    differs = self.text in self.model.same_rounding.differing
    return self._guarantee.rounded if differs else self._guarantee

  @functools.cached_property
  def _guarantee(self) -> Guarantee:
    return self.model.engine.guarantee(self.decoder)

  @functools.cached_property
  def can_refill(self) -> bool:
    """Whether a row whose image is complete can start the next one."""
    return self.model.mesh is None and continuous_batching.supports(self.decoder)

  def program(self, *mode: Any) -> Program:
    """Returns the name of a program of the decoder."""
    return Program(self.names, self.guided, self.model.prefix_length,
                   getattr(self.decoder, 'raw_log_probs', False), mode)

  def jitted(self) -> Callable[..., Any]:
    """Returns the jitted `function`, which the model keeps."""
    mesh = self.model.mesh
    more = f' and {len(self.names) - 1} more verifiers' if len(self.names) > 1 else ''
    return programs_lib.get_or_build(self.model, self.program(), lambda: programs_lib.jit(
        self.function if mesh is None else sharding.over_images(self.function, mesh),
        label=f'{self.names[0]}{more}', short_sums=True, inspect=self.inspect()))

  def inspect(self, *mode: Any) -> programs_lib.Inspect | None:
    """Returns what compares the kernels of a program with those of the baseline, or None."""
    return self.model.same_rounding.inspect(
        self.decoder, self.text, self.program(*mode)._replace(decoders=()))

  def measure(self, condition: Any, count: int) -> None:
    """Measures, the first time, whether a pass of `count` images rounds as the guarantee says.

    The condition, NumPy arrays of at least one row, gives the shapes.
    """
    if self._guarantee is not Guarantee.SEED_EXACT:
      return
    shapes = count, *(np.shape(leaf)[1:] for leaf in jax.tree.leaves(condition))
    if shapes not in self._measured:
      model = self.model
      model.same_rounding.measure(
          self.decoder, self.text, (self.guided, model.prefix_length), model.params,
          batches.select(condition, np.zeros(count, int)), model.mesh)
      self._measured.add(shapes)

  def __repr__(self) -> str:
    return f'Sampler({self.text!r}, {self.model!r})'


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
  """Images to be decoded; all arguments are checked, and nothing is compiled.

  Image `i` depends, up to rounding, only on its seed, number and prompt, whatever the mode and the
  batch size; log-probabilities and `Decoded.tv_bound` may differ in their last bits.

  Attributes:
    sampler: the model, its decoder and what they are called with.
    prompts: the caller's prompts.
    condition: NumPy arrays with a leading axis `B`; a `decoding.prefix.Prefixed` if there is a
      prefix.
    titles: `[B]` the prompts in words.
    unknown_words: `[B]` words of the prompts that do not reach the model.
    seeds: `[B]` seed and number of every image; or one random key per image.
    sampling: the sampling options of these images.
    active: the same as the program takes them. Whether one is off depends on all images of the
      sampler, and not on the rows of a batch.
    batch_size: images decoded at once.
    slots: whether a row whose image is complete may start the next one.
    prior: the request of the model's prior, for the same images; None without one, or if the caller
      has supplied its tokens.
    first: the result of the prior's decoder, NumPy arrays, whose tokens are the `condition`; None
      until it has decoded them, which `Request.run` and `Request.stream` let it do.
    stage: how many models before the last one this is; each has random keys of its own.
  """

  sampler: Sampler
  prompts: Any
  condition: Any
  titles: Sequence[str]
  unknown_words: Sequence[Sequence[str]]
  seeds: Sequence[tuple[int, int]] | jax.Array
  sampling: SamplingParams
  active: SamplingParams
  batch_size: int
  slots: bool
  prior: 'Request | None' = None
  first: Any = None
  stage: int = 0

  def __len__(self) -> int:
    return len(self.titles)

  def pick(self, index: Sequence[int] | np.ndarray) -> 'Request':
    """Returns the request of the images with these numbers."""
    index = np.asarray(index, int)
    if np.array_equal(index, np.arange(len(self.titles))):
      return self  # Without a copy of the features of many prompts.
    of = lambda values: [values[i] for i in index]
    return dataclasses.replace(
        self, condition=batches.select(self.condition, index), titles=of(self.titles),
        seeds=self.seeds[index] if isinstance(self.seeds, jax.Array) else of(self.seeds),
        unknown_words=of(self.unknown_words), sampling=batches.select(self.sampling, index),
        active=batches.select(self.active, index), prior=self.prior and self.prior.pick(index),
        first=batches.select(self.first, index))

  def with_batch_size(self, size: int) -> 'Request':
    """Returns the request with at most `size` images at once."""
    return dataclasses.replace(self, batch_size=min(size, self.batch_size),
                               prior=self.prior and self.prior.with_batch_size(size))

  def with_seeds(self, seeds: Sequence[tuple[int, int]]) -> 'Request':
    """Returns the request with other seeds and numbers `[B]`."""
    return dataclasses.replace(self, seeds=seeds, prior=self.prior and self.prior.with_seeds(seeds))

  def before(self) -> 'Request':
    """Returns the request as that of the prior of another one, with random keys of its own."""
    return dataclasses.replace(
        self, stage=self.stage + 1, prior=self.prior and self.prior.before())

  @property
  def waits(self) -> bool:
    """Whether the prior is still to draw the condition."""
    return self.prior is not None and self.first is None

  def after(self, first: Any) -> 'Request':
    """Returns the request with what the prior has drawn, the result `first` of its decoder."""
    condition: Any = np.asarray(_last(first).tokens, np.int32)
    if isinstance(self.condition, prefix_lib.Prefixed):
      condition = self.condition._replace(condition=condition)
    return dataclasses.replace(self, condition=condition, first=first)

  @property
  def stages(self) -> tuple['Request', ...]:
    """The requests of the prior, if there is one, and of the model."""
    return (self,) if self.prior is None else (*self.prior.stages, self)

  @property
  def text(self) -> str:
    """The specifications of the decoders of all stages as text."""
    return joined(request.sampler for request in self.stages)

  @property
  def guarantee(self) -> Guarantee:
    """How images relate to the distribution of the model, or of the model and its prior."""
    return guarantees.of_stages(request.sampler.guarantee for request in self.stages)

  @property
  def recorded(self) -> dict[str, Any]:
    """The sampling options by name as plain numbers and lists, as images record them."""
    own = self.sampler.recorded
    if self.sampling is not self.sampler.sampling:
      own = atomic.plain(self.sampler.model.engine.named(self.sampling))
    return own if self.prior is None else own | {
        f'{engines.PRIOR}{name}': value for name, value in self.prior.recorded.items()}

  def estimate(self) -> memory.Estimate:
    """Estimates the memory that decoding needs."""
    sampler = self.sampler
    return sampler.model.estimate(
        sampler.program(), sampler.decoder, self.condition, self.active, sampler.draft_params,
        queue=len(self) if self.slots and sampler.can_refill else 0)

  def fitting(self, argument: str | None) -> int:
    """Returns the batch size, or the largest one below that fits in memory if `argument` is None.

    Otherwise too little memory raises ValueError; `argument` is as for `Model.check_memory`. The
    same number of images with conditions of the same shapes is not estimated again.
    """
    if self.prior is not None:
      size = self.prior.fitting(argument)
      own = dataclasses.replace(self, prior=None, batch_size=min(size, self.batch_size))
      return own.fitting(argument)
    sampler, size = self.sampler, self.batch_size
    images = (len(self.titles), size, self.slots,
              *map(np.shape, jax.tree.leaves(self.condition)))
    if images in sampler._fitting:
      return size
    needs = self.estimate()
    if argument is None and (most := needs.most(size)) < size:
      return most
    sampler.model.check_memory(sampler.specification, needs, size, argument or 'batch_size')
    sampler._fitting.add(images)
    return size

  @property
  def refills(self) -> bool:
    """Whether rows that are complete start the next image, because that saves rounds."""
    return len(self.titles) > self.batch_size > 1 and self.slots and self.sampler.can_refill

  def generate(self, progress: Progress | bool | None = None) -> Generated:
    """Decodes the images and returns them; `progress` is as for `Model.generate`."""
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
      raise ValueError(f'progress is {progress!r:.80}; it must be True for a progress bar, or a '
                       'function of the numbers of finished images and of all images.')
    if progress is True:
      with compilations.reported(), progress_lib.bar('generating') as show:
        show(0, len(self))
        return self.result(self.decode(show))
    steps = [0, len(self)]
    doing = lambda: f'generating with {self.text}, {steps[0]} of {steps[1]} images are complete'
    with compilations.told(doing, progress is None):
      return self.result(self.decode(progress or (lambda *now: steps.__setitem__(slice(2), now))))

  def warn(self) -> None:
    """Warns of words that the model does not read."""
    if lines := self.unread:
      warnings.warn('\n'.join(lines), stacklevel=3)  # In the caller of a public function.

  @property
  def unread(self) -> list[str]:
    """A sentence on the words of every prompt that the model does not read, or of the first."""
    return prompts_lib.sentences(dict(zip(self.titles, self.unknown_words)))

  def decode(self, progress: Progress | None = None) -> Any:
    """Returns the decoder's result for all images, in their order, as NumPy arrays.

    `progress` is called with the number of finished images and of all images. NaN or infinity of
    the model raises ValueError.
    """
    return gathered(self.run(), len(self.titles), progress)

  def run(self) -> Iterator[tuple[np.ndarray, Any]]:
    """Decodes the images, `batch_size` at once.

    If there are more images than that, a row whose image is complete starts the next image
    (`decoding.continuous_batching`) where that saves rounds. A decoder without drafts requires the
    same number of rounds for every image, and continuous tokens and several devices do not support
    refill; these decode batch after batch, with the last batch filled up, and with a mesh divide
    every batch over its groups of devices.

    With a prior, several batches of its tokens are decoded before the images that they describe.

    Yields:
      Numbers of images, and the decoder's result for these, NumPy arrays; in total, all images.
      With a prior that has drawn nothing yet, the results of both in a `Stages`.
    """
    if self.prior is not None and self.waits:
      for start in range(0, len(self), size := _AHEAD * self.batch_size):
        index = np.arange(start, min(start + size, len(self)))
        part = self.pick(index)
        assert part.prior is not None
        first = part.prior.decode()
        for numbers, decoded in part.after(first).run():
          yield index[numbers], Stages(batches.select(first, numbers), decoded)
    elif self.refills:
      for group in self.refilled():
        yield group.image, self.pick(group.image).check_result(group.decoded)
    else:
      for index, num_new in batches.filled(len(self.titles), self.batch_size):
        yield index[:num_new], self.batch(index, num_new)

  def batch(self, index: np.ndarray, num_new: int) -> Any:
    """Returns the checked result of the first `num_new` images of a batch."""
    decoded = batches.leading(jax.device_get(self.bound(index)()), num_new)
    return self.pick(index[:num_new]).check_result(decoded)

  def refilled(self) -> Iterator[continuous_batching.Finished]:
    """Decodes images of discrete tokens in `batch_size` slots; a free one starts the next image.

    Yields the images that became complete, which are not checked, as NumPy arrays.
    """
    sampler, size = self.sampler, self.batch_size
    decoder: Any = sampler.decoder
    sampler.measure(self.condition, size)
    jitted = programs_lib.get_or_build(
        sampler.model, sampler.program('slots', size),
        lambda: continuous_batching.jitted(
            decoder, size, sampler.text, sampler.inspect('slots', size)))
    return continuous_batching.run(
        jitted, sampler.model.params, len(self), self.inputs, sampler.draft_params)

  @usual_promotion
  def inputs(self, index: np.ndarray) -> tuple[Any, jax.Array, Any]:
    """Returns condition, random keys and sampling options of the images with these numbers."""
    condition, sampling = batches.select((self.condition, self.active), index)
    keys = (self.seeds[index] if isinstance(self.seeds, jax.Array) else
            random_lib.image_keys([self.seeds[i] for i in index]))
    if self.stage:
      keys = random_lib.stage_keys(keys, self.stage)
    return jax.tree.map(jnp.asarray, condition), keys, sampling

  def arguments(self, index: np.ndarray) -> tuple[Any, ...]:
    """Returns the arguments of `Sampler.function` for the images with these numbers."""
    return self.sampler.model.params, *self.inputs(index), self.sampler.draft_params

  def bound(self, index: np.ndarray) -> Callable[[], Any]:
    """Returns a function that decodes the images with these numbers together, divided over a mesh.

    The result is not checked; it is arrays of the device, or NumPy arrays if there is a mesh.
    """
    run, whole = self.sampler.jitted(), self._divisible(index)
    self.sampler.measure(self.condition, len(whole))
    if self.sampler.model.mesh is None:
      return functools.partial(run, *self.arguments(index))
    arguments = self.arguments(whole)
    return lambda: batches.leading(sharding.gathered(run(*arguments)), len(index))

  def compile(self, batch_size: int) -> float:
    """Compiles `bound` for a number of images; returns the seconds that it took."""
    index = self._divisible(np.zeros(batch_size, int))
    return programs_lib.compiled_for(self.sampler.jitted(), *self.arguments(index)).seconds

  def _divisible(self, index: np.ndarray) -> np.ndarray:
    """Returns numbers of images, filled up so that all groups of a mesh decode as many."""
    mesh = self.sampler.model.mesh
    groups = 1 if mesh is None else mesh.shape[sharding.DATA]
    return batches.padded(index, -(-len(index) // groups) * groups)

  def stream(self, every: int, progress: bool = False) -> Iterator['Partial']:
    """Decodes in one batch, without a mesh, and yields the images every few rounds.

    The first is after the prefill, the last has the complete images. With a prior, its tokens come
    first. NaN or infinity of the model raises ValueError. `progress` is as for `Model.stream`.
    """
    sampler = self.sampler
    if self.waits:
      assert self.prior is not None
      for partial in self.prior.stream(every, progress):
        yield partial.before(self)
      yield from self.after(partial.decoded).stream(every, progress)
      return
    model, decoder = sampler.model, sampler.decoder
    size = decoder.target.num_tokens
    sampler.measure(self.condition, len(self))

    def advance(params, state, sampling, draft_params):
      def more(carry):
        return (carry[0] < every) & jnp.any(carry[1].count < size)

      def step(carry):
        return carry[0] + 1, decoder.round(params, carry[1], sampling, draft_params)

      return jax.lax.while_loop(more, step, (jnp.int32(0), state))[1]

    text, jit = sampler.text, functools.partial(
        programs_lib.jit, short_sums=True, inspect=sampler.inspect('stream', every))
    start, go_on, finish = programs_lib.get_or_build(
        model, sampler.program('stream', every),
        lambda: (jit(decoder.start, label=f'the prefill of {text}'), jit(advance, label=text),
                 programs_lib.jit(decoder.finish, short_sums=True)))
    _, condition, keys, sampling, draft_params = self.arguments(np.arange(len(self)))
    told = functools.partial(compilations.told, lambda: f'decoding with {sampler.text}')
    with told(progress):
      state = start(
          model.params, condition, random_lib.row_keys(keys, len(self)), sampling, draft_params)
    while True:
      complete = bool(np.all(np.asarray(state.count) >= size))
      decoded = self.check_result(jax.device_get(finish(state)))
      yield Partial(self, decoded, np.asarray(state.count) + model.prefix_length, complete)
      if complete:
        return
      with told(progress):
        state = go_on(model.params, state, sampling, draft_params)
      progress = False  # It is compiled.

  def check_result(self, decoded: Any) -> Any:
    """Returns the decoder's result; raises ValueError, by title and seed, for invalid images."""
    if not np.all(decoded.valid):
      self.sampler.model.engine.check_result(decoded, self._names)
    return decoded

  @property
  def _names(self) -> list[str]:
    """The titles and seeds of the images, for messages."""
    numbered = [f'number {number}' for number in range(len(self))] if isinstance(
        self.seeds, jax.Array) else [f'with seed {seed}, number {number}'
                                     for seed, number in self.seeds]
    return [f'{title!r} {number}' for title, number in zip(self.titles, numbered)]

  def _bytes(self, index: int, pixels: np.ndarray) -> np.ndarray:
    """Returns the pixels `[1, H, W, 3]` of an image as uint8."""
    if not np.isfinite(pixels).all():
      raise ValueError(f'The image tokenizer returned NaN or infinity for {self._names[index]}; '
                       "load the model with another dtype, such as dtype='float32'.")
    return results.to_bytes(pixels)

  def result(self, decoded: Any) -> Generated:
    """Returns the images of the decoder's result; raises ValueError for pixels not finite.

    They have no pixels if another program draws these.
    """
    if isinstance(decoded, Stages):
      return self.after(decoded.first).result(decoded.last)
    if isinstance(self.seeds, jax.Array):
      raise ValueError('seed is a random key, for tokens alone; request images with whole numbers.')
    model, length = self.sampler.model, self.sampler.model.prefix_length
    tokens, fixed = np.asarray(decoded.tokens), np.asarray(decoded.round_of_token)
    condition = self.condition
    if length:
      tokens = np.concatenate([condition.tokens, tokens], axis=1)
      fixed = np.pad(fixed, ((0, 0), (length, 0)))
      condition = condition.condition
    if model.handover is None:
      # One by one: floating-point pixels of all images need many times the memory.
      images = np.concatenate(
          [self._bytes(i, model.pixels(tokens[i:i + 1])) for i in range(len(tokens))])
      handed = None
    else:
      images, handed = np.zeros((len(tokens), 0, 0, 3), np.uint8), model.image_tokens(tokens)
    stages = self.sampler if self.prior is None else self
    is_class = getattr(condition, 'ndim', 0) == 1 and np.issubdtype(condition.dtype, np.integer)
    return Generated(
        images=images, handed=handed, decoded=decoded, tokens=tokens,
        round_of_cell=model.cells(fixed), prefix_length=length, prompts=self.titles,
        seeds=self.seeds, decoder=stages.text, guarantee=stages.guarantee, sampling=self.recorded,
        prior=None if self.first is None or self.prior is None else self.prior.result(self.first),
        model=model.name, grid=model.grid, precision=model.precision,
        labels=condition.tolist() if is_class else None, numbers=range(len(tokens)),
        unknown_words=self.unknown_words)


class Stages(NamedTuple):
  """The results of the decoders of a prior and of the model that it is for; see `Request.run`."""

  first: Any
  last: Any


def _last(decoded: Any) -> Any:
  """Returns the result of the last decoder."""
  return decoded.last if isinstance(decoded, Stages) else decoded


def gathered(parts: Iterator[tuple[np.ndarray, Any]], count: int, progress: Progress | None = None
             ) -> Any:
  """Returns the results of `Request.run` in the order of the images; see `Request.decode`."""
  numbers, results_of = np.zeros(0, int), []
  for index, decoded in parts:
    numbers = np.concatenate([numbers, index])
    results_of.append(decoded)
    if progress is not None and len(index):
      progress(len(numbers), count)
  order = np.argsort(numbers)
  if len(results_of) > 1:
    results_of = [batches.concatenated(results_of)]
  if np.array_equal(order, np.arange(len(order))):
    return results_of[0]  # Batches come in order, and may be too large to be copied once more.
  return jax.tree.map(lambda leaf: leaf[order], results_of[0])


class Partial:
  """Images that are still being decoded.

  Attributes:
    decoded: the decoder's result so far, NumPy arrays; tokens that are not committed are undefined.
    count: `[B]` number of committed tokens, including the prefix.
    complete: whether all images are complete.
    fixed: `[B, rows, columns]` bool, which tokens are committed.
    num_tokens: tokens of an image, or of the prior.
    is_prior: whether these are tokens of a prior, before the image has any.
  """

  def __init__(self, request: 'Request', decoded: Any, count: np.ndarray, complete: bool,
               whole: 'Request | None' = None):
    """Initialises the state; a prior's has the request of the `whole` images."""
    self._request, self.decoded, self.count, self.complete = request, decoded, count, complete
    self._whole, self.is_prior = whole, whole is not None
    model = request.sampler.model
    self.num_tokens = model.prefix_length + decoded.round_of_token.shape[1]  # Per image.
    order = getattr(decoded, 'order', None)
    rank = np.arange(self.num_tokens) if order is None else np.argsort(order, axis=1)
    self.fixed = model.cells(rank < count[:, None])

  def before(self, whole: 'Request') -> 'Partial':
    """Returns these tokens as those of the prior of images, which have no tokens yet."""
    return Partial(self._request, self.decoded, self.count, False, whole)

  @property
  def images(self) -> np.ndarray:
    """The images so far, uint8 `[B, H, W, 3]`; grey where no token is committed."""
    if self._whole is not None:
      size = self._whole.sampler.model.image_size
      return np.full((len(self.count), *size, 3), 128, np.uint8)
    images = self._request.result(self.decoded).images.copy()
    scale = [pixels // tokens for pixels, tokens in zip(images.shape[1:3], self.fixed.shape[1:])]
    shown = self.fixed.repeat(scale[0], axis=1).repeat(scale[1], axis=2)
    images[~shown] = 128
    return images

  @property
  def round_of_cell(self) -> np.ndarray:
    """The round `[B, rows, columns]` that committed a token of the grid; -1 if none has yet."""
    model = self._request.sampler.model
    rounds = np.pad(self.decoded.round_of_token, ((0, 0), (model.prefix_length, 0)))
    return np.where(self.fixed, model.cells(rounds), -1)

  def result(self) -> Generated:
    """Returns the complete images; raises ValueError if they are not complete yet."""
    if not self.complete:
      raise ValueError(f'the images have {self.count.tolist()} tokens so far; iterate until '
                       '`complete` is True.')
    return self._request.result(self.decoded)

  def __repr__(self) -> str:
    # The grid does not contain the grammar's tokens.
    total = len(self.count) * self.num_tokens
    of = ' of the prior' if self.is_prior else ''
    return (f'Partial({int(self.count.sum())} of {total} tokens{of} of {len(self.count)} images, '
            f'forward pass {int(np.max(self.decoded.rounds))})')

  def _repr_html_(self) -> str:
    """Displays the images so far in notebooks."""
    has_pixels = self._request.sampler.model.handover is None
    images = self.images[:results.MOST_SHOWN] if has_pixels else ()
    shown = [results.encoded(image) for image in images]
    return results.figures(repr(self), shown, self._request.titles)
