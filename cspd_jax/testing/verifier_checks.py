"""Finds mistakes in a verifier: one call checks a user's verifier, without sampling."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields, programs
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding.base import Verifier
from cspd_jax.decoding.decoders import vanilla
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.testing import verdicts
from cspd_jax.testing.report import Check, CheckReport, collect, complaint, required
from cspd_jax.testing.tabular import first_prefix, prefix_number, tabular, tabular_drafter
from cspd_jax.testing.verdicts import ARRANGEMENTS, ONE, TWO, Arrangement, StageDrafts, Verdicts

# Probabilities that differ by less are equal: of float64, with constants of float32.
_TOLERANCE = 1e-6
# Images that a seed-exact verifier must draw as `vanilla` does, and their tokens.
_IMAGES, _LENGTH = 256, 5


def check_verifier(verifier: Verifier, *, vocab_size: int = 3, progress: bool = True
                   ) -> CheckReport:
  """Checks that a verifier satisfies the contract of `base.Verifier`, by enumeration.

  All drafts of small layouts (a chain, siblings drawn in every way, side branches) and all outcomes
  of the verifier's randomness are enumerated, for several random distributions of target and
  drafter; in some of them tokens are impossible or certain. There are no false alarms, and errors
  above 1e-6 are detected. Layouts that the verifier's `check` refuses are left out.

  `exact`: acceptance times draft plus rejection times residual is the target's distribution. Not
  exact: the total variation to it is at most the mean of `tv_bound`, if `bounded`. `seed_exact`:
  tokens are those of `vanilla`. Shapes, dtypes and ranges; nodes without a candidate, which cannot
  be accepted; `samples`. Raises ProblemsError with a sentence per failed check.

  Args:
    verifier: the verifier, for a vocabulary of that size. Its random numbers must be those of its
      argument `rng`, and used outside of `lax` loops.
    vocab_size: `V`, 2 to 4; ValueError for others.
    progress: whether a line on stderr says which check runs once that takes more than five seconds.
  """
  fields.require(2 <= vocab_size <= 4, 'vocab_size', vocab_size, '2 to 4, for which all drafts can '
                 'be enumerated; build the verifier for a vocabulary of that size')
  with jax.enable_x64(True):
    probe = _Probe(verifier, vocab_size)
    report = collect('verifier', CHECKS, probe, progress)
  return required('verifier', report._replace(notes=tuple(probe.notes)))


@dataclasses.dataclass
class _Probe:
  """A verifier, and its verdicts; arguments as of `check_verifier`."""

  verifier: Verifier
  vocab_size: int
  notes: list[str] = dataclasses.field(default_factory=list)

  @functools.cached_property
  def models(self) -> tuple[np.ndarray, np.ndarray]:
    """Distributions of target and drafter after every prefix."""
    return verdicts.models(self.vocab_size)

  @functools.cached_property
  def results(self) -> dict[Arrangement, tuple[StageDrafts, Verdicts]]:
    """The verdicts on all arrangements that the verifier accepts."""
    results, refused = {}, []
    for arrangement in ARRANGEMENTS:
      if arrangement.refusal(self.verifier, self.vocab_size) is not None:
        refused.append(arrangement.name)
        continue
      made = verdicts.drafts(arrangement, *self.models)
      enumerated = verdicts.verify(self.verifier, arrangement, made)
      if enumerated is None:
        self.notes.append(f'{arrangement.name}: unchecked, its outcomes are too many to enumerate.')
      else:
        results[arrangement] = made, enumerated
    if refused:
      self.notes.append(f'the verifier refuses {", ".join(refused)}.')
    return results

  @functools.cached_property
  def target(self) -> np.ndarray:
    """The distribution `[C, P, V]` of the decoder's target after every prefix."""
    if not self.verifier.greedy:
      return self.models[0]
    best = self.models[0] == self.models[0].max(axis=-1, keepdims=True)
    return best / best.sum(axis=-1, keepdims=True)

  @functools.cached_property
  def distances(self) -> dict[Arrangement, tuple[np.ndarray, np.ndarray]]:
    """Total variation `[C]` of the images to the target's, and the mean `tv_bound` `[C]`."""
    bound = lambda made, result: (
        np.full(len(made.weight), np.nan) if result.tv_bound is None else
        np.einsum('cn,cno,cno->c', made.weight, result.weight, result.tv_bound))
    return {arrangement: (_total_variation(arrangement, self.target, *result), bound(*result))
            for arrangement, result in self.results.items()}


