"""Two models in turn, with the interface of one: the tokens of the first describe the images.

  model.generate(['a fox'], decoder='seed_exact | mc_sjd', temperature=0.9,
                 prior=dict(temperature=0.5))

The first model, the *prior*, reads the prompts, and its tokens are the condition of the second.
Each has a decoder, sampling options and random keys of its own. The images have the weaker of both
guarantees, and the sum of both bounds.
"""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from cspd_jax.core import batches, fields, guarantees
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.decoding import prefix as prefix_lib
from cspd_jax.generation import decode, images as images_lib, memory, pixels, prompts as prompts_lib
from cspd_jax.generation.decode import Partial
from cspd_jax.generation.images import Images, build_fitted
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import PromptKind
from cspd_jax.generation.results import Generated
from cspd_jax.generation.sampler import Sampler

# Between the decoders of the two models.
SEPARATOR = '|'
# Batches of the prior's tokens that are decoded before the images: rows that are complete can start
# the next one, and a run that is stopped loses few of them.
_BATCHES_AHEAD = 4
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Cascade:
  """A model of images that a second model draws from the tokens of a first one.

  It is called as a `Model`, with the prior's options by name as `prior`, and the prompts may be
  tokens of the prior. The result's `prior` are the tokens that the prior drew. All other attributes
  are the second model's: `pixels`, `target`, `params` and so on.

  Attributes:
    prior: the first model, which reads the prompts.
    second: the model of images, whose prompts are tokens `[B, T]` of the prior.
  """

  def __init__(self, prior: Model, second: Model):
    self.prior, self.second = prior, second

  def __getattr__(self, name: str) -> Any:
    return getattr(self.__dict__['second'], name)

  def __copy__(self) -> Self:
    return type(self)(self.prior, self.second)

  def __reduce__(self) -> Any:
    return self.second.__reduce__()

  def __repr__(self) -> str:
    return f'Cascade({self.prior!r}, {self.second!r})'

  @property
  def prompts(self) -> Sequence[Any]:
    """Example prompts of the prior."""
    return self.prior.prompts

  @property
  def prompt_kind(self) -> PromptKind:
    """The prompts of the prior; its tokens have titles, too."""
    return self.prior.prompt_kind._replace(titles=lambda prompts: (
        self.second if are_tokens(prompts) else self.prior).prompt_kind.titles(prompts))

  def condition(self, prompts: Any) -> Any:
    """Returns the condition of the second model for tokens `[B, T]` of the prior.

    Words raise ValueError: a prior draws the tokens with options of its own.
    """
    if not are_tokens(prompts):
      raise ValueError(f'prompts is {prompts!r:.80}, but the condition of images is tokens of '
                       'the prior; pass model.prior.generate(prompts).tokens.')
    return self.second.condition(prompts)

  def drawing(self, prompts: Any) -> Model:
    """Returns the second model, which reads these prompts as the tokens that the prior draws.

    That is for measuring it alone. They are drawn with the prior's default decoder and options, and
    the seed 0; other prompts raise KeyError.
    """
    listed = list(dict.fromkeys(prompts_lib.chosen(self, prompts)))
    tokens = dict(zip(listed, decode.decoded(self.prior.images(listed, pixels=False)).tokens))
    encode = lambda prompts: self.second.condition(np.stack([tokens[p] for p in prompts]))
    return dataclasses.replace(
        self.second, prompt_kind=self.prior.prompt_kind._replace(encode=encode))

  def with_prefix(self, tokens: Any) -> 'Cascade':
    """Returns the model of images that begin with these tokens; see `Model.with_prefix`."""
    return Cascade(self.prior, self.second.with_prefix(tokens))

  def with_params(self, params: Any) -> 'Cascade':
    """Returns the model with other parameters of its second model; see `Model.with_params`."""
    return Cascade(self.prior, self.second.with_params(params))

  generate = Model.generate

  def stream(self, prompts: Any = None, *, seed: Any = 0, prefix: Any = None,
             rows: int | None = None, every: int = 1, progress: bool = True, **options: Any
             ) -> Iterator[Partial]:
    """Generates images in one batch and yields, every few rounds, what is committed.

    The tokens of the prior come first, with `Partial.is_prior`. The arguments are as for
    `Model.stream` and `sampler`.
    """
    decode.check_stream(every, options)
    if are_tokens(prompts):
      _check_unused(options.pop('prior', _NO_OPTIONS), options.get('decoder'))
      return self.second.stream(prompts, seed=seed, prefix=prefix, rows=rows, every=every,
                                progress=progress, **options)
    prompts = prompts_lib.chosen(self, prompts)
    model = images_lib.with_prefix(self, prefix, rows)
    sampler = model.sampler(batch_size=prompts_lib.count(self, prompts), **options)
    images = sampler.images(prompts, seed=seed)
    sampler.check_fits(images, 'prompts')
    images_lib.warn(images)
    return sampler.stream(images, int(every), progress)

  def images(self, prompts: Any = None, options: Mapping[str, Any] = _NO_OPTIONS, *, seed: Any = 0,
             batch_size: int | None = None, most: int | None = None, **more: Any) -> Any:
    """Checks the arguments of `generate` and the memory that they need; compiles nothing.

    Args:
      prompts: words for the prior; or its tokens `[B, T]`, an array, which the second model reads.
      options: arguments of `sampler` by name, which may be arguments of their own, too.
      seed: as for `Model.generate`, as is `batch_size`.
      most: the most images decoded at once without a `batch_size`; None for all.

    Returns:
      `CascadeImages`, or `Images` of the second model if the prompts are tokens of the prior.

    Raises:
      ValueError: for anything that is not supported or does not fit in memory.
    """
    options = {**options, **more}
    if are_tokens(prompts):
      _check_unused(options.pop('prior', _NO_OPTIONS), decoder := options.pop('decoder', None))
      raw_log_probs = options.pop('raw_log_probs', False)
      return self.second.images(prompts, options, seed=seed, decoder=decoder, batch_size=batch_size,
                                most=most, raw_log_probs=raw_log_probs)
    listed = prompts_lib.chosen(self, prompts)
    return build_fitted(
        lambda size: self.sampler(batch_size=size, **options).images(listed, seed=seed),
        prompts_lib.count(self, listed), batch_size, most)

  def sampler(self, decoder: str | None = None, *, batch_size: int | None = None,
              prior: Mapping[str, Any] = _NO_OPTIONS, raw_log_probs: bool = False, **options: Any
              ) -> 'CascadeSampler':
    """Returns decoders of both models with their options, to be called with prompts of the prior.

    Args:
      decoder: one for both models, or one for each, `'PRIOR | SECOND'`; by default each model's.
      batch_size: as for `Model.sampler`, as is `raw_log_probs`.
      prior: sampling options and parameters of decoders of the prior, by name.
      **options: options of the second model; the prior has the parameters of decoders, too.

    Raises:
      ValueError: for anything that is not supported; the options of the prior are called
        `prior.temperature` and so on.
    """
    first, second = _both(decoder)
    fields.require(isinstance(prior, Mapping), 'prior', prior,
                   'options of the prior by name, such as prior=dict(temperature=0.9)')
    shared = {name: value for name, value in options.items()
              if name not in self.second.table.options}
    with _named(prior):
      before = self.prior.sampler(first, batch_size=batch_size, raw_log_probs=raw_log_probs,
                                  **shared | dict(prior))
    return CascadeSampler(self, before, self.second.sampler(
        second, batch_size=batch_size, raw_log_probs=raw_log_probs, **options))


