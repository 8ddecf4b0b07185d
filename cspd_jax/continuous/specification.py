"""Specifications of decoders of continuous tokens: from a parsed value to a decoder.

A specification (`core.spec`) is a name with parameters, such as `exact_head(kernels_per_call=8)`
or `cspd_released(block_length=8, kappa=42.0)`. The parameters, their defaults and their types are
those of the function of that name.
"""

import dataclasses
import functools
import inspect
from typing import Any

from cspd_jax.continuous.base import Target
from cspd_jax.continuous.cspd import cspd_paper, cspd_relaxed, cspd_released
from cspd_jax.continuous.decoders import exact_head, exact_path, mar, parallel, windows
from cspd_jax.continuous.loop import Decoder
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.core import fields, guesses, naming, spec as spec_lib
from cspd_jax.core.entries import Entry, Resources
from cspd_jax.core.guarantees import Guarantee, weakest
from cspd_jax.core.spec import Part, Spec, parse


@dataclasses.dataclass(frozen=True)
class ContinuousEntry(Entry):
  """A decoder of continuous tokens; `build` is `(target, ...) -> Decoder`.

  Attributes:
    causal: whether it decodes causal models too. A decoder with a draft model or with steps of
      several tokens decodes masked ones only.
  """

  converted = (Schedule,)
  networks_of = {Target: {'model': lambda draft: draft}}

  causal: bool = False


DECODERS: dict[str, ContinuousEntry] = {
    'mar': ContinuousEntry(mar, "MAR's own sampler, the baseline", causal=True),
    'parallel': ContinuousEntry(parallel, 'the target alone with the passes of cspd_released'),
    'exact_head': ContinuousEntry(
        exact_head, 'mar with speculation inside the diffusion head', causal=True),
    'windows': ContinuousEntry(
        windows, 'windows of tokens whose denoising chains are kept between rounds', causal=True),
    'exact_path': ContinuousEntry(exact_path, 'drafts by a smaller model and the path test'),
    'cspd_paper': ContinuousEntry(cspd_paper, 'Algorithm 1 of CSpD as printed'),
    'cspd_released': ContinuousEntry(cspd_released, "the control flow of CSpD's published code"),
    'cspd_relaxed': ContinuousEntry(cspd_relaxed, 'the same blocks with a plain test'),
}


def build(spec: str | Spec, target: Target, resources: Resources = Resources()) -> Decoder:
  """Builds the decoder of a specification; `resources` are parts that text cannot represent.

  Raises ValueError for unknown names, values out of range, or a missing draft model.
  """
  part = _part(spec)
  entry = DECODERS[part.name]
  arguments = entry.arguments(part, {Schedule: spec_lib.Converter(
      'the number of levels', functools.partial(_schedule, target))}, resources)
  if resources.rho is not None and 'rho' in inspect.signature(entry.build).parameters:
    arguments['rho'] = resources.rho(target.as_schedule(arguments.get('schedule')))
  return entry.build(target, **arguments)


def complete(spec: str | Spec, **defaults: Any) -> Spec:
  """Fills in parameters, by name, that a specification leaves unset.

  Those that are None, or that the decoder does not have, are ignored. A decoder or a parameter of
  `spec` that does not exist raises ValueError.
  """
  spec, allowed, part = parse(spec), parameters(spec), _part(spec)
  return spec.add({name: value for name, value in defaults.items()
                   if name in allowed and name not in part.arguments and value is not None})


def parameters(spec: str | Spec) -> dict[str, inspect.Parameter]:
  """Returns the parameters that a specification may have; raises ValueError for unknown names."""
  return DECODERS[_part(spec).name].parameters


def needs(spec: str | Spec) -> str | None:
  """Returns 'model' if the decoder of a specification has a draft model, else None."""
  part = _part(spec)
  return DECODERS[part.name].needs(part)


def unsupported(spec: str | Spec, target: Target) -> str | None:
  """Returns why the decoder of a specification cannot decode a model, or None if it can."""
  if target.cached is None or DECODERS[_part(spec).name].causal:
    return None
  return 'it decodes masked models only, and this one is causal'


def guarantee(decoder: Decoder) -> Guarantee:
  """Returns how close a decoder's samples are to its own `distribution`.

  'exact'; 'bounded', if `Decoded.errors` bounds the squared distance of every token to the target's
  own; 'biased' otherwise, or if exact for some models only. `Decoder.guarantee` has the details.
  """
  return weakest([stage.verifier for stage in decoder.stages])


def _schedule(target: Target, name: str, value: Any) -> Schedule:
  fields.check_whole(name, value, 'the number of levels')
  return target.make_schedule(value)


def _part(spec: str | Spec) -> Part:
  """Returns the only part of a specification after a check of its name and parameters."""
  first, *rest = parse(spec).parts
  if first.name not in DECODERS:
    raise ValueError(f'decoder is {first.name!r}; ' + naming.question(
        first.name, DECODERS, f'it must be one of: {", ".join(DECODERS)}.',
        guesses.ALIASES))
  if rest:
    raise ValueError(f'decoder is {str(spec)!r}; decoders of continuous tokens have one part.')
  spec_lib.check_names(first, DECODERS[first.name].parameters)
  return first
