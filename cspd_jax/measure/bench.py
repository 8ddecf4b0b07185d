"""Decodes the same images with many decoders of one model, for programs that compare them.

Of a decoder of discrete tokens, the verifier is the smallest part to compile. Decoders that differ
only in their verifiers therefore share a program, which selects one of the verifiers by an index at
run time: separate compilations would take most of the time of a large comparison. This does not
change the tokens, and the times on a CPU by less than 5 %.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import batches as batches_lib, random as random_lib
from cspd_jax.core.sampling import is_guided
from cspd_jax.decoding import continuous_batching, specification as discrete
from cspd_jax.decoding.base import Verifier
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.generation import decode
from cspd_jax.generation.images import Images, fitted
from cspd_jax.generation.model import Model
from cspd_jax.metrics.base import Sample


class Bench:
  """Decodes the same images with any decoder of a model, and caches the results.

  There are `N` prompts, one per image, and one seed for all images, or one for each. Image `i`
  depends only on the seed, `i` and its prompt. Nothing is decoded at first. At most `batch_size`
  images are decoded together, with the model's sampling options if `sampling` is None. `captions`
  are what scenes of emoji are asked for; None if this is not scored. `seconds` is the total
  compilation time so far.
  """

  def __init__(self, model: Model, prompts: Sequence[Any], *, seed: int | Sequence[int] = 0,
               batch_size: int = 16, sampling: Any = None, captions: Sequence[str] | None = None):
    self.model, self.prompts, self.seed = model, list(prompts), seed
    self.captions = captions
    self.batch_size = min(batch_size, len(self.prompts))
    self.sampling = model.sampling() if sampling is None else sampling
    self.seconds = 0.0
    self._shared: tuple[str, ...] = ()
    self._decoders: dict[tuple[str, bool], Any] = {}
    self._samples: dict[tuple, Sample] = {}
    self._compiled: set[tuple] = set()

  @property
  def baseline(self) -> str:
    """The decoder that all others are compared with."""
    return self.model.table.baseline

  def text(self, specification: Any) -> str:
    """Returns the canonical text of a specification; raises ValueError if it has another form."""
    return str(self.model.specification(specification))

  def share(self, specifications: Sequence[Any]) -> None:
    """Makes decoders of valid specifications share a program by drafter from now on."""
    self._shared = tuple(dict.fromkeys(map(self.text, specifications)))

  def decoder(self, specification: Any, guided: bool) -> Any:
    """Returns the decoder of a specification, built once; an invalid one raises ValueError."""
    name = self.text(specification), guided
    if name not in self._decoders:
      self._decoders[name] = self.model.decoder(name[0], guided=guided)
    return self._decoders[name]

  def check(self, specification: Any, sampling: Any = None) -> Any:
    """Returns the decoder of a specification; raises ValueError if it is invalid, or cannot use the
    sampling options.
    """
    sampling = self.sampling if sampling is None else sampling
    decoder = self.decoder(specification, is_guided(sampling))
    decoder.check(self.condition(len(self.prompts)), sampling)
    return decoder

  def tokens_per_round(self, specification: Any) -> int:
    """Returns the tokens of a round of a decoder: the last committed one and the drafts."""
    return self.check(specification).drafter.tree.num_nodes + 1

  def same_shapes(self, specification: Any) -> str:
    """Returns the baseline decoder whose forward passes have as many tokens as a decoder's."""
    return f'{self.baseline}(window={self.tokens_per_round(specification)})'

  def condition(self, count: int) -> Any:
    """Returns the condition of the first images; if there are more than prompts, these repeat."""
    return batches_lib.select(self._condition, np.arange(count) % len(self.prompts))

  @functools.cached_property
  def _condition(self) -> Any:
    return self.model.condition(self.prompts)

  def images(self, specification: Any, sampling: Any = None, *, batch_size: int | None = None,
             count: int | None = None, seed: Any = None) -> Images:
    """Returns the first `count` images; None for one per prompt.

    If there are more images than prompts, the prompts repeat, but the images differ. The seed may
    be a random key; options that are None are the bench's. What the decoder or the memory of
    the device does not support raises ValueError.
    """
    count, total = len(self.prompts) if count is None else count, len(self.prompts)
    seed = self.seed if seed is None else seed
    if np.ndim(seed):
      seed = [(seed[i % total], i // total) for i in range(count)]
    sampler = self.model.sampler(
        self.text(specification), sampling=self.sampling if sampling is None else sampling,
        batch_size=self.batch_size if batch_size is None else batch_size)
    images = fitted(sampler.images(
        [self.prompts[i % total] for i in range(count)], seed=seed, slots=False, pixels=False,
        condition=self.condition(count)))
    name, guided = sampler.names[0], sampler.guided
    members = self._members(name, guided)
    if len(members) == 1:
      return images
    return dataclasses.replace(images, sampler=dataclasses.replace(
        sampler, names=members,
        function=one_of([self.decoder(member, guided) for member in members]),
        draft_params=(np.int32(members.index(name)), sampler.draft_params)))

  def sample(self, specification: Any, sampling: Any = None) -> Sample:
    """Returns the images of a decoder, decoded on the first call."""
    sampling = self.sampling if sampling is None else sampling
    name = self.text(specification), *(np.asarray(leaf).tobytes() for leaf in sampling)
    if name not in self._samples:
      self._samples[name] = dataclasses.replace(
          self._decode(self.images(specification, sampling)), captions=self.captions)
    return self._samples[name]

  def reference(self, sets: int) -> tuple[Sample, list[Sample]]:
    """Decodes `sets` times as many images with the baseline, for each of two other seeds.

    Returns all images of the first seed; and the images of the second in sets of `N`, each with the
    first as its reference, which measures the effect of noise alone.
    """
    count, first, second = len(self.prompts), self.redrawn(sets, 1), self.redrawn(sets, 2)
    part = lambda leaf, i: np.asarray(leaf)[i * count:(i + 1) * count]
    parts = [jax.tree.map(lambda leaf, i=i: part(leaf, i), (second.decoded, second.condition))
             for i in range(sets)]
    return first, [Sample(decoded, condition, self.sampling, first, self.batch_size)
                   for decoded, condition in parts]

  def redrawn(self, sets: int = 1, number: int = 1) -> Sample:
    """Decodes `sets` times as many images with the baseline and seed 1 or 2 of two others."""
    # They differ from the keys of all images, whose numbers are much smaller.
    seed = jax.random.fold_in(random_lib.seed_key(np.ravel(self.seed)[0]), 2**32 - number)
    return self._decode(self.images(
        self.baseline, count=sets * len(self.prompts), seed=seed))

  def runs(self, specification: Any, batch_size: int = 1, batches: int = 1,
           sampling: Any = None) -> list[Callable[[], Any]]:
    """Returns functions to be timed, compiled and run once, that each decode a batch of images."""
    images = self.images(
        specification, sampling, batch_size=batch_size, count=batch_size * batches)
    calls = [images.sampler.bound(images, np.arange(first, first + batch_size))
             for first in range(0, batch_size * batches, batch_size)]
    if self._compile(images):
      jax.block_until_ready(calls[0]())
    return calls

  def run(self, specification: Any, batch_size: int = 1, batches: int = 1,
          sampling: Any = None) -> Callable[[], Any]:
    """Returns a function to be timed that runs the functions of `runs` one after the other."""
    calls = self.runs(specification, batch_size, batches, sampling)
    return lambda: [jax.block_until_ready(call()) for call in calls]

  def queue(self, specification: Any, batch_size: int
            ) -> Callable[[], list[continuous_batching.Finished]]:
    """Returns a function to be timed that decodes a queue of images, one per prompt.

    It is compiled and has run once. Images and prompts as in `run`; the row of a complete
    image starts the next one. For decoders of discrete tokens.
    """
    images = self.images(specification, batch_size=batch_size)
    # A few images may need fewer slots than all of them.
    few = dataclasses.replace(
        images.pick(range(min(len(images), batch_size))), batch_size=images.batch_size)
    list(decode.refilled(few))
    return lambda: list(decode.refilled(images))

  def _decode(self, images: Images) -> Sample:
    self._compile(images)
    decoded = decode.decoded(images)
    return Sample(decoded, images.condition, images.sampling, None, self.batch_size)

  def _compile(self, images: Images) -> bool:
    """Compiles the program of images unless this bench has; returns whether it did."""
    program = images.sampler.program_key()
    name = program, images.batch_size, jax.tree.structure(images.active)
    if name in self._compiled and program in self.model.kept.programs:
      return False
    self.seconds += images.sampler.compile(images, images.batch_size)
    self._compiled.add(name)
    return True

  def _members(self, text: str, guided: bool) -> tuple[str, ...]:
    def common(member):
      decoder = self.decoder(member, guided)
      if not isinstance(decoder, Decoder):  # Of continuous tokens.
        return member
      drafter, verifier = discrete.expand(member)
      # Only `match` returns `Verdict.samples`, from which a window continues.
      return str(drafter), decoder.verifier.seed_exact, verifier.name == 'match'

    members = tuple(member for member in self._shared if common(member) == common(text))
    return members if text in members else (text,)


def one_of(decoders: Sequence[Decoder]) -> Callable[..., Any]:
  """Joins decoders that differ only in their verifiers into a function like a decoder.

  Its `draft_params` are the index of the decoder that runs, a scalar int32, and the `draft_params`
  of that decoder.
  """
  first = decoders[0]

  def decode(params, condition, key, sampling, selected):
    index, draft_params = selected
    verifier = switch([decoder.verifier for decoder in decoders], index)
    return make_decoder(first.target, first.drafter, verifier)(
        params, condition, key, sampling, draft_params)

  return decode


def switch(verifiers: Sequence[Verifier], index: jax.Array) -> Verifier:
  """Returns a verifier that runs `verifiers[index]`, selected at run time.

  All or none of them must be `seed_exact`, and all or none must return `Verdict.samples`.
  """

  def verify(rng, layout, tokens, *args):
    def branch(verifier):
      def run():
        # A copy, so that each verifier draws the random numbers that it would draw alone.
        verdict = verifier.verify(copy.copy(rng), layout, tokens, *args)
        tv_bound = verdict.tv_bound
        if tv_bound is None:
          tv_bound = jnp.full(tokens.shape, 0.0 if verifier.exact else jnp.nan)
        return verdict._replace(tv_bound=tv_bound)
      return run
    return jax.lax.switch(index, [branch(verifier) for verifier in verifiers])

  return Verifier(
      verify, exact=all(verifier.exact for verifier in verifiers),
      needs_probs=any(verifier.needs_probs for verifier in verifiers),
      seed_exact=verifiers[0].seed_exact,
      bounded=all(verifier.exact or verifier.bounded for verifier in verifiers),
      verifies_fixed=all(
          verifier.verifies_fixed or not verifier.needs_probs for verifier in verifiers))
