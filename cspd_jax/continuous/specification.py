"""Specifications of decoders of continuous tokens, from a parsed value to a decoder; their table.

A specification (`core.spec`) is a name with parameters, such as `exact_head(kernels_per_call=8)`
or `cspd_released(block_length=8, kappa=42.0)`. The parameters, their defaults and their types are
those of the function of that name; what text cannot hold, such as a draft model, comes with
`Resources`.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.cspd import cspd_paper, cspd_relaxed, cspd_released
from cspd_jax.continuous.decoders import exact_head, exact_path, mar, parallel
from cspd_jax.continuous.loop import Decoder
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.core import binding
from cspd_jax.core.spec import Part, Spec, parse


class Resources(NamedTuple):
  """The parts of a decoder that no text can hold.

  Attributes:
    draft: the draft model.
    rho: returns the blend of the head's drafter, `[num_levels]`, that was fitted to the target at
      the levels of a schedule; it, or its result, is None for one that suits most heads.
  """

  draft: Target | None = None
  rho: Callable[[Schedule], np.ndarray | None] | None = None


class DecoderEntry(NamedTuple):
  """A named decoder.

  Attributes:
    build: `(target, ...) -> Decoder`.
    summary: one line for tables.
  """

  build: Callable[..., Decoder]
  summary: str

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that a text can give."""
    return binding.parameters(self.build, {Schedule})

  def accepts(self, name: str) -> bool:
    """Whether `build` has a parameter, which a text may give or not."""
    return name in inspect.signature(self.build).parameters


DECODERS: dict[str, DecoderEntry] = {entry.build.__name__: entry for entry in (
    DecoderEntry(mar, "MAR's own sampler, the baseline"),
    DecoderEntry(parallel, 'the target alone with the passes of cspd_released'),
    DecoderEntry(exact_head, 'mar with speculation inside the diffusion head'),
    DecoderEntry(exact_path, 'drafts by a smaller model and the path test'),
    DecoderEntry(cspd_paper, 'Algorithm 1 of CSpD as printed'),
    DecoderEntry(cspd_released, "the control flow of CSpD's published code"),
    DecoderEntry(cspd_relaxed, 'the same blocks with a plain test'),
)}


def build(spec: str | Spec, target: Target, resources: Resources = Resources()) -> Decoder:
  """Builds the decoder of a specification.

  Args:
    spec: a specification or its text.
    target: the model.
    resources: the parts that no text can hold.

  Raises:
    ValueError: if there is no such decoder, its draft model is missing, or a parameter is
      unknown or out of range.
  """
  part = _part(spec)
  entry = DECODERS[part.name]
  allowed = entry.parameters
  arguments = binding.bind(part, allowed, {
      Schedule: binding.Converter('the number of levels', _schedule)})
  if entry.accepts('draft'):
    if resources.draft is None:
      raise ValueError(f'{part.name} needs a draft model, and there is none; give '
                       'Resources(draft=...).')
    arguments['draft'] = resources.draft
  if resources.rho is not None and entry.accepts('rho'):
    schedule = arguments.get('schedule', allowed['schedule'].default)
    arguments['rho'] = resources.rho(schedule_lib.of(schedule))
  return entry.build(target, **arguments)


def complete(spec: str | Spec, **defaults: Any) -> Spec:
  """Fills in parameters where a specification leaves them open.

  Args:
    spec: a specification or its text.
    **defaults: parameters by name; those that are None, or that the decoder does not have, are
      left out.

  Raises:
    ValueError: if there is no such decoder, or it has no such parameter.
  """
  spec, allowed, part = parse(spec), parameters(spec), _part(spec)
  return spec.add({name: value for name, value in defaults.items()
                   if name in allowed and name not in part.arguments and value is not None})


def parameters(spec: str | Spec) -> dict[str, inspect.Parameter]:
  """Returns the parameters that a specification may have.

  Raises:
    ValueError: if there is no such decoder.
  """
  return DECODERS[_part(spec).name].parameters


def needs(spec: str | Spec) -> str | None:
  """Returns 'model' if the decoder of a specification has a draft model, else None."""
  return 'model' if DECODERS[_part(spec).name].accepts('draft') else None


def guarantee(decoder: Decoder) -> str:
  """Returns how near a decoder's samples are to its own `distribution`, in a word or two.

  Returns:
    'exact'. 'biased': exact for some models only. 'W2 bound': the error of every token is bounded.
    'none'. `Decoder.guarantee` says it in full.
  """
  verifier = decoder.verifier
  if verifier.exact:
    return 'exact'
  if verifier.exact_where:
    return 'biased'
  return 'W2 bound' if verifier.bounded else 'none'


def _schedule(name: str, value: Any) -> Schedule:
  if isinstance(value, bool) or not isinstance(value, int):
    raise ValueError(f'{name} is {value}; it must be the number of levels.')
  return schedule_lib.make(value)


def _part(spec: str | Spec) -> Part:
  """The only part of a specification, whose name and parameters are known."""
  first, *rest = parse(spec).parts
  if first.name not in DECODERS:
    raise ValueError(f'decoder is {first.name!r}; it must be one of: {", ".join(DECODERS)}.')
  if rest:
    raise ValueError(f'decoder is {str(spec)!r}; decoders of continuous tokens have one part.')
  binding.check_names(first, DECODERS[first.name].parameters)
  return first
