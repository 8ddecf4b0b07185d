"""Generates images from prompts: in one call, or round by round."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import sharding
from cspd_jax.checkpoints import files
from cspd_jax.core import (
  compiling,
  programs,
  progress as progress_lib,
  random as random_lib,
  tracing,
)
from cspd_jax.core.spec import Spec
from cspd_jax.decoding import prefix as prefix_lib, refill
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.warp import Warp
from cspd_jax.generation import batches, engines, memory, prompts as prompts_lib, results
from cspd_jax.generation.engines import AnyDecoder, Options
from cspd_jax.generation.prefix import tokens as prefix_tokens
from cspd_jax.generation.results import Generated, Partial

if TYPE_CHECKING:
  from cspd_jax.generation.model import Model


class Task(NamedTuple):
  """Images to be generated; all arguments are checked.

  Attributes:
    model: the model.
    specification: of the decoder.
    decoder: built from the specification.
    guided: whether images are generated with guidance.
    condition: leading axis `B`; a `decoding.prefix.Prefixed` if there is a prefix.
    titles: `[B]` the prompts in words.
    unknown_words: `[B]` words of the prompts that do not reach the model.
    seeds: `[B]` seed and number of every image.
    sampling: the sampling options.
    batch_size: images decoded at once.
    prefix_length: `P`, the number of tokens of the prefix; 0 without one.
  """

  model: 'Model'
  specification: Spec
  decoder: AnyDecoder
  guided: bool
  condition: Any
  titles: list[str]
  unknown_words: list[list[str]]
  seeds: list[tuple[int, int]]
  sampling: Options
  batch_size: int
  prefix_length: int = 0

  @property
  def program(self) -> tuple[Hashable, ...]:
    """The name under which the model caches the decoder's programs; see `programs.kept`."""
    return (str(self.specification), self.guided, self.prefix_length,
            getattr(self.decoder, 'raw_log_probs', False))

  def pick(self, index: Sequence[int] | np.ndarray) -> 'Task':
    """Returns the task of the images with these numbers."""
    index = np.asarray(index, int)
    return self._replace(
        condition=batches.rows(self.condition, index),
        titles=[self.titles[i] for i in index], seeds=[self.seeds[i] for i in index],
        unknown_words=[self.unknown_words[i] for i in index],
        sampling=batches.rows(self.sampling, index))

  def arguments(self) -> tuple[Any, jax.Array, Any, Any]:
    """Returns the decoder's arguments after the parameters."""
    return *self.inputs(), self.options(), self.model.draft_params(self.specification)

  @tracing.usual_promotion
  def inputs(self) -> tuple[Any, jax.Array]:
    """Returns the condition and the random keys `[B]`."""
    return jax.tree.map(jnp.asarray, self.condition), random_lib.image_keys(self.seeds)

  @tracing.usual_promotion
  def options(self) -> Options:
    """Returns the sampling options in the form that the decoder requires."""
    sampling = self.sampling
    if self.prefix_length and isinstance(sampling, Warp):  # As all options of discrete tokens.
      sampling = prefix_lib.sampling(sampling, self.prefix_length)
    return self.model.engine.settled(sampling)

  def estimate(self) -> memory.Estimate:
    """Estimates the memory that decoding needs."""
    decoder = self.decoder
    refills = isinstance(decoder, Decoder) and decoder.drafter.tree.num_nodes > 0
    return memory.estimate(
        self.model, self.specification, decoder, self.condition, self.options(),
        self.model.draft_params(self.specification),
        prefix_length=self.prefix_length,
        queue=len(self.titles) if refills and self.model.mesh is None else 0)

  def checked(self, decoded: Any) -> Any:
    """Returns the decoder's result; raises ValueError, by title and seed, for invalid images."""
    self.model.engine.check_result(decoded, [
        f'{title!r} with seed {seed}, number {number}'
        for title, (seed, number) in zip(self.titles, self.seeds)])
    return decoded

  def result(self, decoded: Any) -> Generated:
    """Returns the images of the decoder's result."""
    tokens, fixed = np.asarray(decoded.tokens), np.asarray(decoded.round_of_token)
    if self.prefix_length:
      tokens = np.concatenate([self.condition.tokens, tokens], axis=1)
      fixed = np.pad(fixed, ((0, 0), (self.prefix_length, 0)))
    pixels = [np.asarray(self.model.pixels(tokens[i:i + 1])) for i in range(len(self.titles))]
    return Generated(
        images=results.to_bytes(np.concatenate(pixels)), decoded=decoded, tokens=tokens,
        round_of_cell=self.model.cells(fixed), prefix_length=self.prefix_length,
        prompts=self.titles, seeds=self.seeds, decoder=str(self.specification),
        guarantee=self.model.engine.guarantee(self.decoder),
        sampling={name: files.plain(value) for name, value in self.sampling._asdict().items()},
        model=self.model.name, grid=self.model.grid, precision=self.model.precision,
        labels=self._labels(), numbers=range(len(tokens)), unknown_words=self.unknown_words)

  def _labels(self) -> list[int] | None:
    """The class of every image if the condition is its class."""
    condition = self.condition.condition if self.prefix_length else self.condition
    if not hasattr(condition, 'dtype'):
      return None
    numbers = np.asarray(condition)
    is_class = numbers.ndim == 1 and np.issubdtype(numbers.dtype, np.integer)
    return numbers.tolist() if is_class else None


