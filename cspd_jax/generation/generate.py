"""Images from prompts: one call, or round by round."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import sharding
from cspd_jax.checkpoints import files
from cspd_jax.core import programs, random as random_lib, tracing
from cspd_jax.decoding import continued, refill
from cspd_jax.generation import batches, prefix as given_lib, prompts as prompts_lib
from cspd_jax.generation.results import Generated, Partial


class Task(NamedTuple):
  """Images to be generated, checked.

  Attributes:
    model: the model.
    specification: of the decoder.
    decoder: built from it.
    guided: whether there is guidance.
    condition: leading axis `B`.
    captions: `[B]` what every image shows.
    seeds: `[B]` seed and number of every image.
    sampling: the sampling options.
    batch_size: images decoded at once.
    given: `P`, first tokens of the images that are given; the condition is a
      `continued.Continued` if there are any.
  """

  model: Any
  specification: Any
  decoder: Any
  guided: bool
  condition: Any
  captions: list[str]
  seeds: list[tuple[int, int]]
  sampling: Any
  batch_size: int
  given: int = 0

  def pick(self, index: Sequence[int] | np.ndarray) -> 'Task':
    """The task of the images of these numbers."""
    index = np.asarray(index, int)
    of_each = lambda leaf: leaf[index] if np.ndim(leaf) else leaf
    return self._replace(
        condition=jax.tree.map(lambda leaf: leaf[index], self.condition),
        captions=[self.captions[i] for i in index], seeds=[self.seeds[i] for i in index],
        sampling=type(self.sampling)(*map(of_each, self.sampling)))

  def arguments(self) -> tuple[Any, jax.Array, Any, Any]:
    """What the decoder takes after the parameters."""
    return *self.inputs(), self.options(), self.model.draft_params(self.specification)

  @tracing.usual_promotion
  def inputs(self) -> tuple[Any, jax.Array]:
    """The condition and the random keys `[B]`."""
    return jax.tree.map(jnp.asarray, self.condition), random_lib.image_keys(self.seeds)

  @tracing.usual_promotion
  def options(self) -> Any:
    """The sampling options as the decoder takes them."""
    sampling = continued.sampling(self.sampling, self.given) if self.given else self.sampling
    return self.model.engine.settled(sampling)

  def checked(self, decoded: Any) -> Any:
    """What was decoded; raises ValueError, by name, if images did not come about as they should."""
    self.model.engine.check_result(decoded, [
        f'{caption!r} with seed {seed}, number {number}'
        for caption, (seed, number) in zip(self.captions, self.seeds)])
    return decoded

  def result(self, decoded: Any) -> Generated:
    """The images of what was decoded."""
    tokens, fixed = np.asarray(decoded.tokens), np.asarray(decoded.round_of_token)
    if self.given:
      tokens = np.concatenate([self.condition.tokens, tokens], axis=1)
      fixed = np.pad(fixed, ((0, 0), (self.given, 0)))
    pixels = [np.asarray(self.model.pixels(tokens[i:i + 1])) for i in range(len(self.captions))]
    return Generated(
        images=to_bytes(np.concatenate(pixels)), decoded=decoded, tokens=tokens,
        round_of_cell=self.model.cells(fixed), given=self.given, prompts=self.captions,
        seeds=self.seeds, decoder=str(self.specification),
        guarantee=self.model.engine.guarantee(self.decoder),
        sampling={name: files.plain(value) for name, value in self.sampling._asdict().items()},
        model=self.model.name, grid=self.model.grid, labels=self._labels())

  def _labels(self) -> list[int] | None:
    """The class of every image, if that is what the condition is."""
    condition = self.condition.condition if self.given else self.condition
    numbers = np.asarray(condition) if hasattr(condition, 'dtype') else None
    is_class = numbers is not None and numbers.ndim == 1 and np.issubdtype(
        numbers.dtype, np.integer)
    return numbers.tolist() if is_class else None


def generate(model: Any, prompts: Any = None, *, seed: Any = 0, decoder: Any = None,
             prefix: Any = None, rows: int | None = None, batch_size: int | None = None,
             progress: Callable[[int, int], None] | None = None, **options) -> Generated:
  """Generates one image per prompt.

  Everything is checked before anything is compiled. A decoder is compiled once per batch size and
  kept by the model; other prompts, seeds and sampling options do not compile anew.

  Args:
    model: the model.
    prompts: a prompt, a list, or the path of a file with one per line; `model.prompts` if None.
    seed: a whole number, under which the images are numbered, or one per image. An image
      depends on its own seed, number and prompt only.
    decoder: specification, such as `'seed_exact(window=16)'`; if None, the model's default for
      the device and as many images at once.
    prefix: first rows of the images, which are then completed: tokens, an image or its path; see
      `given.tokens`. Whatever the decoder, the rest follows the model's distribution given them.
    rows: rows of tokens to take of them.
    batch_size: images decoded at once; all if None. With more images than that, a row that is
      complete takes the next one; see `finished`.
    progress: called with the number of finished images and of all.
    **options: sampling options (`guidance_scale`, `temperature`, ...), by default the model's,
      and parameters that the specification leaves open (`window`, ...).

  Returns:
    The images and all there is to know of them.

  Raises:
    ValueError: for anything that cannot work, by the name of the argument.
  """
  task = prepare(model, prompts, seed=seed, decoder=decoder, batch_size=batch_size, prefix=prefix,
                 rows=rows, **options)
  count, numbers, found = len(task.captions), np.zeros(0, int), []
  for index, decoded in finished(task):
    numbers = np.concatenate([numbers, index])
    found.append(decoded)
    if progress is not None and len(index):
      progress(len(numbers), count)
  order = np.argsort(numbers)
  return task.result(jax.tree.map(lambda *parts: np.concatenate(parts)[order], *found))


def finished(task: Task) -> Iterator[tuple[np.ndarray, Any]]:
  """Decodes the images of a task, `batch_size` at once.

  Images that do not all go at once follow each other in their rows (`decoding.refill`), where that
  helps: a decoder without drafts takes as many rounds for every image, and continuous tokens and
  several devices have no queue. These are decoded batch after batch. An image is the same either
  way, but for rounding; `Decoded.tv_bound` may differ in its last bit.

  Yields:
    Numbers of images, and what the decoder returned of them; together, of all.

  Raises:
    ValueError: if the model's numbers are no probabilities for some of them.
  """
  count, size = len(task.captions), task.batch_size
  if _can_refill(task):
    yield from _refilled(task)
    return
  for index, kept in batches.filled(count, size):
    yield index[:kept], batches.leading(decode(task.pick(index)), kept)


def _can_refill(task: Task) -> bool:
  """Whether rows of a batch can take the next image, and that helps."""
  return (task.model.engine.name == 'discrete' and task.model.mesh is None
          and refill.helps(task.decoder, len(task.captions), task.batch_size))


def _refilled(task: Task) -> Iterator[tuple[np.ndarray, Any]]:
  """What `finished` yields where rows that are complete take the next image."""
  model, options = task.model, task.options()
  name = (str(task.specification), task.guided, task.given, 'refill', task.batch_size)
  program = programs.kept(model, name, lambda: refill.program(task.decoder, task.batch_size))

  def images(numbers):
    return *task.pick(numbers).inputs(), type(options)(*(
        leaf[numbers] if np.ndim(leaf) else leaf for leaf in options))

  for some in refill.run(program, model.params, len(task.captions), images,
                         model.draft_params(task.specification)):
    yield some.image, task.pick(some.image).checked(some.decoded)


def stream(model: Any, prompts: Any = None, *, seed: Any = 0, decoder: Any = None,
           every: int = 1, **options) -> Iterator[Partial]:
  """Generates images and gives, after the prefill and every few rounds, what is committed.

  The tokens are those of `generate`, in one batch.

  Args:
    model: the model.
    prompts: as for `generate`, and so are `seed`, `decoder` and `options`, `prefix` and `rows`
      among them.
    seed: see `prompts`.
    decoder: see `prompts`.
    every: rounds between two looks; the last look always has the complete images.
    **options: see `prompts`.

  Yields:
    The state of all images.

  Raises:
    ValueError: for anything that cannot work, by the name of the argument.
  """
  if not isinstance(every, (int, np.integer)) or every < 1:
    raise ValueError(f'every is {every!r}; it must be a whole number, at least 1.')
  if 'batch_size' in options:
    raise ValueError(f"batch_size is {options['batch_size']!r}, but all images of a stream are "
                     'decoded at once; leave it out.')
  task = prepare(model, prompts, seed=seed, decoder=decoder, **options)
  return looks(task, int(every))


def looks(task: Task, every: int) -> Iterator[Partial]:
  """What `stream` yields for a task, whose images are decoded in one batch on one device."""
  model, decoder = task.model, task.decoder
  condition, key, sampling, draft_params = task.arguments()
  rows = random_lib.row_keys(key, len(task.captions))
  start, advance, finish = _pieces(task, every)
  state = start(model.params, condition, rows, sampling, draft_params)
  while True:
    complete = bool(np.all(np.asarray(state.count) >= decoder.target.num_tokens))
    decoded = task.checked(jax.device_get(finish(state)))
    yield Partial(task, decoded, np.asarray(state.count) + task.given, complete)
    if complete:
      return
    state = advance(model.params, state, sampling, draft_params)


def _pieces(task: Task, every: int) -> tuple[Callable, Callable, Callable]:
  """The decoder's pieces, compiled: its start, `every` rounds of it and its result so far."""
  decoder, size = task.decoder, task.decoder.target.num_tokens

  def advance(params, state, sampling, draft_params):
    def more(carry):
      return (carry[0] < every) & jnp.any(carry[1].count < size)

    def step(carry):
      return carry[0] + 1, decoder.round(params, carry[1], sampling, draft_params)

    return jax.lax.while_loop(more, step, (jnp.int32(0), state))[1]

  name = (str(task.specification), task.guided, task.given, 'stream', every)
  return programs.kept(
      task.model, name,
      lambda: tuple(map(programs.jit, (decoder.start, advance, decoder.finish))))


