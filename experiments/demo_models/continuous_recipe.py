"""Recipe of the shipped causal model of continuous tokens: latents of scenes of emoji, captions.

Every token is read by the transformer, and its flow head learns the velocity from noise to the next
one: for a time `t` between 0 (noise) and 1 (token) and `x = t x0 + (1 - t) noise`, the velocity is
`x0 - noise`, and the loss its mean squared error. For some images the prompt is replaced by the
null prompt, as classifier-free guidance requires.

References: NextStep-1, 2025 (arXiv:2508.10711), section 3; Lipman et al., Flow Matching for
Generative Modeling, 2022 (arXiv:2210.02747), equation 23.
"""

import dataclasses
import sys
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.files import store
from cspd_jax.models import kl_vae, nextstep
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import templates
from cspd_jax.training import optimizer as optimizer_lib
from experiments.demo_models import emoji, emoji_recipe, stages
from experiments.demo_models.emoji_recipe import Scenes

# The tokens of prompts.
TOKENS = ('<|image_area|>', '<|begin_of_image|>', emoji_recipe.UNKNOWN, *emoji.WORDS)
VOCABULARY = len(TOKENS)


@dataclasses.dataclass(frozen=True)
class FlowTrainConfig:
  """Configuration of a training.

  Attributes:
    optimizer: configuration of the optimiser.
    drop_rate: probability that an image's prompt is replaced by the null prompt.
    draws: number of times and noises per token and optimiser step, as the head costs little.
  """

  optimizer: optimizer_lib.OptimizerConfig
  drop_rate: float = 0.1
  draws: int = 2

  def __post_init__(self):
    fields.check(self, drop_rate=fields.SHARES)


class Draws(NamedTuple):
  """The random numbers of one loss; `M` is `FlowTrainConfig.draws`.

  `drop` `[B]` bool is True for the null prompt, `time` `[M, B, T]` from 0 to 1, and `noise`
  `[M, B, T, C]` standard normal.
  """

  drop: jax.Array
  time: jax.Array
  noise: jax.Array


def draw(key: jax.Array, shape: tuple[int, int, int], train: FlowTrainConfig) -> Draws:
  """Draws the random numbers for tokens of `shape` `(B, T, C)`."""
  keys = jax.random.split(key, 3)
  return Draws(
      drop=jax.random.bernoulli(keys[0], train.drop_rate, shape[:1]),
      time=jax.random.uniform(keys[1], (train.draws, *shape[:2])),
      noise=jax.random.normal(keys[2], (train.draws, *shape)))


def loss(params: Any, config: nextstep.NextStepConfig, tokens: jax.Array, prompt: Prompt,
         draws: Draws) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the mean squared error of the velocity along scaled latents `[B, T, C]`.

  The second stream of the prompts is the null prompt. The only term is the error, 'loss'.
  """
  z = nextstep.forward(params, config, prompt.dropped(draws.drop), tokens)
  time = draws.time[..., None]
  x = time * tokens + (1 - time) * draws.noise
  velocity, _ = config.head.apply(
      {'params': params['head']}, x.reshape(-1, config.token_dim), draws.time.reshape(-1),
      jnp.broadcast_to(z, (*draws.time.shape, z.shape[-1])).reshape(-1, z.shape[-1]))
  error = jnp.mean(jnp.square(velocity - (tokens - draws.noise).reshape(velocity.shape)))
  return error, {'loss': error}


def batch_loss(params: Any, batch: tuple[jax.Array, Prompt], key: jax.Array,
               config: nextstep.NextStepConfig, train: FlowTrainConfig
               ) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the loss of tokens `[B, T, C]` and prompts with random numbers of its own."""
  tokens, prompt = batch
  return loss(params, config, tokens, prompt, draw(key, tokens.shape, train))[0], {}


decayed = optimizer_lib.matrices


def start(config: nextstep.NextStepConfig, train: FlowTrainConfig) -> optimizer_lib.TrainState:
  """Returns the state before the first step."""
  return optimizer_lib.start(
      nextstep.init(config, jax.random.key(train.optimizer.seed)), train.optimizer)


@dataclasses.dataclass(frozen=True)
class ContinuousRecipe(Scenes, stages.Latents):
  """Recipe of a causal model of continuous tokens."""

  family: ClassVar[str] = 'nextstep'
  training: ClassVar[Any] = sys.modules[__name__]
  without: ClassVar[str] = '_no_prompt'

  target: nextstep.NextStepConfig
  target_train: FlowTrainConfig

  def _fitting(self, tokenizer: kl_vae.KLVAEConfig, side: int, config: nextstep.NextStepConfig
               ) -> dict[str, Any]:
    return {'height': side // config.patch_size, 'width': side // config.patch_size,
            'vocab_size': VOCABULARY, 'latent_channels': tokenizer.z_channels}

  @property
  def defaults(self) -> dict[str, Any]:
    """Defaults of the exported model."""
    return super().defaults | {'contexts': 'plain'}

  def conditions(self, labels: np.ndarray) -> Prompt:
    """Returns prompts of the captions."""
    return emoji_recipe.prompts(
        self._text(), templates.plain, labels.tolist(), (self.target.height, self.target.width))

  def _text(self) -> store.Loaded:
    return emoji_recipe.network('nextstep', emoji_recipe.tokenizer(TOKENS))