def generate(model: 'Model', prompts: Any = None, *, seed: Any = 0,
             decoder: str | Spec | None = None, prefix: Any = None, rows: int | None = None,
             batch_size: int | None = None, progress: batches.Progress | bool | None = None,
             raw_log_probs: bool = False, **options) -> Generated:
  """Generates one image per prompt.

  All arguments are checked before compilation. A decoder is compiled once per batch size and cached
  by the model; other prompts, seeds and values of sampling options do not compile again.

  Args:
    model: the model.
    prompts: a prompt, a list, or the path of a file with one prompt per line; `model.prompts` if
      None.
    seed: an integer, under which the images are numbered, or one integer per image. With the same
      decoder an image depends, up to rounding, only on its own seed, number and prompt.
    decoder: a specification, such as `'seed_exact(window=16)'`; if None, the model's default for
      the device and the batch size, which may be another one for another batch size or, with
      `batch_size=None`, with other free memory.
    prefix: the first rows of the images, which are then completed: tokens, an image or its path;
      see `generation.prefix.tokens`. With every decoder, the other tokens are conditioned on them.
    rows: how many rows of tokens of `prefix` are used.
    batch_size: images decoded at once; if None, as many as fit in the memory of the device. With
      more images than that, a row that is complete starts the next one; see `finished`.
    progress: True shows a progress bar and the compiled programs on stderr; or a function, called
      with the number of finished images and the number of all images.
    raw_log_probs: whether the result has `Generated.raw_log_probs`; discrete tokens only.
    **options: sampling options (`guidance_scale`, `temperature`, ...), by default the model's,
      and parameters that the specification leaves open (`window`, ...).

  Returns:
    The images with their tokens, settings and statistics.

  Raises:
    ValueError: for anything that is not supported, by the name of the argument, or if the images
      of a batch do not fit in memory.
  """
  if not (progress is None or isinstance(progress, bool) or callable(progress)):
    raise ValueError(f'progress is {progress!r:.80}; it must be True for a progress bar, or a '
                     'function of the numbers of finished images and of all images.')
  task = prepare(model, prompts, seed=seed, decoder=decoder, batch_size=batch_size, prefix=prefix,
                 rows=rows, raw_log_probs=raw_log_probs, **options)
  if progress is not True:
    return _generated(task, progress if callable(progress) else None)
  with compiling.reported(), progress_lib.bar('generating') as show:
    show(0, len(task.titles))
    return _generated(task, show)


def _generated(task: Task, progress: batches.Progress | None) -> Generated:
  """Returns the images of a task."""
  count, numbers, parts = len(task.titles), np.zeros(0, int), []
  for index, decoded in finished(task):
    numbers = np.concatenate([numbers, index])
    parts.append(decoded)
    if progress is not None and len(index):
      progress(len(numbers), count)
  order = np.argsort(numbers)
  return task.result(jax.tree.map(lambda *leaves: np.concatenate(leaves)[order], *parts))