def _total_variation(arrangement: Arrangement, target: np.ndarray, made: StageDrafts,
                     result: Verdicts
                     ) -> np.ndarray:
  """`[C]`: of the tokens of a round, completed with the target's, to the target's tokens."""
  vocab_size, depth = target.shape[-1], arrangement.tree.max_depth + 1
  paths = arrangement.paths(made.tokens)
  committed = [np.zeros((len(target), vocab_size**length)) for length in range(1, depth + 1)]
  weight = made.weight[..., None] * result.weight
  for node, path in enumerate(paths):
    number = prefix_number(np.maximum(path, 0), vocab_size)
    number -= first_prefix(path.shape[1], vocab_size)
    cell = number[:, None] * vocab_size + result.token
    for case in range(len(target)):
      np.add.at(committed[path.shape[1]][case], cell[case],
                np.where(result.node[case] == node, weight[case], 0))
  # The distribution of sequences, and what each prefix is followed by.
  whole = np.ones((len(target), 1))
  got = np.zeros((len(target), 1))
  for length in range(depth):
    first = first_prefix(length, vocab_size)
    after = target[:, first:first + vocab_size**length]
    spread = lambda mass, after=after: (mass[..., None] * after).reshape(len(target), -1)
    whole, got = spread(whole), spread(got) + committed[length]
  return 0.5 * np.abs(got - whole).sum(axis=1)


def _results(probe: _Probe) -> Iterator[str]:
  """Verdicts have their shapes and dtypes, and what they name exists."""
  try:
    results = probe.results
  except Exception as error:  # Any, of the user's code.
    hint = '' if probe.verifier.needs_probs else (
        '; needs_probs is False, so probs is None: set it if the verifier reads them')
    yield complaint(error, f'the verifier raises {{}}{hint}.')
    return
  if not results:
    yield ('check: it refuses every layout, also one draft drawn from a recorded distribution; it '
           'must raise ValueError for the drafters that the verifier cannot verify only.')
  for arrangement, (made, result) in results.items():
    yield from _invalid(arrangement, made, result, probe.vocab_size)


def _invalid(arrangement: Arrangement, made: StageDrafts, result: Verdicts, vocab_size: int
             ) -> Iterator[str]:
  """A node or a token that a verdict must not have."""
  possible = (made.weight[..., None] * result.weight) > _TOLERANCE
  if np.isnan(result.weight).any():
    yield (f'verify: with {arrangement.name} it tests or draws with weights that are NaN; '
           'probabilities of 0 occur in both distributions, so do not divide by them.')
  size = len(arrangement.parents)
  for name, value, least, limit in (('node', result.node, 0, size - 1),
                                    ('token', result.token, 0, vocab_size - 1)):
    wrong = possible & ((value < least) | (value > limit))
    if wrong.any() and name == 'token' and (value[wrong] == -1).all():  # By `rng.draw`.
      yield f'verify: with {arrangement.name}: {_no_weight(arrangement, made, result)}'
    if wrong.any():
      yield (f'verify: with {arrangement.name} it returns {name} {value[wrong][0]}; it must be '
             f'{least} to {limit}.')
  missing = np.stack([(path < 0).any(axis=1) for path in arrangement.paths(made.tokens)])
  node = np.clip(result.node, 0, size - 1)
  wrong = possible & missing[node, np.arange(len(made.tokens))[:, None]]
  if wrong.any():
    yield (f'verify: with {arrangement.name} it accepts node {node[wrong][0]}, whose token or one '
           'above it is -1, no candidate; such nodes must be refused.')


