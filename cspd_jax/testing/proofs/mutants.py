"""Broken decoders that every test of exactness must reject.

Every mutant patches one function of the library with a mistake that has occurred in practice, and
names a decoder whose distribution it changes.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.random import as_key
from cspd_jax.decoding import accept, row_random, tree
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.decoders import vanilla
from cspd_jax.decoding.drafters import corrected, from_model, jacobi as jacobi_lib, siblings
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.verifiers import rejection as rejection_lib
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing import tabular


class Mutant(NamedTuple):
  """A mistake and a decoder in which it matters."""

  # `() -> context manager`; trace the decoder inside it.
  patch: Callable[[], contextlib.AbstractContextManager]
  # `target -> Decoder`, to be called inside the patch with a tabular target. Some decoders draft
  # from another table, to be passed as `draft_params`.
  build: Callable[[Target], Decoder]
  greedy: bool = False  # Whether it matters at temperature 0 only, on a model with tied logits.


def _jacobi(coupling: str, topology: tree.Tree | None = None) -> Callable[[Target], Decoder]:
  size = 4 if topology is None else topology.num_nodes + 1
  return lambda target: make_decoder(target, jacobi(size, coupling, tree=topology), rejection())


def _eagle(draws: str, topology: tree.Tree | None = None) -> Callable[[Target], Decoder]:
  topology = topology or tree.kary(2, 3, 6)
  return lambda target: make_decoder(
      target, eagle(tabular.network(target), topology, draws), rejection())


def _corrected(target: Target) -> Decoder:
  return make_decoder(
      target, corrected.corrected(from_model(target), 6, 2, tree.caterpillar(2, 2, 5)), rejection())


def _patch(owner: Any, name: str, replacement: Callable
           ) -> Callable[[], contextlib.AbstractContextManager]:
  return lambda: mock.patch.object(owner, name, replacement)


def _residual_twice_warped(p, q):
  sharper = _original_residual(p, q) ** (1 / 0.7)
  return sharper / jnp.sum(sharper, axis=-1, keepdims=True)


def _stale_probs(rng, state, outcome, first, length, coupling):
  """Retained tokens keep the distribution they were drawn from two rounds ago."""
  tokens, probs = _original_couple(rng, state, outcome, first, length, coupling)
  retained = (tokens[:-1] == state.tokens)[:, None]
  return tokens, jnp.concatenate([jnp.where(retained, state.probs, probs[:-1]), probs[-1:]])


def _reused_as_drawn(rng, tokens, probs, new_probs, threshold):
  """Tokens are retained by their probability, but recorded as if they had been drawn again."""
  length, drawn = len(tokens), rng.draw(new_probs)
  retained = accept.take(new_probs[:length], tokens) >= threshold * accept.take(probs, tokens)
  return drawn.at[:length].set(jnp.where(retained, tokens, drawn[:length])), new_probs


def _accepted_keep_their_probs(rng, state, outcome, first, length, coupling):
  """Tokens that were accepted but not committed are verified again with the same distribution."""
  tokens, probs = _original_couple(rng, state, outcome, first, length, coupling)
  accepted = jnp.arange(length) < outcome.verdict.node  # A chain: node is depth.
  return (jnp.concatenate([jnp.where(accepted, state.tokens, tokens[:-1]), tokens[-1:]]),
          jnp.concatenate([jnp.where(accepted[:, None], state.probs, probs[:-1]), probs[-1:]]))


def _fresh_as_uniform(*args):
  """Fresh tokens that repeat the small image, recorded as if they had been drawn by chance."""
  tokens, probs = _original_fresh(*args)
  return tokens, jnp.full_like(probs, 1 / probs.shape[-1])


def _drawn_twice(target: Target) -> Decoder:
  small = jnp.array([-1, -1, 0, 1, 1])
  return make_decoder(
      target._replace(small=lambda positions: small[jnp.clip(positions, 0, 4)]),
      jacobi(4, 'maximal', initialization='repeat-small'), rejection())


def _shortest_of_pairs(self, count, accepted):
  """Every two rows advance by the smaller of their accepted lengths."""
  length = jnp.minimum(accepted + 1, self.target.num_tokens - count)
  pairs = jnp.where(length > 0, length, length.max()).reshape(-1, 2)
  return jnp.minimum(length, jnp.repeat(pairs.min(axis=1), 2))


@contextlib.contextmanager
def _cut_to_minimum():
  with (mock.patch.object(Decoder, '_length', _shortest_of_pairs),
        mock.patch.object(jacobi_lib, '_couple', _accepted_keep_their_probs)):
    yield


def _same_uniforms(self, p, q):
  """All accept tests of a decode use the same uniform numbers."""
  return jax.random.uniform(as_key(self.state.noise, 0, 1), p.shape) * q < p


def _noise_of_pairs(self, positions, vocab_size):
  return _original_noise(self, positions // 2, vocab_size)


def _late_bonus(test, node, layout, tokens, probs, target_probs):
  """The bonus token is drawn from the distribution one node too early."""
  is_leaf = jnp.asarray(layout.tree.children[:, 0] < 0)[node]
  right = _original_stop_distribution(test, node, layout, tokens, probs, target_probs)
  return jnp.where(is_leaf, target_probs[jnp.maximum(node - 1, 0)], right)


def _longest(accepted, topology):
  """Selects the longest of all accepted paths instead of the first one."""
  reached = jnp.all(accepted.at[0].set(True) | ~topology.ancestors, axis=1)
  return jnp.argmax(jnp.where(reached, np.asarray(topology.depth), -1)).astype(jnp.int32)


def _only_the_first(test, node, layout, tokens, probs, target_probs):
  """The last token follows what the first child leaves, whatever was rejected after it."""
  if not layout.tree.num_nodes:
    return target_probs[node]
  child = jnp.asarray(layout.tree.children)[node, 0]
  rejected = accept.residual(target_probs[node], probs[jnp.asarray(layout.probs_rows)[child]])
  return jnp.where(child > 0, rejected, target_probs[node])


@contextlib.contextmanager
def _paths_apart():
  """Every path is tested as if it were the only one, and the longest accepted one is committed."""
  with (mock.patch.object(accept, 'last_accepted', _longest),
        mock.patch.object(
            rejection_lib, '_reject', lambda test, layout, p, q, token, depth: (p, q)),
        mock.patch.object(rejection_lib, '_stop_distribution', _only_the_first)):
    yield


def _most_probable(env, rng, probs, positions, count, draws):
  return rng, row_random.winners(probs, count), probs


def _drawn_apart(env, rng, probs, positions, count, draws):
  return _original_choose(env, rng, probs, positions, count, 'distinct')


def _softmax_recorded(env, rng, probs, positions, count, draws):
  """Records the network's distribution even where the tokens were chosen without randomness."""
  rng, tokens, _ = _original_choose(env, rng, probs, positions, count, draws)
  return rng, tokens, probs


