"""The decoder, its parameters and the sampling options that a call chooses.

The decoders of a model follow from the type of its target.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from cspd_jax.continuous import specification as continuous
from cspd_jax.core import fields, guesses, naming, spec as spec_lib
from cspd_jax.core.decoder import AnyDecoder
from cspd_jax.core.sampling import CUTS, SamplingParams
from cspd_jax.core.spec import Spec, parse
from cspd_jax.core.table import Table
from cspd_jax.decoding import specification as discrete
from cspd_jax.decoding.base import Target
from cspd_jax.generation import defaults as defaults_lib

# Sizes of a round that set parameters of other names; see `Table.complete`.
_SIZES = ('window', 'length')
# The defaults in `model.json` that are not sampling options; see `generation.defaults`.
_DEFAULTS = ('dtype', 'decoder', 'serve', 'seconds')
# The named arguments of `generate`, for suggestions.
_ARGUMENTS = ('prompts', 'seed', 'decoder', 'batch_size', 'prefix', 'rows', 'progress',
              'raw_log_probs')


def table_of(target: Any) -> Table:
  """Returns the decoders of a target, a `decoding.base.Target` or a `continuous.base.Target`."""
  return discrete.TABLE if isinstance(target, Target) else continuous.TABLE


def build(model: Any, specification: Spec, guided: bool) -> AnyDecoder:
  """Builds a decoder of a `Model`; raises ValueError if the model does not support it."""
  target, table, drafts = model.target(guided), model.table, dict[str, Any]()
  if reason := table.refuses(specification, target):
    others = [name for name, entry in table.decoders.items() if not entry.refuses(target)]
    raise ValueError(f'decoder is {str(specification)!r}, which cannot decode model '
                     f'{model.name!r}: {reason}; use one of: {", ".join(others)}.')
  if reason := lacks(model, specification):
    raise ValueError(f'decoder is {str(specification)!r}, which {reason}.')
  if (required := table.needs(specification)) is not None:
    drafts[required] = model.drafts[required].build(guided)
  if isinstance(target, Target):
    # It may have a hundred megabytes.
    codebook = model.codebook if discrete.reads_codebook(specification) else None
    return discrete.build(specification, target, drafts, codebook)
  return continuous.build(specification, target, drafts)


def lacks(model: Any, specification: str | Spec) -> str | None:
  """Returns which network of a decoder a `Model` lacks and what to do; None if it lacks none."""
  required = model.table.needs(specification)
  if required is None or required in model.drafts:
    return None
  name, entry = parse(specification).parts[0].name, model.table.entry(specification)
  others = [key for key in entry.networks if key in model.drafts]
  own = ''
  if others:  # The first of all is the decoder's default.
    is_default = others[0] == next(iter(entry.networks))
    own = name if is_default else f'{name}({next(iter(entry.parameters))}={others[0]})'
    own = f'use {own}, with a network that it has, or '
  return (f'drafts with {model.table.networks[required]}; model {model.name!r} has none: {own}'
          + model.remedy(required))


def default(table: Table, choice: Any, drafts: Collection[str], device: Any, batch_size: int
            ) -> Spec:
  """Returns the specification among a model's default decoders, `choice`, or else the table's.

  It needs no network that `drafts` lack. One that does not exist raises ValueError.
  """
  text = defaults_lib.find(choice, device, batch_size)
  try:
    if text is not None and table.needs(spec := parse(text)) in (None, *drafts):
      return spec
  except ValueError as error:
    raise ValueError(f'the decoder that model.json names for {device.device_kind!r} and '
                     f'{batch_size} images at once cannot be used: {error} Pass decoder, or '
                     'choose again with cspd-tune.') from error
  on_cpu = table.on_cpu if device.platform == 'cpu' else None
  candidates = table.candidates if on_cpu is None else (on_cpu[batch_size > 1],)
  return next(spec for spec in map(parse, candidates) if table.needs(spec) in (None, *drafts))


def with_parameters(table: Table, specification: str | Spec, parameters: Mapping[str, Any]) -> Spec:
  """Parses a specification and adds the parameters that a caller passes separately, if not None.

  One that the decoder does not have, or that the text already sets, raises ValueError.
  """
  spec = parse(specification)
  for name, value in parameters.items():
    if value is not None:
      spec = _with_parameter(table, spec, name, value)
  return table.complete(spec)


def _with_parameter(table: Table, spec: Spec, name: str, value: Any) -> Spec:
  first, allowed = spec.parts[0], table.parameters(spec)
  if isinstance(value, Mapping | SamplingParams):
    raise ValueError(f'{name} is {value!r:.80}; pass sampling options as arguments of their own, '
                     'such as temperature=0.9.')
  if name in first.arguments:
    raise ValueError(f'{name} is {value!r}, but the decoder {str(spec)!r} already sets it; pass '
                     'only one of them.')
  if name in allowed:
    return spec.add({name: spec_lib.value(name, value)})
  completed = table.complete(spec, **{name: value}) if name in _SIZES else spec
  if completed == spec:
    raise ValueError(
        f'{name} is neither a sampling option ({", ".join(table.options)}) nor a '
        f'parameter of {first.name} ({", ".join(allowed) or "it has none"})'
        + naming.suggestion(
            name, [*table.options, *allowed, *_SIZES, *_ARGUMENTS], guesses.ALIASES))
  return completed


def check_defaults(table: Table, defaults: Mapping[str, Any], others: Collection[str] = ()) -> None:
  """Raises ValueError for a default of another form or name, `others` of the family included."""
  supported = [*table.options, *_DEFAULTS, *others]
  if unknown := [str(name) for name in defaults if name not in supported]:
    raise ValueError(
        f'{unknown[0]!r:.80} is among the defaults, which may be: {", ".join(supported)}; '
        'correct or remove it' + naming.suggestion(unknown[0], supported, guesses.ALIASES))
  for name, value in sampling(table, defaults, {})._asdict().items():
    if np.ndim(value):
      raise ValueError(f'{name} is {defaults[name]!r:.80} among the defaults; it must be one '
                       'number.')
  for name in ('decoder', 'serve'):
    defaults_lib.check(defaults.get(name), name)
  defaults_lib.check_seconds(defaults.get('seconds'))


def sampling(table: Table, defaults: Mapping[str, Any], overrides: Mapping[str, Any]
             ) -> SamplingParams:
  """Returns sampling options as NumPy values, so that new values do not compile again.

  They are the overrides that are not None, else those among a model's defaults, else the usual.
  Raises ValueError for an unknown option, or a value that is not a number.
  """
  if unknown := [name for name in overrides if name not in table.options]:
    raise ValueError(
        f'{unknown[0]} is not a sampling option; options are: {", ".join(table.options)}'
        + naming.suggestion(unknown[0], table.options, guesses.ALIASES))
  usual = SamplingParams._field_defaults
  values = {name: defaults.get(name, usual[name]) for name in table.options}
  values |= {name: value for name, value in overrides.items() if value is not None}
  return SamplingParams(**dict.fromkeys(CUTS) | {
      name: _number(name, value, usual[name]) for name, value in values.items()})


def named(table: Table, sampling: SamplingParams) -> dict[str, Any]:
  """Returns the sampling options that the models of a table have, by name."""
  return {name: getattr(sampling, name) for name in table.options}


def _number(name: str, value: Any, like: Any) -> np.ndarray:
  """Converts `value` to the type of the option's default: a scalar or one number per image."""
  try:
    number = fields.array(value)
  except ValueError:  # Lists of different lengths.
    number = np.asarray('')
  fields.require(number.dtype.kind in 'iuf', name, value, 'a number, or one number per image')
  if isinstance(like, int):
    fields.require(bool(np.all(number == np.floor(number))), name, value, 'a whole number')
    fields.require(bool(np.all(np.abs(number) < 2**31)), name, value, f'below {2**31}')
  with np.errstate(over='ignore'):  # The decoder refuses what becomes infinite.
    return number.astype(np.int32 if isinstance(like, int) else np.float32)