def prepare(model: Any, prompts: Any = None, *, seed: Any = 0, decoder: Any = None,
            batch_size: int | None = None, prefix: Any = None, rows: int | None = None,
            **options) -> Task:
  """Checks all arguments of `generate`; nothing is compiled.

  Raises:
    ValueError: for anything that cannot work, by the name of the argument.
  """
  engine = model.engine
  given = {name: value for name, value in options.items() if name in engine.options._fields}
  sampling = model.sampling(**given)
  prompts = prompts_lib.listed(model.prompts if prompts is None else prompts)
  condition, captions = model.condition(prompts), model.conditions.captions(prompts)
  batch_size = _batch_size(batch_size, len(captions))
  specification = model.specification(decoder, batch_size=batch_size, **{
      name: value for name, value in options.items() if name not in given})
  numbered = prompts_lib.seeds(seed, len(captions))
  for name, value in sampling._asdict().items():
    if np.shape(value) not in ((), (len(captions),)):
      raise ValueError(f'{name} has shape {np.shape(value)}; it must be a number, or one for each '
                       f'of {len(captions)} images.')
  guided, length = programs.is_guided(sampling), 0
  first = given_lib.tokens(model, prefix, rows, len(captions))
  if first is not None:
    length, condition = first.shape[1], continued.Continued(condition, first)
    continued.sampling(sampling, length)  # Refuses what cannot be.
  built = model.decoder(specification, guided=guided, given=length)
  built.check(condition, sampling)
  if model.tokenizer is None:
    model.pixels(None)  # Says what is missing.
  return Task(model, specification, built, guided, condition, captions, numbered, sampling,
              batch_size, length)


