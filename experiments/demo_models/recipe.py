"""Recipes of the shipped models of discrete tokens."""

import abc
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import warp as warp_lib
from cspd_jax.models import llamagen, vq
from cspd_jax.training import loop
from experiments.demo_models import (
  autoregressive,
  photos as photos_lib,
  stages,
  vq as vq_training,
)
from experiments.demo_models.autoregressive import ARTrainConfig
from experiments.demo_models.vq import VQTrainConfig

# The tokenizer of `Stages.small`: 4x4 tokens per crop of 8x8 pixels.
SMALL_TOKENIZER = vq.VQConfig(
    ch=8, ch_mult=(1, 1), num_res_blocks=1, z_channels=8, codebook_size=32, codebook_dim=4)


@dataclasses.dataclass(frozen=True)
class TokenRecipe(stages.Stages):
  """Recipe of models of discrete tokens; see also `stages.Stages`.

  Attributes:
    tokenizer: configuration of the tokenizer.
    tokenizer_train: configuration of its training.
    target: configuration of the target.
    target_train: configuration of its training.
    draft: configuration of the draft model, which has the same tokens and conditions.
    draft_train: configuration of its training.
  """

  tokenizer: vq.VQConfig
  tokenizer_train: VQTrainConfig
  target: Any
  target_train: ARTrainConfig
  draft: Any
  draft_train: ARTrainConfig

  @abc.abstractmethod
  def sequences(self, data: stages.Split) -> tuple[np.ndarray, Any]:
    """Returns the tokens `[N, T]` that a model predicts, and the conditions `[N, ...]`.

    Args:
      data: the result of `tokenize`.
    """

  def train_tokenizer(self, workdir: pathlib.Path) -> Any:
    """Trains the tokenizer in `workdir` or continues; returns its parameters."""
    config, train = self.tokenizer, self.tokenizer_train
    optimizer = train.optimizer
    crops = lambda seed, index, split: self.crops(seed, index, split, optimizer.batch_size)[0]
    held_out = [crops(self.seed, index, 'held_out') for index in range(4)]
    compiled_loss = jax.jit(
        lambda params, images: vq_training.loss(params, config, train, images)[1])

    def measure(state):
      parts = [compiled_loss(state.params, images) for images in held_out]
      return [{key: part[key] for key in ('l1', 'psnr')} for part in parts]

    state = self.train(
        'vq', vq_training.init(config, train, self.start(config)),
        loop.jit_step(vq_training.step, config, train),
        lambda index: crops(optimizer.seed, index, 'train'), optimizer, workdir, measure)
    return state.params

  def tokenize(self, tokenizer: Any, split: str, workdir: pathlib.Path) -> stages.Split:
    """Returns tokens `[N, T]` and labels `[N]`, int32."""
    encode = jax.jit(lambda images: vq.encode(tokenizer, self.tokenizer, images))
    return self.encode_crops(workdir / f'tokens_{split}.npz', 'tokens', split,
                        lambda images: np.asarray(encode(images)).reshape(len(images), -1))

  def train_model(self, role: str, data: Mapping[str, stages.Split],
                  workdir: pathlib.Path) -> Any:
    """Trains the target or the draft model in `workdir` or continues."""
    config, train = getattr(self, role), getattr(self, f'{role}_train')
    optimizer = train.optimizer
    tokens, conditions = self.sequences(data['train'])
    sequences, size = self.sequences(data['held_out']), optimizer.batch_size
    held_out = [autoregressive.part(sequences, i, size)
                for i in range(0, min(4 * size, self.num_held_out_images), size)]
    nll = jax.jit(lambda params, tokens, condition: autoregressive.nll(
        params, config, tokens, condition).mean())
    state = self.train(
        role, autoregressive.init(config, train),
        loop.jit_step(autoregressive.step, config, train),
        lambda index: loop.batch_of(
            tokens, conditions, optimizer.seed, index, optimizer.batch_size),
        optimizer, workdir,
        lambda state: [{'nll': nll(state.average, *batch)} for batch in held_out])
    return state.average

  def networks(self, tokenizer: Any, models: Mapping[str, Any],
               data: Mapping[str, stages.Split]) -> dict[str, stages.Network]:
    """Returns the trained networks by their role in a model."""
    del data
    return {'tokenizer': stages.Network('vq', self.tokenizer, tokenizer)} | {
        role: stages.Network(self.family, getattr(self, role), params)
        for role, params in models.items()}

  def metrics(self, tokenizer: Any, models: Mapping[str, Any],
              data: Mapping[str, stages.Split]) -> dict[str, dict[str, Any]]:
    """Returns held-out metrics by role."""
    images, _ = self.held_out()
    sequences = self.sequences(data['held_out'])
    metrics = {'tokenizer': stages.errors(self.reconstruct(tokenizer, data, images), images) |
               codebook(data['train'][0], self.tokenizer.codebook_size)}
    return metrics | {
        role: model(params, getattr(self, role), *sequences, self.guidance_scale)
        for role, params in models.items()}

  def reconstruct(self, tokenizer: Any, data: Mapping[str, stages.Split],
                  images: np.ndarray) -> np.ndarray:
    """Encodes and decodes images `[N, H, W, 3]` in [-1, 1]."""
    del data
    run = jax.jit(lambda batch: vq.decode(
        tokenizer, self.tokenizer, vq.encode(tokenizer, self.tokenizer, batch)))
    return stages.batched(run, images)