@dataclasses.dataclass(frozen=True, eq=False)
class CascadeSampler:
  """The decoders of both models of a `Cascade`, with the methods of a `Sampler`."""

  model: Cascade
  first: Sampler
  second: Sampler

  __call__ = Sampler.__call__

  def images(self, prompts: Any = None, *, seed: Any = 0) -> 'CascadeImages':
    """Returns the images of these prompts of the prior; see `Sampler.images`."""
    with _named(self.first.model.table.options):
      first = self.first.images(prompts, seed=seed, pixels=False)
    # What the prior draws replaces these; all checks and estimates are of shapes.
    tokens = np.zeros((len(first), self.model.prior.num_tokens), np.int32)
    second = self.second.images(tokens, seed=seed)
    second = dataclasses.replace(
        second, titles=first.titles, unknown_words=first.unknown_words, prompts=first.prompts)
    return CascadeImages(self, dataclasses.replace(first, stage=1), second)

  @property
  def batch_size(self) -> int | None:
    """Images decoded at once; None for as many as fit in memory."""
    return self.second.batch_size

  @property
  def text(self) -> str:
    """Both specifications as text."""
    return f'{self.first.text} {SEPARATOR} {self.second.text}'

  @property
  def guarantee(self) -> Guarantee:
    """How images relate to the distribution of both models, as far as the programs so far show."""
    return guarantees.of_stages([self.first.guarantee, self.second.guarantee])

  @property
  def specification(self) -> Any:
    """The specification of the second decoder."""
    return self.second.specification

  @property
  def params(self) -> Any:
    """The parameters of both targets."""
    return self.first.params, self.second.params

  def estimate(self, images: 'CascadeImages') -> memory.Estimate:
    """Estimates the memory that decoding needs after the prior."""
    return self.second.estimate(images.second)

  def check_fits(self, images: 'CascadeImages', argument: str = 'batch_size') -> None:
    """Raises ValueError if a batch does not fit in memory; see `Sampler.check_fits`."""
    self.first.check_fits(images.first, argument)
    self.second.check_fits(images.second, argument)

  def largest_batch(self, images: 'CascadeImages') -> int:
    """Returns the largest batch size that fits in memory for both; see `Sampler.largest_batch`."""
    return self.second.largest_batch(
        images.second.with_batch_size(self.first.largest_batch(images.first)))

  def batches(self, images: 'CascadeImages') -> Iterator[tuple[np.ndarray, 'Both']]:
    """Decodes some batches of the prior, then their images, and so on; see `Sampler.batches`."""
    size = _BATCHES_AHEAD * images.batch_size
    for start in range(0, len(images), size):
      index = np.arange(start, min(start + size, len(images)))
      part = images.pick(index)
      first = decode.decoded(part.first)
      for numbers, second in self.second.batches(part.then(first)):
        yield index[numbers], Both(batches.select(first, numbers), second)

  def stream(self, images: 'CascadeImages', every: int, progress: bool = False
             ) -> Iterator[Partial]:
    """Yields the tokens of the prior every few rounds, and then the images; see `decode.stream`."""
    for partial in self.first.stream(images.first, every, progress):
      yield images.before(partial)
    first = partial.decoded
    for partial in self.second.stream(images.then(first), every, progress):
      yield dataclasses.replace(
          partial, to_result=lambda second: self.result(images, Both(first, second)))

  def check_result(self, images: 'CascadeImages', decoded: 'Both') -> 'Both':
    """Returns both results; raises ValueError for invalid images, see `Sampler.check_result`."""
    self.first.check_result(images.first, decoded.first)
    self.second.check_result(images.second, decoded.second)
    return decoded

  def result(self, images: 'CascadeImages', decoded: 'Both') -> Generated:
    """Returns the images of the results of both decoders; see `Sampler.result`."""
    prior = self.first.result(images.first, decoded.first)
    return dataclasses.replace(
        self.second.result(images.then(decoded.first), decoded.second), prior=prior,
        decoder=self.text, guarantee=self.guarantee)


