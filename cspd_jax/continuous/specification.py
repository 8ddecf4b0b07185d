"""Specifications of decoders of continuous tokens: from a parsed value to a decoder.

A specification (`core.spec`) is a name with parameters, such as `exact_head(kernels_per_call=8)`
or `cspd_released(block_length=8, kappa=42.0)`. The parameters, their defaults and their types are
those of the function of that name.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from cspd_jax.continuous.base import Target
from cspd_jax.continuous.cspd import cspd_paper, cspd_relaxed, cspd_released
from cspd_jax.continuous.decoders import exact_head, exact_path, mar, parallel, windows
from cspd_jax.continuous.loop import Decoder
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.core import fields, naming, spec as spec_lib
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.spec import Part, Resources, Spec, parse


class DecoderEntry(NamedTuple):
  """A named decoder.

  Attributes:
    build: `(target, ...) -> Decoder`.
    summary: one line for tables.
    causal: whether it decodes causal models too. A decoder with a draft model or with steps of
      several tokens decodes masked ones only.
  """

  build: Callable[..., Decoder]
  summary: str
  causal: bool = False

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that a specification may set."""
    return spec_lib.parameters(self.build, {Schedule})

  def accepts(self, name: str) -> bool:
    """Whether `build` has a parameter `name`, in specifications or not."""
    return name in inspect.signature(self.build).parameters


DECODERS: dict[str, DecoderEntry] = {entry.build.__name__: entry for entry in (
    DecoderEntry(mar, "MAR's own sampler, the baseline", causal=True),
    DecoderEntry(parallel, 'the target alone with the passes of cspd_released'),
    DecoderEntry(exact_head, 'mar with speculation inside the diffusion head', causal=True),
    DecoderEntry(windows, 'windows of tokens whose denoising chains are kept between rounds',
                 causal=True),
    DecoderEntry(exact_path, 'drafts by a smaller model and the path test'),
    DecoderEntry(cspd_paper, 'Algorithm 1 of CSpD as printed'),
    DecoderEntry(cspd_released, "the control flow of CSpD's published code"),
    DecoderEntry(cspd_relaxed, 'the same blocks with a plain test'),
)}


def build(spec: str | Spec, target: Target, resources: Resources = Resources()) -> Decoder:
  """Builds the decoder of a specification; `resources` are parts that text cannot represent.

  Raises ValueError for unknown names, values out of range, or a missing draft model.
  """
  part = _part(spec)
  entry = DECODERS[part.name]
  allowed = entry.parameters
  arguments = spec_lib.bind(part, allowed, {
      Schedule: spec_lib.Converter('the number of levels', functools.partial(_schedule, target))})
  if entry.accepts('draft'):
    if 'model' not in resources.drafts:
      raise ValueError(
          f"{part.name} drafts with a draft model, which is missing; pass drafts['model'].")
    arguments['draft'] = resources.drafts['model']
  if resources.rho is not None and entry.accepts('rho'):
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
  return 'model' if DECODERS[_part(spec).name].accepts('draft') else None


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
  verifiers = [stage.verifier for stage in decoder.stages]
  if all(verifier.exact for verifier in verifiers):
    return Guarantee.EXACT
  bounded = all(verifier.exact or verifier.bounded for verifier in verifiers)
  return Guarantee.BOUNDED if bounded else Guarantee.BIASED


def _schedule(target: Target, name: str, value: Any) -> Schedule:
  fields.check_whole(name, value, 'the number of levels')
  return target.make_schedule(value)


def _part(spec: str | Spec) -> Part:
  """Returns the only part of a specification after a check of its name and parameters."""
  first, *rest = parse(spec).parts
  if first.name not in DECODERS:
    raise ValueError(f'decoder is {first.name!r}; ' + naming.question(
        first.name, DECODERS, f'it must be one of: {", ".join(DECODERS)}.'))
  if rest:
    raise ValueError(f'decoder is {str(spec)!r}; decoders of continuous tokens have one part.')
  spec_lib.check_names(first, DECODERS[first.name].parameters)
  return first
