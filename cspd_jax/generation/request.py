"""A checked request: the images to be decoded, with everything that determines them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import sharding
from cspd_jax.core import batches, fields, programs, random as random_lib, tracing
from cspd_jax.core.spec import Spec
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.decoding import prefix as prefix_lib, refill
from cspd_jax.files import atomic
from cspd_jax.generation import memory, prompts as prompts_lib, results
from cspd_jax.generation.base import BaseModel
from cspd_jax.generation.engines import AnyDecoder, Options, with_raw_log_probs
from cspd_jax.generation.prefix import tokens as prefix_tokens
from cspd_jax.generation.results import Generated


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
class Request:
  """Images to be decoded; all arguments are checked, and nothing is compiled.

  In the shape descriptions, `B` is the number of images.

  Attributes:
    model: the model; if images have a prefix, the one of `Model.with_prefix`.
    specification: of the decoder.
    decoder: built from the specification.
    draft_params: its drafter's parameters; None if it has none.
    guided: whether images are generated with guidance.
    prompts: the caller's prompts.
    condition: NumPy arrays with a leading axis `B`; a `decoding.prefix.Prefixed` if there is a
      prefix.
    titles: `[B]` the prompts in words.
    unknown_words: `[B]` words of the prompts that do not reach the model.
    seeds: `[B]` seed and number of every image; or one random key per image.
    sampling: the sampling options.
    batch_size: images decoded at once.
    slots: whether a row whose image is complete may start the next one.
    function: what is compiled: `(params, condition, keys [B], sampling, draft_params) -> result`,
      the decoder or one that contains it.
    names: specifications of the decoders that `function` contains.
  """

  model: BaseModel
  specification: Spec
  decoder: AnyDecoder
  draft_params: Any
  guided: bool
  prompts: Any
  condition: Any
  titles: Sequence[str]
  unknown_words: Sequence[Sequence[str]]
  seeds: Sequence[tuple[int, int]] | jax.Array
  sampling: Options
  batch_size: int
  slots: bool
  function: Callable[..., Any]
  names: tuple[str, ...]

  def __len__(self) -> int:
    return len(self.titles)

  def pick(self, index: Sequence[int] | np.ndarray) -> 'Request':
    """Returns the request of the images with these numbers."""
    index = np.asarray(index, int)
    if np.array_equal(index, np.arange(len(self))):
      return self  # Without a copy of the features of many prompts.
    of = lambda values: [values[i] for i in index]
    return dataclasses.replace(
        self, condition=batches.select(self.condition, index), titles=of(self.titles),
        seeds=self.seeds[index] if isinstance(self.seeds, jax.Array) else of(self.seeds),
        unknown_words=of(self.unknown_words), sampling=batches.select(self.sampling, index))

  def program(self, *mode: Any) -> Program:
    """Returns the name of a program of the decoder."""
    return Program(self.names, self.guided, self.model.prefix_length,
                   getattr(self.decoder, 'raw_log_probs', False), mode)

  @functools.cached_property
  def _settled(self) -> Any:
    """The options of all images: whether one is off must not depend on the rows of a batch."""
    return self.model.settled(self.sampling)

  @usual_promotion
  def inputs(self, index: np.ndarray) -> tuple[Any, jax.Array, Any]:
    """Returns condition, random keys and sampling options of the images with these numbers."""
    condition, sampling = batches.select((self.condition, self._settled), index)
    keys = (self.seeds[index] if isinstance(self.seeds, jax.Array) else
            random_lib.image_keys([self.seeds[i] for i in index]))
    return jax.tree.map(jnp.asarray, condition), keys, sampling

  def arguments(self, index: np.ndarray) -> tuple[Any, ...]:
    """Returns the arguments of `function` for the images with these numbers."""
    return self.model.params, *self.inputs(index), self.draft_params

  def bound(self, index: np.ndarray) -> Callable[[], Any]:
    """Returns a function that decodes the images with these numbers together, divided over a mesh.

    The result is not checked; it is arrays of the device, or NumPy arrays if there is a mesh.
    """
    mesh, count = self.model.mesh, len(index)
    arguments = self.arguments(self._divisible(index))
    if mesh is None:
      return functools.partial(self._compiled(), *arguments)
    return lambda: batches.leading(sharding.gathered(self._compiled()(*arguments)), count)

  def compile(self, batch_size: int) -> float:
    """Compiles `bound` for a number of images; returns the seconds that it took."""
    index = self._divisible(np.zeros(batch_size, int))
    return programs.compiled_for(self._compiled(), *self.arguments(index)).seconds

  def _divisible(self, index: np.ndarray) -> np.ndarray:
    """Returns numbers of images, filled up so that all groups of a mesh decode as many."""
    groups = 1 if self.model.mesh is None else self.model.mesh.shape[sharding.DATA]
    return batches.padded(index, -(-len(index) // groups) * groups)

  def _compiled(self) -> Callable[..., Any]:
    mesh = self.model.mesh
    more = f' and {len(self.names) - 1} more verifiers' if len(self.names) > 1 else ''
    return programs.kept(self.model, self.program(), lambda: programs.jit(
        self.function if mesh is None else sharding.over_images(self.function, mesh),
        label=f'{self.names[0]}{more}', short_sums=True))

  @property
  def refills(self) -> bool:
    """Whether rows that are complete start the next image, because that saves rounds."""
    return self._can_refill and refill.helps(self.decoder, len(self), self.batch_size)

  @property
  def _can_refill(self) -> bool:
    return self.slots and self.model.mesh is None and refill.supports(self.decoder)

  def estimate(self) -> memory.Estimate:
    """Estimates the memory that decoding needs."""
    return memory.estimate(
        self.model, self.program(), self.decoder, self.condition, self._settled, self.draft_params,
        queue=len(self) if self._can_refill else 0)

  def check_result(self, decoded: Any) -> Any:
    """Returns the decoder's result; raises ValueError, by title and seed, for invalid images."""
    self.model.engine.check_result(decoded, self._names)
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
    assert not isinstance(self.seeds, jax.Array)
    model, length = self.model, self.model.prefix_length
    tokens, fixed = np.asarray(decoded.tokens), np.asarray(decoded.round_of_token)
    if length:
      tokens = np.concatenate([self.condition.tokens, tokens], axis=1)
      fixed = np.pad(fixed, ((0, 0), (length, 0)))
    if model.handover is None:
      # Converted one by one: floating-point pixels of all images need many times the memory.
      images = np.concatenate(
          [self._bytes(i, model.pixels(tokens[i:i + 1])) for i in range(len(self))])
      handed = None
    else:
      images, handed = np.zeros((len(self), 0, 0, 3), np.uint8), model.image_tokens(tokens)
    return Generated(
        images=images, handed=handed, decoded=decoded, tokens=tokens,
        round_of_cell=model.cells(fixed), prefix_length=length, prompts=self.titles,
        seeds=self.seeds, decoder=str(self.specification),
        guarantee=model.engine.guarantee(self.decoder),
        sampling={name: atomic.plain(value) for name, value in self.sampling._asdict().items()},
        model=model.name, grid=model.grid, precision=model.precision,
        labels=self._labels(), numbers=range(len(tokens)), unknown_words=self.unknown_words)

  def _labels(self) -> list[int] | None:
    """The class of every image if the condition is its class."""
    condition = self.condition.condition if self.model.prefix_length else self.condition
    if not hasattr(condition, 'dtype'):
      return None
    numbers = np.asarray(condition)
    is_class = numbers.ndim == 1 and np.issubdtype(numbers.dtype, np.integer)
    return numbers.tolist() if is_class else None


