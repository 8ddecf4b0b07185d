"""Fits a corrector to any target: the trainings of `neighbours` and `local` without a model folder.

`cspd-train` does the same for models of families, in a folder where a stopped training resumes.
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from cspd_jax.core import batches, fields, programs, progress, rows
from cspd_jax.core.contracts import check_part
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp
from cspd_jax.decoding.base import Condition, Params, Target
from cspd_jax.decoding.decoders import corrected, mc_sjd
from cspd_jax.decoding.drafters import Corrector
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.tree import chain
from cspd_jax.generation.parts import Teacher
from cspd_jax.models import local as local_network, neighbours as neighbours_network
from cspd_jax.models.ends import Ends
from cspd_jax.training import (
  corrector as corrector_lib,
  neighbours,
  optimizer as optimizer_lib,
  windows as windows_lib,
)

# `(params, features [..., F]) -> logits [..., V]`, as for `Ends.logits`.
Head = Callable[[Params, jax.Array], jax.Array]

_FEWEST = 32  # Fewer images are no batch to learn from and another one to measure on.


def fit_corrector(
    target: Target, params: Params, condition: Condition, key: jax.Array, *,
    sampling: SamplingParams = SamplingParams(), head: Head | None = None, num_images: int = 1024,
    num_steps: int | None = None, batch_size: int = 64) -> tuple[Corrector, Params]:
  """Fits a corrector to a target, from images that the target samples; for `corrected` windows.

  It needs no other data, and a corrector changes no distribution: one that fits badly only commits
  fewer tokens per forward pass. Without a `head`, it is a `neighbours` network, on the tokens to
  the left and above, fitted in a minute or two after the images are sampled. With it, it is a
  `local` network, which also reads the target's features: better, and slower to fit.

  Args:
    target: the target, of any kind.
    params: its parameters.
    condition: conditions of the sampled images, in turn: examples of those that will be decoded, a
      pytree with a leading axis of rows.
    key: key of the images.
    sampling: sampling options of the images; use the ones that you will decode with.
    head: `(params, features [..., F]) -> logits [..., V]`: how the target computes its logits from
      the features that it returns. None for targets that return none.
    num_images: images to sample, at least 32; an eighth of them, at most 64, are held out.
    num_steps: optimiser steps of each training; None uses the defaults of `cspd-train`. The
      neighbours network may stop earlier.
    batch_size: images that are sampled together.

  Returns:
    The corrector, and its parameters, the `draft_params` of a decoder.

  Raises:
    ValueError: if an argument is out of its range, the target or its head returns a wrong shape,
      rows of the condition are not supported, or `head` is given for a target without features.

  Example:
    corrector, draft_params = fit_corrector(target, params, labels, jax.random.key(0))
    decode = jax.jit(cspd_jax.corrected(target, corrector, window=16))
    decoded = decode(params, condition, jax.random.key(1), SamplingParams(), draft_params)
  """
  check_part('target', target, Target)
  for name, value, least in (('num_images', num_images, _FEWEST), ('batch_size', batch_size, 1),
                             ('num_steps', 2 if num_steps is None else num_steps, 2)):
    fields.check_whole(name, value, f'a whole number, at least {least}', least)
  for name, option in sampling._asdict().items():
    fields.require(np.ndim(option) == 0, name, option, 'one number for all images')
  decoder = mc_sjd(target, min(8, target.num_tokens))
  decoder.check(condition, sampling)
  feature_dim = None if head is None else _feature_dim(target, params, condition, head)
  sampler = _Sampler(target, params, condition, sampling, batch_size)
  tokens = batches.concatenated([
      decoded.tokens for decoded in sampler.decoded(decoder, None, num_images, key)])
  sizes = neighbours_network.NeighboursConfig(
      target.vocab_size, target.num_tokens, target.row_width)
  train = neighbours.NeighboursTrainConfig()
  if num_steps is not None:
    train = dataclasses.replace(
        train, optimizer=optimizer_lib.with_num_steps(train.optimizer, num_steps))
  held_out, tokens = np.split(tokens, [_held_out(num_images)])
  near, _ = neighbours.fit(sizes, train, tokens, held_out)
  fitted = neighbours_network.corrector(sizes)
  if head is None:
    return fitted, near
  assert feature_dim is not None
  return _local(sampler, fitted, near, head, feature_dim, num_images, num_steps, key)


def _held_out(num_images: int) -> int:
  return min(64, num_images // 8)


@dataclasses.dataclass(frozen=True)
class _Sampler:
  """Samples images of a target, its conditions in turn."""

  target: Target
  params: Params
  condition: Condition
  sampling: SamplingParams
  batch_size: int

  def decoded(self, decoder: Decoder | Callable[..., Any], draft_params: Params, count: int,
              key: jax.Array) -> list[Any]:
    """Returns what a decoder, or a recorder of one, returns for batches of `count` images."""
    size = min(self.batch_size, count)
    run: Any = decoder if not isinstance(decoder, Decoder) else programs.jit(
        decoder, label='the sampling of images', short_sums=True)

    def batch(index):
      return run(self.params, self.conditions(index), jax.random.fold_in(key, index[0]),
                 self.sampling, draft_params)

    with progress.bar('sampling') as show:
      result = list(batches.each(batch, count, size, show))
    if not all(np.all(getattr(part, 'valid', True)) for part in result):
      raise ValueError('the target returned NaN, infinity or no possible token for some images, '
                       'which nothing can be learned from; check params with check_target.')
    return result

  def conditions(self, index: np.ndarray) -> Condition:
    """Returns the conditions of the images with these numbers."""
    return batches.select(self.condition, index % rows.count(self.condition))


def _feature_dim(target: Target, params: Params, condition: Condition, head: Head) -> int:
  """Returns the width of the target's features; raises ValueError if `head` does not read them."""
  features = jax.eval_shape(
      lambda params, condition: target.prefill(params, condition, target.num_tokens), params,
      condition)[1]
  if features is None:
    raise ValueError('head is given, but prefill of the target returns no features, which a local '
                     'network reads; return them, or leave head out for a neighbours network.')
  logits = jax.eval_shape(head, params, features)
  expected = (*features.shape[:-1], target.vocab_size)
  if getattr(logits, 'shape', None) != expected:
    raise ValueError(f'head returned {logits!r:.80} for features {features.shape}; it must return '
                     f'logits {expected}.')
  return int(features.shape[-1])