def _batch_size(wanted: Any, count: int) -> int:
  """Images decoded at once, of `count` in all; raises ValueError for what is no such number."""
  if wanted is None:
    return count
  if not isinstance(wanted, (int, np.integer)) or wanted < 1:
    raise ValueError(f'batch_size is {wanted!r}; it must be a whole number, at least 1.')
  return min(int(wanted), count)


def decode(task: Task) -> Any:
  """Decodes all images of a task together; the model keeps the compiled decoder.

  Returns:
    The decoder's result, NumPy arrays.

  Raises:
    ValueError: if the model's numbers are no probabilities.
  """
  model, count = task.model, len(task.captions)
  name = (str(task.specification), task.guided, task.given)
  run = programs.kept(model, name, lambda: programs.jit(
      task.decoder if model.mesh is None else sharding.over_images(task.decoder, model.mesh)))
  if model.mesh is not None:
    # Every group of devices takes as many images as the others.
    groups = model.mesh.shape[sharding.DATA]
    task = task.pick(next(batches.filled(count, -(-count // groups) * groups))[0])
  decoded = sharding.gathered(run(model.params, *task.arguments()))
  return task.checked(batches.leading(decoded, count))


def to_bytes(images: np.ndarray) -> np.ndarray:
  """Turns images in [-1, 1] into uint8 `[B, H, W, 3]`, rounded to the nearest level."""
  return np.clip(np.floor(np.asarray(images, np.float32) * 127.5 + 128), 0, 255).astype(np.uint8)
