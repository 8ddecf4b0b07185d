"""Decodes the same images with many decoders of one model, for programs that compare them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from cspd_jax.core import programs as programs_lib, random as random_lib
from cspd_jax.decoding import refill
from cspd_jax.generation import batches as batches_lib
from cspd_jax.generation.model import Model
from cspd_jax.measure.switch import CompiledDecoders
from cspd_jax.metrics.base import Sample


class Bench:
  """Decodes the same images with any decoder of a model, and caches the results.

  Image `i` depends only on the seed, `i` and its prompt.

  Attributes:
    model: the model.
    prompts: `[N]`, one per image.
    seed: one seed for all images, or one for each.
    batch_size: images decoded together.
    sampling: the default sampling options.
    programs: the compiled decoders.
  """

  def __init__(self, model: Model, prompts: Sequence[Any], *, seed: int | Sequence[int] = 0,
               batch_size: int = 16, sampling: Any = None):
    """Stores the settings; nothing is decoded yet.

    Args:
      model: the model.
      prompts: one per image.
      seed: one seed for all images, or one for each.
      batch_size: images decoded together; capped at the number of images.
      sampling: sampling options of `model.sampling`; the model's defaults if None.
    """
    self.model, self.prompts, self.seed = model, list(prompts), seed
    self.batch_size = min(batch_size, len(self.prompts))
    self.sampling = model.sampling() if sampling is None else sampling
    self.programs = CompiledDecoders(model)
    self._samples: dict[tuple, Sample] = {}

  @property
  def baseline(self) -> str:
    """The decoder that all others are compared with."""
    return self.model.engine.baseline

  def check(self, specification: Any, sampling: Any = None) -> Any:
    """Builds the decoder of a specification and checks it with the sampling options.

    Raises:
      ValueError: if the decoder is invalid, or cannot use these sampling options.
    """
    sampling = self.sampling if sampling is None else sampling
    decoder = self.programs.decoder(specification, programs_lib.is_guided(sampling))
    decoder.check(self.model.condition(self.prompts), sampling)
    return decoder

  def sample(self, specification: Any, sampling: Any = None) -> Sample:
    """Returns the images of a decoder, decoded on the first call."""
    sampling = self.sampling if sampling is None else sampling
    name = self.programs.text(specification), *(np.asarray(leaf).tobytes() for leaf in sampling)
    if name not in self._samples:
      self._samples[name] = self._decode(specification, sampling, self.prompts, self.seed)
    return self._samples[name]

  def reference(self, sets: int) -> tuple[Sample, list[Sample]]:
    """Decodes `sets` times as many images with the baseline, for each of two other seeds.

    Returns:
      All images of the first seed; and those of the second in sets of `N`, each with the first
      as its reference, which measures the effect of noise alone.
    """
    prompts, root = self.prompts * sets, random_lib.seed_key(np.ravel(self.seed)[0])
    # These seeds differ from those of all images, whose numbers are much smaller.
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
    """Returns a function to be timed that decodes the first images, batch by batch.

    It is already compiled and has run once, because a first run is slower. If there are more
    images than prompts, the prompts repeat, but the images differ.
    """
    sampling = self.sampling if sampling is None else sampling
    decode = self.programs.decode(specification, sampling)
    arguments = self.batches(batch_size, batches, sampling)
    if not self.programs.is_compiled(specification, sampling, batch_size):
      jax.block_until_ready(decode(*arguments[0]))
    return lambda: [jax.block_until_ready(decode(*batch)) for batch in arguments]

  def queue(self, specification: Any, batch_size: int, count: int | None = None
            ) -> Callable[[], list[refill.Finished]]:
    """Returns a function to be timed that decodes a queue of images; see `decoding.refill`.

    It is already compiled and has run once. Images and prompts are those of `run`.

    Args:
      specification: of a decoder of discrete tokens.
      batch_size: rows; a row whose image is complete starts the next one.
      count: images; one per prompt if None.
    """
    decoder, options = self.check(specification), self.model.engine.settled(self.sampling)
    count, params = len(self.prompts) if count is None else count, self.model.params
    draft_params = self.model.draft_params(self.programs.text(specification))
    name = self.programs.text(specification), programs_lib.is_guided(options), batch_size, 'queue'
    jitted = programs_lib.kept(
        self.model, name, lambda: refill.jitted(decoder, batch_size, name[0]))

    def images(numbers):
      condition = self.model.condition([self.prompts[i % len(self.prompts)] for i in numbers])
      return condition, batches_lib.keys(self.seed, numbers), options

    run = lambda count: list(refill.run(jitted, params, count, images, draft_params))
    run(min(count, batch_size))
    return lambda: run(count)

  def batches(self, batch_size: int, batches: int, sampling: Any = None) -> list[tuple]:
    """Returns the arguments of decoders of `programs` for the first images; see `run`."""
    sampling = self.sampling if sampling is None else sampling
    arguments = []
    for first in range(0, batch_size * batches, batch_size):
      numbers = np.arange(first, first + batch_size)
      prompts = [self.prompts[i % len(self.prompts)] for i in numbers]
      arguments.append(
          (self.model.condition(prompts), batches_lib.keys(self.seed, numbers), sampling))
    return arguments

  def _decode(self, specification: Any, sampling: Any, prompts: Sequence[Any],
              seed: Any) -> Sample:
    decoded = batches_lib.run(
        self.model, self.programs.decode(specification, sampling), prompts, seed=seed,
        batch_size=self.batch_size, sampling=sampling)
    return Sample(decoded, self.model.condition(prompts), sampling, None, self.batch_size)
