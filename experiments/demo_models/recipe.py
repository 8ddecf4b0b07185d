"""Recipes of the shipped models of discrete tokens, and the loss of these models.

The loss is the cross-entropy of every token given the condition and the tokens before it, except
for tokens that the grammar forces. For some images the condition is replaced by the null class or
the second stream, for classifier-free guidance (Ho & Salimans, 2021).
"""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cspd_jax.core import fields, programs
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.models import early_fusion, llamagen, vq
from cspd_jax.training import loop, optimizer as optimizer_lib
from experiments.demo_models import photos as photos_lib, stages, tokenizers

Config = llamagen.LlamaGenConfig | early_fusion.EarlyFusionConfig

_BATCH = 16
_LN2 = float(np.log(2))


@dataclasses.dataclass(frozen=True)
class ARTrainConfig:
  """Configuration of an autoregressive model's training.

  Attributes:
    optimizer: configuration of the optimiser.
    drop_rate: probability that an image has the null class or the second stream.
  """

  optimizer: optimizer_lib.OptimizerConfig = optimizer_lib.OptimizerConfig(weight_decay=0.05)
  drop_rate: float = 0.1

  def __post_init__(self):
    fields.check(self, drop_rate=fields.SHARES)


def _module(config: Config) -> Any:
  return early_fusion if isinstance(config, early_fusion.EarlyFusionConfig) else llamagen


def start(config: Config, train: ARTrainConfig) -> optimizer_lib.TrainState:
  """Returns the state before the first step."""
  params = _module(config).init(config, jax.random.key(train.optimizer.seed))
  return optimizer_lib.start(params, train.optimizer)


def _free(config: Config) -> np.ndarray:
  """Returns the positions of tokens that the grammar does not force."""
  positions = np.arange(config.num_tokens)
  if (forced := getattr(_module(config), 'forced', None)) is None:
    return positions
  with jax.ensure_compile_time_eval():
    return np.flatnonzero(np.asarray(forced(config, jnp.asarray(positions))) < 0)


def nll(params: Any, config: Config, tokens: jax.Array, condition: Any,
        drop_mask: jax.Array | None = None) -> jax.Array:
  """Computes the negative log-likelihood of the tokens that the grammar does not force.

  Tokens are `[B, T]`, the condition labels `[B]` or a `conditions.Prompt` of two streams;
  `drop_mask` `[B]` is True for the null class or the second stream, None drops no condition.
  Returns `[B, F]` in nats, for the `F` free tokens.
  """
  if drop_mask is None:
    drop_mask = jnp.zeros(tokens.shape[:1], bool)
  free = _free(config)
  logits, _ = _module(config).logits_and_features(params, config, condition, tokens, drop_mask)
  if len(free) < tokens.shape[1]:
    logits, tokens = logits[:, free], tokens[:, free]
  return optax.softmax_cross_entropy_with_integer_labels(logits, tokens)


