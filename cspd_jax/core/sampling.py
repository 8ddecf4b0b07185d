"""Sampling options, one type for models of discrete and of continuous tokens."""

from typing import Any, NamedTuple

import jax
import numpy as np


class SamplingParams(NamedTuple):
  """Sampling options: how a model's output becomes the distribution that is sampled.

  Every field is a scalar or has one value per row, `[B]`; all are run-time values: a new value does
  not require a new compilation. A cut that is not None costs a branch at run time, for which a GPU
  synchronises with its host; one that is None costs nothing.

  Models of continuous tokens have the first two, and refuse values of the others but None and the
  defaults. There, `guidance_scale` is that at the end of an image ('linear') or throughout
  ('constant'), see `continuous.schedule.guidance_scale`, and `temperature` multiplies the standard
  deviation of every kernel, 0 makes the kernels deterministic; the first state of the chain is not
  scaled.

  Attributes:
    guidance_scale: `g` in `u + g (c - u)` with conditional and unconditional logits `c` and `u`; 1
      is no guidance. Where `c` or `u` is -inf the logit is `c`: a token that is impossible under
      the condition remains impossible, whatever its unconditional logit.
    temperature: divides the guided logits; 0 is greedy decoding, and so is everything below 2^-126,
      the smallest normal number of float32. It is a row's own, whatever the other rows have.
    top_k: retains the `k` largest logits (and ties with the last of them). 0 and None retain all;
      with None, the temperature must not be 0.
    top_p: retains the most probable tokens up to this mass, including the one that crosses it. 1
      and None retain all.
    guidance_interval: LlamaGen's `cfg_interval` `i`: the first `i + 2` tokens of an image are
      guided, the others use the conditional logits alone; -1 guides all.
    min_p: retains the tokens that are at least this share as probable as the most probable one
      (arXiv:2407.01082). 0 and None retain all.
  """

  guidance_scale: jax.typing.ArrayLike = 1.0
  temperature: jax.typing.ArrayLike = 1.0
  top_k: jax.typing.ArrayLike | None = 0
  top_p: jax.typing.ArrayLike | None = 1.0
  guidance_interval: jax.typing.ArrayLike = -1
  min_p: jax.typing.ArrayLike | None = 0.0


def is_guided(sampling: Any) -> bool:
  """Returns whether any image is guided, so that the program needs the null condition."""
  return bool(np.any(np.asarray(sampling.guidance_scale) != 1))
