"""Decoding for `experiments.benchmark`: preparation, samples, times.

One compilation serves all verifiers of a drafter: the decoder holds them behind a switch and
is told by a number which to use. Compiling each alone would take most of the time. The switch
makes no difference to the tokens, and to the times none beyond their noise.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import cspd_jax
from cspd_jax import checkpoint
from cspd_jax.decoding.base import Decoded, Drafter, Target, Verifier
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.metrics import frechet
from cspd_jax.metrics import likelihood
from cspd_jax.models import llamagen
from cspd_jax.models import vq
from configs import demo
from experiments import benchmark_parts as parts_lib
from experiments import generation


class Bench(NamedTuple):
  """What all decoders share.

  Attributes:
    target: the model.
    params: its parameters.
    draft_params: parameters of the drafting models, by source.
    tokenizer: the image tokenizer's checkpoint.
    grid: rows and columns of tokens.
    parts: what drafters and verifiers are made from.
    labels: `[N]` int32 the class of every image.
    warp: the sampling options.
    seed: of all images.
    batch_size: images decoded at once.
    timed_images: images decoded one by one for the times.
  """

  target: Target
  params: Any
  draft_params: Mapping[str, Any]
  tokenizer: checkpoint.Loaded
  grid: tuple[int, int]
  parts: parts_lib.Parts
  labels: np.ndarray
  warp: cspd_jax.Warp
  seed: int
  batch_size: int
  timed_images: int


class Sample(NamedTuple):
  """Images of one decoder and what the target says of them.

  Attributes:
    decoded: `B = N`, NumPy arrays.
    nll: `[N]` see `likelihood.Likelihood`.
    entropy: `[N]` likewise.
    features: `[N, F]` see `frechet.features`.
  """

  decoded: Decoded
  nll: np.ndarray
  entropy: np.ndarray
  features: np.ndarray


class Reference(NamedTuple):
  """Images of `vanilla` that all others are compared with.

  Attributes:
    nll: `[K, N]` of all sets, of both seeds.
    features: the Gaussian of the first seed's.
    tokens: `[M, T]` the first seed's.
    frechet_noise: mean and standard deviation of the distances between the second seed's
      sets and the first seed.
    unigram_noise: mean of the distances of their tokens, likewise.
  """

  nll: np.ndarray
  features: frechet.Gaussian
  tokens: np.ndarray
  frechet_noise: tuple[float, float]
  unigram_noise: float


class Group(NamedTuple):
  """A drafter with verifiers that one compilation can hold.

  Attributes:
    drafter: the drafter's name.
    source: a key of `decoders.SOURCES`, or None.
    build: the drafter itself.
    verifiers: by name.
  """

  drafter: str
  source: str | None
  build: Drafter
  verifiers: dict[str, Verifier]


def prepare(config: Any) -> tuple[Bench, dict[str, str]]:
  """Loads the models and checks all options.

  Args:
    config: has the fields of `configs/benchmark.py`.

  Returns:
    What all decoders share, and drafters that lack their model, with the reason.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  for name in ('batch_size', 'timed_images'):
    if getattr(config, name) < 1:
      raise ValueError(f'{name} is {getattr(config, name)}; it must be at least 1.')
  for name in ('num_images', 'reference_sets'):
    if getattr(config, name) < 2:
      raise ValueError(
          f'{name} is {getattr(config, name)}; it must be at least 2, for a standard error.')
  if not config.temperature > 0:
    raise ValueError(
        f'temperature is {config.temperature}; it must be above 0, where verifiers differ.')
  shared = {name: getattr(config, name) for name in (
      'model', 'draft_model', 'eagle', 'medusa', 'tokenizer', 'num_images', 'label', 'seed',
      'guidance_scale', 'temperature', 'window', 'draft_length', 'dtype')}
  options = demo.Config(decoder='vanilla', **shared)
  job = generation.prepare(options)
  guided = config.guidance_scale != 1
  drafts, draft_params, lacking = {}, {}, {}
  for source, (option, *_) in generation.CHECKPOINTS.items():
    if getattr(config, option):
      drafts[source], draft_params[source] = generation.drafting(
          options, source, job.model, guided)
    else:
      for name, entry in parts_lib.DRAFTERS.items():
        if entry.source == source:
          lacking[name] = f'it needs {cspd_jax.SOURCES[source]}; give {option}'
  codebook = np.asarray(vq.codebook(job.tokenizer.params, job.tokenizer.config))
  parts = parts_lib.Parts(
      drafts, config.window, config.draft_length, parts_lib.neighbours(codebook))
  bench = Bench(
      target=llamagen.target(job.model.config, guided=guided), params=job.model.params,
      draft_params=draft_params, tokenizer=job.tokenizer,
      grid=(job.model.config.height, job.model.config.width), parts=parts, labels=job.labels,
      warp=job.warp, seed=config.seed, batch_size=min(config.batch_size, config.num_images),
      timed_images=min(config.timed_images, config.num_images))
  return bench, lacking


