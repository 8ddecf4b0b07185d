"""Decoders with one mistake each, as patches of `windows`: no test of its distribution passes them.

Their tokens are finite: what rejects them is the distribution alone. A mutant is installed with
pytest's `monkeypatch` before the decoder is built.
"""

import functools

import jax
import jax.numpy as jnp

from cspd_jax.continuous import coupling, decoders, visibility
from cspd_jax.continuous.chains import chain_walk
from cspd_jax.core import contracts


def _old_kernels_recorded(patch):
  walk = chain_walk.walk

  def mutant(*args):
    walked, old = walk(*args), args[4]
    choose = lambda a, b: jnp.where(old.exist[:, None, None], a, b)
    kernels = jax.tree.map(choose, old.kernels, walked.chains.kernels)
    return walked._replace(chains=walked.chains._replace(kernels=kernels))

  patch(chain_walk, 'walk', mutant)


def _noise_of_the_new_kernel(patch):
  compare = coupling.compare

  def mutant(x, old, new, noise):
    # The noise of the draw is measured from the new mean instead of the old one.
    right = compare(x, old, new, noise)
    return right._replace(coupled=right.coupled + right.shift)

  patch(coupling, 'compare', mutant)


def _same_random_numbers(patch):
  walk = chain_walk.walk
  patch(chain_walk, 'walk', lambda *args: walk(*args[:5], 0 * args[5]))


def _one_token_too_many(patch):
  walk = chain_walk.walk

  def mutant(*args):
    walked = walk(*args)
    # A changed token counts as unchanged if an even number of kernels was kept.
    even = jnp.sum(walked.kept, axis=1) % 2 == 0
    return walked._replace(kept=walked.kept.at[:, -1].set(walked.kept[:, -1] | even))

  patch(chain_walk, 'walk', mutant)


def _context_with_the_draft_behind(patch):
  transform = visibility.true_contexts
  patch(visibility, 'true_contexts', lambda *args: transform(*args[:5], args[5] + 2, *args[6:]))


def _predicted_kernel(patch):
  verify = chain_walk._verify

  def mutant(target, noise, state, drafts, called, true):
    # The drafts follow the predicted kernels and are tested against them, so all are kept.
    return verify(target, noise, state, drafts, called, drafts.chains.kernels)

  patch(chain_walk, '_verify', mutant)


def _parted_as_merged(patch):
  move = coupling.move

  def mutant(x, compared, log_uniform):
    moved = move(x, compared, log_uniform)
    # One kernel per chain: those of parted chains, which then go on along the old states.
    return moved._replace(kept=jnp.ones_like(moved.kept)) if x.ndim == 2 else moved

  patch(coupling, 'move', mutant)


def _drawn_ahead(patch):
  build = decoders.coupled_chains

  def mutant(schedule, window, *args):
    verifier = build(schedule, window, *args)

    def verify(env, span, draft, z):
      verdict = verifier.verify(env, span, draft, z)
      # Where the window is final, so is all behind it, which did not see its last token.
      length = jnp.where(verdict.length == window, span.size, verdict.length)
      return verdict._replace(
          length=length, memory=verdict.memory._replace(committed=length))

    return verifier._replace(verify=verify)

  patch(decoders, 'coupled_chains', mutant)


def _rest_drawn_anew(patch):
  compare = coupling.compare

  def mutant(x, old, new, noise):
    right = compare(x, old, new, noise)
    scale = lambda std: jnp.sqrt(jnp.maximum(std * std - right.base * right.base, 0))
    share = right.base / old.std
    rest = jnp.sqrt(jnp.maximum(1 - share * share, 0))
    shared = rest * (x - old.mean) / old.std - share * noise
    # That of another token: it is standard normal, but not the rest of this draw.
    other = jnp.roll(shared, 1, axis=0)
    return right._replace(
        mean=new.mean + scale(new.std) * other,
        shift=(old.mean - new.mean + (scale(old.std) - scale(new.std)) * other) / right.base)

  patch(coupling, 'compare', mutant)


def _first_drafts_cached(patch):
  score = contracts.cached_score

  def mutant(target, params, cache, tokens, start):
    z, after = score(target, params, cache, tokens, start)
    # What is in a slot stays there, although its token may have been replaced.
    first, wrong = cache[0], cache[0]
    wrong = jnp.where(jnp.isnan(first), after[0], first)
    read = jnp.minimum(start[:, None] + jnp.arange(tokens.shape[1]), first.shape[1] - 1)
    z, _ = score(target, params, (wrong, *cache[1:]), jnp.take_along_axis(
        wrong, read[..., None], axis=1), start)
    return z, (wrong, *after[1:])

  patch(contracts, 'cached_score', mutant)


def _shifted_kernels(patch):
  left = chain_walk.Memory.left

  def mutant(memory):
    # The chains are shifted to their new ranks, the kernels that they were drawn from are not.
    old = left(memory)
    return old._replace(kernels=memory.chains.kernels)

  patch(chain_walk.Memory, 'left', mutant)


_BOTH = {
    'old kernels recorded': _old_kernels_recorded,
    'noise of the new kernel': _noise_of_the_new_kernel,
    'every round has the same random numbers': _same_random_numbers,
    'one token too many': _one_token_too_many,
    'drafts are tested against the predicted kernel': _predicted_kernel,
    'parted chains go on as merged ones': _parted_as_merged,
    'kernels of another rank': _shifted_kernels,
}
# A causal model has fixed contexts and draws nothing ahead.
MASKED = _BOTH | {
    'a context with the draft behind it': _context_with_the_draft_behind,
    'tokens drawn ahead are committed': _drawn_ahead,
}
CAUSAL = _BOTH | {'the cache keeps drafts that were replaced': _first_drafts_cached}
# Mistakes in the comparison of two Gaussians.
COMPARE = {'noise of the new kernel': _noise_of_the_new_kernel,
           'rest of the noise drawn anew': _rest_drawn_anew}


def install(mutant, monkeypatch):
  """Installs a mutant, a value of one of the tables above."""
  mutant(functools.partial(monkeypatch.setattr))