class Both(NamedTuple):
  """The results of the decoders of both models."""

  first: Any
  second: Any


@dataclasses.dataclass(frozen=True, eq=False)
class CascadeImages:
  """The images of one call of a `Cascade`, before the prior has drawn anything.

  Attributes:
    sampler: the decoders.
    first: what the prior draws.
    second: the images, with a condition of zeros.
  """

  sampler: CascadeSampler
  first: Images
  second: Images

  def __len__(self) -> int:
    return len(self.first)

  @property
  def titles(self) -> Sequence[str]:
    """The prompts in words `[B]`."""
    return self.first.titles

  @property
  def seeds(self) -> Any:
    """Seed and number of every image `[B]`."""
    return self.first.seeds

  @property
  def batch_size(self) -> int:
    """Images decoded at once."""
    return self.second.batch_size

  @property
  def recorded(self) -> dict[str, Any]:
    """The sampling options by name, as images record them; the prior's are a group."""
    return self.second.recorded | {'prior': self.first.recorded}

  @property
  def unread(self) -> list[str]:
    """A sentence on the words of every prompt that the prior does not read, or of the first."""
    return self.first.unread

  def pick(self, index: Sequence[int] | np.ndarray) -> Self:
    """Returns the images with these numbers."""
    return dataclasses.replace(
        self, first=self.first.pick(index), second=self.second.pick(index))

  def with_batch_size(self, size: int) -> Self:
    """Returns the images with at most `size` of them at once."""
    return dataclasses.replace(self, first=self.first.with_batch_size(size),
                               second=self.second.with_batch_size(size))

  def with_seeds(self, seeds: Sequence[tuple[int, int]]) -> Self:
    """Returns the images with other seeds and numbers `[B]`; see `Images.with_seeds`."""
    return dataclasses.replace(self, first=self.first.with_seeds(seeds),
                               second=self.second.with_seeds(seeds))

  def then(self, decoded: Any) -> Images:
    """Returns the images of the second model, given the result of the prior's decoder."""
    condition: Any = np.asarray(decoded.tokens, np.int32)
    if isinstance(self.second.condition, prefix_lib.Prefixed):
      condition = self.second.condition._replace(condition=condition)
    return dataclasses.replace(self.second, condition=condition)

  def before(self, partial: Partial) -> Partial:
    """Returns tokens of the prior as the state of the images, which have no tokens yet."""
    return dataclasses.replace(
        partial, complete=False, next_size=pixels.size(self.second.sampler.model))


