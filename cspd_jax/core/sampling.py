"""Sampling options: one type for models of both kinds of tokens, and one table of what they may be.

The table feeds the checks of decoders, the flags of commands, the fields of the server's requests
with their description, and the pages.
"""

import dataclasses
import functools
import numbers
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.core import fields, rows


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


class Option(NamedTuple):
  """A sampling option: the numbers that it may be, and in words what it does.

  `least` itself is excluded if `above`. Whole numbers are those whose default is whole.
  """

  name: str
  least: float
  most: float
  words: str  # The numbers, as the end of "it must be".
  about: str
  above: bool = False

  @property
  def is_whole(self) -> bool:
    """Whether it is a whole number."""
    return isinstance(SamplingParams._field_defaults[self.name], int)

  @property
  def limit(self) -> rows.Limit:
    """Which values are valid, of NumPy's and traced arrays, and in words."""
    def is_valid(x: Any) -> Any:
      if self.is_whole:  # Its dtype may not represent the largest number.
        return (x >= self.least) & (x == x // 1)
      return ((x > self.least) if self.above else (x >= self.least)) & (x <= self.most)
    return is_valid, self.words


MOST_WHOLE = 2**31 - 1  # Of whole numbers programs have 32 bits.
# float32 has the reciprocals of the numbers from its inverse to this one. Rounded to zero or
# infinity, as accelerators do with reciprocals beyond, a temperature would let all tokens tie.
LARGEST = 2.0**126

DISCRETE = {option.name: option for option in (
    # What a larger one multiplies would soon exceed float32.
    Option('guidance_scale', -1e30, 1e30, 'finite, from -1e30 to 1e30',
           'of classifier-free guidance, elsewhere `cfg_scale`; 1 turns it off.'),
    Option('temperature', 0, LARGEST,
           f'from 0 (greedy) to {LARGEST:.2g}, which float32 can still divide by',
           'divides the logits of discrete tokens, 0 is greedy; multiplies the noise of every '
           'denoising kernel of continuous tokens.'),
    Option('top_k', 0, MOST_WHOLE, f'a whole number from 0 (retains all) to {MOST_WHOLE}',
           'keeps the k most probable tokens; 0 keeps all. Discrete tokens only.'),
    Option('top_p', 0, 1, 'above 0 and at most 1 (1 retains all)',
           'keeps the most probable tokens up to this mass; 1 keeps all. Discrete tokens only.',
           above=True),
    Option('guidance_interval', -1, MOST_WHOLE,
           f'a whole number from -1 (guides all tokens) to {MOST_WHOLE}',
           "LlamaGen's `cfg_interval`: tokens after number `guidance_interval + 1` are drawn "
           'without guidance; -1 guides all. Discrete tokens only.'),
    Option('min_p', 0, 1, 'from 0 to 1 (0 retains all)',
           'keeps the tokens that are at least this share as probable as the most probable one; 0 '
           'keeps all. Discrete tokens only.'))}
CONTINUOUS = {
    'guidance_scale': DISCRETE['guidance_scale'],
    'temperature': DISCRETE['temperature']._replace(most=1e37, words='from 0 to 1e37')}
CUTS = ('top_k', 'top_p', 'min_p')  # The options that may be None.
# Of the guidance scale of a target with one stream.
_IS_UNGUIDED: rows.Limit = (
    lambda x: x == 1, '1, because the target has no null condition; build the target with '
    'guidance, or leave guidance_scale out')


def check(sampling: Any, options: Mapping[str, Option], num_streams: int,
          num_rows: int | None = None, temperature: Sequence[rows.Limit] = ()) -> jax.Array:
  """Returns whether all values of a row `[B]` are in range, as `rows.check_options` does.

  `options` are those of the model's tokens, and others must have their defaults. `temperature` are
  further limits of it.
  """
  fields.require(isinstance(sampling, SamplingParams), 'sampling', sampling,
                 'a cspd_jax.SamplingParams, such as SamplingParams(temperature=0.9)')
  limits: dict[str, list[rows.Limit]] = {}
  for name, default in SamplingParams._field_defaults.items():
    if name in options and not (name in CUTS and getattr(sampling, name) is None):
      limits[name] = [options[name].limit]
    elif name not in options and getattr(sampling, name) is not None:
      limits[name] = [(functools.partial(operator.eq, default), f'{default}, because continuous '
                       'tokens have no such option; leave it out')]
  if num_streams == 1:
    limits['guidance_scale'].append(_IS_UNGUIDED)
  limits['temperature'] += temperature
  return rows.check_options(sampling._asdict(), limits, num_rows)


def check_flags(config: Any, **ranges: fields.Range) -> None:
  """Checks every field of a dataclass as `fields.check` does, the options by their table."""
  for name, option in DISCRETE.items():
    value = getattr(config, name)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
      holds, words = option.limit
      fields.require(bool(holds(value)) and value <= option.most, name, value, words)
  fields.check(config, **ranges, **{name: (option.least, option.most)
                                    for name, option in DISCRETE.items()})


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingFlags:
  __doc__ = '\n  '.join([
      'Sampling options of a configuration; None leaves one to the model.\n\nAttributes:',
      *(f'{name}: {option.about}' for name, option in DISCRETE.items())])

  guidance_scale: float | None = None
  temperature: float | None = None
  top_k: int | None = None
  top_p: float | None = None
  guidance_interval: int | None = None
  min_p: float | None = None

  def __post_init__(self):
    check_flags(self)


def is_guided(sampling: Any) -> bool:
  """Returns whether any image is guided, so that the program needs the null condition."""
  return bool(np.any(np.asarray(sampling.guidance_scale) != 1))
