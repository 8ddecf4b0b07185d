"""The decoders of continuous tokens by name, for programs that run several of them."""

from typing import NamedTuple

import numpy as np

from cspd_jax.continuous import cspd
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.exact_head import exact_head
from cspd_jax.continuous.exact_path import exact_path
from cspd_jax.continuous.sample import mar
from cspd_jax.continuous.sample import parallel
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.decoding.decoders import Named


# `guarantee` is one or two words on how near to the decoder's own distribution its samples are; the
# decoder's `distribution` and `guarantee` say it in full.
DECODERS: dict[str, Named] = {
    'mar': Named('exact', None, "MAR's own sampler, the baseline"),
    'parallel': Named('exact', None, 'the target alone with the passes of cspd_released'),
    'exact_head': Named('exact', None, 'mar with speculation inside the diffusion head'),
    'exact_path': Named('exact', 'model', 'drafts by a smaller model and the path test'),
    'cspd_paper': Named('biased', 'model', 'Algorithm 1 of CSpD as printed'),
    'cspd_released': Named('none', 'model', "the control flow of CSpD's published code"),
    'cspd_relaxed': Named('W2 bound', 'model', 'the same blocks with a plain test'),
}


class Options(NamedTuple):
  """What decoders may be asked for; those it does not concern ignore a field.

  Attributes:
    num_iter: autoregressive steps; None for one per token, as all with a draft model need.
    schedule: the levels of the heads; None for 100.
    guidance: one of `schedule.GUIDANCE_SCHEDULES`.
    head_length: kernels per head call of `exact_head`.
    rho: `[num_levels]` the blend of its drafter; None for one that suits most heads.
    path_length: drafts per round of `exact_path` and `cspd_paper`, which take one pass of
      the target each.
    split: first kernel of the tested path of `exact_path`; None for its default.
    length: drafts per block of `cspd_released` and `cspd_relaxed`.
    prefix_share: share of tokens that the target fixes alone before drafts.
    aligned: whether the draft model uses the target's noise.
    eta: of the tests of `exact_head` and `exact_path`; None for their defaults.
    max_trials: proposals per residual draw at most; None for the defaults.
    kappa: tolerance of `cspd_released` and `cspd_relaxed`.
    block_context: whether these two verify without seeing the block's own drafts.
    sigma: of `cspd_released`, as are the following.
    zero_fallback: see `cspd.cspd_released`.
    guidance_of_last: see `cspd.cspd_released`.
    keep_after_reject: see `cspd.cspd_released`.
  """

  num_iter: int | None = None
  schedule: Schedule | None = None
  guidance: str = 'linear'
  head_length: int = 8
  rho: np.ndarray | None = None
  path_length: int = 2
  split: int | None = None
  length: int = 8
  prefix_share: float = 0.15
  aligned: bool = True
  eta: float | None = None
  max_trials: int | None = None
  kappa: float = 42.0
  block_context: bool = True
  sigma: str = 'inverted'
  zero_fallback: bool = True
  guidance_of_last: bool = True
  keep_after_reject: bool = True


def build(name: str, target: Target, *, draft: Target | None = None,
          options: Options = Options()):
  """The decoder `name`.

  Args:
    name: a key of `DECODERS`.
    target: the model.
    draft: the draft model, for those that need one.
    options: what to ask for.

  Raises:
    ValueError: if there is no such decoder, its draft model is missing, or an option is
      out of range.
  """
  if name not in DECODERS:
    raise ValueError(f'name is {name!r}; it must be one of: {", ".join(DECODERS)}.')
  if DECODERS[name].drafts and draft is None:
    raise ValueError(f'draft is None, but {name} needs a draft model.')
  o = options
  shared = dict(schedule=o.schedule, guidance=o.guidance)
  drafted = dict(shared, prefix_share=o.prefix_share, aligned=o.aligned, num_iter=o.num_iter)
  blocks = dict(drafted, kappa=o.kappa, block_context=o.block_context)
  eta = {} if o.eta is None else dict(eta=o.eta)
  trials = {} if o.max_trials is None else dict(max_trials=o.max_trials)
  return {
      'mar': lambda: mar(target, o.num_iter, **shared),
      'parallel': lambda: parallel(target, o.length, prefix_share=o.prefix_share, **shared),
      'exact_head': lambda: exact_head(
          target, o.head_length, o.num_iter, rho=o.rho, **eta, **trials, **shared),
      'exact_path': lambda: exact_path(
          target, draft, o.path_length, split=o.split, **eta, **trials, **drafted),
      'cspd_paper': lambda: cspd.cspd_paper(target, draft, o.path_length, **trials, **drafted),
      'cspd_released': lambda: cspd.cspd_released(
          target, draft, o.length, sigma=o.sigma, zero_fallback=o.zero_fallback,
          guidance_of_last=o.guidance_of_last, keep_after_reject=o.keep_after_reject,
          **trials, **blocks),
      'cspd_relaxed': lambda: cspd.cspd_relaxed(target, draft, o.length, **blocks),
  }[name]()
