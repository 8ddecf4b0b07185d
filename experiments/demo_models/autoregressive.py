"""Training step of an autoregressive model of image tokens: LlamaGen or early fusion.

The loss is the cross-entropy of every token given the condition and the tokens before it, except
for tokens that the grammar forces. For some images the condition is replaced by the null class or
the second stream, as classifier-free guidance requires (Ho & Salimans, Classifier-Free Diffusion
Guidance, 2021). The result of the training is the moving average of the parameters.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cspd_jax.core import fields
from cspd_jax.models import early_fusion, llamagen
from cspd_jax.training import optimizer as optimizer_lib
from cspd_jax.training.optimizer import OptimizerConfig, TrainState

Config = llamagen.LlamaGenConfig | early_fusion.EarlyFusionConfig


@dataclasses.dataclass(frozen=True)
class ARTrainConfig:
  """Configuration of an autoregressive model's training.

  Attributes:
    optimizer: configuration of the optimiser.
    drop_rate: probability that an image's condition is replaced by the null class or the second
      stream.
  """

  optimizer: OptimizerConfig = OptimizerConfig(weight_decay=0.05)
  drop_rate: float = 0.1

  def __post_init__(self):
    fields.check(self, drop_rate=fields.SHARES)


def init(config: Config, train: ARTrainConfig) -> TrainState:
  """Returns the state before the first step."""
  model = early_fusion if isinstance(config, early_fusion.EarlyFusionConfig) else llamagen
  params = model.init(config, jax.random.key(train.optimizer.seed))
  return optimizer_lib.start(params, train.optimizer)


def logits(
    params: Any, config: Config, condition: Any, tokens: jax.Array, drop_mask: jax.Array,
) -> jax.Array:
  """Returns the next-token logits `[B, T, V]` of whole images.

  Args:
    params: parameters of the model.
    config: configuration of the model; its class determines the network.
    condition: labels `[B]`, or a `causal.Prompt` of two streams.
    tokens: `[B, T]` image tokens.
    drop_mask: `[B]` bool; True for the null class or the second stream.
  """
  model = early_fusion if isinstance(config, early_fusion.EarlyFusionConfig) else llamagen
  return model.logits_and_features(params, config, condition, tokens, drop_mask)[0]


def is_free(config: Config) -> np.ndarray:
  """Returns `[T]` bool, False for tokens that the grammar forces."""
  positions = np.arange(config.num_tokens)
  if not isinstance(config, early_fusion.EarlyFusionConfig):
    return np.ones(positions.shape, bool)
  with jax.ensure_compile_time_eval():
    return np.asarray(early_fusion.forced(config, jnp.asarray(positions))) < 0


def nll(
    params: Any,
    config: Config,
    tokens: jax.Array,
    condition: Any,
    drop_mask: jax.Array | None = None,
) -> jax.Array:
  """Computes the negative log-likelihood of the tokens that the grammar does not force.

  Args:
    params: parameters of the model.
    config: configuration of the model.
    tokens: `[B, T]` image tokens.
    condition: condition of the images.
    drop_mask: which conditions are dropped; None drops no condition.

  Returns:
    `[B, F]` in nats, for the `F` free tokens.
  """
  if drop_mask is None:
    drop_mask = jnp.zeros(tokens.shape[:1], bool)
  free = np.flatnonzero(is_free(config))
  all_logits = logits(params, config, condition, tokens, drop_mask)
  if len(free) < tokens.shape[1]:
    all_logits, tokens = all_logits[:, free], tokens[:, free]
  return optax.softmax_cross_entropy_with_integer_labels(all_logits, tokens)


def step(
    state: TrainState,
    batch: tuple[jax.Array, Any],
    config: Config,
    train: ARTrainConfig,
) -> tuple[TrainState, dict[str, jax.Array]]:
  """Does one optimiser step; jit with `config` and `train` static.

  Args:
    state: state before the step.
    batch: tokens `[B, T]` int32 and the condition of every image.
    config: configuration of the model.
    train: configuration of the training.

  Returns:
    The next state and the scalar metrics 'loss' (nats per token) and 'grad_norm'.
  """
  tokens, condition = batch
  key = jax.random.fold_in(jax.random.key(train.optimizer.seed + 1), state.step)
  drop_mask = jax.random.bernoulli(key, train.drop_rate, tokens.shape[:1])

  def loss(params):
    return jnp.mean(nll(params, config, tokens, condition, drop_mask))

  value, grads = jax.value_and_grad(loss)(state.params)
  metrics = {'loss': value, 'grad_norm': optax.tree.norm(grads)}
  return optimizer_lib.update(state, grads, train.optimizer), metrics


def part(arrays: Any, start: int, count: int) -> Any:
  """Returns at most `count` entries of every leaf, from entry `start` on."""
  return jax.tree.map(lambda leaf: leaf[start:start + count], arrays)