def _unless_greedy(env, probs, recorded):
  """Returns `probs`, but what is recorded for rows at temperature 0, where nothing is drawn."""
  greedy = jnp.broadcast_to(jnp.asarray(env.sampling.temperature) == 0, probs.shape[:1])
  return jnp.where(greedy[:, None, None], recorded, probs)


def _drawn_at_temperature_1(env, rng, probs, positions, count, draws):
  """Draws without the temperature, and records with it."""
  temperature = jnp.broadcast_to(jnp.asarray(env.sampling.temperature), probs.shape[:1])
  plain = probs ** jnp.where(temperature > 0, temperature, 1)[:, None, None]
  plain /= jnp.sum(plain, axis=-1, keepdims=True)
  rng, tokens, recorded = _original_choose(env, rng, plain, positions, count, draws)
  return rng, tokens, _unless_greedy(env, probs, recorded)


@contextlib.contextmanager
def _drawn_from_bfloat16():
  """Draws from logits in bfloat16, and records the distributions of those in float32."""
  rounded = []

  def probabilities(env, logits, positions):
    rounded.append(_original_probabilities(
        env, logits.astype(jnp.bfloat16).astype(logits.dtype), positions))
    return _original_probabilities(env, logits, positions)

  def choose(env, rng, probs, positions, count, draws):
    rng, tokens, recorded = _original_choose(env, rng, rounded[-1], positions, count, draws)
    return rng, tokens, _unless_greedy(env, probs, recorded)

  with (mock.patch.object(siblings, 'probabilities', probabilities),
        mock.patch.object(siblings, 'choose', choose)):
    yield