def _no_weight(arrangement: Arrangement, made: StageDrafts, result: Verdicts) -> str:
  """Describes why the weights of the additional token sum to 0."""
  if arrangement is TWO and (hint := _unnormalised(made, result)):
    return hint
  if len(set(arrangement.parents)) < len(arrangement.parents):  # Single drafts had weights.
    return ('the residual is not normalised, so that nothing is left of it after several '
            'rejections; divide [p - q f]+ by its sum, as accept.normalised does.')
  return ('the weights of the additional token sum to 0; draw from the residual [p - q f]+ after a '
          'rejection, not from p - q f, and from target_probs after the last draft.')


def _flags(probe: _Probe) -> Iterator[str]:
  """The declared guarantee is one, and verdicts have the bound that it declares."""
  verifier = probe.verifier
  if verifier.seed_exact and not verifier.exact:
    yield 'seed_exact is True and exact is False; a seed-exact verifier is exact: set exact=True.'
  bounds = [result.tv_bound for _, result in probe.results.values()]
  if verifier.exact:
    return
  if verifier.bounded and any(bound is None for bound in bounds):
    yield ('bounded is True, but verdicts have no tv_bound: the gap is missing; return the bound '
           'of every node, of an AcceptanceRule by gap, or set bounded=False.')
  elif not verifier.bounded and bounds and all(bound is None for bound in bounds):
    probe.notes.append('it is neither exact nor bounded, so its decoders are called biased; an '
                       'AcceptanceRule with a gap, or a tv_bound of verdicts, bounds their bias.')
  elif not verifier.bounded and all(bound is not None for bound in bounds):
    yield ('bounded is False, but verdicts have a tv_bound; set bounded=True, or its decoders are '
           'called biased, without a bound.')


class _OneDraft(NamedTuple):
  """The results of a verifier for one draft, for the `C` pairs of models in which there is one."""

  p: np.ndarray  # `[C, V]` the target's distribution.
  q: np.ndarray  # `[C, V]` the draft distribution.
  f: np.ndarray  # `[C, V]` the probability that a draft is accepted.
  refused: np.ndarray  # `[C, V]` the joint probability of a rejection and of the token after it.
  accepted: np.ndarray  # `[C, V, V]` the probability, given the draft, of acceptance and a token.
  bonus: np.ndarray  # `[C, V, V]` the target's distribution after the draft.
  gap: np.ndarray  # `[C]` the mean of the part of `tv_bound` that acceptance adds, too; or NaN.


def _of_one_draft(made: StageDrafts, result: Verdicts) -> _OneDraft:
  """Collects the results of `ONE`."""
  pairs, drafts = made.probs[:, 0, 0].sum(axis=-1) > 0, made.tokens[:, 0] >= 0
  of_drafts = lambda x: x[pairs][:, drafts]
  q, p = made.probs[pairs, 0, 0], made.target[pairs, 0, 0]
  weight, token = of_drafts(result.weight), of_drafts(result.token)
  accepts = of_drafts(result.node) == 1
  is_token = token[..., None] == np.arange(p.shape[-1])
  refused, accepted = (np.einsum('cxo,cxov->cxv', weight * when, is_token)
                       for when in (~accepts, accepts))
  gap = np.full(len(p), np.nan)
  if result.tv_bound is not None:  # A rejection adds the offset to the gap.
    least = np.where(weight > 0, of_drafts(result.tv_bound), np.inf).min(axis=-1)
    gap = np.where(q > 0, q * np.where(q > 0, least, 0), 0).sum(axis=-1)
  return _OneDraft(p, q, (weight * accepts).sum(-1), np.einsum('cx,cxv->cv', q, refused), accepted,
                   of_drafts(made.target)[:, :, 1], gap)