def pairs(bench: Bench, drafters: Sequence[str],
          verifiers: Sequence[str]) -> tuple[list[Group], dict[tuple[str, str], str]]:
  """All pairs that work, in groups, and those that do not, with the library's reason."""
  groups, left_out = {}, {}
  for name in drafters:
    source, build = parts_lib.DRAFTERS[name]
    for rule in verifiers:
      entry = parts_lib.VERIFIERS[rule]
      drafter = build(bench.parts, entry.draws)
      try:
        verifier = entry.build(bench.parts, drafter.layout.draws)
        make_decoder(bench.target, drafter, verifier)
      except ValueError as error:
        left_out[name, rule] = str(error)
        continue
      group = groups.setdefault(
          (name, drafter.layout.draws, verifier.seed_exact), Group(name, source, drafter, {}))
      group.verifiers[rule] = verifier
  return list(groups.values()), left_out


def curves(bench: Bench, name: str) -> Group:
  """All points of the trade-off curves of a drafter, named `(method, value)`.

  The exact decoder, where most curves begin, is `('exact', None)`.
  """
  source, build = parts_lib.DRAFTERS[name]
  drafter = build(bench.parts, 'distinct')
  verifiers = {('exact', None): parts_lib.VERIFIERS['exact'].build(bench.parts, 'distinct')}
  for method, (values, rule, *_) in parts_lib.METHODS.items():
    verifiers |= {(method, value): rule(bench.parts, value) for value in values}
  for verifier in verifiers.values():
    make_decoder(bench.target, drafter, verifier)
  return Group(name, source, drafter, verifiers)


def one_of(verifiers: Sequence[Verifier], index: jax.Array) -> Verifier:
  """The verifier number `index`, chosen at run time; all are `seed_exact` or none is."""

  def verify(rng, layout, tokens, *args):
    def branch(verifier):
      def run():
        # Each draws the numbers that it would draw alone.
        verdict = verifier.verify(copy.copy(rng), layout, tokens, *args)
        drift = jnp.zeros(tokens.shape) if verdict.drift is None else verdict.drift
        return verdict._replace(drift=drift)
      return run
    return jax.lax.switch(index, [branch(verifier) for verifier in verifiers])

  return Verifier(
      verify, exact=all(verifier.exact for verifier in verifiers),
      needs_laws=any(verifier.needs_laws for verifier in verifiers),
      seed_exact=verifiers[0].seed_exact)


class Runs:
  """The decoders of one group, compiled when they are first needed.

  Attributes:
    seconds: spent on compiling so far.
  """

  def __init__(self, bench: Bench, group: Group):
    self._bench, self._group, self._compiled, self.seconds = bench, group, {}, 0.0
    self._number = {name: i for i, name in enumerate(group.verifiers)}

  def __call__(self, name, labels: np.ndarray, keys: jax.Array) -> Decoded:
    """Decodes one batch with the verifier of this name; waits for the result."""
    group, bench = self._group, self._bench
    args = (bench.params, jnp.asarray(labels), keys, bench.warp,
            bench.draft_params.get(group.source), np.int32(self._number[name]))
    if len(labels) not in self._compiled:
      def decode(params, labels, keys, warp, draft_params, index):
        verifier = one_of(list(group.verifiers.values()), index)
        decoder = make_decoder(bench.target, group.build, verifier)
        return decoder(params, labels, keys, warp, draft_params)
      start = time.perf_counter()
      self._compiled[len(labels)] = jax.jit(decode).lower(*args).compile()
      self.seconds += time.perf_counter() - start
    return jax.block_until_ready(self._compiled[len(labels)](*args))


