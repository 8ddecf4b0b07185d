"""The two engines as a model uses them: decoders by specification, and sampling options."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cspd_jax.continuous import loop as continuous_loop, specification as continuous
from cspd_jax.core import fields, guesses, naming, sampling as sampling_lib, spec as spec_lib
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.sampling import CUTS, SamplingParams
from cspd_jax.core.spec import Spec, parse
from cspd_jax.core.table import Resources
from cspd_jax.decoding import specification as discrete
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.warp import drop_inactive
from cspd_jax.generation import defaults as defaults_lib
from cspd_jax.generation.parts import DraftNetwork

# The decoders of both engines: functions of arrays, to be jitted.
AnyDecoder = Decoder | continuous_loop.Decoder

# Sizes of a round that set parameters of other names; see `decoding.specification.complete`.
_SIZES = ('window', 'length')
# The defaults in `model.json` that are not sampling options; see `generation.defaults`.
_DEFAULTS = ('dtype', 'decoder', 'serve', 'seconds')
# The named arguments of `generate`, for suggestions.
_ARGUMENTS = ('prompts', 'seed', 'decoder', 'batch_size', 'prefix', 'rows', 'progress',
              'raw_log_probs')
# What the names of options, defaults and parts of a model's prior begin with; see `Model.prior`.
PRIOR = 'prior_'


class Engine(NamedTuple):
  """An engine; specifications are texts or `Spec`s."""

  name: str  # 'discrete' or 'continuous'.
  table: Mapping[str, Any]  # Its named decoders; each entry has a `summary`.
  baseline: str  # The named decoder that all others are compared with.
  candidates: tuple[str, ...]  # Named decoders that may be a model's default, the best first.
  # In their place on a CPU, for one image at a time and for several; None for the same.
  on_cpu: tuple[str, str] | None
  options: tuple[str, ...]  # The fields of `SamplingParams` that its models have.
  complete: Callable[..., Spec]  # `(specification, **sizes)`: fills in sizes that it leaves open.
  parameters: Callable[[str | Spec], Collection[str]]  # All that a specification may set.
  needs: Callable[[str | Spec], str | None]  # The key of the drafts that it requires, or None.
  build: Callable[[str | Spec, Any, Resources], AnyDecoder]  # Of a specification and a target.
  guarantee: Callable[[Any], Guarantee]  # How a decoder's images relate to the distribution.
  windows: bool  # Whether its windows have sizes that suit a device, which cspd-tune chooses.
  seed_exact: bool  # Whether decoders can repeat the tokens of the baseline, one per pass.
  joins: bool  # Whether images can join others that are being decoded.
  failure: str  # In words, what the model returned for images whose `Decoded.valid` is False.
  # Removes sampling options that are off, so that a program omits their work.
  drop_inactive: Callable[[SamplingParams], SamplingParams]
  # `(specification, target) -> reason` why the decoder cannot decode the model, or None.
  unsupported: Callable[[str | Spec, Any], str | None] = lambda specification, target: None

  @property
  def decoders(self) -> dict[str, str]:
    """The named decoders, each with a line of description."""
    return {name: entry.summary for name, entry in self.table.items()}

  def check_result(self, decoded: Any, names: Sequence[str]) -> None:
    """Raises ValueError if the model failed to decode some of the images `names`."""
    if invalid := [name for name, is_valid in zip(names, decoded.valid) if not is_valid]:
      shown = ', '.join(invalid[:8])
      shown += f' and {len(invalid) - 8} more' if len(invalid) > 8 else ''
      raise ValueError(
          f'the model returned {self.failure} for {len(invalid)} of {len(names)} images ({shown}). '
          'Look for NaN and infinity in its parameters, or load it with a wider dtype.')

  def default(self, choice: Any, drafts: Mapping[str, DraftNetwork], device: Any, batch_size: int
              ) -> Spec:
    """Returns the specification among the model's default decoders, `choice`, or else the engine's.

    One that does not exist raises ValueError.
    """
    text = defaults_lib.find(choice, device, batch_size)
    try:
      if text is not None and self.needs(spec := parse(text)) in (None, *drafts):
        return spec
    except ValueError as error:
      raise ValueError(f'the decoder that model.json names for {device.device_kind!r} and '
                       f'{batch_size} images at once cannot be used: {error} Pass decoder, or '
                       'choose again with cspd-tune.') from error
    on_cpu = self.on_cpu if device.platform == 'cpu' else None
    candidates = self.candidates if on_cpu is None else (on_cpu[batch_size > 1],)
    return next(spec for spec in map(parse, candidates) if self.needs(spec) in (None, *drafts))

  def specification(self, specification: str | Spec, parameters: Mapping[str, Any]) -> Spec:
    """Parses a specification and adds the parameters that a caller passes separately, if not None.

    One that the decoder does not have, or that the text already sets, raises ValueError.
    """
    spec = parse(specification)
    for name, value in parameters.items():
      if value is not None:
        spec = self._add(spec, name, value)
    return self.complete(spec)

  def _add(self, spec: Spec, name: str, value: Any) -> Spec:
    first, allowed = spec.parts[0], self.parameters(spec)
    if isinstance(value, Mapping | SamplingParams):
      raise ValueError(f'{name} is {value!r:.80}; pass sampling options as arguments of their own, '
                       'such as temperature=0.9.')
    if name in first.arguments:
      raise ValueError(f'{name} is {value!r}, but the decoder {str(spec)!r} already sets it; pass '
                       'only one of them.')
    if name in allowed:
      return spec.add({name: spec_lib.value(name, value)})
    completed = self.complete(spec, **{name: value}) if name in _SIZES else spec
    if completed == spec:
      raise ValueError(
          f'{name} is neither a sampling option ({", ".join(self.options)}) nor a '
          f'parameter of {first.name} ({", ".join(allowed) or "it has none"})'
          + naming.suggestion(
              name, [*self.options, *allowed, *_SIZES, *_ARGUMENTS], guesses.ALIASES))
    return completed

  def check_defaults(self, defaults: Mapping[str, Any], others: Collection[str] = ()) -> None:
    """Raises ValueError for a default of another form or name, `others` of the family included."""
    supported = [*self.options, *_DEFAULTS, *others]
    if unknown := [str(name) for name in defaults if name not in supported]:
      raise ValueError(
          f'{unknown[0]!r:.80} is among the defaults, which may be: {", ".join(supported)}; '
          'correct or remove it' + naming.suggestion(unknown[0], supported, guesses.ALIASES))
    for name, value in self.named(self.sampling(defaults, {})).items():
      if np.ndim(value):
        raise ValueError(f'{name} is {defaults[name]!r:.80} among the defaults; it must be one '
                         'number.')
    for name in ('decoder', 'serve'):
      defaults_lib.check(defaults.get(name), name)
    defaults_lib.check_seconds(defaults.get('seconds'))

  def sampling(self, defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> SamplingParams:
    """Returns sampling options as NumPy values, so that new values do not compile again.

    They are the overrides that are not None, else those among the model's defaults, else the
    engine's. Raises ValueError for an unknown option, or a value that is not a number.
    """
    supported = self.options
    if unknown := [name for name in overrides if name not in supported]:
      raise ValueError(
          f'{unknown[0]} is not a sampling option; options are: {", ".join(supported)}'
          + naming.suggestion(unknown[0], supported, guesses.ALIASES))
    usual = SamplingParams._field_defaults
    values = {name: defaults.get(name, usual[name]) for name in supported}
    values |= {name: value for name, value in overrides.items() if value is not None}
    return SamplingParams(**dict.fromkeys(CUTS) | {
        name: _number(name, value, usual[name]) for name, value in values.items()})

  def named(self, sampling: SamplingParams) -> dict[str, Any]:
    """Returns the sampling options that models of this engine have, by name."""
    return {name: getattr(sampling, name) for name in self.options}


def of_prior(named: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the entries that are for the prior of a model, by their names in the prior."""
  return {name.removeprefix(PRIOR): value for name, value in named.items()
          if name.startswith(PRIOR)}


