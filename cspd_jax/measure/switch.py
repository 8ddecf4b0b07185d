"""Compiled decoders of a model; decoders that differ only in their verifiers can share a program.

Of a decoder of discrete tokens, the verifier is the smallest part to compile. One program therefore
contains all verifiers of a drafter and selects one by an index at run time. Separate compilations
would take most of the time of a large comparison. The switch does not change the tokens, and the
times on a CPU by less than 5 %.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.decoding import specification
from cspd_jax.decoding.base import Verifier
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.generation.model import Model


class CompiledDecoders:
  """Decoders of one model, compiled on first use and cached by the model.

  Attributes:
    seconds: total compilation time so far.
  """

  def __init__(self, model: Model):
    """Stores the model; decoders are built on first use."""
    self._model, self.seconds = model, 0.0
    self._shared: tuple[str, ...] = ()
    self._decoders: dict[tuple[str, bool], Any] = {}

  def share(self, specifications: Sequence[Any]) -> None:
    """Makes decoders with the same drafter share a program from now on.

    Args:
      specifications: of all decoders that will run; all must be valid.
    """
    self._shared = tuple(dict.fromkeys(map(self.text, specifications)))

  def text(self, specification: Any) -> str:
    """Returns the canonical text of a specification.

    Raises:
      ValueError: for a specification that cannot be parsed.
    """
    return str(self._model.specification(specification))

  def decoder(self, specification: Any, guided: bool) -> Any:
    """Returns the decoder of a specification, built on the first call.

    Raises:
      ValueError: if the decoder is invalid, with the reason.
    """
    name = self.text(specification), guided
    if name not in self._decoders:
      self._decoders[name] = self._model.decoder(name[0], guided=guided)
    return self._decoders[name]

  def decode(self, specification: Any, sampling: Any) -> Callable[[Any, jax.Array, Any], Any]:
    """Returns a decoder with its parameters: `(condition, keys, sampling) -> result`.

    Args:
      specification: of the decoder.
      sampling: sampling options; calls must use guidance if and only if these do.
    """
    text, guided = self.text(specification), programs.is_guided(sampling)
    members = self._sharing(text, guided)
    decoders = [self.decoder(member, guided) for member in members]
    index, draft_params = np.int32(members.index(text)), self._model.draft_params(text)

    compiled: dict[tuple, Callable] = {}

    def run(condition, row_keys, sampling):
      sampling = self._model.engine.settled(sampling)
      arguments = (self._model.params, condition, row_keys, sampling, draft_params, index)
      name = _name(members, guided, len(row_keys), sampling)
      if name not in compiled:
        compiled[name] = programs.kept(
            self._model, name, lambda: self._compile(members, one_of(decoders), arguments))
      return compiled[name](*arguments)

    return run

  def is_compiled(self, specification: Any, sampling: Any, batch_size: int) -> bool:
    """Returns whether the program of `decode` for this batch size is in the model's cache."""
    guided = programs.is_guided(sampling)
    members = self._sharing(self.text(specification), guided)
    sampling = self._model.engine.settled(sampling)
    return _name(members, guided, batch_size, sampling) in self._model.programs

  def _sharing(self, text: str, guided: bool) -> tuple[str, ...]:
    """Returns the decoders that share a program with this one, including itself."""
    common = lambda member: _common_parts(member, self.decoder(member, guided))
    members = tuple(member for member in self._shared if common(member) == common(text))
    return members if text in members else (text,)

  def _compile(self, members: tuple[str, ...], function: Callable, arguments: tuple) -> Callable:
    more = f' and {len(members) - 1} more verifiers' if len(members) > 1 else ''
    program = programs.compiled(function, *arguments, label=f'{members[0]}{more}')
    self.seconds += program.seconds
    return program.run


def _name(members: tuple[str, ...], guided: bool, batch_size: int, sampling: Any) -> tuple:
  return members, guided, batch_size, jax.tree.structure(sampling)


def _common_parts(text: str, decoder: Any) -> tuple:
  """Returns a key that is equal for decoders that can share a program."""
  if not isinstance(decoder, Decoder):
    return (text,)
  return str(specification.expand(text)[0]), decoder.verifier.seed_exact


def one_of(decoders: Sequence[Any]) -> Callable:
  """Joins decoders that differ only in their verifiers; the last argument selects one by index."""
  first = decoders[0]
  if len(decoders) == 1:
    return lambda *arguments: first(*arguments[:-1])

  def decode(*arguments):
    verifier = switch([decoder.verifier for decoder in decoders], arguments[-1])
    return make_decoder(first.target, first.drafter, verifier)(*arguments[:-1])

  return decode


def switch(verifiers: Sequence[Verifier], index: jax.Array) -> Verifier:
  """Returns a verifier that runs `verifiers[index]`, selected at run time.

  Args:
    verifiers: either all or none of them must be `seed_exact`.
    index: scalar int32.
  """

  def verify(rng, layout, tokens, *args):
    def branch(verifier):
      def run():
        # A copy, so that each verifier draws the random numbers that it would draw alone.
        verdict = verifier.verify(copy.copy(rng), layout, tokens, *args)
        tv_bound = verdict.tv_bound
        if tv_bound is None:
          tv_bound = jnp.full(tokens.shape, 0.0 if verifier.exact else jnp.nan)
        return verdict._replace(tv_bound=tv_bound)
      return run
    return jax.lax.switch(index, [branch(verifier) for verifier in verifiers])

  return Verifier(
      verify, exact=all(verifier.exact for verifier in verifiers),
      needs_probs=any(verifier.needs_probs for verifier in verifiers),
      seed_exact=verifiers[0].seed_exact,
      bounded=all(verifier.exact or verifier.bounded for verifier in verifiers),
      verifies_fixed=all(
          verifier.verifies_fixed or not verifier.needs_probs for verifier in verifiers))
