"""What a row of a sweep can measure in addition to the metrics of its images.

overhead  the milliseconds per round of the whole jitted loop at batch 1, those of as many bare
          forward passes, and the share of the rest (drafting, verifying, committing; with a draft
          model its passes too)
queue     the rounds and times of images in rows that start the next image when one is complete, and
          in batches, each of which runs until its slowest row is complete, and the share of equal
          images; the rounds of an image include its prefill, those of batches and of the queue are
          forward passes over all rows without prefills
rounding  how often images of seed-exact decoders differ from images of `vanilla`, and of
          `vanilla(window=N)` with as many tokens per forward pass, which rounds alike; and how many
          log-probabilities differ in a bit from those in its images. A different token changes the
          context of all later tokens, so more differ than rounding affects
head      of continuous tokens, passes of the transformer and calls and states of the head, and the
          share of old tokens and kernels that are kept
int8      the distance of int8 targets from the original, of matrices, of the cache and of both,
          along its images: negative log-likelihoods (NLL in nats per token) and relative entropy
          of every token, and the total variation, which bounds the probability that the two draw
          different tokens; a row for each
asked     what images of scenes of emoji show of what their captions ask for
ground    tokens per forward pass inside things and on plain ground, of scenes of emoji
entropy   the mean entropy of the distributions that tokens are drawn from, along the images of one
          token at a time; its expectation is the same for all exact decoders
variety   how different images are: the share of other tokens of two images of one prompt, and of
          an image and the nearest of the scenes that `experiments.scenes --num_tokenised` writes

Times are medians of alternating runs.
"""

import collections
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax import metrics as metrics_lib
from cspd_jax.cli import groups, inputs
from cspd_jax.continuous import noise
from cspd_jax.core import programs
from cspd_jax.core.batches import concatenated
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.sampling import is_guided
from cspd_jax.decoding.tree import Budget
from cspd_jax.files import npz
from cspd_jax.generation import decode, memory
from cspd_jax.generation.model import Model
from cspd_jax.measure import timing
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import acceptance, base, likelihood, scenes

_REPEATS = 3  # Timed runs.
_OF_GROUND = (scenes.INSIDE, scenes.ON_GROUND, scenes.GROUND_SHARE)
# Tokens of training scenes of emoji, in the default folder of `experiments.scenes`.
_SCENES = pathlib.Path('runs/scenes/tokens.npz')
_NO_SCENES = 'write it by `python -m experiments.scenes --num_tokenised=19200`'
# What is stored as int8, by the options of `load`.
_INT8 = {'matrices': dict(quantize='int8'), 'cache': dict(cache_dtype='int8'),
         'both': dict(quantize='int8', cache_dtype='int8')}


class Point(NamedTuple):
  """A decoder, a model and options, of which a row is measured.

  Attributes:
    bench: a model, its images and their sampling options.
    decoder: the complete specification of a decoder.
    table: title of the table that has the row.
    names: entries of the row that say which one it is, such as `window`.
    loading: how the model is loaded.
    raster: whether a masked model draws its tokens in raster order.
  """

  bench: Bench
  decoder: str
  table: str
  names: Mapping[str, Any]
  loading: groups.LoadFlags
  raster: bool = False


class Measure(NamedTuple):
  """Something to measure of a decoder.

  Attributes:
    columns: format strings by heading.
    rows: entries of the row of a point; several if it has as many rows.
    check: raises ValueError for a point without the property.
  """

  columns: Mapping[str, str]
  rows: Callable[[Point], list[dict[str, Any]]]
  check: Callable[[Point], None] = lambda point: None


def _overhead(point: Point) -> list[dict[str, Any]]:
  bench, text = point.bench, point.decoder
  decoder, whole = bench.check(text), bench.run(text)
  rounds = np.int32(bench.sample(text).decoded.rounds[0] - 1)
  condition = bench.condition(1)
  forward = programs.compiled(
      timing.forward_passes(decoder.target, decoder.drafter.tree), bench.model.params, condition,
      rounds).run
  times = timing.measure(
      {'whole': whole, 'forward': lambda: forward(bench.model.params, condition, rounds)}, _REPEATS)
  ms, forward_ms = (1e3 * times[name].median / int(rounds) for name in ('whole', 'forward'))
  return [dict(ms_per_round=ms, ms_of_forward_pass=forward_ms, rest=1 - forward_ms / ms)]