def _one_draft(probe: _Probe) -> Iterator[str]:
  """Acceptance and residual of one draft give the target's distribution."""
  if not probe.verifier.exact or ONE not in probe.results:
    return
  one = _of_one_draft(*probe.results[ONE])
  bonus = np.abs(one.accepted - one.f[..., None] * one.bonus).sum(-1)
  if bonus.max() > _TOLERANCE:
    case, x = np.unravel_index(np.argmax(bonus), bonus.shape)
    after, f = one.bonus[case, x], one.f[case, x]
    v = int(np.argmax(np.abs(one.accepted[case, x] - f * after)))
    yield (f'verify: after it accepted the last draft it draws token {v} with probability '
           f'{one.accepted[case, x, v] / f:.3g}, where the target has {after[v]:.3g}; the bonus '
           'token follows target_probs of the accepted node.')
  if np.abs(one.q * one.f + one.refused - one.p).max() > _TOLERANCE:
    yield f'verify: {_wrong_test(one) or _low_test(one) or _wrong_residual(one)}'


def _is_inverted(one: _OneDraft) -> bool:
  """Whether drafts are accepted with probability `min(1, q / p)`."""
  drawn = (one.q > 0) & (one.p > 0)
  inverted = np.minimum(1, np.divide(one.q, one.p, out=np.ones_like(one.p), where=one.p > 0))
  return bool(np.abs(one.f - inverted)[drawn].max() < _TOLERANCE)


def _wrong_test(one: _OneDraft) -> str | None:
  """Describes an acceptance that no residual can repair."""
  p, q, f = one.p, one.q, one.f
  over = np.where(q > 0, q * f - p, 0)
  case, x = np.unravel_index(np.argmax(over), over.shape)
  if over[case, x] <= _TOLERANCE:
    return None
  values = f'p = {p[case, x]:.3g} and q = {q[case, x]:.3g}'
  if _is_inverted(one):
    return (f'it accepts a draft with probability min(1, q / p), {f[case, x]:.3g} for a token with '
            f'{values}: the ratio is inverted; accept with probability min(1, p / q), by '
            'rng.accept(p, q).')
  return (f'it accepts a token with {values} with probability {f[case, x]:.3g}, so that it is '
          f'emitted with probability {q[case, x] * f[case, x]:.3g} or more, but exact is True: its '
          'mass is wrong; accept with probability p / q at most, or declare exact=False.')


def _low_test(one: _OneDraft) -> str | None:
  """Describes an acceptance below `min(1, p / q)` before a residual that belongs to the latter."""
  drawn, needed = _share(one.refused), _share(np.maximum(one.p - one.q, 0))
  right = np.minimum(1, np.divide(one.p, one.q, out=np.ones_like(one.p), where=one.q > 0))
  low = np.where(one.q > 0, right - one.f, 0)
  case, x = np.unravel_index(np.argmax(low), low.shape)
  refused = (one.refused.sum(-1) > _TOLERANCE) & (needed.sum(-1) > 0)
  if low[case, x] <= _TOLERANCE or np.abs(drawn - needed)[refused].max(initial=0) > _TOLERANCE:
    return None
  return (f'it accepts a token with p = {one.p[case, x]:.3g} and q = {one.q[case, x]:.3g} with '
          f'probability {one.f[case, x]:.3g}, where its residual, [p - q]+, belongs to the '
          f'probability {right[case, x]:.3g}: its mass is wrong; accept with probability '
          'min(1, p / q), by rng.accept(p, q).')


def _share(x: np.ndarray) -> np.ndarray:
  """Weights `[..., V]` as distributions, 0 where they are all 0."""
  mass = x.sum(-1, keepdims=True)
  return np.divide(x, mass, out=np.zeros_like(x), where=mass > 0)


