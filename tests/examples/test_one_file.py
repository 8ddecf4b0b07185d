"""`examples/one_file.py` against the library, and its decoders by enumeration on tables."""

import functools
import itertools

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax.core.random import as_key, exponential, row_keys
from examples import one_file

LENGTH, VOCABULARY, WINDOW = 3, 2, 3


class Path:
  """Visits every outcome of a decoder in turn, in place of its random numbers."""

  def __init__(self):
    self.choices, self.step, self.probability = [], 0, 1.0

  def choose(self, probs):
    """Returns the outcome of this visit; `probs` are those of all outcomes."""
    possible = np.flatnonzero(np.asarray(probs) > 0)
    if self.step == len(self.choices):
      self.choices.append([0, len(possible)])
    outcome = possible[self.choices[self.step][0]]
    self.step += 1
    self.probability *= probs[outcome]
    return int(outcome)

  def random(self):
    """Returns a uniform number that is only asked for `number * q < p`."""
    return Uniform(self)

  def next(self):
    """Goes to the next visit; returns whether there is one."""
    while self.choices and self.choices[-1][0] == self.choices[-1][1] - 1:
      self.choices.pop()
    if self.choices:
      self.choices[-1][0] += 1
    self.step, self.probability = 0, 1.0
    return bool(self.choices)


class Uniform:
  """A uniform number u; `u * q < p` chooses among both outcomes."""

  def __init__(self, path, q=1.0):
    self.path, self.q = path, q

  def __mul__(self, q):
    return Uniform(self.path, q)

  def __lt__(self, p):
    return self.path.choose([max(0, 1 - p / self.q), min(1, p / self.q)]) == 1


def _table(seed):
  """A distribution of the next token for every context."""
  @functools.cache
  def probs(context):
    return np.random.default_rng([seed, len(context), *context]).dirichlet(np.ones(VOCABULARY))
  return lambda tokens: probs(tuple(tokens))


def _score(table):
  """`score` and `begin` of a table; the cache is the tokens before `start`."""
  def score(cache, tokens, start):
    # As in the model, entries from `start` on are those of the last pass, and are overwritten.
    sequence = [*cache[:start], *tokens]
    return np.stack([table(sequence[:start + i + 1]) for i in range(len(tokens))]), sequence
  return score, (table([]), [])


CHEAP = _table(7)


def _corrector(tokens, first, count):
  return np.stack([CHEAP(tokens[max(0, k - 2):k]) for k in range(first, first + count)])


def _distance(monkeypatch, decode):
  """The total variation between what a decoder generates and the model."""
  monkeypatch.setattr(one_file, 'draw', lambda rng, w: rng.choose(w / np.sum(w)))
  table = _table(3)
  score, begin = _score(table)
  found = dict.fromkeys(itertools.product(range(VOCABULARY), repeat=LENGTH), 0.0)
  path, is_left = Path(), True
  while is_left:
    tokens, _ = decode(score, begin, LENGTH, path, window=WINDOW)
    found[tuple(tokens)] += path.probability
    is_left = path.next()
  expected = {tokens: np.prod([table(tokens[:k])[token] for k, token in enumerate(tokens)])
              for tokens in found}
  return sum(abs(found[tokens] - expected[tokens]) for tokens in found) / 2


EXACT = {'sjd': one_file.sjd, 'mc_sjd': one_file.mc_sjd, 'corrected': functools.partial(
    one_file.corrected, corrector=_corrector, iterations=2)}


@pytest.mark.parametrize('name', EXACT)
def test_decoders_are_exact(monkeypatch, name):
  assert _distance(monkeypatch, EXACT[name]) < 1e-12


@pytest.mark.parametrize('name', EXACT)
def test_a_draw_from_p_instead_of_the_residual_is_rejected(monkeypatch, name):
  def couple(rng, p, q, token):
    accepted = rng.random() * q[token] < p[token]
    return (token, True) if accepted else (one_file.draw(rng, p), False)

  monkeypatch.setattr(one_file, 'couple', couple)
  assert _distance(monkeypatch, EXACT[name]) > 1e-3


@pytest.mark.parametrize('window', [2, 3, 5])
def test_seed_exact_has_the_tokens_of_vanilla(window):
  score, begin = _score(_table(3))
  for seed in range(20):
    noise = np.random.default_rng(seed).exponential(size=(12 + window, VOCABULARY))
    tokens, passes = one_file.seed_exact(score, begin, 12, noise, window)
    expected, most = one_file.vanilla(score, begin, 12, noise)
    assert tokens == expected and passes < most


def test_noise_is_the_librarys():
  key = jax.random.fold_in(jax.random.key(3), 0)
  state = row_keys(key[None], 1)
  noise = one_file.position_noise(key, 5, 1026)
  for position in range(5):
    expected = exponential(as_key(state.noise[0], position, 0), (1026,))
    # Compilers round a logarithm in the last bits.
    np.testing.assert_allclose(noise[position], expected, rtol=1e-5)


# The first two rows of the library's image; `test_images_are_the_librarys` holds them to it.
FIRST_ROWS = [
    3, 1021, 57, 168, 84, 438, 65, 697, 928, 168, 84, 438, 521, 593, 1021, 67, 1024, 303, 236,
    263, 820, 642, 631, 438, 45, 594, 84, 1019, 662, 647, 699, 306, 921, 1024]


def _wins(tokens, count):
  """Asserts that the first tokens of an image win their races in this file's model.

  A token may lose to one that is tied with it up to rounding: the two programs add up the same
  products in another order, which changes probabilities by about 1e-5 of themselves.
  """
  score, (first, cache) = one_file.load_model(one_file.read('a fox on white')[0])
  noise = one_file.position_noise(
      jax.random.fold_in(jax.random.key(4), 0), count, one_file.VOCABULARY)
  p = np.concatenate([first[None], score(cache, tokens[:count - 1], 0)[0]])
  assert np.all((p / noise)[np.arange(count), tokens[:count]]
                > (1 - 1e-3) * np.max(p / noise, axis=-1))
  return score, (first, cache)


def test_tokens_win_their_races_in_this_model():
  _wins(FIRST_ROWS, len(FIRST_ROWS))
  with pytest.raises(AssertionError):
    _wins([*FIRST_ROWS[:8], FIRST_ROWS[8] ^ 1, *FIRST_ROWS[9:]], len(FIRST_ROWS))


@pytest.mark.slow
def test_images_are_the_librarys():
  for decoder in ('vanilla', 'seed_exact(window=32)'):
    image = cspd_jax.load().generate(
        ['a fox on white'], seed=4, decoder=decoder).decoded.tokens[0].tolist()
    assert image[:len(FIRST_ROWS)] == FIRST_ROWS
    score, begin = _wins(image, one_file.LENGTH)
  noise = one_file.position_noise(jax.random.fold_in(jax.random.key(4), 0),
                                  one_file.LENGTH + one_file.WINDOW, one_file.VOCABULARY)
  for decode in (one_file.vanilla, one_file.seed_exact):
    # With this seed no two tokens are nearly tied.
    assert decode(score, begin, one_file.LENGTH, noise)[0] == image