@dataclasses.dataclass(frozen=True)
class Recipe(TokenRecipe):
  """Recipe of class-conditional models."""

  family: ClassVar[str] = 'llamagen'

  target: llamagen.LlamaGenConfig
  draft: llamagen.LlamaGenConfig

  def __post_init__(self):
    super().__post_init__()
    side = self.side(self.tokenizer.factor)
    expected = {'conditioning': 'class', 'height': side, 'width': side,
                'vocab_size': self.tokenizer.codebook_size,
                'num_classes': len(photos_lib.NAMES)}
    for role in self.models:
      stages.check_model(role, getattr(self, role), expected)

  def small(self) -> 'Recipe':
    """Returns the recipe with tiny networks, for crops of 8x8 pixels."""
    model = llamagen.LlamaGenConfig(
        height=4, width=4, dim=16, num_layers=1, num_heads=1, ffn_dim=16,
        vocab_size=SMALL_TOKENIZER.codebook_size, num_classes=len(photos_lib.NAMES))
    return dataclasses.replace(self, tokenizer=SMALL_TOKENIZER, target=model, draft=model,
                               tokenizer_of=None, image_size=8)

  def sequences(self, data: stages.Split) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens and labels of the images."""
    return data


_BATCH = 16
_LN2 = float(np.log(2))


def codebook(tokens: np.ndarray, size: int) -> dict[str, float]:
  """Measures the use of a codebook.

  Args:
    tokens: `[N, T]` tokens of training images.
    size: number of codes in the codebook.

  Returns:
    'codebook_used' (fraction of the codes that occur) and 'codebook_perplexity'.
  """
  counts = np.bincount(tokens.reshape(-1), minlength=size)
  shares = counts[counts > 0] / counts.sum()
  return {'codebook_used': float(np.mean(counts > 0)),
          'codebook_perplexity': float(np.exp(-np.sum(shares * np.log(shares))))}


def model(
    params: Any,
    config: autoregressive.Config,
    tokens: np.ndarray,
    conditions: Any,
    guidance_scale: float,
) -> dict[str, Any]:
  """Measures likelihood and entropy of a model's distributions along held-out images.

  Args:
    params: parameters of the model.
    config: configuration of the model.
    tokens: `[N, T]` held-out images.
    conditions: conditions of these images, every leaf `[N, ...]`, such as labels `[N]`.
    guidance_scale: guidance scale of the guided distributions.

  Returns:
    'nll_nats' and 'nll_bits' per token given the condition, 'nll_nats_no_label' and
    'nll_bits_no_label' without, and for the distributions 'plain' and 'guided' a dictionary with
    the token entropy's quantiles 'entropy_bits_q10', '_q50' and '_q90', the mean largest
    probability 'top1_mean', the fraction of tokens whose largest probability is below 0.2,
    'top1_below_0.2', and the mean of the sum of squared probabilities, 'collision'. Tokens that
    the grammar forces are excluded.
  """
  free = np.flatnonzero(autoregressive.is_free(config))

  def measure(tokens, condition):
    logits = jnp.stack([
        autoregressive.logits(params, config, condition, tokens,
                              jnp.full(tokens.shape[:1], dropped)) for dropped in (False, True)])
    logits, tokens = logits[:, :, free], tokens[:, free]
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[None, ..., None], axis=-1)
    warp, positions = warp_lib.Warp(guidance_scale=guidance_scale), jnp.asarray(free)[None]
    probs = {'plain': warp_lib.probabilities(logits[:1], warp_lib.Warp(), positions),
             'guided': warp_lib.probabilities(logits, warp, positions)}
    stats = {name: (jnp.sum(jax.scipy.special.entr(p), -1) / _LN2, jnp.max(p, -1),
                    jnp.sum(p * p, -1)) for name, p in probs.items()}
    return -log_probs[..., 0], stats

  compiled = jax.jit(measure)
  parts = [jax.device_get(compiled(*batch)) for batch in _batches(tokens, conditions)]
  nll = np.concatenate([part[0] for part in parts], axis=1).mean(axis=(1, 2))
  report: dict[str, Any] = {'nll_nats': float(nll[0]), 'nll_bits': float(nll[0] / _LN2),
                            'nll_nats_no_label': float(nll[1]),
                            'nll_bits_no_label': float(nll[1] / _LN2)}
  for name in ('plain', 'guided'):
    entropy, top1, collision = (
        np.concatenate([part[1][name][i] for part in parts]) for i in range(3))
    report[name] = {
        **{f'entropy_bits_q{q}': float(np.percentile(entropy, q)) for q in (10, 50, 90)},
        'top1_mean': float(top1.mean()), 'top1_below_0.2': float(np.mean(top1 < 0.2)),
        'collision': float(collision.mean())}
  return report


def _batches(tokens: np.ndarray, conditions: Any) -> Iterator[Any]:
  """Yields `_BATCH` images and their conditions at a time; the last batch may be smaller."""
  for start in range(0, tokens.shape[0], _BATCH):
    yield autoregressive.part((tokens, conditions), start, _BATCH)