def _wrong_residual(one: _OneDraft) -> str | None:
  """Describes the tokens that are drawn after a rejection, if they are not those needed."""
  p, kept, refused = one.p, one.q * one.f, one.refused.sum(-1) > _TOLERANCE
  drawn, needed = _share(one.refused), _share(np.maximum(p - kept, 0))
  apart = np.where(refused[:, None], np.abs(drawn - needed), 0)
  case, v = np.unravel_index(np.argmax(apart), apart.shape)
  if apart[case, v] <= _TOLERANCE:
    return None

  def draws(other: np.ndarray) -> bool:
    of = refused & (other.sum(-1) > _TOLERANCE)
    return of.any() and np.abs(drawn - _share(other))[of].max() < _TOLERANCE

  name = ''
  if draws(p):
    name = ": it draws from the target's distribution p itself"
  elif any(draws(np.maximum(x - p, 0)) for x in (kept, one.q)):
    name = ': its residual is inverted, [q f - p]+'
  elif draws(one.q):
    name = ': it draws from the draft distribution q'
  return (f'after a rejection it draws a token with p = {p[case, v]:.3g} and '
          f'q = {one.q[case, v]:.3g} with probability {drawn[case, v]:.3g}, where exactness needs '
          f'{needed[case, v]:.3g}{name}; draw from the residual [p - q f]+, normalised, '
          'where f is the acceptance probability.')


def _wrong_bound(one: _OneDraft) -> str | None:
  """Describes why the bound on one draft is too small: acceptance, residual or gap."""
  if _is_inverted(one):
    return ('it accepts a draft with probability min(1, q / p): the ratio is inverted; accept with '
            'probability min(1, mass / q), by rng.accept(mass, q).')
  needed = np.maximum(one.q * one.f - one.p, 0).sum(-1)
  short, residual = needed - one.gap, _wrong_residual(one)
  case = int(np.argmax(np.abs(short)))
  if np.abs(short).max() <= _TOLERANCE:
    return residual and f'{residual[:-1]}, or add the difference by offset.'
  if np.abs(one.gap).max() <= _TOLERANCE:
    return ('its gap is missing, tv_bound is 0 after an accepted draft; add sum_x [q f - p]+, of a '
            'AcceptanceRule by gap.')
  if residual is not None and 'inverted' in residual:
    return residual
  return (f'its mass is wrong for its gap, which is {one.gap[case]:.3g} on average, where '
          f'acceptance adds {needed[case]:.3g}; the mass must be q f and the gap '
          'sum_x [q f - p]+, of one f.')


def _exact(probe: _Probe) -> Iterator[str]:
  """The tokens of an exact verifier follow the target's distribution, in every layout."""
  if not probe.verifier.exact:
    return
  for arrangement, (distance, _) in probe.distances.items():
    if distance.max() > _TOLERANCE:
      hint = _unnormalised(*probe.results[TWO]) if arrangement is TWO else None
      hint = hint and f': {hint}'
      yield (f'verify: with {arrangement.name} the tokens are {distance.max():.3g} in total '
             f"variation from the target's, but exact is True"
             + (hint or '; test every sibling against what the rejections before it left of p and '
                        'q, every node given that its parent is accepted, and follow the first '
                        'accepted child, whatever its continuation is.'))


def _unnormalised(made: StageDrafts, result: Verdicts) -> str | None:
  """Describes that the second sibling of `TWO` is tested with a residual that is not normalised."""
  tokens = made.tokens
  both = (tokens[:, :2] >= 0).all(axis=1) & (tokens[:, 0] != tokens[:, 1])
  p, q = made.target[:, both, 0], made.probs[:, both, 0]
  weight, node = result.weight[:, both], result.node[:, both]
  first, second = (np.broadcast_to(tokens[both, i][:, None], (*p.shape[:2], 1)) for i in (0, 1))
  at = lambda x, token: np.take_along_axis(x, token, axis=-1)[..., 0]
  reached, passed = ((weight * (node != 1)).sum(-1), (weight * (node >= 2)).sum(-1))
  rest = np.maximum(p - q, 0)
  left = 1 - at(q, first)
  valid = (made.weight[:, both] > 0) & (reached > _TOLERANCE) & (left > _TOLERANCE)
  with np.errstate(divide='ignore', invalid='ignore'):
    measured = passed / reached
    plain, right = (np.minimum(1, at(mass, second) * left / at(q, second))
                    for mass in (rest, rest / rest.sum(-1, keepdims=True)))
  apart = np.abs(np.where(valid, right - plain, 0))
  if apart.max() < 0.01 or np.abs(np.where(valid, measured - plain, 0)).max() > _TOLERANCE:
    return None
  worst = np.unravel_index(np.argmax(apart), apart.shape)
  return ('the residual is not normalised, it accepts the second with probability '
          f'{measured[worst]:.3g}, where the normalised residual gives {right[worst]:.3g}; divide '
          '[p - q]+ by its sum before the next test.')