def finished(task: Task) -> Iterator[tuple[np.ndarray, Any]]:
  """Decodes the images of a task, `batch_size` at once.

  If there are more images than that, a row whose image is complete starts the next image
  (`decoding.refill`) where that saves rounds. A decoder without drafts requires the same number of
  rounds for every image, and continuous tokens and several devices do not support refill; these
  decode batch after batch. Either way yields the same images up to rounding; log-probabilities and
  `Decoded.tv_bound` may differ in their last bits.

  Yields:
    Numbers of images, and the decoder's result for these; in total, all images.

  Raises:
    ValueError: if the model returns NaN or infinity for some images.
  """
  count, size = len(task.titles), task.batch_size
  if (decoder := _refill_decoder(task)) is not None:
    yield from _refilled(task, decoder)
    return
  for index, num_new in batches.filled(count, size):
    yield index[:num_new], batches.leading(decode(task.pick(index)), num_new)


def _refill_decoder(task: Task) -> Decoder | None:
  """Returns the decoder if complete rows can start the next image and that saves rounds."""
  decoder = task.decoder
  if not isinstance(decoder, Decoder) or task.model.mesh is not None:
    return None
  return decoder if refill.helps(decoder, len(task.titles), task.batch_size) else None


def _refilled(task: Task, decoder: Decoder) -> Iterator[tuple[np.ndarray, Any]]:
  """Yields as `finished` for a decoder whose complete rows start the next image."""
  model, options = task.model, task.options()
  jitted = programs.kept(
      model, (*task.program, 'refill', task.batch_size), lambda: refill.jitted(
          decoder, task.batch_size, str(task.specification)))

  def images(numbers):
    return *task.pick(numbers).inputs(), batches.rows(options, numbers)

  for group in refill.run(jitted, model.params, len(task.titles), images,
                          model.draft_params(task.specification)):
    yield group.image, task.pick(group.image).checked(group.decoded)


def stream(model: 'Model', prompts: Any = None, *, seed: Any = 0,
           decoder: str | Spec | None = None, every: int = 1, **options) -> Iterator[Partial]:
  """Generates images and yields, after the prefill and every few rounds, what is committed.

  The tokens are those of `generate`, in one batch.

  Args:
    model: the model.
    prompts: as for `generate`, and so are `seed`, `decoder` and `options`, including `prefix` and
      `rows`.
    seed: see `prompts`.
    decoder: see `prompts`.
    every: rounds between two results; the last one always has the complete images.
    **options: see `prompts`.

  Yields:
    The state of all images.

  Raises:
    ValueError: for anything that is not supported, by the name of the argument.
  """
  if not isinstance(every, (int, np.integer)) or every < 1:
    raise ValueError(f'every is {every!r}; it must be a whole number, at least 1.')
  if 'batch_size' in options:
    raise ValueError(f"batch_size is {options['batch_size']!r}, but all images of a stream are "
                     'decoded at once; leave it out.')
  task = prepare(model, prompts, seed=seed, decoder=decoder, all_at_once=True, **options)
  return snapshots(task, int(every))


def snapshots(task: Task, every: int) -> Iterator[Partial]:
  """Yields as `stream` for a task, whose images are decoded in one batch on one device."""
  model, decoder = task.model, task.decoder
  condition, key, sampling, draft_params = task.arguments()
  rows = random_lib.row_keys(key, len(task.titles))
  start, advance, finish = _pieces(task, every)
  state = start(model.params, condition, rows, sampling, draft_params)
  while True:
    complete = bool(np.all(np.asarray(state.count) >= decoder.target.num_tokens))
    decoded = task.checked(jax.device_get(finish(state)))
    yield Partial(task, decoded, np.asarray(state.count) + task.prefix_length, complete)
    if complete:
      return
    state = advance(model.params, state, sampling, draft_params)


def _pieces(task: Task, every: int) -> tuple[Callable, Callable, Callable]:
  """The compiled pieces of the decoder: its start, `every` rounds, and its result so far."""
  decoder, size = task.decoder, task.decoder.target.num_tokens

  def advance(params, state, sampling, draft_params):
    def more(carry):
      return (carry[0] < every) & jnp.any(carry[1].count < size)

    def step(carry):
      return carry[0] + 1, decoder.round(params, carry[1], sampling, draft_params)

    return jax.lax.while_loop(more, step, (jnp.int32(0), state))[1]

  text = str(task.specification)
  return programs.kept(
      task.model, (*task.program, 'stream', every),
      lambda: (programs.jit(decoder.start, label=f'the prefill of {text}'),
               programs.jit(advance, label=text), programs.jit(decoder.finish)))


