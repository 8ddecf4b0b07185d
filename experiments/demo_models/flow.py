"""Training step of a causal model of continuous tokens with a flow head.

Every token is read by the transformer, and the head learns the velocity from noise to the next one:
for a time `t` between 0 (noise) and 1 (token) and `x = t x0 + (1 - t) noise`, the velocity is
`x0 - noise`, and the loss its mean squared error. For some images the prompt is replaced by the
null prompt, as classifier-free guidance requires.

References: NextStep-1, 2025 (arXiv:2508.10711), section 3; Lipman et al., Flow Matching for
Generative Modeling, 2022 (arXiv:2210.02747), equation 23.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cspd_jax.core import fields
from cspd_jax.models import nextstep
from cspd_jax.models.conditions import Prompt
from cspd_jax.training import optimizer as optimizer_lib
from cspd_jax.training.optimizer import OptimizerConfig, TrainState


@dataclasses.dataclass(frozen=True)
class FlowTrainConfig:
  """Configuration of a training.

  Attributes:
    optimizer: configuration of the optimiser.
    drop_rate: probability that an image's prompt is replaced by the null prompt.
    draws: number of times and noises per token and optimiser step; several, because the head costs
      little compared with the transformer.
  """

  optimizer: OptimizerConfig
  drop_rate: float = 0.1
  draws: int = 2

  def __post_init__(self):
    fields.check(self, drop_rate=fields.SHARES)


class Draws(NamedTuple):
  """The random numbers of one loss; `M` is `FlowTrainConfig.draws`.

  Attributes:
    drop: `[B]` bool, True for the null prompt.
    time: `[M, B, T]` from 0 to 1.
    noise: `[M, B, T, C]` standard normal noise.
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
  """Computes the mean squared error of the velocity.

  Args:
    params: parameters of the model.
    config: configuration of the model.
    tokens: `[B, T, C]` scaled latents.
    prompt: prompts of two streams, the second of which is the null prompt.
    draws: random numbers of the loss.
  """
  z = nextstep.forward(params, config, prompt.dropped(draws.drop), tokens)
  time = draws.time[..., None]
  x = time * tokens + (1 - time) * draws.noise
  velocity, _ = config.head.apply(
      {'params': params['head']}, x.reshape(-1, config.token_dim), draws.time.reshape(-1),
      jnp.broadcast_to(z, (*draws.time.shape, z.shape[-1])).reshape(-1, z.shape[-1]))
  return jnp.mean(jnp.square(velocity - (tokens - draws.noise).reshape(velocity.shape)))


def init(config: nextstep.NextStepConfig, train: FlowTrainConfig) -> TrainState:
  """Returns the state before the first step."""
  params = nextstep.init(config, jax.random.key(train.optimizer.seed))
  return optimizer_lib.start(params, train.optimizer)


def step(state: TrainState, batch: tuple[jax.Array, Prompt], config: nextstep.NextStepConfig,
         train: FlowTrainConfig) -> tuple[TrainState, dict[str, jax.Array]]:
  """Does one optimiser step; jit with `config` and `train` static.

  Args:
    state: state before the step.
    batch: tokens `[B, T, C]` and prompts.
    config: configuration of the model.
    train: configuration of the training.

  Returns:
    The next state and the scalar metrics 'loss' and 'grad_norm'.
  """
  tokens, prompt = batch
  key = jax.random.fold_in(jax.random.key(train.optimizer.seed + 1), state.step)
  draws = draw(key, tokens.shape, train)
  value, grads = jax.value_and_grad(
      lambda params: loss(params, config, tokens, prompt, draws))(state.params)
  metrics = {'loss': value, 'grad_norm': optax.tree.norm(grads)}
  return optimizer_lib.update(state, grads, train.optimizer), metrics
