"""A bench: decoders of one model on the same images, for programs that compare many of them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from cspd_jax.core import programs as programs_lib
from cspd_jax.decoding import refill
from cspd_jax.generation import batches as batches_lib
from cspd_jax.measure.switch import CompiledDecoders
from cspd_jax.metrics.base import Sample


class Bench:
  """Decodes the same images with any decoder of a model, and decodes nothing twice.

  Image `i` depends on the seed, `i` and its prompt only.

  Attributes:
    model: a `generation.Model`.
    prompts: `[N]` of the images.
    seed: of all images, or one for each.
    batch_size: images that are decoded together.
    sampling: the sampling options where no others are given.
    programs: the decoders.
  """

  def __init__(self, model: Any, prompts: Sequence[Any], *, seed: int | Sequence[int] = 0,
               batch_size: int = 16, sampling: Any = None):
    """Decodes nothing yet.

    Args:
      model: see the attributes.
      prompts: see the attributes.
      seed: see the attributes.
      batch_size: see the attributes; at most one batch of all images is decoded.
      sampling: see the attributes; the model's defaults if None.
    """
    self.model, self.prompts, self.seed = model, list(prompts), seed
    self.batch_size = min(batch_size, len(self.prompts))
    self.sampling = model.sampling() if sampling is None else sampling
    self.programs = CompiledDecoders(model)
    self._done: dict[tuple, Sample] = {}

  @property
  def baseline(self) -> str:
    """The decoder that all others are compared with."""
    return self.model.engine.baseline

  def check(self, specification: Any, sampling: Any = None) -> Any:
    """The decoder of a specification.

    Raises:
      ValueError: if it cannot work, or not with the sampling options.
    """
    sampling = self.sampling if sampling is None else sampling
    decoder = self.programs.decoder(specification, programs_lib.is_guided(sampling))
    decoder.check(self.model.condition(self.prompts), sampling)
    return decoder

  def sample(self, specification: Any, sampling: Any = None) -> Sample:
    """The images of a decoder."""
    sampling = self.sampling if sampling is None else sampling
    name = self.programs.text(specification), *(np.asarray(one).tobytes() for one in sampling)
    if name not in self._done:
      self._done[name] = self._decode(specification, sampling, self.prompts, self.seed)
    return self._done[name]

  def reference(self, sets: int) -> tuple[Sample, list[Sample]]:
    """Images of the baseline with other seeds, `sets` times as many.

    Returns:
      All of one seed; and those of another in sets of `N`, each with the first for its
      reference, which shows what noise amounts to.
    """
    prompts, root = self.prompts * sets, jax.random.key(np.ravel(self.seed)[0])
    # Seeds of their own: no number of an image is as large.
    first, second = (self._decode(
        self.baseline, self.sampling, prompts, jax.random.fold_in(root, 2**32 - number))
                     for number in (1, 2))
    count = len(self.prompts)
    part = lambda leaf, i: np.asarray(leaf)[i * count:(i + 1) * count]
    parts = [jax.tree.map(lambda leaf, i=i: part(leaf, i), (second.decoded, second.condition))
             for i in range(sets)]
    return first, [Sample(decoded, condition, self.sampling, first, self.batch_size)
                   for decoded, condition in parts]

  def run(self, specification: Any, batch_size: int = 1, batches: int = 1,
          sampling: Any = None) -> Callable[[], Any]:
    """A function to be timed: decodes the first images, batch after batch.

    It is compiled and has run once, because a first run is slower. If there are more images than
    prompts, the prompts are repeated, but no image is.
    """
    sampling = self.sampling if sampling is None else sampling
    decode = self.programs.decode(specification, sampling)
    arguments = self.batches(batch_size, batches, sampling)
    if not self.programs.is_compiled(specification, sampling, batch_size):
      jax.block_until_ready(decode(*arguments[0]))
    return lambda: [jax.block_until_ready(decode(*one)) for one in arguments]

  def queue(self, specification: Any, batch_size: int, count: int | None = None
            ) -> Callable[[], list[refill.Finished]]:
    """A function to be timed: decodes images in rows that take the next one; see `decoding.refill`.

    It is compiled and has run once. Images and prompts are those of `run`.

    Args:
      specification: of a decoder of discrete tokens.
      batch_size: rows.
      count: images; as many as there are prompts if None.
    """
    decoder, options = self.check(specification), self.model.engine.settled(self.sampling)
    count, params = len(self.prompts) if count is None else count, self.model.params
    draft_params = self.model.draft_params(self.programs.text(specification))
    name = self.programs.text(specification), programs_lib.is_guided(options), batch_size, 'queue'
    jitted = programs_lib.kept(
        self.model, name, lambda: refill.jitted(decoder, batch_size))

    def images(numbers):
      condition = self.model.condition([self.prompts[i % len(self.prompts)] for i in numbers])
      return condition, batches_lib.keys(self.seed, numbers), options

    run = lambda count: list(refill.run(jitted, params, count, images, draft_params))
    run(min(count, batch_size))
    return lambda: run(count)

  def batches(self, batch_size: int, batches: int, sampling: Any = None) -> list[tuple]:
    """What a decoder of `programs` takes for the first images, batch after batch; see `run`."""
    sampling, found = self.sampling if sampling is None else sampling, []
    for first in range(0, batch_size * batches, batch_size):
      numbers = np.arange(first, first + batch_size)
      found.append((self.model.condition([self.prompts[i % len(self.prompts)] for i in numbers]),
                    batches_lib.keys(self.seed, numbers), sampling))
    return found

  def _decode(self, specification: Any, sampling: Any, prompts: Sequence[Any],
              seed: Any) -> Sample:
    decoded = batches_lib.run(
        self.model, self.programs.decode(specification, sampling), prompts, seed=seed,
        batch_size=self.batch_size, sampling=sampling)
    return Sample(decoded, self.model.condition(prompts), sampling, None, self.batch_size)
