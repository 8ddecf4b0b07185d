"""The decoders of continuous tokens by name, and decoders built from text.

A specification (`core.spec`) is a name with parameters, such as `exact_head(kernels_per_call=8)`
or `cspd_released(block_length=8, kappa=42.0)`. The parameters, their defaults and their types are
those of the function of that name.
"""

import inspect
from typing import Any

from cspd_jax.continuous.base import Target, as_schedule
from cspd_jax.continuous.cspd import cspd_paper, cspd_relaxed, cspd_released
from cspd_jax.continuous.decoders import exact_head, exact_path, mar, parallel, windows
from cspd_jax.continuous.loop import Decoder
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.core import fields
from cspd_jax.core.guarantees import Guarantee, weakest
from cspd_jax.core.spec import Spec, parse
from cspd_jax.core.table import Entry, Resources, Table

_DRAFT = {'model': lambda draft: draft}

DECODERS: dict[str, Entry] = {
    'mar': Entry(mar, "MAR's own sampler, the baseline"),
    'parallel': Entry(parallel, 'the target alone with the passes of cspd_released'),
    'exact_head': Entry(exact_head, 'mar with speculation inside the diffusion head'),
    'windows': Entry(windows, 'windows of tokens whose denoising chains are kept between rounds'),
    'exact_path': Entry(
        exact_path, 'drafts by a smaller model and the path test', networks=_DRAFT),
    'cspd_paper': Entry(cspd_paper, 'Algorithm 1 of CSpD as printed', networks=_DRAFT),
    'cspd_released': Entry(
        cspd_released, "the control flow of CSpD's published code", networks=_DRAFT),
    'cspd_relaxed': Entry(cspd_relaxed, 'the same blocks with a plain test', networks=_DRAFT),
}
# Those that decode causal models, too: without a draft model and steps of several tokens.
_CAUSAL = ('mar', 'exact_head', 'windows')

TABLE = Table(DECODERS, {}, {})
complete, needs, parameters = TABLE.complete, TABLE.needs, TABLE.parameters


def build(spec: str | Spec, target: Target, resources: Resources = Resources()) -> Decoder:
  """Builds the decoder of a specification; `resources` are parts that text cannot represent.

  Raises ValueError for unknown names, values out of range, or a missing draft model.
  """
  def schedule(name: str, value: Any) -> Schedule:
    fields.check_whole(name, value, 'the number of levels')
    return target.make_schedule(value)

  entry, part = TABLE.entry(spec), parse(spec).parts[0]
  arguments = entry.arguments(part, {Schedule: schedule}, resources)
  if resources.rho is not None and 'rho' in inspect.signature(entry.build).parameters:
    arguments['rho'] = resources.rho(as_schedule(target, arguments.get('schedule')))
  return entry.build(target, **arguments)


def unsupported(spec: str | Spec, target: Target) -> str | None:
  """Returns why the decoder of a specification cannot decode a model, or None if it can."""
  TABLE.entry(spec)
  if target.cached is None or parse(spec).parts[0].name in _CAUSAL:
    return None
  return 'it decodes masked models only, and this one is causal'


def guarantee(decoder: Decoder) -> Guarantee:
  """Returns how close a decoder's samples are to its own `distribution`.

  'exact'; 'bounded', if `Decoded.errors` bounds the squared distance of every token to the target's
  own; 'biased' otherwise, or if exact for some models only. `Decoder.guarantee` has the details.
  """
  return weakest([stage.verifier for stage in decoder.stages])