def prepare(model: 'Model', prompts: Any = None, *, seed: Any = 0,
            decoder: str | Spec | None = None, batch_size: int | None = None,
            max_batch_size: int | None = None, all_at_once: bool = False, prefix: Any = None,
            rows: int | None = None, raw_log_probs: bool = False, **options) -> Task:
  """Checks all arguments of `generate`; nothing is compiled.

  Args:
    model: see `generate`, also for arguments that are not listed.
    prompts: see `model`.
    seed: see `model`.
    decoder: see `model`.
    batch_size: images decoded at once; None selects as many as fit in memory.
    max_batch_size: the most that None selects; None for no limit.
    all_at_once: whether all images are decoded together, in place of `batch_size`.
    prefix: see `model`.
    rows: see `model`.
    raw_log_probs: see `model`.
    **options: see `model`.

  Raises:
    ValueError: for anything that is not supported, by the name of the argument, or if the images
      of a batch do not fit in memory.
  """
  engine = model.engine
  overrides = {name: value for name, value in options.items() if name in engine.options._fields}
  sampling = model.sampling(**overrides)
  prompts = prompts_lib.listed(model.prompts if prompts is None else prompts)
  condition, titles = model.condition(prompts), model.conditions.titles(prompts)
  parameters = {name: value for name, value in options.items() if name not in overrides}
  numbered = prompts_lib.seeds(seed, len(titles))
  for name, value in sampling._asdict().items():
    if np.shape(value) not in ((), (len(titles),)):
      raise ValueError(f'{name} has shape {np.shape(value)}; it must be a number, or one for each '
                       f'of {len(titles)} images.')
  guided, prefix_length = programs.is_guided(sampling), 0
  first = prefix_tokens(model, prefix, rows, len(titles))
  if first is not None:
    prefix_length, condition = first.shape[1], prefix_lib.Prefixed(condition, first)
    if isinstance(sampling, Warp):
      prefix_lib.sampling(sampling, prefix_length)  # Raises for options that a prefix excludes.
  unknown_words = prompts_lib.unknown_words(model, prompts, len(titles))

  def task_of(size: int) -> Task:
    specification = model.specification(decoder, batch_size=size, **parameters)
    built = model.decoder(specification, guided=guided, prefix_length=prefix_length)
    built.check(condition, sampling)
    return Task(model, specification, engines.with_raw_log_probs(built, raw_log_probs), guided,
                condition, titles, unknown_words, numbered, sampling, size, prefix_length)

  size = _batch_size(batch_size, max_batch_size, len(titles))
  if batch_size is None and not all_at_once:
    task, _ = memory.fit(task_of, Task.estimate, size)
  else:
    task = task_of(size)
  if model.tokenizer is None:
    model.pixels(None)  # Raises the error that names the missing tokenizer.
  memory.check(model, task.specification, task.estimate(), task.batch_size,
               'prompts' if all_at_once else 'batch_size')
  return task


def _batch_size(batch_size: Any, max_batch_size: int | None, count: int) -> int:
  """Returns the most of `count` images to decode at once; raises ValueError for another type."""
  if batch_size is None:
    return count if max_batch_size is None else min(max_batch_size, count)
  if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
    raise ValueError(f'batch_size is {batch_size!r}; it must be a whole number, at least 1.')
  return min(int(batch_size), count)


def decode(task: Task) -> Any:
  """Decodes all images of a task together; the model caches the compiled decoder.

  Returns:
    The decoder's result, NumPy arrays.

  Raises:
    ValueError: if the model returns NaN or infinity.
  """
  model, count = task.model, len(task.titles)
  mesh = model.mesh
  run = programs.kept(model, task.program, lambda: programs.jit(
      task.decoder if mesh is None else sharding.over_images(task.decoder, mesh),
      label=str(task.specification)))
  if mesh is not None:
    task = task.pick(batches.divisible(mesh, count))
  decoded = sharding.gathered(run(model.params, *task.arguments()))
  return task.checked(batches.leading(decoded, count))
