"""Finds mistakes in a verifier: one call checks a user's verifier, without sampling."""

import dataclasses
import functools
from collections.abc import Iterator

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
from cspd_jax.testing.verdicts import ARRANGEMENTS, Arrangement, StageDrafts, Verdicts

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
  tokens are `vanilla`'s. Shapes, dtypes and ranges; nodes without a candidate, which cannot
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
    if wrong.any():
      is_empty = name == 'token' and (value[wrong] == -1).all()  # As `rng.draw` returns.
      yield (f'verify: with {arrangement.name} it returns {name} {value[wrong][0]}; it must be '
             f'{least} to {limit}' + ('; -1 was drawn from weights that sum to 0: after a '
             'rejection draw from the normalised [p - q f]+.' if is_empty else '.'))
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
    yield ('bounded is True, but verdicts have no tv_bound: the gap is missing; return the bound '
           'of every node, of an AcceptanceRule by gap, or set bounded=False.')
  elif not verifier.bounded and bounds and all(bound is None for bound in bounds):
    probe.notes.append('it is neither exact nor bounded, so its decoders are called biased; an '
                       'AcceptanceRule with a gap, or a tv_bound of verdicts, bounds their bias.')
  elif not verifier.bounded and all(bound is not None for bound in bounds):
    yield ('bounded is False, but verdicts have a tv_bound; set bounded=True, or its decoders are '
           'called biased, without a bound.')


def _exact(probe: _Probe) -> Iterator[str]:
  """The tokens of an exact verifier follow the target's distribution, in every layout."""
  if not probe.verifier.exact:
    return
  for arrangement, (distance, _) in probe.distances.items():
    if distance.max() > _TOLERANCE:
      yield (f'verify: with {arrangement.name} the tokens are {distance.max():.3g} in total '
             f"variation from the target's, but exact is True; accept with probability "
             'min(1, p / q), after a rejection draw from or go on with [p - q]+, normalised, and '
             'after the last accepted node draw from its target_probs.')


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
             'test on the way must add sum_x [q f - p]+ (gap), and every rejection the total '
             'variation between the residual that it draws from and [p - q f]+, normalised '
             '(offset).')


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
    Check('exact', _exact, ('results',)),
    Check('bound', _bound, ('results', 'guarantee')),
    Check('samples', _samples, ('results',)),
    Check('seed-exact', _seed_exact, ('guarantee', 'exact', 'samples')),
)