def loss(params: Any, batch: tuple[jax.Array, Any], key: jax.Array, config: Config,
         train: ARTrainConfig) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Returns the mean `nll` of tokens `[B, T]` and conditions, some of which are dropped."""
  tokens, condition = batch
  drop_mask = jax.random.bernoulli(key, train.drop_rate, tokens.shape[:1])
  return jnp.mean(nll(params, config, tokens, condition, drop_mask)), {}


def part(arrays: Any, start: int, count: int) -> Any:
  """Returns at most `count` entries of every leaf, from entry `start` on."""
  return jax.tree.map(lambda leaf: leaf[start:start + count], arrays)


@dataclasses.dataclass(frozen=True)
class TokenRecipe(stages.Stages):
  """Recipe of models of discrete tokens."""

  tokenizer_kind: ClassVar[str] = 'vq'

  tokenizer: vq.VQConfig
  tokenizer_train: tokenizers.VQTrainConfig
  target_train: ARTrainConfig
  draft_train: ARTrainConfig | None = None

  @abc.abstractmethod
  def sequences(self, data: stages.Split) -> tuple[np.ndarray, Any]:
    """Returns the tokens `[N, T]` that a model predicts, and the conditions `[N, ...]`."""

  def _tokenizer_training(self, params: Any) -> tuple[Any, Callable, Callable]:
    config, train = self.tokenizer, self.tokenizer_train

    @programs.jit
    def measure(params, images, key):
      _, parts = tokenizers.vq_loss(params, config, train, images)
      return {name: parts[name] for name in ('l1', 'psnr')}

    return (tokenizers.vq_start(config, train, params),
            programs.jit(lambda state, images: tokenizers.vq_step(state, images, config, train),
                    donate_argnums=0), measure)

  def tokenize(self, tokenizer: Any, split: str, workdir: pathlib.Path) -> stages.Split:
    """Returns tokens `[N, T]` and labels `[N]`, int32."""
    encode = programs.jit(lambda images: vq.encode(tokenizer, self.tokenizer, images))
    return self.encode_crops(workdir / f'tokens_{split}.npz', 'tokens', split,
                        lambda images: np.asarray(encode(images)).reshape(len(images), -1))

  def _model_training(self, role: str, data: Mapping[str, stages.Split]
                     ) -> tuple[Any, Callable, Callable[[str, int], Any], Callable]:
    config, train = getattr(self, role), getattr(self, f'{role}_train')
    sequences = {split: self.sequences(arrays) for split, arrays in data.items()}
    seed, size = train.optimizer.seed, train.optimizer.batch_size
    compiled_nll = programs.jit(lambda params, tokens, condition: nll(
        params, config, tokens, condition).mean())
    batch = lambda split, index: (
        loop.batch_of(*sequences[split], seed, index, size) if split == 'train'
        else part(sequences[split], index * size, size))
    return (start(config, train), stages.jit_step(loss, config, train), batch,
            lambda params, batch, key: {'nll': compiled_nll(params, *batch)})

  def _tokenizer_metrics(self, data: Mapping[str, stages.Split]) -> dict[str, float]:
    """Returns the share of the codes that occur in training tokens, and their perplexity."""
    counts = np.bincount(data['train'][0].reshape(-1), minlength=self.tokenizer.codebook_size)
    shares = counts[counts > 0] / counts.sum()
    return {'codebook_used': float(np.mean(counts > 0)),
            'codebook_perplexity': float(np.exp(-np.sum(shares * np.log(shares))))}

  def _model_metrics(self, role: str, params: Any, data: Mapping[str, stages.Split]
                    ) -> dict[str, Any]:
    sequences = self.sequences(data['held_out'])
    return distributions(params, getattr(self, role), *sequences, self.guidance_scale)

  def reconstruct(self, tokenizer: Any, data: Mapping[str, stages.Split],
                  images: np.ndarray) -> np.ndarray:
    """Encodes and decodes images `[N, H, W, 3]` in [-1, 1]."""
    run = programs.jit(lambda batch: vq.decode(
        tokenizer, self.tokenizer, vq.encode(tokenizer, self.tokenizer, batch)))
    return stages.batched(run, images)


@dataclasses.dataclass(frozen=True)
class Recipe(TokenRecipe):
  """Recipe of class-conditional models."""

  family: ClassVar[str] = 'llamagen'

  target: llamagen.LlamaGenConfig
  draft: llamagen.LlamaGenConfig | None = None

  def _fitting(self, tokenizer: vq.VQConfig, side: int, config: llamagen.LlamaGenConfig
               ) -> dict[str, Any]:
    return {'conditioning': 'class', 'height': side, 'width': side,
            'vocab_size': tokenizer.codebook_size, 'num_classes': len(photos_lib.NAMES)}

  def sequences(self, data: stages.Split) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens and labels of the images."""
    return data


def distributions(params: Any, config: Config, tokens: np.ndarray, conditions: Any,
                  guidance_scale: float) -> dict[str, Any]:
  """Measures likelihood and entropy of a model's distributions along held-out images `[N, T]`.

  Returns, of tokens that are not forced, 'nll_bits' given the condition and 'nll_bits_no_label'
  without, and for the distributions 'plain' and 'guided' a dictionary with the quantiles of the
  entropy, 'entropy_bits_q10', '_q50' and '_q90'.
  """
  free = _free(config)

  def measure(tokens, condition):
    logits = jnp.stack([
        _module(config).logits_and_features(
            params, config, condition, tokens, jnp.full(tokens.shape[:1], dropped))[0]
        for dropped in (False, True)])
    logits, tokens = logits[:, :, free], tokens[:, free]
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[None, ..., None], axis=-1)
    sampling, positions = SamplingParams(guidance_scale=guidance_scale), jnp.asarray(free)[None]
    probs = {'plain': warp_lib.probabilities(logits[:1], SamplingParams(), positions),
             'guided': warp_lib.probabilities(logits, sampling, positions)}
    entropy = {name: jnp.sum(jax.scipy.special.entr(p), -1) / _LN2 for name, p in probs.items()}
    return -log_probs[..., 0] / _LN2, entropy

  compiled = programs.jit(measure)
  parts = [jax.device_get(compiled(*part((tokens, conditions), index, _BATCH)))
           for index in range(0, len(tokens), _BATCH)]
  bits, bits_no_label = np.concatenate([nll for nll, _ in parts], axis=1).mean(axis=(1, 2))
  quantiles = lambda name: {
      f'entropy_bits_q{q}': float(np.percentile(np.concatenate([e[name] for _, e in parts]), q))
      for q in (10, 50, 90)}
  return dict(nll_bits=float(bits), nll_bits_no_label=float(bits_no_label),
              plain=quantiles('plain'), guided=quantiles('guided'))