def _local(sampler: _Sampler, fitted: Corrector, near: Params, head: Head, feature_dim: int,
           num_images: int, num_steps: int | None, key: jax.Array) -> tuple[Corrector, Params]:
  """Fits a local network to windows that a neighbours network corrects."""
  target, scale = sampler.target, float(sampler.sampling.guidance_scale)
  steps = lambda config: (
      config if num_steps is None else optimizer_lib.with_num_steps(config, num_steps))
  num_held_out = _held_out(num_images)
  batch = min(corrector_lib.LOCAL_TRAIN.optimizer.batch_size, num_held_out)
  sizes = local_network.LocalConfig(
      target.vocab_size, target.num_tokens, target.row_width, feature_dim=feature_dim)
  recipe = corrector_lib.CorrectorRecipe(
      drafter=sizes, plain=steps(corrector_lib.LOCAL_PLAIN),
      train=dataclasses.replace(
          corrector_lib.LOCAL_TRAIN, guidance_scales=(scale,), optimizer=dataclasses.replace(
              steps(corrector_lib.LOCAL_TRAIN.optimizer), batch_size=batch)),
      num_train_images=num_images - num_held_out, num_held_out_images=num_held_out)
  window = min(32, target.num_tokens)
  record = windows_lib.recorder(corrected(target, fitted, window, 2, chain(window - 1)))
  counts = dict(train=recipe.num_train_images, held_out=num_held_out)
  windows = {split: windows_lib.concatenate(sampler.decoded(
      record, near, count, jax.random.fold_in(key, number)))
      for number, (split, count) in enumerate(counts.items(), start=2**31)}
  ends = Ends(_no_embedding, head, target.vocab_size, None)
  given = corrector_lib.Lessons(
      sampler.params, Teacher(_no_embedding, ends, forced=target.forced),
      warp.drop_inactive(sampler.sampling), windows,
      {split: sampler.conditions(np.arange(count)) for split, count in counts.items()},
      corrector_lib.window_images(windows['train']))
  with tempfile.TemporaryDirectory() as folder:
    params, _ = corrector_lib.learn(
        recipe, given, corrector_lib.init_local(recipe, near), pathlib.Path(folder))
  return (local_network.corrector(sizes, ends), {**params, 'target': sampler.params})


def _no_embedding(*args: Any) -> Any:
  raise AssertionError('A local network reads only the head of its target.')
