"""LlamaGen: class- and text-conditional image transformers (arXiv 2406.06525).

A sequence is the condition (1 class embedding, or 120 projected caption embeddings) followed by the
image tokens in raster order; every token but the last predicts its successor. In the shape
descriptions `B` is the number of images, `C` the number of condition tokens, `T` the number of
image tokens and `V` the size of the codebook.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.core.tracing import is_concrete
from cspd_jax.models import causal, conditions, decoder_only, transformer
from cspd_jax.models.transformer import RopeFunction, grid_rope

Params = Any
# Number of rows of the learned null caption, and therefore of every text condition.
CAPTION_LENGTH = 120
# The condition is class labels `[B]` int, or a `Caption`; the second stream is the null condition.
target, ends = decoder_only.target, decoder_only.ends


@dataclasses.dataclass(frozen=True)
class LlamaGenConfig(decoder_only.DecoderOnlySizes):
  """Sizes of a LlamaGen model.

  Attributes:
    conditioning: 'class' (c2i) or 'text' (t2i).
    ffn_dim: None means two thirds of `4 * dim`, rounded up to a multiple of 256.
    vocab_size: codes of the image tokenizer.
    num_classes: number of classes without the null class. Class models only.
    caption_dim: width of the text encoder. Text models only.
  """

  height: int = 16
  width: int = 16
  dim: int = 768
  num_layers: int = 12
  num_heads: int = 12
  ffn_dim: int | None = None
  conditioning: str = 'class'
  vocab_size: int = 16384
  num_classes: int = 1000
  caption_dim: int = 2048

  def __post_init__(self):
    self.check(axes=2)
    fields.check_choice('conditioning', self.conditioning, ('class', 'text'))
    if self.ffn_dim is None:
      object.__setattr__(self, 'ffn_dim', -(-(8 * self.dim // 3) // 256) * 256)
    _ = self.transformer  # Checks the sizes that only the transformer uses.

  @property
  def num_image_tokens(self) -> int:
    """The number `V` of tokens that can occur in an image."""
    return self.vocab_size

  @property
  def num_condition_tokens(self) -> int:
    """The number `C` of condition tokens."""
    return 1 if self.conditioning == 'class' else CAPTION_LENGTH

  @property
  def transformer(self) -> transformer.TransformerConfig:
    """Sizes of the transformer."""
    return self.sizes(self.vocab_size)

  def causal(self, num_streams: int) -> causal.Causal:
    """The specification of the model, for any number of streams."""

    def embed_condition(params: Params, condition: Any, count: int) -> causal.EmbeddedCondition:
      drop = jnp.repeat(jnp.arange(count) == 1, jax.tree.leaves(condition)[0].shape[0])
      condition = jax.tree.map(lambda x: jnp.concatenate([x] * count), condition)
      return _embedded(params, self, condition, drop)

    return causal.Causal(
        transformer=self.transformer, embed_condition=embed_condition, rope=_rope(self),
        num_tokens=self.num_tokens, row_width=self.width,
        check_condition=lambda condition: _check_condition(self, condition))


def _published() -> dict[str, LlamaGenConfig]:
  sizes = {'b': (768, 12, 12), 'l': (1024, 24, 16), 'xl': (1280, 36, 20),
           'xxl': (1536, 48, 24), '3b': (3200, 24, 32)}
  models = [('class', size, pixels) for size in sizes for pixels in (256, 384)]
  models += [('text', 'xl', 256), ('text', 'xl', 512)]
  presets = {}
  for conditioning, size, pixels in models:
    dim, num_layers, num_heads = sizes[size]
    prefix = {'class': 'c2i', 'text': 't2i'}[conditioning]
    presets[f'{prefix}_{size}_{pixels}'] = LlamaGenConfig(
        conditioning=conditioning, height=pixels // 16, width=pixels // 16,
        dim=dim, num_layers=num_layers, num_heads=num_heads)
  return presets


# The published models, such as 'c2i_b_256' (class-conditional, base, 256 pixels).
PRESETS: dict[str, LlamaGenConfig] = _published()


class Caption(NamedTuple):
  """A text condition: the output `[B, 120, caption_dim]` of the text encoder, padded on the left.

  `mask` `[B, 120]` bool is True for the tokens of the caption.
  """

  embeddings: jax.Array
  mask: jax.Array


def left_padded(features: Sequence[Any]) -> Caption:
  """Pads features of texts, `[L, caption_dim]` with `1 <= L <= 120`, on the left to a condition.

  Other shapes raise ValueError.
  """
  rows = [np.asarray(text) for text in features]
  shapes = sorted({row.shape for row in rows})
  if not rows or any(len(shape) != 2 or shape[1] != shapes[0][1] or not (
      1 <= shape[0] <= CAPTION_LENGTH) for shape in shapes):
    raise ValueError(f'features have the shapes {shapes}; every text has [L, D], with the same D '
                     f'and 1 to {CAPTION_LENGTH} tokens.')
  embeddings = np.zeros((len(rows), CAPTION_LENGTH, shapes[0][1]), rows[0].dtype)
  for embedding, row in zip(embeddings, rows):
    embedding[CAPTION_LENGTH - len(row):] = row
  lengths = np.array([len(row) for row in rows])
  return Caption(embeddings, np.arange(CAPTION_LENGTH) >= CAPTION_LENGTH - lengths[:, None])


def _rope(config: LlamaGenConfig) -> RopeFunction:
  """Condition tokens have position -1: attention among and to them has logit 0."""
  return grid_rope(config.num_tokens, config.width, config.head_dim, config.rope_base)


class LlamaGen(nn.Module):
  """The transformer with the embedding of the condition."""

  config: LlamaGenConfig

  def setup(self):
    config, init = self.config, nn.initializers.normal(0.02)
    self.transformer = transformer.Transformer(config.transformer)
    if config.conditioning == 'class':
      self.label_embedding = self.param(  # The last row is the null class.
          'label_embedding', init, (config.num_classes + 1, config.dim))
    else:
      self.null_caption = self.param(
          'null_caption', nn.initializers.normal(config.caption_dim**-0.5),
          (CAPTION_LENGTH, config.caption_dim))
      self.caption_in = self.param('caption_in', init, (config.caption_dim, config.dim))
      self.caption_out = self.param('caption_out', init, (config.dim, config.dim))

  def condition(self, condition, drop: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Embeds a condition, class labels `[B]` or a `Caption`.

    Where `drop` `[B]` is True, it is replaced by the null condition, with the padding mask of the
    caption that it replaces. Returns embeddings `[B, C, D]` and which of them are visible, `[B, C]`
    bool.
    """
    if self.config.conditioning == 'class':
      labels = jnp.where(drop, self.config.num_classes, condition)
      return (jnp.take(self.label_embedding, labels, axis=0)[:, None],
              jnp.ones((labels.shape[0], 1), bool))
    mask = jnp.asarray(condition.mask, bool)
    # Padding may hold any value, including NaN, which an attention mask would not remove.
    captions = jnp.where(
        mask[..., None], jnp.where(drop[:, None, None], self.null_caption, condition.embeddings), 0)
    captions = captions.astype(self.caption_in.dtype)
    return jax.nn.gelu(captions @ self.caption_in, approximate=True) @ self.caption_out, mask

  def __call__(self, condition, drop):
    """Runs all modules that have parameters, for `init`."""
    embeddings, _ = self.condition(condition, drop)
    mask = transformer.causal_mask(embeddings.shape[1])
    positions = jnp.full((1, embeddings.shape[1]), -1)
    return self.transformer(embeddings, _rope(self.config)(positions), mask)