def prepare(model: BaseModel, prompts: Any = None,
            options: Mapping[str, Any] = MappingProxyType({}), *, seed: Any = 0,
            decoder: str | Spec | None = None, default: Callable[[int], Spec] | None = None,
            batch_size: int | None = None, max_batch_size: int | None = None,
            all_at_once: bool = False, slots: bool = True, pixels: bool = True, prefix: Any = None,
            rows: int | None = None, raw_log_probs: bool = False, sampling: Options | None = None,
            condition: Any = None, reserved: bool = False) -> Request:
  """Checks all arguments of a request; nothing is compiled.

  Args:
    prompts: as for `Model.generate`, and so are `prefix`, `rows` and `raw_log_probs`.
    options: sampling options, and parameters that the specification leaves open, by name.
    seed: as for `Model.generate`; without `pixels` also a random key: image `i` has its key `i`.
    decoder: a specification; None for the default one.
    default: `batch_size -> specification`, the default decoder; None for the model's.
    batch_size: images decoded at once; None selects as many as fit in memory, at most
      `max_batch_size`.
    all_at_once: whether all images are decoded together, in place of `batch_size`.
    slots: whether a row whose image is complete may start the next one.
    pixels: whether tokens become images, by the model's image tokenizer or another program.
    sampling: of `model.sampling(...)`, in place of sampling options among `options`.
    condition: of the prompts, if the caller has encoded them; None encodes them here.
    reserved: whether their memory is allocated already, as that of slots; needs a `batch_size`.

  Raises:
    ValueError: for anything that is not supported or does not fit in memory, by the argument.
  """
  _check_concrete(options, seed, sampling)
  sampling, parameters = _divided(model, sampling, options)
  prompts = prompts_lib.listed(model.prompts if prompts is None else prompts)
  condition = _on_host(model.condition(prompts) if condition is None else condition)
  titles = model.conditions.titles(prompts)
  seeds = _seeds(seed, len(titles), pixels)
  _check_shapes(sampling, len(titles))
  first = prefix_tokens(model, prefix, rows, len(titles))
  if first is not None:
    model, condition = model.with_prefix(first), prefix_lib.Prefixed(condition, first)
    model.settled(sampling)  # Raises for options that a prefix excludes.
  guided = programs.is_guided(sampling)
  unknown_words = prompts_lib.unknown_words(model.conditions, prompts, len(titles))

  def request_of(size: int) -> Request:
    chosen = default(size) if decoder is None and default else decoder
    specification = model.specification(chosen, batch_size=size, **parameters)
    built = with_raw_log_probs(model.decoder(specification, guided=guided), raw_log_probs)
    built.check(condition, sampling)  # type: ignore[arg-type]  # Both are of one engine.
    return Request(
        model, specification, built, model.draft_params(specification), guided, prompts, condition,
        titles, unknown_words, seeds, sampling, size, slots, built, (str(specification),))

  size = _batch_size(batch_size, max_batch_size, len(titles))
  request = request_of(size)
  while batch_size is None and not all_at_once and (most := request.estimate().most(size)) < size:
    size, request = most, request_of(most)  # The default decoder may depend on it.
  if pixels and model.tokenizer is None and model.handover is None:
    model.pixels(None)  # Raises the error that names the missing tokenizer.
  if not reserved:
    memory.check(model, request.specification, request.estimate(), request.batch_size,
                 'prompts' if all_at_once else 'batch_size')
  return request


