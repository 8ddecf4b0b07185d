"""Finds mistakes in a verifier: one call checks a user's verifier, without sampling."""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields, programs
from cspd_jax.decoding.base import Verifier
from cspd_jax.decoding.decoders import vanilla
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.warp import Warp
from cspd_jax.testing import verdicts
from cspd_jax.testing.report import Check, Report, collect, complaint, required
from cspd_jax.testing.tabular import first_prefix, prefix_number, tabular, tabular_drafter
from cspd_jax.testing.verdicts import ARRANGEMENTS, ONE, TWO, Arrangement, Drafts, Verdicts

# Probabilities that differ by less are equal: of float64, with constants of float32.
_TOLERANCE = 1e-6
# Images that a seed-exact verifier must draw as `vanilla` does, and their tokens.
_IMAGES, _LENGTH = 256, 5


def check_verifier(verifier: Verifier, *, vocab_size: int = 3) -> Report:
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
  """
  fields.require(2 <= vocab_size <= 4, 'vocab_size', vocab_size, '2 to 4, for which all drafts can '
                 'be enumerated; build the verifier for a vocabulary of that size')
  with jax.enable_x64(True):
    probe = _Probe(verifier, vocab_size)
    report = collect(CHECKS, probe)
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
  def results(self) -> dict[Arrangement, tuple[Drafts, Verdicts]]:
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


def _total_variation(arrangement: Arrangement, target: np.ndarray, made: Drafts, result: Verdicts
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


def _invalid(arrangement: Arrangement, made: Drafts, result: Verdicts, vocab_size: int
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
    if wrong.any():
      hint = _unnormalised(made, result) if arrangement is TWO else None
      drawn = ', drawn from weights that are not all 0' if name == 'token' else ''
      yield (f'verify: with {arrangement.name} it returns {name} {value[wrong][0]}; it must be '
             f'{least} to {limit}{drawn}{hint or "."}')
  missing = np.stack([(path < 0).any(axis=1) for path in arrangement.paths(made.tokens)])
  node = np.clip(result.node, 0, size - 1)
  wrong = possible & missing[node, np.arange(len(made.tokens))[:, None]]
  if wrong.any():
    yield (f'verify: with {arrangement.name} it accepts node {node[wrong][0]}, whose token or one '
           'above it is -1, no candidate; such nodes must be refused.')


def _flags(probe: _Probe) -> Iterator[str]:
  """The declared guarantee is one, and verdicts have the bound that it declares."""
  verifier = probe.verifier
  if verifier.seed_exact and not verifier.exact:
    yield 'seed_exact is True and exact is False; a seed-exact verifier is exact: set exact=True.'
  bounds = [result.tv_bound for _, result in probe.results.values()]
  if verifier.exact:
    return
  if verifier.bounded and any(bound is None for bound in bounds):
    yield ('bounded is True, but verdicts have no tv_bound; return the bound of every node, or set '
           'bounded=False.')
  elif not verifier.bounded and all(bound is not None for bound in bounds):
    yield ('bounded is False, but verdicts have a tv_bound; set bounded=True, or its decoders are '
           'called biased, without a bound.')


def _one_draft(probe: _Probe) -> Iterator[str]:
  """Acceptance and residual of one draft give the target's distribution."""
  if not probe.verifier.exact or ONE not in probe.results:
    return
  made, result = probe.results[ONE]
  # The pairs of models in which the drafter has candidates, and the drafts that are one.
  pairs, drafts = made.probs[:, 0, 0].sum(axis=-1) > 0, made.tokens[:, 0] >= 0
  of_drafts = lambda x: x[pairs][:, drafts]
  q, p = made.probs[pairs, 0, 0], made.target[pairs, 0, 0]
  weight, token = of_drafts(result.weight), of_drafts(result.token)
  accepts = of_drafts(result.node) == 1
  # `f(x)`: `[C, V]`; the joint mass of rejection and token, `[C, x, V]`; that of acceptance.
  f = (weight * accepts).sum(-1)
  is_token = token[..., None] == np.arange(probe.vocab_size)
  refused, accepted = (np.einsum('cxo,cxov->cxv', weight * when, is_token)
                       for when in (~accepts, accepts))
  after = of_drafts(made.target)[:, :, 1]
  bonus = np.abs(accepted - f[..., None] * after).sum(-1)
  if bonus.max() > _TOLERANCE:
    case, x = np.unravel_index(np.argmax(bonus), bonus.shape)
    v = int(np.argmax(np.abs(accepted[case, x] - f[case, x] * after[case, x])))
    drawn = accepted[case, x, v] / f[case, x]
    yield (f'verify: after it accepted the last draft it draws token {v} with probability '
           f'{drawn:.3g}, where the target has {after[case, x, v]:.3g}; the bonus token follows '
           'target_probs of the accepted node.')
  emitted = q * f + np.einsum('cx,cxv->cv', q, refused)
  wrong = np.abs(emitted - p)
  if wrong.max() <= _TOLERANCE:
    return
  yield _wrong_test(p, q, f) or _wrong_residual(p, q, f, np.einsum('cx,cxv->cv', q, refused))


