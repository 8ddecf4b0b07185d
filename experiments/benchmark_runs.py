"""Decoding for `experiments.benchmark`: samples and times.

One compilation serves all verifiers of a drafter: the decoder holds them behind a switch and
is told by a number which to use. Compiling each alone would take most of the time. The switch
makes no difference to the tokens, and to the times on a CPU less than 5 %.
"""

import copy
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding.base import Decoded, Verifier
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.metrics import frechet
from cspd_jax.metrics import likelihood
from cspd_jax.models import vq
from experiments.benchmark_plan import Bench, Group


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


def one_of(verifiers: Sequence[Verifier], index: jax.Array) -> Verifier:
  """The verifier number `index`, chosen at run time; all are `seed_exact` or none is."""

  def verify(rng, layout, tokens, *args):
    def branch(verifier):
      def run():
        # Each draws the numbers that it would draw alone.
        verdict = verifier.verify(copy.copy(rng), layout, tokens, *args)
        tv_bound = jnp.zeros(tokens.shape) if verdict.tv_bound is None else verdict.tv_bound
        return verdict._replace(tv_bound=tv_bound)
      return run
    return jax.lax.switch(index, [branch(verifier) for verifier in verifiers])

  return Verifier(
      verify, exact=all(verifier.exact for verifier in verifiers),
      needs_probs=any(verifier.needs_probs for verifier in verifiers),
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
        decoder = make_decoder(bench.target, group.drafter, verifier)
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
  gaussian, vocab = frechet.gaussian(first.features), bench.target.vocab_size
  return Reference(
      nll=np.concatenate([split(first.nll), split(second.nll)]), features=gaussian,
      tokens=first.decoded.tokens, frechet_noise=frechet.noise(split(second.features), gaussian),
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
