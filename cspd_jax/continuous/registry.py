"""The decoders of continuous tokens, by specification.

A decoder is asked for by its name and parameters (`core.spec`), such as
`exact_head(kernels_per_call=8)` or `cspd_released(block_length=8, kappa=42.0)`. The parameters,
their defaults and their types are those of the functions that build the decoders; what text
cannot hold, such as a draft model, comes with `Resources`.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cspd_jax.continuous import cspd, decoders, schedule as schedule_lib
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.loop import Decoder
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.core import registry as core
from cspd_jax.core.spec import Part, Spec, parse

# Parameters that no text gives.
_SUPPLIED = ('target', 'draft', 'rho')


class Resources(NamedTuple):
  """What decoders are made from beside the target.

  Attributes:
    draft: the draft model.
    rho: gives the blend of the head's drafter, `[num_levels]`, that was fitted to the target at
      the levels of a schedule; it, or its result, is None for one that suits most heads.
  """

  draft: Target | None = None
  rho: Callable[[Schedule], np.ndarray | None] | None = None


class DecoderEntry(NamedTuple):
  """A decoder.

  Attributes:
    build: `(target, ...) -> Decoder`; its signature gives the parameters.
    summary: one line for tables.
  """

  build: Callable[..., Decoder]
  summary: str

  @property
  def needs(self) -> str | None:
    """Returns 'model' if there has to be a draft model, else None."""
    return 'model' if 'draft' in inspect.signature(self.build).parameters else None


DECODERS: dict[str, DecoderEntry] = {
    'mar': DecoderEntry(decoders.mar, "MAR's own sampler, the baseline"),
    'parallel': DecoderEntry(
        decoders.parallel, 'the target alone with the passes of cspd_released'),
    'exact_head': DecoderEntry(
        decoders.exact_head, 'mar with speculation inside the diffusion head'),
    'exact_path': DecoderEntry(
        decoders.exact_path, 'drafts by a smaller model and the path test'),
    'cspd_paper': DecoderEntry(cspd.cspd_paper, 'Algorithm 1 of CSpD as printed'),
    'cspd_released': DecoderEntry(
        cspd.cspd_released, "the control flow of CSpD's published code"),
    'cspd_relaxed': DecoderEntry(cspd.cspd_relaxed, 'the same blocks with a plain test'),
}


def build(spec: str | Spec, target: Target, resources: Resources = Resources()) -> Decoder:
  """The decoder of a specification.

  Args:
    spec: a specification or its text.
    target: the model.
    resources: what decoders are made from beside it.

  Raises:
    ValueError: if there is no such decoder, its draft model is missing, or a parameter is
      unknown or out of range.
  """
  part = _part(spec)
  entry, allowed = DECODERS[part.name], parameters(part.name)
  arguments = core.bind(part, allowed, {
      Schedule: core.Converter('the number of levels', _schedule)})
  if entry.needs is not None:
    if resources.draft is None:
      raise ValueError(f'{part.name} needs a draft model, and there is none; give '
                       'Resources(draft=...).')
    arguments['draft'] = resources.draft
  if resources.rho is not None and 'rho' in inspect.signature(entry.build).parameters:
    schedule = arguments.get('schedule', allowed['schedule'].default)
    arguments['rho'] = resources.rho(schedule_lib.of(schedule))
  return entry.build(target, **arguments)


def complete(spec: str | Spec, **defaults: Any) -> Spec:
  """The specification with parameters filled in where the text leaves them open.

  Args:
    spec: a specification or its text.
    **defaults: parameters by name; those that are None, or that the decoder does not have, are
      left out.

  Raises:
    ValueError: if there is no such decoder, or it has no such parameter.
  """
  part = _part(spec)
  allowed = parameters(part.name)
  found = {name: value for name, value in defaults.items() if name in allowed and value is not None}
  return Spec((Part(part.name, found | part.arguments),))


def needs(spec: str | Spec) -> str | None:
  """Returns 'model' if the decoder of a specification has a draft model, else None."""
  return DECODERS[_part(spec).name].needs


def guarantee(decoder: Decoder) -> str:
  """How near a decoder's samples are to its own `distribution`, in a word or two.

  Returns:
    'exact'. 'biased': exact for some models only. 'W2 bound': the error of every token is bounded.
    'none'. `Decoder.guarantee` says it in full.
  """
  rule = decoder.rule
  if rule.exact:
    return 'exact'
  if rule.exact_where:
    return 'biased'
  return 'W2 bound' if rule.bounded else 'none'


def usage(name: str) -> str:
  """A decoder with its parameters and their defaults, in words."""
  given = [f'{key}={value.default}' for key, value in parameters(name).items()]
  return f'{name}({", ".join(given)})'


def parameters(name: str) -> dict[str, inspect.Parameter]:
  """The parameters that a specification may give to the decoder `name`."""
  return core.parameters(DECODERS[name].build, _SUPPLIED)


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
  core.check_names(first, parameters(first.name))
  return first