_original_choose = siblings.choose
_original_probabilities = siblings.probabilities
_original_fresh = jacobi_lib._fresh
_original_residual = accept.residual
_original_couple = jacobi_lib._couple  # pylint: disable=protected-access
_original_noise = row_random.RowRandom._position_noise  # pylint: disable=protected-access
_original_stop_distribution = rejection_lib._stop_distribution  # pylint: disable=protected-access

MUTANTS = {
    'residual replaced by the target distribution': Mutant(
        _patch(accept, 'residual', lambda p, q: p), _jacobi('independent')),
    'plain draft distribution for the second candidate': Mutant(
        _patch(accept, 'without', lambda q, token: q),
        _jacobi('maximal', tree.caterpillar(2, 2, 5))),
    'stored distribution not updated after a kept token': Mutant(
        _patch(jacobi_lib, '_couple', _stale_probs), _jacobi('maximal')),
    'token reused by its probability, recorded as drawn again': Mutant(
        _patch(jacobi_lib, 'reused', _reused_as_drawn),
        lambda target: make_decoder(target, jacobi_lib.reuse(4), rejection())),
    'token of the small image recorded as uniform': Mutant(
        _patch(jacobi_lib, '_fresh', _fresh_as_uniform), _drawn_twice),
    'batch cut to its minimum': Mutant(_cut_to_minimum, _jacobi('independent')),
    'one uniform used twice': Mutant(
        _patch(row_random.RowRandom, 'accept', _same_uniforms), _jacobi('maximal')),
    'noise shared by two positions': Mutant(
        _patch(row_random.RowRandom, '_position_noise', _noise_of_pairs), vanilla),
    'temperature applied twice': Mutant(
        _patch(accept, 'residual', _residual_twice_warped), _jacobi('independent')),
    'bonus token one position early': Mutant(
        _patch(rejection_lib, '_stop_distribution', _late_bonus), _jacobi('independent')),
    'longest of several accepted paths': Mutant(
        _patch(accept, 'last_accepted', _longest), _jacobi('maximal', tree.kary(2, 3, 6))),
    'every path tested as if it were the only one': Mutant(
        _paths_apart, _jacobi('independent', tree.paths(2, 3, 6))),
    'corrected token kept without a test': Mutant(
        _patch(corrected, '_redraw', lambda env, rng, tokens, *args: tokens), _corrected),
    'corrected token with the distribution of the pass before': Mutant(
        _patch(corrected, '_redraw', lambda env, rng, tokens, probs, *args: rng.draw(probs)),
        _corrected),
    'siblings drawn without replacement, tested as independent': Mutant(
        _patch(siblings, 'choose', _drawn_apart), _eagle('iid')),
    'most probable tokens tested as if drawn': Mutant(
        _patch(siblings, 'choose', _most_probable), _eagle('distinct')),
    'softmax recorded for tokens taken without chance': Mutant(
        _patch(siblings, 'choose', _softmax_recorded), _eagle('distinct'), greedy=True),
    'drafts drawn without the temperature, recorded with it': Mutant(
        _patch(siblings, 'choose', _drawn_at_temperature_1), _eagle('iid')),
    'drafts drawn from bfloat16 logits, recorded from float32': Mutant(
        _drawn_from_bfloat16, _eagle('iid', tree.chain(2))),
    'chosen token not removed from the distribution': Mutant(
        _patch(rejection_lib, '_reject', lambda test, layout, p, q, token, depth: (p, q)),
        _eagle('fixed')),
}