def _on_host(condition: Any) -> Any:
  """Returns NumPy arrays: those of a device compile programs for every number of picked images."""
  return jax.tree.map(np.asarray, condition)


def _check_concrete(*values: Any) -> None:
  """Raises ValueError under `jax.jit`, and if an argument is traced by another transformation."""
  if not tracing.is_concrete(jnp.zeros(()), *values):
    raise ValueError(
        'images were requested inside of a function that JAX traces, such as under jax.jit, '
        'jax.vmap or jax.grad; request them outside, or call model.decoder(...) there.')


def _divided(model: BaseModel, sampling: Any, options: Mapping[str, Any]
             ) -> tuple[Options, dict[str, Any]]:
  """Returns sampling options, and the other options; raises ValueError if there are two of one."""
  overrides = {name: value for name, value in options.items()
               if name in model.engine.options._fields}
  parameters = {name: value for name, value in options.items() if name not in overrides}
  if sampling is None:
    return model.sampling(**overrides), parameters
  if not isinstance(sampling, model.engine.options):
    raise ValueError(f'sampling is {sampling!r:.80}; pass model.sampling(...), such as '
                     'model.sampling(temperature=0.9).')
  if overrides:
    raise ValueError(f'{next(iter(overrides))} and sampling are both passed; pass only one of '
                     'them.')
  return sampling, parameters


def _check_shapes(sampling: Options, count: int) -> None:
  for name, value in sampling._asdict().items():
    if np.shape(value) not in ((), (count,)):
      raise ValueError(f'{name} has shape {np.shape(value)}; it must be a number, or one for each '
                       f'of {count} images.')


def _seeds(seed: Any, count: int, pixels: bool) -> list[tuple[int, int]] | jax.Array:
  """Returns seed and number of every image, or without `pixels` its random key."""
  if not pixels and isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
    if seed.ndim:
      raise ValueError(f'seed holds {seed.size} random keys; it must be one, which every image '
                       'folds its number into.')
    return jax.vmap(lambda number: jax.random.fold_in(seed, number))(np.arange(count))
  return prompts_lib.seeds(seed, count)


def _batch_size(batch_size: Any, max_batch_size: int | None, count: int) -> int:
  """Returns the most of `count` images to decode at once; raises ValueError for another type."""
  if batch_size is None:
    return count if max_batch_size is None else min(max_batch_size, count)
  fields.check_whole('batch_size', batch_size, 'a whole number, at least 1', least=1)
  return min(int(batch_size), count)