def keys(bench: Bench, count: int, stream: int = 0) -> jax.Array:
  """`[count]` one key per image; stream 0 is that of all decoders, others are `vanilla`'s."""
  root = jax.random.fold_in(jax.random.key(bench.seed), stream)
  return jax.vmap(lambda i: jax.random.fold_in(root, i))(np.arange(count))


def sample(bench: Bench, decode: Callable[[np.ndarray, jax.Array], Decoded], look: Callable,
           sets: int = 1, stream: int = 0) -> Sample:
  """`sets` times the images of all labels, decoded in batches.

  Args:
    bench: what all decoders share.
    decode: `(labels, keys) -> Decoded`.
    look: the function of `viewer`.
    sets: how often.
    stream: see `keys`.
  """
  count, size = sets * len(bench.labels), bench.batch_size
  # The last batch is filled up, because another size would be compiled anew.
  padded = -(-count // size) * size
  labels, row_keys = np.resize(np.tile(bench.labels, sets), padded), keys(bench, padded, stream)
  found = []
  for i in range(0, padded, size):
    decoded = decode(labels[i:i + size], row_keys[i:i + size])
    found.append(jax.device_get((decoded, *look(labels[i:i + size], decoded.tokens))))
  return Sample(*jax.tree.map(lambda *batches: np.concatenate(batches)[:count], *found))


def viewer(bench: Bench) -> Callable[[np.ndarray, jax.Array], tuple]:
  """A jitted function `(labels, tokens) -> (nll, entropy, features)` of a batch."""
  tokenizer = bench.tokenizer

  @jax.jit
  def look(params, tokenizer_params, warp, labels, tokens):
    pixels = vq.decode(tokenizer_params, tokenizer.config, tokens.reshape(-1, *bench.grid))
    return (*likelihood.likelihood(bench.target, params, labels, tokens, warp),
            frechet.features(tokenizer_params, tokenizer.config, pixels))

  return lambda labels, tokens: look(
      bench.params, tokenizer.params, bench.warp, jnp.asarray(labels), tokens)


def reference(bench: Bench, decode: Callable, look: Callable, sets: int) -> Reference:
  """`sets` times the images with `vanilla`, for each of two seeds."""
  first, second = (sample(bench, decode, look, sets, stream) for stream in (1, 2))
  split = lambda x: x.reshape(sets, len(bench.labels), *x.shape[1:])
  law, vocab = frechet.gaussian(first.features), bench.target.vocab_size
  return Reference(
      nll=np.concatenate([split(first.nll), split(second.nll)]), features=law,
      tokens=first.decoded.tokens, frechet_noise=frechet.noise(split(second.features), law),
      unigram_noise=float(np.mean([
          likelihood.unigram_distance(tokens, first.decoded.tokens, vocab)
          for tokens in split(second.decoded.tokens)])))


def seconds(bench: Bench, decodes: Sequence[Callable]) -> np.ndarray:
  """`[decoders, images]` wall-clock at batch 1; the decoders take turns on every image.

  They must have run at batch 1 before, or the time to compile is in it.
  """
  row_keys = keys(bench, bench.timed_images)
  found = np.zeros((len(decodes), bench.timed_images))
  for i in range(bench.timed_images):
    for number, decode in enumerate(decodes):
      start = time.perf_counter()
      decode(bench.labels[i:i + 1], row_keys[i:i + 1])
      found[number, i] = time.perf_counter() - start
  return found
