"""Compiled decoders of a model, several of them in one program where that is possible.

Of a decoder of discrete tokens, the verifier is the smallest part to compile. So one program
serves all verifiers of a drafter: it holds them behind a switch and is told by a number which to
use. Compiling each alone would take most of the time of a large comparison. The switch makes no
difference to the tokens, and to the times on a CPU less than 5 %.
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


class CompiledDecoders:
  """Decoders of one model, compiled when they are first needed and kept by the model.

  Attributes:
    seconds: spent on compiling so far.
  """

  def __init__(self, model: Any):
    """Builds nothing yet; `model` is a `generation.Model`."""
    self._model, self.seconds = model, 0.0
    self._together: tuple[str, ...] = ()
    self._decoders: dict[tuple[str, bool], Any] = {}

  def share(self, specifications: Sequence[Any]) -> None:
    """Says which decoders will be run, all of which can be built.

    Of these, decoders with one drafter share a program from now on.
    """
    self._together = tuple(dict.fromkeys(map(self.text, specifications)))

  def text(self, specification: Any) -> str:
    """The canonical text of a specification.

    Raises:
      ValueError: for one that does not read.
    """
    return str(self._model.specification(specification))

  def decoder(self, specification: Any, guided: bool) -> Any:
    """The decoder of a specification, built once.

    Raises:
      ValueError: if it cannot work, saying why.
    """
    name = self.text(specification), guided
    if name not in self._decoders:
      self._decoders[name] = self._model.decoder(name[0], guided=guided)
    return self._decoders[name]

  def decode(self, specification: Any, sampling: Any) -> Callable[[Any, jax.Array, Any], Any]:
    """A decoder with its parameters: `(condition, keys, sampling) -> result`.

    Args:
      specification: of the decoder.
      sampling: options like those that it will be called with; guidance on or off counts.
    """
    text, guided = self.text(specification), programs.is_guided(sampling)
    members = self._sharing(text, guided)
    decoders = [self.decoder(member, guided) for member in members]
    index, draft_params = np.int32(members.index(text)), self._model.draft_params(text)

    found = {}

    def run(condition, row_keys, sampling):
      sampling = self._model.engine.settled(sampling)
      arguments = (self._model.params, condition, row_keys, sampling, draft_params, index)
      name = _name(members, guided, len(row_keys), sampling)
      if name not in found:
        found[name] = programs.kept(
            self._model, name, lambda: self._compile(one_of(decoders), arguments))
      return found[name](*arguments)

    return run

  def is_compiled(self, specification: Any, sampling: Any, batch_size: int) -> bool:
    """Whether `decode` would find its program for batches of this size."""
    guided = programs.is_guided(sampling)
    members = self._sharing(self.text(specification), guided)
    sampling = self._model.engine.settled(sampling)
    return _name(members, guided, batch_size, sampling) in self._model.programs

  def _sharing(self, text: str, guided: bool) -> tuple[str, ...]:
    """Decoders that share a program with this one, itself among them."""
    parts = lambda member: _parts(member, self.decoder(member, guided))
    found = tuple(member for member in self._together if parts(member) == parts(text))
    return found if text in found else (text,)

  def _compile(self, function: Callable, arguments: tuple) -> Callable:
    found = programs.compiled(function, *arguments)
    self.seconds += found.seconds
    return found.run


def _name(members: tuple[str, ...], guided: bool, batch_size: int, sampling: Any) -> tuple:
  return members, guided, batch_size, jax.tree.structure(sampling)


def _parts(text: str, decoder: Any) -> tuple:
  """What decoders that share a program have in common."""
  if not isinstance(decoder, Decoder):
    return (text,)
  return str(specification.expand(text)[0]), decoder.verifier.seed_exact


def one_of(decoders: Sequence[Any]) -> Callable:
  """Decoders that differ in their verifiers as one: the last argument is the number of one."""
  first = decoders[0]
  if len(decoders) == 1:
    return lambda *arguments: first(*arguments[:-1])

  def decode(*arguments):
    verifier = switch([decoder.verifier for decoder in decoders], arguments[-1])
    return make_decoder(first.target, first.drafter, verifier)(*arguments[:-1])

  return decode


def switch(verifiers: Sequence[Verifier], index: jax.Array) -> Verifier:
  """The verifier number `index`, chosen at run time; all are `seed_exact` or none is."""

  def verify(rng, layout, tokens, *args):
    def branch(verifier):
      def run():
        # Each draws the numbers that it would draw alone.
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
      takes_fixed=all(verifier.takes_fixed or not verifier.needs_probs for verifier in verifiers))