def _bound(probe: _Probe) -> Iterator[str]:
  """The total variation of a relaxed verifier is at most its bound."""
  if probe.verifier.exact or not probe.verifier.bounded:
    return
  for arrangement, (distance, bound) in probe.distances.items():
    over = np.where(np.isnan(bound), np.inf, distance - bound)
    if over.max() > _TOLERANCE:
      case = int(np.argmax(over))
      text = (f'verify: with {arrangement.name} the tokens are {distance[case]:.3g} in total '
              f"variation from the target's, but the mean of tv_bound is {bound[case]:.3g}")
      if arrangement is ONE and (cause := _wrong_bound(_of_one_draft(*probe.results[ONE]))):
        yield f'{text}: {cause}'
      yield (f'{text}; every test on the way must add sum_x [q f - p]+, and every rejection the '
             'total variation between the residual that it draws from and [p - q f]+, normalised.')


def _samples(probe: _Probe) -> Iterator[str]:
  """`samples` are the target's draws, the additional token among them."""
  for arrangement, (made, result) in probe.results.items():
    if result.samples is None:
      continue
    at_node = np.take_along_axis(result.samples, result.node[..., None], axis=-1)[..., 0]
    if ((at_node != result.token) & (result.weight > _TOLERANCE)).any():
      yield (f'verify: with {arrangement.name} token is not samples[node]; the additional token is '
             "the target's draw after the last accepted node.")
    drawn = np.einsum('cno,cnoiv->cniv', result.weight,
                      result.samples[..., None] == np.arange(probe.vocab_size))
    apart = 0.5 * np.abs(drawn - made.target).sum(-1).max(axis=(0, 1))
    if not probe.verifier.greedy and apart.max() > _TOLERANCE:
      node = int(np.argmax(apart))
      yield (f'verify: with {arrangement.name} samples[{node}] is {apart[node]:.3g} in total '
             f'variation from target_probs[{node}]; it must be a draw from it, or samples None.')


def _seed_exact(probe: _Probe) -> Iterator[str]:
  """A seed-exact verifier draws the tokens of `vanilla`."""
  if not probe.verifier.seed_exact:
    return
  arrangement = next((a for a in probe.results if a.draws != 'fixed' and not a.by_depth), None)
  if arrangement is None:
    return
  with jax.enable_x64(False):
    model, other = (tabular(jax.random.key(number), probe.vocab_size, _LENGTH) for number in (0, 1))
    drafter = tabular_drafter(other, arrangement.tree, arrangement.draws)
    decode = lambda decoder, *args: np.asarray(programs.jit(decoder, options=programs.UNOPTIMISED)(
        model.params, jnp.zeros(_IMAGES, jnp.int32), jax.random.key(0), SamplingParams(),
        *args).tokens)
    got = decode(make_decoder(model.target, drafter, probe.verifier), other.params)
    want = decode(vanilla(model.target))
  if (got != want).any():
    yield (f'verify: seed_exact is True, but {(got != want).any(axis=1).sum()} of {_IMAGES} images '
           'are not those of vanilla with the same key; draw every token with the noise of its '
           'position, by rng.draw_at(positions, target_probs).')


CHECKS = (
    Check('results', _results),
    Check('guarantee', _flags, ('results',)),
    Check('one draft', _one_draft, ('results',)),
    Check('exact', _exact, ('results', 'one draft')),
    Check('bound', _bound, ('results', 'guarantee')),
    Check('samples', _samples, ('results',)),
    Check('seed-exact', _seed_exact, ('guarantee', 'exact', 'samples')),
)
