"""A decoder of a model with sampling options: checked and built once, called with prompts."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import sharding
from cspd_jax.core import batches, fields, programs as programs_lib, tracing
from cspd_jax.core.batches import Progress
from cspd_jax.core.decoder import AnyDecoder
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.sampling import SamplingParams, is_guided
from cspd_jax.core.spec import Spec
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.decoding import continuous_batching, prefix as prefix_lib
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.warp import drop_inactive
from cspd_jax.files import atomic
from cspd_jax.generation import (
  decode,
  memory,
  options as options_lib,
  pixels as pixels_lib,
  prompts as prompts_lib,
)
from cspd_jax.generation.decode import Partial
from cspd_jax.generation.images import Images, fitted, warn
from cspd_jax.generation.results import Generated


class ProgramKey(NamedTuple):
  """The key of a compiled program of a model: all that determines it apart from shapes.

  `mode` is () for a whole decode of a batch, otherwise a word, and what it depends on.
  """

  decoders: tuple[str, ...]
  guided: bool
  prefix_length: int
  raw_log_probs: bool
  mode: tuple = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
  """A decoder of a model with sampling options; see `Model.sampler`.

  `sampler(prompts, seed=...)` returns one image per prompt.

  Attributes:
    model: the `Model`; if images have a prefix, the one of `Model.with_prefix`.
    specification: of the decoder.
    decoder: built from the specification.
    draft_params: its drafter's parameters; None if it has none.
    guided: whether images are generated with guidance.
    sampling: the sampling options.
    active: the sampling options as the program takes them: with positions from the end of the
      prefix, and without those that are off for all images of a call. A batch of some of them has
      the same options, because others would be another program.
    batch_size: images decoded at once; None for as many as fit in memory.
    names: specifications of the decoders that `function` contains: more than this one only in
      `measure.bench`, where decoders share a program.
    function: what is compiled: `(params, condition, keys [B], sampling, draft_params) -> result`,
      the decoder or one that contains it.
  """

  model: Any
  specification: Spec
  decoder: AnyDecoder
  draft_params: Any
  guided: bool
  sampling: SamplingParams
  active: SamplingParams
  batch_size: int | None
  names: tuple[str, ...]
  function: Callable[..., Any]
  # Numbers of images and shapes of conditions that fit in memory.
  _fitting: set[Hashable] = dataclasses.field(default_factory=set, init=False)

  @classmethod
  def build(cls, model: Any, decoder: str | Spec | None, batch_size: int | None,
            sampling: SamplingParams | None, raw_log_probs: bool, options: Mapping[str, Any]
            ) -> Self:
    """Builds the sampler of a model; arguments and errors are as for `Model.sampler`."""
    check_concrete(options, sampling)
    if batch_size is not None:
      fields.check_whole('batch_size', batch_size, 'a whole number, at least 1', least=1)
    overrides = {name: value for name, value in options.items() if name in model.table.options}
    parameters = {name: value for name, value in options.items() if name not in overrides}
    if sampling is None:
      sampling = model.sampling(**overrides)
    elif overrides:
      raise ValueError(f'{next(iter(overrides))} and sampling are both passed; pass only one of '
                       'them.')
    fields.require(isinstance(sampling, SamplingParams), 'sampling', sampling,
                   'model.sampling(...), such as model.sampling(temperature=0.9)')
    guided = is_guided(sampling)
    specification = model.specification(decoder, batch_size=batch_size or 1, **parameters)
    built = _with_raw_log_probs(model.decoder(specification, guided=guided), raw_log_probs)
    built.check_sampling(sampling)
    return cls(
        model=model, specification=specification, decoder=built,
        draft_params=model.draft_params(specification), guided=guided, sampling=sampling,
        active=_active(sampling, model.prefix_length), batch_size=batch_size,
        names=(str(specification),), function=built)

  def __call__(self, prompts: Any = None, *, seed: Any = 0, progress: Progress | bool | None = None
               ) -> Generated:
    """Generates one image per prompt; the arguments are as for `Model.generate`.

    Raises ValueError for prompts or seeds that are not supported, and for too little memory.
    """
    images = fitted(self.images(prompts, seed=seed))
    warn(images)
    return decode.generate(images, progress)

  def images(self, prompts: Any = None, *, seed: Any = 0, condition: Any = None,
             pixels: bool = True, slots: bool = True) -> Images:
    """Returns the images of these prompts, whatever memory they need; compiles nothing.

    Args:
      prompts: as for `Model.images`, as are `seed` and `pixels`.
      condition: of the prompts, if the caller has encoded them; None encodes them here.
      slots: whether finished rows are refilled.

    Raises:
      ValueError: for prompts, seeds and numbers of options that are not supported.
    """
    check_concrete(seed)
    model = self.model
    prompts = prompts_lib.chosen(model, prompts)
    condition = model.condition(prompts) if condition is None else condition
    # Arrays of a device would compile programs for every number of picked images.
    condition = jax.tree.map(np.asarray, condition)
    titles = model.prompt_kind.titles(prompts)
    count = len(titles)
    for name, value in self.sampling._asdict().items():
      if np.shape(value) not in ((), (count,)):
        raise ValueError(f'{name} has shape {np.shape(value)}; it must be a number, or one for '
                         f'each of {count} images.')
    self.decoder.check_condition(condition)
    if pixels:
      pixels_lib.check(model)
    return Images(
        self, prompts, condition, titles,
        prompts_lib.unknown_words(model.prompt_kind, prompts, count),
        prompts_lib.seeds(seed, count) if pixels else prompts_lib.seeds_or_keys(seed, count),
        self.sampling, self.active, min(count, self.batch_size or count), slots)

  @functools.cached_property
  def text(self) -> str:
    """The specification as text."""
    return str(self.specification)

  @property
  def guarantee(self) -> Guarantee:
    """How images relate to the model's distribution, as far as the programs so far show."""
    differs = self.text in self.model.kept.same_rounding.differing
    return self._guarantee.rounded if differs else self._guarantee

  # What does not change from call to call.

  @functools.cached_property
  def recorded(self) -> dict[str, Any]:
    """The sampling options by name as plain numbers and lists, as images record them."""
    return atomic.plain(options_lib.named(self.model.table, self.sampling))

  @functools.cached_property
  def _guarantee(self) -> Guarantee:
    return self.decoder.guarantee

  @functools.cached_property
  def _precision(self) -> dict[str, str]:
    return memory.precision(self.model)

  @property
  def params(self) -> Any:
    """The parameters of the target."""
    return self.model.params

  # How much memory images need.

  def estimate(self, images: Images) -> memory.Estimate:
    """Estimates the memory that decoding images needs."""
    return memory.estimate(
        self.model, self.program_key(), self.decoder, images.condition, images.active,
        self.draft_params, queue=len(images) if images.slots and self._can_refill else 0)

  def check_fits(self, images: Images, argument: str = 'batch_size') -> None:
    """Raises ValueError if a batch of images does not fit in memory; see `memory.check`."""
    if (shapes := self._shapes(images)) not in self._fitting:
      memory.check(
          self.model, self.specification, self.estimate(images), images.batch_size, argument)
      self._fitting.add(shapes)

  def largest_batch(self, images: Images) -> int:
    """Returns the largest batch size that fits in memory, at most the one of the images.

    Raises ValueError if no image does.
    """
    size = images.batch_size
    if self._shapes(images) not in self._fitting:
      if (most := self.estimate(images).most(size)) < size:
        return most
      self.check_fits(images)
    return size

  def _shapes(self, images: Images) -> tuple[Hashable, ...]:
    """Returns what the memory of images depends on, so that it is estimated once."""
    return (len(images), images.batch_size, images.slots,
            *map(np.shape, jax.tree.leaves(images.condition)))

  # What is compiled.

  @functools.cached_property
  def _can_refill(self) -> bool:
    """Whether a row whose image is complete can start the next one."""
    return self.model.mesh is None and continuous_batching.supports(self.decoder)

  def refills(self, images: Images) -> bool:
    """Whether a row that is complete starts the next image, because that saves rounds.

    Without drafts every image needs as many rounds; continuous tokens and meshes have no slots.
    """
    return len(images) > images.batch_size > 1 and images.slots and self._can_refill

  def program_key(self, *mode: Any) -> ProgramKey:
    """Returns the key of a program of the decoder."""
    return ProgramKey(self.names, self.guided, self.model.prefix_length,
                      self.decoder.raw_log_probs, mode)

  def jitted(self) -> Callable[..., Any]:
    """Returns the jitted `function`, which the model keeps."""
    mesh = self.model.mesh
    more = f' and {len(self.names) - 1} more verifiers' if len(self.names) > 1 else ''
    build = lambda: programs_lib.jit(
        self.function if mesh is None else sharding.over_images(self.function, mesh),
        label=f'{self.names[0]}{more}', short_sums=True, inspect=self.kernel_check())
    return programs_lib.get_or_build(self.model.kept.programs, self.program_key(), build)

  def jitted_slots(self, count: int) -> continuous_batching.JittedBatcher:
    """Returns the jitted functions of `count` slots, which the model keeps."""
    assert isinstance(self.decoder, Decoder)  # Continuous tokens have no slots.
    mode, decoder = ('slots', count), self.decoder
    build = lambda: continuous_batching.jitted(decoder, count, self.text, self.kernel_check(*mode))
    return programs_lib.get_or_build(self.model.kept.programs, self.program_key(*mode), build)

  def kernel_check(self, *mode: Any) -> programs_lib.Inspect | None:
    """Returns a callback that compares a program's kernels with the baseline's, or None."""
    return self.model.kept.same_rounding.kernel_check(
        self.decoder, self.text, self.program_key(*mode)._replace(decoders=()))

  def check_rounding(self, condition: Any, count: int) -> None:
    """Checks, the first time, whether a pass of `count` images rounds as the guarantee says.

    The condition, NumPy arrays of at least one row, gives the shapes.
    """
    if self._guarantee is Guarantee.SEED_EXACT:
      model = self.model
      model.kept.same_rounding.check(
          self.decoder, self.text, (self.guided, model.prefix_length), model.params, condition,
          count, model.mesh)

  # How images are decoded.

  def batches(self, images: Images) -> Iterator[tuple[np.ndarray, Any]]:
    """Decodes images, `batch_size` at once: in slots if that saves rounds, or batch after batch.

    Yields numbers of images, and the decoder's checked result for these, NumPy arrays; in total,
    all.
    """
    if self.refills(images):
      for group in decode.refilled(images):
        yield group.image, self.check_result(images.pick(group.image), group.decoded)
    else:
      for index, num_new in batches.filled(len(images), images.batch_size):
        yield index[:num_new], decode.batch(images, index, num_new)

  def stream(self, images: Images, every: int, progress: bool = False) -> Iterator[Partial]:
    """Decodes images in one batch, and yields them every few rounds; see `decode.stream`."""
    return decode.stream(images, every, progress)

  def arguments(self, images: Images, index: np.ndarray) -> tuple[Any, ...]:
    """Returns the arguments of `function`: `params`, `images.inputs(index)`, `draft_params`."""
    return self.model.params, *images.inputs(index), self.draft_params

  def bound(self, images: Images, index: np.ndarray) -> Callable[[], Any]:
    """Returns a function that decodes the images with these numbers together, divided over a mesh.

    The result is not checked; it is arrays of the device, or NumPy arrays if there is a mesh.
    """
    run, whole = self.jitted(), self._divisible(index)
    self.check_rounding(images.condition, len(whole))
    arguments = self.arguments(images, whole)
    if self.model.mesh is None:
      return functools.partial(run, *arguments)
    return lambda: batches.leading(sharding.gathered(run(*arguments)), len(index))

  def compile(self, images: Images, batch_size: int) -> float:
    """Compiles `bound` for a number of images; returns the seconds that it took."""
    index = self._divisible(np.zeros(batch_size, int))
    return programs_lib.compiled_for(self.jitted(), *self.arguments(images, index)).seconds

  def _divisible(self, index: np.ndarray) -> np.ndarray:
    """Returns numbers of images, filled up so that all groups of a mesh decode as many."""
    mesh = self.model.mesh
    groups = 1 if mesh is None else mesh.shape[sharding.DATA]
    return batches.padded(index, -(-len(index) // groups) * groups)

  # What becomes of the tokens.

  def check_result(self, images: Images, decoded: Any) -> Any:
    """Returns the decoder's result; raises ValueError, by title and seed, for invalid images."""
    if not np.all(decoded.valid):
      decode.check_valid(self.decoder, decoded, images.names)
    return decoded

  def result(self, images: Images, decoded: Any) -> Generated:
    """Returns the images of the decoder's result; raises ValueError for pixels not finite.

    They have no pixels if another program draws these.
    """
    assert not isinstance(images.seeds, jax.Array), 'a random key is for tokens alone'
    model, length = self.model, self.model.prefix_length
    tokens, fixed = np.asarray(decoded.tokens), np.asarray(decoded.round_of_token)
    condition = images.condition
    if length:
      tokens = np.concatenate([condition.tokens, tokens], axis=1)
      fixed = np.pad(fixed, ((0, 0), (length, 0)))
      condition = condition.condition
    if model.handover is None:
      # One by one: floating-point pixels of all images need many times the memory.
      pixels = np.concatenate([_bytes(images, i, model.pixels(tokens[i:i + 1]))
                               for i in range(len(tokens))])
      handed = None
    else:
      pixels, handed = np.zeros((len(tokens), 0, 0, 3), np.uint8), model.handover.arrays(tokens)
    is_class = getattr(condition, 'ndim', 0) == 1 and np.issubdtype(condition.dtype, np.integer)
    return Generated(
        images=pixels, handed=handed, decoded=decoded, tokens=tokens,
        round_of_cell=pixels_lib.cells(model, fixed), prefix_length=length, prompts=images.titles,
        seeds=images.seeds, decoder=self.text, guarantee=self.guarantee,
        sampling=images.recorded, model=model.name, grid=model.grid,
        precision=self._precision, labels=condition.tolist() if is_class else None,
        numbers=range(len(tokens)), unknown_words=images.unknown_words)

  def __repr__(self) -> str:
    return f'Sampler({self.text!r}, {self.model!r})'


@usual_promotion
def _active(sampling: SamplingParams, prefix_length: int) -> SamplingParams:
  """Returns sampling options as programs take them; ValueError if a prefix excludes them."""
  return drop_inactive(prefix_lib.sampling(sampling, prefix_length))


def _with_raw_log_probs(decoder: AnyDecoder, value: Any) -> AnyDecoder:
  """Returns a decoder whose result has `raw_log_probs` if `value`, True or False, is True."""
  if value is False:
    return decoder
  if value is not True or not isinstance(decoder, Decoder):
    raise ValueError(f'raw_log_probs is {value!r:.80}; it must be True or False, and False for '
                     'models of continuous tokens, which have no log-probabilities.')
  return dataclasses.replace(decoder, raw_log_probs=True)


def check_concrete(*values: Any) -> None:
  """Raises ValueError under `jax.jit`, and if an argument is traced by another transformation."""
  if not tracing.is_concrete(jnp.zeros(()), *values):
    raise ValueError(
        'images were requested inside of a function that JAX traces, such as under jax.jit, '
        'jax.vmap or jax.grad; request them outside, or call model.decoder(...) there.')


def _bytes(images: Images, index: int, pixels: np.ndarray) -> np.ndarray:
  """Returns the pixels `[1, H, W, 3]` of an image as uint8."""
  if not np.isfinite(pixels).all():
    raise ValueError(f'The image tokenizer returned NaN or infinity for {images.names[index]}; '
                     "load the model with another dtype, such as dtype='float32'.")
  return pixels_lib.to_bytes(pixels)