def with_raw_log_probs(decoder: AnyDecoder, value: Any) -> AnyDecoder:
  """Returns a decoder whose result has `raw_log_probs` if `value`, True or False, is True."""
  if value is False:
    return decoder
  if value is not True or not isinstance(decoder, Decoder):
    raise ValueError(f'raw_log_probs is {value!r:.80}; it must be True or False, and False for '
                     'models of continuous tokens, which have no log-probabilities.')
  return dataclasses.replace(decoder, raw_log_probs=True)


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


DISCRETE = Engine(
    name='discrete', table=discrete.DECODERS, baseline='vanilla', candidates=('eagle', 'mc_sjd'),
    # A CPU computes every token of a round, so few of them are worth their cost.
    on_cpu=('mc_sjd(window=4)', 'vanilla'), options=(*sampling_lib.DISCRETE,),
    complete=discrete.complete, parameters=discrete.parameters, needs=discrete.needs,
    build=discrete.build, guarantee=discrete.guarantee, windows=True, seed_exact=True, joins=True,
    failure='no valid probabilities (its logits, or the guided ones, contain NaN or infinity, or '
    'exclude every token)', drop_inactive=drop_inactive)

CONTINUOUS = Engine(
    name='continuous', table=continuous.DECODERS, baseline='mar', candidates=('exact_head',),
    on_cpu=None, options=(*sampling_lib.CONTINUOUS,), complete=continuous.complete,
    parameters=continuous.parameters, needs=continuous.needs, build=continuous.build,
    guarantee=continuous.guarantee, windows=False, seed_exact=False, joins=False,
    failure='tokens with NaN or infinity',
    drop_inactive=lambda sampling: sampling._replace(**dict.fromkeys(CUTS)),
    unsupported=continuous.unsupported)
