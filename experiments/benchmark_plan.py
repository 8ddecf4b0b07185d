"""What `experiments.benchmark` measures: models, pairs and curves, all checked beforehand."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import cspd_jax
from cspd_jax.core import checkpoint
from cspd_jax.decoding.base import Drafter, Target, Verifier
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.models import llamagen
from cspd_jax.models import vq
from configs import demo
from experiments import benchmark_parts as parts_lib
from experiments import generation

_SUITES = ('pairs', 'curves')


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


class Group(NamedTuple):
  """A drafter with verifiers that one compilation can hold.

  Attributes:
    name: the drafter's name.
    source: a key of `decoders.SOURCES`, or None.
    drafter: the drafter itself.
    verifiers: by name, or by method and value for the points of curves.
  """

  name: str
  source: str | None
  drafter: Drafter
  verifiers: dict[str, Verifier]


class Plan(NamedTuple):
  """What is measured.

  Attributes:
    bench: what all decoders share.
    pairs: groups of the table.
    curves: groups of the curves.
    left_out: drafters, or drafters with verifiers, that cannot work, with the reason.
  """

  bench: Bench
  pairs: list[Group]
  curves: list[Group]
  left_out: dict[str, str]


def make(config: Any) -> Plan:
  """Loads the models and checks everything.

  Args:
    config: has the fields of `configs/benchmark.py`.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  suites = _names(config, 'suite', _SUITES, _SUITES, {})
  bench, lacking = _prepare(config)
  drafters, verifiers = list(parts_lib.DRAFTERS), list(parts_lib.VERIFIERS)
  left_out = dict(lacking)
  pairs, curves = [], []
  if 'pairs' in suites:
    pairs, refused = _pairs(
        bench, _names(config, 'drafter', drafters, drafters, lacking),
        _names(config, 'verifier', verifiers, verifiers, {}))
    left_out |= {f'{drafter} + {verifier}': why for (drafter, verifier), why in refused.items()}
  if 'curves' in suites:
    curves = [_curves(bench, name) for name in _names(
        config, 'curve_drafter', drafters, parts_lib.CURVE_DRAFTERS, lacking)]
  if not pairs and not curves:
    raise ValueError(f'nothing can run: {"; ".join(f"{k}: {v}" for k, v in left_out.items())}')
  return Plan(bench, pairs, curves, left_out)


def _prepare(config: Any) -> tuple[Bench, dict[str, str]]:
  """What all decoders share, and drafters that lack their model, with the reason."""
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
      warp=job.sampling, seed=config.seed, batch_size=min(config.batch_size, config.num_images),
      timed_images=min(config.timed_images, config.num_images))
  return bench, lacking


def _pairs(bench: Bench, drafters: Sequence[str],
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


def _curves(bench: Bench, name: str) -> Group:
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


def _names(config: Any, option: str, known: Sequence[str], everything: Sequence[str],
           lacking: Mapping[str, str]) -> list[str]:
  """What an option lists.

  Args:
    config: has the option.
    option: its name.
    known: what may be listed.
    everything: what 'all' stands for, apart from what is lacking.
    lacking: what cannot run, with the reason.

  Raises:
    ValueError: for an unknown name, or one that cannot run.
  """
  text = getattr(config, option)
  if text.strip() == 'all':
    return [name for name in everything if name not in lacking]
  chosen = list(dict.fromkeys(part.strip() for part in text.split(',') if part.strip()))
  if not chosen or any(name not in known for name in chosen):
    raise ValueError(
        f'{option} is {text!r}; it must be all or, separated by commas, any of {", ".join(known)}.')
  if wrong := [name for name in chosen if name in lacking]:
    raise ValueError(f'{option} {wrong[0]} cannot run: {lacking[wrong[0]]}.')
  return chosen
