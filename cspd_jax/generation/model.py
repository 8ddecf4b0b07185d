"""A model: networks, parameters, prompts and defaults, and `generate`, which returns images.

  model.generate(prompts, ...)
    Model.images               encodes the prompts, and finds or builds the sampler of the options
      Model.sampler            a decoder with its options, checked and built once: `sampler.Sampler`
      Sampler.images           a record of the images: conditions, seeds, options: `images.Images`
      Sampler.largest_batch    how many of them fit in memory at once
    decode.generate            runs the compiled decoder, and converts tokens to pixels

`model.sampler(...)(prompts)` skips the search for the sampler. Two models in turn are a
`cascade.Cascade`, which is called in the same way.

In the shape descriptions, `B` is the number of images.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import jax
import numpy as np

from cspd_jax import sharding
from cspd_jax.core import guesses, matrices, programs, progress as progress_lib
from cspd_jax.core.batches import Progress
from cspd_jax.core.decoder import AnyDecoder
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.core.spec import Spec
from cspd_jax.core.table import Table
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.generation import (
  decode,
  given_rows,
  options as options_lib,
  parts,
  pixels as pixels_lib,
  prompts as prompts_lib,
)
from cspd_jax.generation.decode import Partial
from cspd_jax.generation.images import Images, build_fitted, warn, with_prefix
from cspd_jax.generation.parts import (
  DraftNetwork,
  Handover,
  ImageTokenizer,
  Params,
  PromptKind,
  Teacher,
)
from cspd_jax.generation.results import Generated
from cspd_jax.generation.sampler import Sampler

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
    build_target: `(guided) -> Target`, with or without the stream of the null condition; call
      `target`, which builds each of them once.
    prompt_kind: the prompts that it supports.
    tokenizer: the image tokenizer; None if the model was loaded without one.
    drafts: networks that draft or correct, by the keys of `Table.networks`.
    defaults: default sampling options by name, and 'decoder', a specification or several by device
      and number of images.
    teacher: what its drafters are trained on; None if the family supports no trained drafters.
    metadata: the metadata stored with the target.
    cache_dtype: dtype of the target's keys and values, 'int8', or None for the parameters' dtype.
    mesh: the devices that it is divided over; None for one device.
    prefix: `[P]` or `[B, P]` the first tokens of its images; None without. See `with_prefix`.
    handover: how another program draws the pixels of its tokens; None if an image tokenizer does.
    remedy: maps a key of `drafts` to what gives the model this network if it has none, as the end
      of a sentence.
    kept: what calls leave for later ones.
  """

  name: str
  family: str
  config: Any
  params: Params
  grid: tuple[int, int]
  build_target: Callable[[bool], Any]
  prompt_kind: PromptKind
  tokenizer: ImageTokenizer | None = None
  drafts: Mapping[str, DraftNetwork] = dataclasses.field(default_factory=dict)
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  teacher: Teacher | None = None
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  cache_dtype: str | None = None
  mesh: jax.sharding.Mesh | None = None
  prefix: np.ndarray | None = None
  handover: Handover | None = None
  remedy: Callable[[str], str] = parts.load_it
  kept: parts.Kept = dataclasses.field(default_factory=parts.Kept)

  # The last samplers by their arguments.
  _samplers = functools.cached_property(lambda self: dict[Hashable, Sampler]())

  def __post_init__(self):
    # Pictures, answers and figures have it, and it may be the name of a folder.
    object.__setattr__(self, 'name', progress_lib.unicode(self.name))

  def __getattr__(self, name: str) -> Any:
    """Says what there is in place of an attribute that models of other packages have."""
    if isinstance(meant := guesses.ALIASES.get(name), str):
      raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}; {meant}.')
    return object.__getattribute__(self, name)  # With its own error, also a property's.

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
        `batch_size=None`, with other free memory.
      prefix: the first rows of the images, which are then completed: tokens, an image or its path;
        see `given_rows.tokens`. With every decoder, the other tokens are conditioned on them.
      rows: how many rows of tokens of `prefix` are used.
      batch_size: images decoded at once; if None, as many as fit in the memory of the device. With
        more images than that, a row that is complete starts the next one; see `decode`.
      progress: True shows a progress bar and the compiled programs on stderr; or a function, called
        with the number of finished images and the number of all images. None reports on stderr only
        work that takes longer than five seconds; False reports nothing.
      raw_log_probs: whether the result has `Generated.raw_log_probs`; discrete tokens only.
      **options: sampling options (`guidance_scale`, `temperature`, ...), by default the model's,
        and parameters that the specification leaves open (`window`, ...).

    Returns:
      The images with their tokens, settings and statistics.

    Raises:
      ValueError: for anything that is not supported, by the name of the argument, or if the images
        of a batch do not fit in memory.

    Warns of words that the model does not read.
    """
    images = with_prefix(self, prefix, rows).images(
        prompts, options, seed=seed, decoder=decoder, batch_size=batch_size,
        raw_log_probs=raw_log_probs)
    warn(images)
    return decode.generate(images, progress)

  def stream(self, prompts: Any = None, *, seed: Any = 0, decoder: str | Spec | None = None,
             prefix: Any = None, rows: int | None = None, every: int = 1, progress: bool = True,
             raw_log_probs: bool = False, **options: Any) -> Iterator[Partial]:
    """Generates images and yields, after the prefill and every few rounds, what is committed.

    Tokens, arguments and errors are as for `generate`, in one batch.

    Args:
      every: rounds between two results; the last one always has the complete images.
      progress: whether a line on stderr reports a compilation that takes longer than five seconds.

    Yields:
      The state of all images.
    """
    decode.check_stream(every, options)
    prompts = prompts_lib.chosen(self, prompts)
    model = with_prefix(self, prefix, rows)
    count = prompts_lib.count(model, prompts)
    sampler = model._sampler(decoder, count, None, raw_log_probs, options)
    images = sampler.images(prompts, seed=seed)
    sampler.check_fits(images, 'prompts')
    warn(images)
    return sampler.stream(images, int(every), progress)

  def sampler(self, decoder: str | Spec | None = None, *, batch_size: int | None = None,
              sampling: SamplingParams | None = None, raw_log_probs: bool = False, **options: Any
              ) -> Sampler:
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
               sampling: SamplingParams | None, raw_log_probs: bool, options: Mapping[str, Any]
               ) -> Sampler:
    """Returns `sampler`, which may be kept."""
    # A copy without samplers: one that held the model that keeps it would be a cycle, whose
    # parameters fill the device until Python collects it.
    build = lambda: Sampler.build(
        self._replaced(), decoder, batch_size, sampling, raw_log_probs, options)
    key = (decoder, type(batch_size), batch_size, sampling, type(raw_log_probs), raw_log_probs,
           *((name, type(value), value) for name, value in options.items()))
    try:
      hash(key)
    except TypeError:  # Lists and arrays, with an option for every image, have no hash.
      return build()
    return programs.get_or_build(self._samplers, key, build, _MOST_SAMPLERS)

  def images(self, prompts: Any = None, options: Mapping[str, Any] = MappingProxyType({}), *,
             seed: Any = 0, decoder: str | Spec | None = None, batch_size: int | None = None,
             most: int | None = None, pixels: bool = True, raw_log_probs: bool = False) -> Images:
    """Checks the arguments of `generate` and the memory that they need; compiles nothing.

    Args:
      prompts: as for `generate`, as are `decoder`, `batch_size` and `raw_log_probs`.
      options: the options of `generate`, by name.
      seed: as for `generate`; without `pixels` also a random key: image `i` has its key `i`.
      most: the most images decoded at once without a `batch_size`; None for all.
      pixels: whether tokens become images, by the model's image tokenizer or another program.

    Raises:
      ValueError: for anything that is not supported or does not fit in memory, by the argument.
    """
    listed = prompts_lib.chosen(self, prompts)
    condition = self.condition(listed)
    return build_fitted(
        lambda size: self._sampler(decoder, size, None, raw_log_probs, options).images(
            listed, seed=seed, condition=condition, pixels=pixels),
        prompts_lib.count(self, listed), batch_size, most)

  def target(self, guided: bool = True) -> Any:
    """Returns the model as a `decoding.base.Target` or a `continuous.base.Target`.

    `guided` models run the null condition alongside the condition; without it, a decoder accepts
    the guidance scale 1 only.
    """
    return self._guided if guided else self._unguided

  _guided = functools.cached_property(lambda self: self.build_target(True))
  _unguided = functools.cached_property(lambda self: self.build_target(False))

  @property
  def table(self) -> Table:
    """The decoders of the model by name, which follow from the type of its target."""
    return options_lib.table_of(self.target(False))

  @functools.cached_property
  def num_tokens(self) -> int:
    """Number of tokens of one image, without the prefix."""
    return self.target(False).num_tokens

  @property
  def devices(self) -> list[Any]:
    """The JAX devices that the model runs on."""
    return sharding.devices_of(self.params) if self.mesh is None else list(self.mesh.devices.flat)

  @property
  def prompts(self) -> Sequence[Any]:
    """Example prompts, such as the names of the model's classes."""
    return self.prompt_kind.prompts

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
      condition = self.prompt_kind.encode(prompts_lib.listed(prompts))
    return condition if self.prefix is None else given_rows.condition(self.prefix, condition)

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

  _encode = functools.cached_property(pixels_lib.encoder)
  _decode = functools.cached_property(pixels_lib.decoder)

  @functools.cached_property
  def codebook(self) -> np.ndarray | None:
    """The vectors `[V, C]` of the tokens; None without an image tokenizer of discrete tokens."""
    if self.tokenizer is None or self.tokenizer.codebook is None:
      return None
    return np.asarray(self.tokenizer.codebook(self.tokenizer.params))

  def sampling(self, **options) -> SamplingParams:
    """Returns sampling options: the arguments, else the model's defaults, else the usual ones.

    Values are NumPy's, so that new ones do not compile again. Raises ValueError for an option that
    the model does not have, or a value that is not a number.
    """
    return options_lib.sampling(self.table, self.defaults, options)

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
    return options_lib.build(self, specification, guided)

  def specification(self, specification: str | Spec | None = None, *, batch_size: int = 1,
                    **parameters) -> Spec:
    """Parses a specification and sets the parameters that it leaves open; see `decoder`."""
    if specification is None:
      if self.mesh is not None:  # Every group of devices decodes its share of the images.
        batch_size = -(-batch_size // self.mesh.shape[sharding.DATA])
      specification = options_lib.default(
          self.table, self.defaults.get('decoder'), self.drafts, self.devices[0], batch_size)
    return options_lib.with_parameters(self.table, specification, parameters)

  def with_prefix(self, tokens: Any) -> Self:
    """Returns the model of images that begin with these tokens; its decoders generate the others.

    It is another target: its distribution is the model's, given the prefix. Its conditions
    are `decoding.prefix.Prefixed`; `pixels` and `cells` take tokens of whole images. Prefixes of
    the same length share compiled programs.

    `tokens` are `[P]` for all images or `[B, P]`, one for each prompt, whole rows of an image;
    `given_rows.tokens` returns them for pictures. Another number of them, and models of continuous
    tokens or with a prefix, raise ValueError.
    """
    return self._replaced(**given_rows.changes(self, tokens))

  def _replaced(self, **changes: Any) -> Self:
    """Returns the model with other fields, which shares its programs and estimates."""
    model = dataclasses.replace(self, **changes)
    if self.tokenizer is not None:
      vars(model).update(_decode=self._decode)  # A frozen dataclass can share it so.
    return model

  def with_params(self, params: Params) -> Self:
    """Returns the model with other parameters of its target, which share its compiled programs.

    For training: sample from the parameters of every step. The drafts stay as they are; exact
    decoders sample the new parameters' distribution all the same, in more rounds the further the
    drafts are from it. Another structure, shape or dtype than in `Model.params` raises ValueError,
    but for arrays in place of matrices in a form of `core.matrices`, which are copied into it.
    """
    parts.check_like(params, self)
    # What is compiled depends on shapes only.
    return self._replaced(params=matrices.like(params, self.params))

  def draft_params(self, specification: str | Spec) -> Params:
    """Returns the `draft_params` of a specification's decoder; None if it drafts alone."""
    required = self.table.needs(specification)
    return None if required is None else self.drafts[required].params

  def __repr__(self) -> str:
    drafts = ', '.join(self.drafts) or 'none'
    tokenizer = 'no tokenizer' if self.tokenizer is None else 'tokenizer'
    return (f'Model({self.name!r}, family {self.family}, {self.grid[0]}x{self.grid[1]} tokens, '
            f'{tokenizer}, drafts: {drafts})')
