"""Recipe of the shipped causal model of continuous tokens: latents of scenes of emoji, captions.

Every token is read by the transformer, and its flow head learns the velocity from noise to the next
one: for a time `t` between 0 (noise) and 1 (token) and `x = t x0 + (1 - t) noise`, the velocity is
`x0 - noise`, and the loss its mean squared error. For some images the prompt is replaced by the
null prompt, as classifier-free guidance requires.

References: NextStep-1, 2025 (arXiv:2508.10711), section 3; Lipman et al., Flow Matching for
Generative Modeling, 2022 (arXiv:2210.02747), equation 23.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.core import fields, programs
from cspd_jax.files import store
from cspd_jax.models import nextstep
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import templates
from cspd_jax.training import loop, optimizer as optimizer_lib
from experiments.demo_models import emoji, emoji_recipe, stages
from experiments.demo_models.emoji_recipe import Scenes

# Number and size of the batches of held-out crops for the metrics.
_NUM_BATCHES, _BATCH = 16, 16
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
         draws: Draws) -> jax.Array:
  """Computes the mean squared error of the velocity along scaled latents `[B, T, C]`.

  The second stream of the prompts is the null prompt.
  """
  z = nextstep.forward(params, config, prompt.dropped(draws.drop), tokens)
  time = draws.time[..., None]
  x = time * tokens + (1 - time) * draws.noise
  velocity, _ = config.head.apply(
      {'params': params['head']}, x.reshape(-1, config.token_dim), draws.time.reshape(-1),
      jnp.broadcast_to(z, (*draws.time.shape, z.shape[-1])).reshape(-1, z.shape[-1]))
  return jnp.mean(jnp.square(velocity - (tokens - draws.noise).reshape(velocity.shape)))


def batch_loss(params: Any, batch: tuple[jax.Array, Prompt], key: jax.Array,
               config: nextstep.NextStepConfig, train: FlowTrainConfig
               ) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the loss of tokens `[B, T, C]` and prompts with random numbers of its own."""
  tokens, prompt = batch
  return loss(params, config, tokens, prompt, draw(key, tokens.shape, train)), {}


@dataclasses.dataclass(frozen=True)
class ContinuousRecipe(Scenes, stages.Latents):
  """Recipe of a causal model of continuous tokens."""

  family: ClassVar[str] = 'nextstep'
  models: ClassVar[tuple[str, ...]] = ('target',)

  target: nextstep.NextStepConfig
  target_train: FlowTrainConfig

  def _fitting(self, config: nextstep.NextStepConfig) -> dict[str, Any]:
    side = self.side // config.patch_size
    return {'height': side, 'width': side, 'vocab_size': VOCABULARY,
            'latent_channels': self.tokenizer.z_channels}

  def _small_model(self) -> nextstep.NextStepConfig:
    return dataclasses.replace(
        self.target, height=2, width=2, dim=16, num_layers=1, num_heads=1, num_kv_heads=1,
        ffn_dim=16, head_width=16, head_layers=1)

  @property
  def defaults(self) -> dict[str, Any]:
    """Defaults of the exported model."""
    return super().defaults | {'contexts': 'plain'}

  def _model_training(self, role: str, data: Mapping[str, stages.Split]
                     ) -> tuple[Any, Callable, Callable[[str, int], Any], Callable]:
    config, train = self.target, self.target_train
    optimizer, scale = train.optimizer, self.sized_tokenizer(data).scale
    prompts = {split: self._prompts(part[1].tolist()) for split, part in data.items()}

    batch = lambda split, index: stages.batch_of(
        config, data[split][0], prompts[split], scale, optimizer.seed, index, optimizer.batch_size)
    measure = self._measured(config)
    state = optimizer_lib.start(nextstep.init(config, jax.random.key(optimizer.seed)), optimizer)
    return (state, stages.jit_step(batch_loss, config, train), batch,
            lambda params, batch, key: {'loss': measure(params, *batch, key)})

  def _measured(self, config: nextstep.NextStepConfig) -> Any:
    """Returns the compiled loss with the prompts, `(params, tokens, prompt, key) -> []`."""
    train = dataclasses.replace(self.target_train, drop_rate=0.0)
    return programs.jit(lambda params, tokens, prompt, key: loss(
        params, config, tokens, prompt, draw(key, tokens.shape, train)))

  def _prompts(self, captions: list[str]) -> Prompt:
    return emoji_recipe.prompts(
        self._text(), templates.plain, captions, (self.target.height, self.target.width))

  def _text(self) -> store.Loaded:
    return emoji_recipe.network('nextstep', emoji_recipe.tokenizer(TOKENS))

  def _model_metrics(self, role: str, params: Any, data: Mapping[str, stages.Split]
                    ) -> dict[str, Any]:
    (moments, captions), scale = data['held_out'], self.sized_tokenizer(data).scale
    prompts, measure = self._prompts(captions.tolist()), self._measured(self.target)

    def losses(index):
      tokens, prompt = stages.batch_of(self.target, moments, prompts, scale, 0, index, _BATCH)
      null = Prompt(*(jnp.repeat(leaf[:, 1:], 2, axis=1) for leaf in prompt))
      return {name: measure(params, tokens, part, jax.random.key(index))
              for name, part in (('loss', prompt), ('loss_no_prompt', null))}

    return loop.mean_metrics([losses(index) for index in range(_NUM_BATCHES)])