def in_turn(one: Any) -> tuple[Any, ...]:
  """Returns the two samplers, or images, of a cascade; or the one that is none."""
  return (one.first, one.second) if isinstance(one, CascadeSampler | CascadeImages) else (one,)


def are_tokens(prompts: Any) -> bool:
  """Whether prompts are tokens of a prior; raises ValueError for lists of them."""
  if isinstance(prompts, list | tuple) and any(isinstance(row, list | tuple) for row in prompts):
    raise ValueError(f'prompts is {str(prompts):.60}, a list of lists; it must be prompts in '
                     'words, or tokens of the prior as an array: pass np.asarray(prompts).')
  return isinstance(prompts, np.ndarray | jax.Array) and prompts.ndim == 2


def _both(decoder: Any) -> tuple[Any, Any]:
  """Returns the specifications of both models."""
  if not isinstance(decoder, str) or SEPARATOR not in decoder:
    return decoder, decoder
  if (count := 1 + decoder.count(SEPARATOR)) > 2:
    raise ValueError(f'decoder is {decoder!r:.200}, {count} decoders, but there are two models; '
                     'pass one decoder for each, or one for both.')
  first, _, second = decoder.partition(SEPARATOR)
  return first.strip(), second.strip()


def _check_unused(prior: Mapping[str, Any], decoder: Any) -> None:
  """Raises ValueError for options and a decoder of a prior, whose tokens are the prompts."""
  for name, value in prior.items():
    if value is not None:
      raise ValueError(f'prior.{name} is {value!r:.80}, but prompts are tokens of the prior, which '
                       'then draws none; leave it out.')
  if isinstance(decoder, str) and SEPARATOR in decoder:
    raise ValueError(f'decoder is {decoder!r:.200}, but prompts are tokens of the prior, which '
                     f'then draws none; pass {_both(decoder)[1]!r}.')


@contextlib.contextmanager
def _named(options: Collection[str]) -> Iterator[None]:
  """Lets errors on options of the prior name them as callers do, such as `prior.temperature`."""
  try:
    yield
  except ValueError as error:
    if str(error).partition(' ')[0] in options:
      raise ValueError(f'prior.{error}') from error
    raise