def _check_static(point: Point) -> None:
  _check_discrete(point)
  if isinstance(point.bench.check(point.decoder).drafter.tree, Budget):
    raise ValueError('its tree is built at run time, so its forward passes cannot be run alone')


def _queue(point: Point) -> list[dict[str, Any]]:
  bench, text, results = point.bench, point.decoder, dict[str, Any]()
  size, count = bench.batch_size, len(bench.prompts)
  runs = {'batches': bench.run(text, size, count // size), 'queue': bench.queue(text, size)}

  def run(name):
    results[name] = runs[name]()
    return results[name]

  timed = timing.measure({name: functools.partial(run, name) for name in runs}, _REPEATS, warmup=0)
  seconds = {name: times.median / count for name, times in timed.items()}
  expected = concatenated(jax.device_get(results['batches']))
  order = np.argsort(np.concatenate([finished.image for finished in results['queue']]))
  tokens = np.concatenate([finished.decoded.tokens for finished in results['queue']])[order]
  return [dict(
      rounds=float(expected.rounds.mean()), most_rounds=int(expected.rounds.max()),
      rounds_in_batches=int((expected.rounds.reshape(-1, size).max(axis=1) - 1).sum()),
      rounds_in_queue=sum(int(finished.rounds) for finished in results['queue']),
      seconds_in_batches=seconds['batches'], seconds_in_queue=seconds['queue'],
      speedup=seconds['batches'] / seconds['queue'],
      same_images=float((tokens == expected.tokens).all(axis=1).mean()))]


def _check_batches(point: Point) -> None:
  _check_discrete(point)
  size, count = point.bench.batch_size, len(point.bench.prompts)
  if count % size or count == size:
    raise ValueError(f'batch_size is {size} and there are {count} images; the number of images '
                     'must be a multiple of batch_size, and at least two batches')


def _rounding(point: Point) -> list[dict[str, Any]]:
  bench, text, same_shapes = point.bench, point.decoder, point.bench.same_shapes(point.decoder)
  sample, window = bench.sample(text), bench.sample(same_shapes)
  differ, differ_in_window = (
      sample.tokens != other.tokens for other in (bench.sample(bench.baseline), window))
  return [dict(
      dtype=str(jax.tree.leaves(bench.model.params)[0].dtype), batch_size=bench.batch_size,
      window=bench.tokens_per_round(text),
      log_probs_in_window=float(np.mean(sample.decoded.log_probs != window.decoded.log_probs)),
      same_shapes=same_shapes, num_tokens=sample.tokens.size,
      guarantee=bench.images(text).sampler.guarantee,  # Now that both programs are compiled.
      images=float(np.mean(differ.any(axis=1))), tokens=float(np.mean(differ)),
      images_in_window=float(np.mean(differ_in_window.any(axis=1))),
      tokens_in_window=float(np.mean(differ_in_window)))]


def _check_seed_exact(point: Point) -> None:
  _check_discrete(point)
  guarantee = point.bench.check(point.decoder).guarantee
  if not guarantee.satisfies(Guarantee.UP_TO_ROUNDING):
    raise ValueError(f'it is {guarantee}, so its images differ from those of vanilla by chance')
  point.bench.check(point.bench.same_shapes(point.decoder))


def _head(point: Point) -> list[dict[str, Any]]:
  if point.raster:
    images = point.bench.images(point.decoder)
    decoder: Any = dataclasses.replace(images.sampler.decoder, orders=noise.raster_orders)
    decoded = decode.decoded(dataclasses.replace(images, sampler=dataclasses.replace(
        images.sampler, decoder=decoder, function=decoder, names=(f'{point.decoder}, raster',))))
  else:
    decoded = point.bench.sample(point.decoder).decoded
  count = decoded.tokens.shape[0] * decoded.tokens.shape[1]
  calls, rounds = decoded.costs.head_calls.sum(), decoded.rounds.sum()
  share = lambda tests: float(tests.accepted.sum() / tests.tested.sum()) if (
      tests is not None and tests.tested.any()) else None
  return [dict(
      **base.entries(dict(tokens_per_pass=acceptance.tokens_per_pass(decoded))),
      passes_per_token=float(decoded.costs.target_passes.sum() / count),
      tokens_kept=share(decoded.tests), kernels_kept=share(decoded.kernels),
      calls_per_round=float(calls / rounds), calls_per_token=float(calls / count),
      states_per_token=float(decoded.costs.head_rows.sum() / count))]


def _check_continuous(point: Point) -> None:
  _check_tokens(point, 'continuous')
  if point.raster and point.bench.model.target(guided=True).cached is not None:
    raise ValueError('a causal model draws its tokens in raster order anyway')


def _int8(point: Point) -> list[dict[str, Any]]:
  model, bench, rows = point.bench.model, point.bench, []
  sample, guided = bench.sample(point.decoder), is_guided(bench.sampling)
  for name in _INT8:
    other = _int8_form(point.loading, name)
    distance = programs.jit(functools.partial(
        likelihood.distance, model.target(guided=guided), other=other.target(guided=guided)))
    found = sample.batched(functools.partial(distance, model.params, other.params))
    rows.append(dict(
        int8=name, mib=memory.size(model.params) / 2**20,
        other_mib=memory.size(other.params) / 2**20, cache_mib=_cache_mib(model, bench),
        other_cache_mib=_cache_mib(other, bench),
        **base.finite(dict(
            nll=np.mean(found.nll), other_nll=np.mean(found.other_nll),
            total_variation=np.mean(found.total_variation), largest=np.max(found.largest))),
        **base.entries(dict(relative_entropy=base.mean(found.relative_entropy)))))
  return rows


@functools.cache
def _int8_form(loading: groups.LoadFlags, name: str) -> Model:
  return inputs.model(dataclasses.replace(loading, **_INT8[name]), one_group=inputs.MEASURED)


def _cache_mib(model: Model, bench: Bench) -> float:
  target = model.target(guided=is_guided(bench.sampling))
  return memory.cache_size(target, model.params, bench.condition(1), target.num_tokens) / 2**20


def _check_no_int8(point: Point) -> None:
  _check_discrete(point)
  for name in _INT8['both']:
    if (value := getattr(point.loading, name)) is not None:
      raise ValueError(f'{name} is {value!r}; the model is compared with its own int8 forms, so '
                       f'leave {name} out')
  if len(point.bench.prompts) < 2:
    raise ValueError('num_images is 1; it must be at least 2, for a standard error')


def _entropy(point: Point) -> list[dict[str, Any]]:
  bench = point.bench
  return [dict(entropy=float(np.mean(likelihood.measured(
      bench.sample(bench.baseline), bench.model).entropy)))]


def _variety(point: Point) -> list[dict[str, Any]]:
  tokens, prompts = point.bench.sample(point.decoder).tokens, point.bench.prompts
  drawn = _tokens_of_scenes(_SCENES)
  nearest = np.array([np.mean(drawn != image, axis=1).min() for image in tokens])
  by_prompt = collections.defaultdict(list)
  for prompt, image in zip(prompts, tokens, strict=True):
    by_prompt[prompt].append(image)
  pairs = np.array([np.mean([np.mean(a != b) for a, b in itertools.combinations(images, 2)])
                    for images in by_prompt.values() if len(images) > 1])
  return [base.entries(dict(
      variety=base.mean(pairs) if len(pairs) else base.UNKNOWN, from_scenes=base.mean(nearest)))]


@functools.cache
def _tokens_of_scenes(path: pathlib.Path) -> np.ndarray:
  return npz.arrays(path, _NO_SCENES, ('tokens',))['tokens']


def _check_scenes(point: Point) -> None:
  _check_discrete(point)
  length, own = _tokens_of_scenes(_SCENES).shape[1], point.bench.model.num_tokens
  if length != own:
    raise ValueError(f'model {point.bench.model.name} draws {own} tokens, and the scenes of '
                     f'{_SCENES} have {length}; use emoji')


def _check_tokens(point: Point, tokens: str) -> None:
  if (own := point.bench.model.table.tokens) != tokens:
    raise ValueError(f'model {point.bench.model.name} has {own} tokens; give one whose tokens are '
                     f'{tokens}')


_check_discrete = functools.partial(_check_tokens, tokens='discrete')


def _of_sample(measured: Callable[[base.Sample, Model], dict[str, base.Value]]
               ) -> Callable[[Point], list[dict[str, Any]]]:
  """Returns the `rows` of a measure whose values are computed from the images of a decoder."""
  return lambda point: [base.entries(measured(
      point.bench.sample(point.decoder), point.bench.model))]


MEASURES = {
    'overhead': Measure(
        {'ms/round': '{ms_per_round:.2f}', 'forward': '{ms_of_forward_pass:.2f}',
         'rest': '{rest:.1%}'}, _overhead, _check_static),
    'queue': Measure(
        {'rounds of an image': '{rounds:.1f}', 'the most': '{most_rounds}',
         'batches: rounds': '{rounds_in_batches}', 'queue: rounds': '{rounds_in_queue}',
         'batches: s/image': '{seconds_in_batches:.4f}',
         'queue: s/image': '{seconds_in_queue:.4f}', 'speed-up': '{speedup:.2f}x',
         'same images': '{same_images:.0%}'}, _queue, _check_batches),
    'rounding': Measure(
        {'dtype': '{dtype}', "images not vanilla's": '{images:.2%}',
         "tokens not vanilla's": '{tokens:.3%}', 'in its shapes': '{same_shapes}',
         'images not its': '{images_in_window:.2%}', 'tokens not its': '{tokens_in_window:.3%}',
         'log-probabilities not its': '{log_probs_in_window:.3%}'}, _rounding, _check_seed_exact),
    'head': Measure(
        {'tokens per round': '{tokens_per_pass:.2f}', '+-': '{tokens_per_pass_error:.2f}',
         'passes per token': '{passes_per_token:.2f}', 'tokens kept': '{tokens_kept:.0%}',
         'kernels kept': '{kernels_kept:.0%}', 'head calls per round': '{calls_per_round:.1f}',
         'per token': '{calls_per_token:.1f}', 'head states per token': '{states_per_token:.0f}'},
        _head, _check_continuous),
    'int8': Measure(
        {'int8': '{int8}', 'NLL': '{nll:.4f}', 'NLL of int8': '{other_nll:.4f}',
         'relative entropy': '{relative_entropy:.6f} +- {relative_entropy_error:.6f}',
         'total variation': '{total_variation:.4f}', 'largest': '{largest:.3f}',
         'MiB': '{mib:.1f}', 'MiB of int8': '{other_mib:.1f}', 'cache MiB': '{cache_mib:.1f}',
         'of int8': '{other_cache_mib:.1f}'}, _int8, _check_no_int8),
    'asked': Measure(
        {kind: f'{{{kind}:.3f}} +- {{{kind}_error:.3f}}' for kind in (
            *scenes.KINDS, 'all', 'asked')}, _of_sample(scenes.sample_scores)),
    'ground': Measure(
        metrics_lib.columns(_OF_GROUND, errors=True),
        _of_sample(functools.partial(metrics_lib.measure, _OF_GROUND)), _check_discrete),
    'entropy': Measure({'entropy': '{entropy:.3g}'}, _entropy, _check_discrete),
    'variety': Measure(
        {'other tokens in two images': '{variety:.3f} +- {variety_error:.3f}',
         'from the nearest scene': '{from_scenes:.3f} +- {from_scenes_error:.3f}'},
        _variety, _check_scenes)}
