"""The two engines as a model sees them: decoders by specification, and sampling options."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cspd_jax.continuous import specification as continuous
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.core.spec import Spec, parse
from cspd_jax.decoding import continued, specification as discrete
from cspd_jax.decoding.warp import Warp, settled
from cspd_jax.generation import defaults as defaults_lib

# Sizes of a round that choose parameters of other names; see `decoding.specification.complete`.
_SIZES = ('window', 'length')


class Engine(NamedTuple):
  """An engine.

  Attributes:
    name: 'discrete' or 'continuous'.
    table: its named decoders; each entry has a `summary`.
    baseline: the named decoder that all others are compared with.
    candidates: named decoders that may be a model's default, the best first.
    options: the class of the sampling options.
    complete: `(specification, **sizes) -> Spec` with parameters filled in that the text
      leaves open and a decoder has; see `specification` of either engine, also for those below.
    parameters: `specification -> ` the parameters that it may give, by name.
    needs: `specification -> ` the key of the drafts that it needs, or None.
    build: `(specification, model, guided, given) -> Decoder` of images whose first `given` tokens
      are a part of the condition; see `decoding.continued`.
    guarantee: `decoder -> ` how its output relates to the target's distribution.
    valid: `result -> [B]` bool, which images of a decoder's result, NumPy arrays, are images.
    settled: `sampling options -> ` the same for a program that leaves out what is off.
  """

  name: str
  table: Mapping[str, Any]
  baseline: str
  candidates: tuple[str, ...]
  options: type[Warp] | type[Sampling]
  complete: Callable[..., Spec]
  parameters: Callable[[Any], Collection[str]]
  needs: Callable[[Any], str | None]
  build: Callable[[Any, Any, bool, int], Any]
  guarantee: Callable[[Any], str]
  valid: Callable[[Any], np.ndarray]
  settled: Callable[[Any], Any] = lambda sampling: sampling

  @property
  def decoders(self) -> dict[str, str]:
    """The named decoders, with a line on each."""
    return {name: entry.summary for name, entry in self.table.items()}

  def check_result(self, decoded: Any, names: Sequence[str]) -> None:
    """Raises ValueError if images `[B]`, called `names`, did not come about as they should."""
    found = self.valid(decoded)
    if wrong := [name for name, valid in zip(names, found) if not valid]:
      shown = ', '.join(wrong[:8]) + (f' and {len(wrong) - 8} more' if len(wrong) > 8 else '')
      raise ValueError(
          f"the model's numbers are no probabilities for {len(wrong)} of {len(found)} images "
          f'({shown}): its logits hold NaN or infinity, or allow no token. Look for such values '
          'in its parameters, or load it with a wider dtype.')

  def default(self, chosen: Any, drafts: Mapping[str, Any], device: Any, batch_size: int) -> Spec:
    """Returns the specification that a model is decoded with if nothing is said.

    Args:
      chosen: what the model names; see `generation.defaults`.
      drafts: what drafts for the model.
      device: the JAX device that it runs on.
      batch_size: images that are decoded together.

    Raises:
      ValueError: if the model names a decoder that there is not.
    """
    named = defaults_lib.find(chosen, device, batch_size)
    try:
      if named is not None and self.needs(spec := parse(named)) in (None, *drafts):
        return spec
    except ValueError as error:
      raise ValueError(
          f'the decoder that model.json names for {device.device_kind!r} and {batch_size} images '
          f'at once cannot be used: {error} Give decoder, or choose anew with '
          'cspd-tune.') from error
    return next(spec for spec in map(parse, self.candidates)
                if self.needs(spec) in (None, *drafts))

  def specification(self, specification: Any, given: Mapping[str, Any]) -> Spec:
    """Parses a specification and adds the parameters that a caller gives separately.

    Args:
      specification: a specification or its text.
      given: parameters by name; None counts as not given.

    Raises:
      ValueError: for a parameter that the decoder does not have, or that the text gives already.
    """
    spec = parse(specification)
    for name, value in given.items():
      if value is not None:
        spec = self._add(spec, name, value)
    return self.complete(spec)

  def _add(self, spec: Spec, name: str, value: Any) -> Spec:
    first, allowed = spec.parts[0], self.parameters(spec)
    if name in first.arguments:
      raise ValueError(f'{name} is {value!r}, but the decoder is {str(spec)!r} already; give '
                       'only one of them.')
    if name in allowed:
      return spec.add(parse(f'{first.name}({name}={value})').parts[0].arguments)
    completed = self.complete(spec, **{name: value}) if name in _SIZES else spec
    if completed == self.complete(spec):
      raise ValueError(
          f'{name} is neither a sampling option ({", ".join(self.options._fields)}) nor a '
          f'parameter of {first.name} ({", ".join(allowed) or "it has none"}).')
    return completed

  def check_drafts(self, specification: Any, drafts: Mapping[str, Any], name: str) -> None:
    """Raises ValueError if a decoder needs something to draft that the model `name` lacks."""
    needed = self.needs(specification)
    if needed is not None and needed not in drafts:
      role = 'draft' if needed == 'model' else needed
      raise ValueError(
          f'decoder is {str(specification)!r}, which drafts with '
          f'{discrete.DRAFTS[needed]}; model {name!r} has none: load it with '
          f'{role}=FOLDER.')

  def sampling(self, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """Sampling options as NumPy values, so that others do not compile anew.

    Args:
      defaults: the model's; what is no sampling option is ignored.
      given: the caller's; None counts as not given.

    Raises:
      ValueError: for an unknown option, or a value that is no number.
    """
    known = self.options._fields
    if unknown := [name for name in given if name not in known]:
      raise ValueError(f'{unknown[0]} is no sampling option; options are: {", ".join(known)}.')
    values = {name: value for name, value in defaults.items() if name in known}
    values |= {name: value for name, value in given.items() if value is not None}
    return self.options(**{
        name: _number(name, value, getattr(self.options(), name)) for name, value in
        (self.options()._asdict() | values).items()})


def _number(name: str, value: Any, like: Any) -> np.ndarray:
  """`value` as an array of the type of its default, a scalar or one number per image."""
  try:
    number = np.asarray(value)
    if number.dtype == bool or not np.issubdtype(number.dtype, np.number):
      raise TypeError
    if isinstance(like, int) and np.any(number != np.floor(number)):
      raise ValueError(f'{name} is {value!r}; it must be a whole number.')
    if isinstance(like, int) and np.any(np.abs(number) >= 2**31):
      raise ValueError(f'{name} is {value!r}; it must be below {2**31}.')
    with np.errstate(over='ignore'):  # What becomes infinite is refused by the decoder.
      return number.astype(np.int32 if isinstance(like, int) else np.float32)
  except TypeError as error:
    raise ValueError(
        f'{name} is {value!r}; it must be a number, or one number per image.') from error


def _build_discrete(specification, model, guided, given):
  target = continued.target(model.target(guided=guided), given)
  drafts = {name: part.build(guided, given) for name, part in model.drafts.items()}
  return discrete.build(specification, target, discrete.Resources(drafts, model.codebook))


def _build_continuous(specification, model, guided, given):
  if given:
    raise ValueError(f'{given} tokens are given, but a {model.family!r} model draws the tokens of '
                     'an image in a random order and continues none; leave prefix out.')
  draft = model.drafts.get('model')
  head_drafter = model.head_drafter
  return continuous.build(
      specification, model.target(guided=guided), continuous.Resources(
          draft=draft and draft.build(guided),
          rho=head_drafter and (lambda schedule: head_drafter(schedule, guided))))


DISCRETE = Engine(
    'discrete', discrete.DECODERS, 'vanilla', ('eagle', 'mc_sjd'), Warp, discrete.complete,
    discrete.parameters, discrete.needs, _build_discrete, discrete.guarantee,
    lambda decoded: decoded.valid, settled)

CONTINUOUS = Engine(
    'continuous', continuous.DECODERS, 'mar', ('exact_head',), Sampling, continuous.complete,
    continuous.parameters, continuous.needs, _build_continuous, continuous.guarantee,
    lambda decoded: np.isfinite(decoded.tokens).all(axis=(1, 2)))