def _wrong_test(p: np.ndarray, q: np.ndarray, f: np.ndarray) -> str | None:
  """Describes an acceptance that no residual can repair."""
  over = np.where(q > 0, q * f - p, 0)
  case, x = np.unravel_index(np.argmax(over), over.shape)
  if over[case, x] <= _TOLERANCE:
    return None
  values = f'p = {p[case, x]:.3g} and q = {q[case, x]:.3g}'
  drawn = q > 0
  with np.errstate(divide='ignore', invalid='ignore'):
    inverted = np.where(p > 0, np.minimum(1, q / p), 1)
  if np.abs(f - inverted)[drawn & (p > 0)].max() < _TOLERANCE:
    return (f'verify: it accepts a draft with probability min(1, q / p), {f[case, x]:.3g} for a '
            f'token with {values}: the ratio is inverted; accept with probability min(1, p / q), '
            'by rng.accept(p, q).')
  return (f'verify: it accepts a token with {values} with probability {f[case, x]:.3g}, so that it '
          f'is emitted with probability {q[case, x] * f[case, x]:.3g} or more, but exact is True; '
          'accept with probability p / q at most, or declare exact=False.')


def _wrong_residual(p: np.ndarray, q: np.ndarray, f: np.ndarray, refused: np.ndarray) -> str:
  """Describes the tokens that are drawn after a rejection, of mass `refused` `[C, V]`."""
  mass = refused.sum(-1, keepdims=True)
  share = lambda x: np.divide(x, x.sum(-1, keepdims=True), out=np.zeros_like(x),
                              where=x.sum(-1, keepdims=True) > 0)
  drawn, needed = share(refused), share(np.maximum(p - q * f, 0))
  apart = np.where(mass > _TOLERANCE, np.abs(drawn - needed), 0)
  case, v = np.unravel_index(np.argmax(apart), apart.shape)
  is_target = np.abs(np.where(mass > _TOLERANCE, drawn - p, 0)).max() < _TOLERANCE
  from_target = ": it draws from the target's distribution p itself" if is_target else ''
  return (f'verify: after a rejection it draws a token with p = {p[case, v]:.3g} and '
          f'q = {q[case, v]:.3g} with probability {drawn[case, v]:.3g}, where exactness needs '
          f'{needed[case, v]:.3g}{from_target}; draw from the residual [p - q f]+, normalised, '
          'where f is the acceptance probability.')


def _exact(probe: _Probe) -> Iterator[str]:
  """The tokens of an exact verifier follow the target's distribution, in every layout."""
  if not probe.verifier.exact:
    return
  for arrangement, (distance, _) in probe.distances.items():
    if distance.max() > _TOLERANCE:
      hint = _unnormalised(*probe.results[TWO]) if arrangement is TWO else None
      yield (f'verify: with {arrangement.name} the tokens are {distance.max():.3g} in total '
             f"variation from the target's, but exact is True"
             + (hint or '; test every sibling against what the rejections before it left of p and '
                        'q, every node given that its parent is accepted, and follow the first '
                        'accepted child, whatever its continuation is.'))


def _unnormalised(made: Drafts, result: Verdicts) -> str | None:
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
  return (f': it accepts the second with probability {measured[worst]:.3g}, where the normalised '
          f'residual gives {right[worst]:.3g}; divide [p - q]+ by its sum before the next test.')


def _bound(probe: _Probe) -> Iterator[str]:
  """The total variation of a relaxed verifier is at most its bound."""
  if probe.verifier.exact or not probe.verifier.bounded:
    return
  for arrangement, (distance, bound) in probe.distances.items():
    over = np.where(np.isnan(bound), np.inf, distance - bound)
    if over.max() > _TOLERANCE:
      case = int(np.argmax(over))
      yield (f'verify: with {arrangement.name} the tokens are {distance[case]:.3g} in total '
             f"variation from the target's, but the mean of tv_bound is {bound[case]:.3g}; every "
             'test on the way must add sum_x [q f - p]+, and every rejection the total variation '
             'between the residual that it draws from and [p - q f]+, normalised.')


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
        model.params, jnp.zeros(_IMAGES, jnp.int32), jax.random.key(0), Warp(), *args).tokens)
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
