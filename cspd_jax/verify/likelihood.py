"""Whether a model expects real pictures: in their order, with their prompt, better than chance."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.metrics import base, likelihood
from cspd_jax.verify.pictures import Pictures, encoded
from cspd_jax.verify.result import Result, judged, skipped

# Of the pictures, how many must be more probable than the same tokens in another order.
_MOST = 0.75
# The share of chance by which real pictures may cost more nats than the model expects.
_SURPRISE = 0.125
# Where a distribution excludes a token, which makes the likelihood infinite.
_LARGEST = 100.0


def check(model: Any, pictures: Pictures | None) -> Iterator[Result]:
  """Yields comparisons of the negative log-likelihood per token, in nats, without guidance."""
  names = 'order of tokens', 'prompt', 'likelihood'
  if pictures is None:
    yield from (skipped(name, 'the model has no image tokenizer with an encoder of discrete tokens')
                for name in names)
    return
  tokens = encoded(model, pictures)
  prompts = pictures.right or [model.prompts[0] if model.prompts else ''] * len(tokens)
  conditions = [model.condition([prompt]) for prompt in prompts]
  target, sampling = model.target(False), SamplingParams()
  run = programs.jit(lambda params, condition, tokens: likelihood.likelihood(
      target, params, condition, tokens, sampling))

  def nll(rows: np.ndarray, conditions: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    results = [jax.device_get(run(model.params, condition, row[None]))
               for row, condition in zip(rows, conditions, strict=True)]
    values = (np.concatenate([getattr(each, name) for each in results])
              for name in ('nll', 'entropy'))
    nll, entropy = (np.minimum(np.nan_to_num(part, nan=_LARGEST, posinf=_LARGEST), _LARGEST)
                    for part in values)
    return nll, entropy

  free = np.arange(model.num_tokens)
  if target.forced is not None:  # The tokens of a grammar stay where they are.
    free = free[np.asarray(target.forced(jnp.asarray(free))) < 0]
  (right, entropy), mixed, mirrored = nll(tokens, conditions), tokens.copy(), tokens.copy()
  mixed[:, free] = tokens[:, np.random.default_rng(0).permutation(free)]
  mirrored[:, free] = tokens[:, free[::-1]]
  others = {name: nll(rows, conditions)[0]
            for name, rows in (('shuffled', mixed), ('mirrored', mirrored))}
  share = min(float(np.mean(right < other)) for other in others.values())
  numbers = dict(nll=float(right.mean()), entropy=float(entropy.mean()),
                 **{name: float(other.mean()) for name, other in others.items()})
  yield judged(
      names[0], share >= _MOST,
      f'{len(right)} pictures have {right.mean():.2f} nats per token, the same tokens '
      f'{numbers["shuffled"]:.2f} shuffled and {numbers["mirrored"]:.2f} in reverse order',
      **numbers)
  yield _prompt(model, pictures, right, lambda conditions: nll(tokens, conditions)[0])
  chance = float(np.log(target.vocab_size))
  if not pictures.are_usual:
    yield skipped(names[2], 'the pictures are not of the kind that this model was trained on: '
                  f'{np.median(right):.2f} nats per token, where chance has {chance:.2f}')
  else:
    median, expected = float(np.median(right)), float(np.median(entropy))
    yield judged(names[2], median < min(chance, expected + _SURPRISE * chance),
                 f'half of the pictures have at most {median:.2f} nats per token, where the model '
                 f'expects {expected:.2f} and chance has {chance:.2f}',
                 median=median, expected=expected, chance=chance)


def _prompt(model: Any, pictures: Pictures, right: np.ndarray, nll: Any) -> Result:
  """Compares the prompts of what pictures show with others."""
  if pictures.wrong is None:
    return skipped('prompt', 'no prompt of the model says what the pictures show')
  gain = base.mean(nll([model.condition([prompt]) for prompt in pictures.wrong]) - right)
  words = (f'the prompt of what a picture shows makes its tokens more probable than another one by '
           f'{gain.mean:+.3f} +- {gain.standard_error:.3f} nats per token')
  numbers = dict(gain=gain.mean, gain_error=gain.standard_error)
  if abs(gain.mean) < 2 * gain.standard_error:
    return Result('prompt', 'not compared', f'{words}: too little to tell', numbers)
  return judged('prompt', gain.mean > 0, words, **numbers)