def init(config: LlamaGenConfig, key: jax.Array) -> Params:
  """Initialises float32 parameters as LlamaGen does: normal with deviation 0.02, norms one.

  The output matrix is zero, so that the first distributions are uniform.
  """
  condition = jnp.zeros((1,), jnp.int32)
  if config.conditioning == 'text':
    condition = Caption(jnp.zeros((1, CAPTION_LENGTH, config.caption_dim)),
                        jnp.ones((1, CAPTION_LENGTH), bool))
  run = lambda key: LlamaGen(config).init(key, condition, jnp.zeros((1,), bool))
  return jax.jit(run)(key)['params']


def logits_and_features(
    params: Params, config: LlamaGenConfig, condition: Any, tokens: jax.Array,
    drop: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Returns next-token logits and features of whole images, for training and evaluation.

  As `decoder_only.logits_and_features`, with class labels `[B]` or a `Caption` as the condition,
  which is replaced by the null condition where `drop`.
  """
  embedded = _embedded(params, config, condition, drop)
  return causal.forward(params, config.causal(1), embedded, tokens[:, :-1])[:2]


def _embedded(params: Params, config: LlamaGenConfig, condition: Any, drop: jax.Array
              ) -> causal.EmbeddedCondition:
  """Embeds one condition per row."""
  embeddings, visible = LlamaGen(config).apply(
      {'params': params}, condition, drop, method='condition')
  positions = jnp.full((1, embeddings.shape[1]), -1)
  return causal.EmbeddedCondition(
      embeddings, causal.ConditionPositions(visible, positions, jnp.zeros(1, jnp.int32)))


def _check_condition(config: LlamaGenConfig, condition: Any) -> Any:
  """Returns which rows are valid, `[B]` bool."""
  if config.conditioning == 'class':
    return conditions.check_class_labels(condition, config.num_classes)
  if not isinstance(condition, Caption):
    raise ValueError(f'condition is a {type(condition).__name__}; this model requires a '
                     'llamagen.Caption of text embeddings and their mask.')
  as_array = np.asarray if is_concrete(condition) else jnp.asarray
  embeddings, mask = as_array(condition.embeddings), as_array(condition.mask)
  expected = (CAPTION_LENGTH, config.caption_dim)
  if embeddings.shape != mask.shape[:1] + expected or mask.shape[1:] != expected[:1]:
    raise ValueError(f'condition has embeddings {embeddings.shape} and mask {mask.shape}; this '
                     f'model requires [B, {expected[0]}, {expected[1]}] and [B, {expected[0]}].')
  mask = mask.astype(bool)
  # The first image token is predicted from the last caption token.
  if is_concrete(condition) and not mask[:, -1].all():
    raise ValueError(
        f'condition: the mask of caption {int(np.argmin(mask[:, -1]))} is False at the last '
        'position; captions are padded on the left and have at least one token.')
  # A comparison, because NumPy's `isfinite` does not support bfloat16.
  finite = ((abs(embeddings) < np.inf) | ~mask[..., None]).all(axis=(1, 2))
  if is_concrete(condition) and not finite.all():
    raise ValueError('condition: the caption embeddings hold values that are not finite.')
  return mask[:, -1] & finite
