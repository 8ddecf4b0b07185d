"""A random model small enough for tests of the server; one of its classes makes it return NaN."""

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import ImageTokenizer, PromptKind
from cspd_jax.testing import tabular

NAMES = ('cat', 'dog', 'nan')
# Images of 3x3 tokens, each of 2x2 pixels of one grey level.
TOKENIZER = ImageTokenizer(
    None, np.float32(1.0),
    decode=lambda params, tokens: jnp.broadcast_to(
        params * tokens.reshape(-1, 3, 3, 1).repeat(2, 1).repeat(2, 2) / 2.0 - 0.5,
        (len(tokens), 6, 6, 3)))
SEED_EXACT = 'seed_exact(window=3)'


def model() -> Model:
  """Returns a model of three classes by name, and four tokens."""
  table = tabular.tabular(jax.random.key(0), vocab_size=4, length=9, num_classes=3)

  def encode(prompts):
    if unknown := [prompt for prompt in prompts if prompt not in NAMES]:
      raise ValueError(f'prompts holds {unknown[0]!r:.80}; it must be one of {", ".join(NAMES)}.')
    return jnp.asarray([NAMES.index(prompt) for prompt in prompts], jnp.int32)

  return Model('tiny', 'tiny', None, table.params.at[2].set(np.nan), (3, 3),
               lambda guided: table.target, PromptKind(encode, list, NAMES[:2], words=NAMES),
               TOKENIZER)


def batch(scheduler, decoder: str = SEED_EXACT):
  """Returns the batch of all slots of a scheduler's decoder."""
  return scheduler._stages[decoder][-1].batches[-1]


def request(of: Model, prompt: str = 'cat', seed: int = 0, number: int = 0,
            decoder: str = SEED_EXACT, **options):
  """Returns the request of one image."""
  return of.images([prompt], options, seed=[(seed, number)], decoder=decoder, batch_size=1)
