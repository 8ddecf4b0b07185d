"""NextStep-1 (arXiv 2508.10711): a causal transformer over continuous tokens with a flow head.

A sequence is a prompt of text tokens followed by the image's tokens in raster order. A token is a
patch of latents; it enters the transformer by a projection, and another projection of the
transformer's output is the condition `z` of the flow head, which samples the next token.

Parameter tree: `transformer` as in `transformer`, without an output matrix; `token_in` and
`token_out`, each with `kernel` and `bias`; `head` as in `diffusion_head`.

In the shape descriptions `B` is the number of images, `S` of guidance streams, `W` of tokens of a
window, `T` of tokens of an image, `C` the length of a token and `D` the width of the transformer.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from cspd_jax.continuous import base, schedule as schedule_lib
from cspd_jax.core import fields
from cspd_jax.decoding import base as decoding_base, tree
from cspd_jax.models import causal, decoder_only, diffusion_head, ends, kl_vae, mar, transformer
from cspd_jax.models.conditions import Prompt

Params = Any


@dataclasses.dataclass(frozen=True)
class NextStepConfig(decoder_only.DecoderOnlySizes):
  """Sizes of a model and the options of its published sampler; the defaults are NextStep-1's.

  Attributes:
    vocab_size: number of text tokens.
    latent_channels: channels of the tokenizer's latents.
    patch_size: latents of a token along each side.
    head_width: width of the flow head.
    head_layers: its residual blocks.
    token_norm: whether a sampled token is normalised to mean 0 and variance 1 before the
      transformer reads it and before it is decoded to pixels.
    num_levels: default number of levels of the flow.
    shift: maps a time `s` to `s / (shift - (shift - 1) s)`; above 1 there are more levels near the
      noise, where `s` is 0.
    last_step: the smallest time of the flow, as for `schedule.flow`.
    guidance: one of `schedule.GUIDANCE_SCHEDULES`.
  """

  height: int = 32
  width: int = 32
  dim: int = 5120
  num_layers: int = 48
  num_heads: int = 40
  ffn_dim: int = 13824
  num_kv_heads: int = 8
  vocab_size: int = 152064
  latent_channels: int = 16
  patch_size: int = 2
  head_width: int = 1536
  head_layers: int = 12
  rope_base: float = 1e6
  token_norm: bool = True
  num_levels: int = 50
  shift: float = 1.0
  last_step: float | None = 0.04
  guidance: Literal['linear', 'constant'] = 'constant'

  def __post_init__(self):
    self.check(head_layers=(1, fields.MOST_LAYERS), num_levels=(2, schedule_lib.NUM_STEPS))
    _ = self.transformer, self.schedule()  # Check what only they use.

  @property
  def token_dim(self) -> int:
    """The length `C` of a token."""
    return self.latent_channels * self.patch_size**2

  @property
  def transformer(self) -> transformer.TransformerConfig:
    """Sizes of the transformer."""
    return self.sizes(self.vocab_size, num_outputs=0, qkv_bias=True)

  @property
  def head(self) -> diffusion_head.Head:
    """The flow head."""
    return diffusion_head.Head(
        self.head_width, self.head_layers, self.token_dim, learned_variance=False)

  def schedule(self, num_levels: int | None = None) -> schedule_lib.Schedule:
    """Returns the schedule of the published sampler, with `num_levels` levels or the default."""
    return schedule_lib.flow(self.num_levels if num_levels is None else num_levels,
                             shift=self.shift, last_step=self.last_step)


def _published() -> dict[str, NextStepConfig]:
  first = NextStepConfig()
  second = NextStepConfig(token_norm=False, num_levels=28, last_step=None)
  return {f'{name}_{pixels}': dataclasses.replace(config, height=pixels // 16, width=pixels // 16)
          for name, config in (('nextstep_1', first), ('nextstep_1_1', second))
          for pixels in (512, 256)}


# The published models by release and pixels of their square images.
PRESETS: dict[str, NextStepConfig] = _published()


def init(config: NextStepConfig, key: jax.Array) -> Params:
  """Initialises float32 parameters: the head as MAR's, everything else normal or zero."""
  def run(key: jax.Array) -> Params:
    body, head, inward, outward = jax.random.split(key, 4)
    dim, token_dim = config.dim, config.token_dim
    linear = lambda key, inputs: {
        'kernel': 0.02 * jax.random.normal(key, (inputs, dim)), 'bias': jnp.zeros(dim)}
    return {
        'transformer': decoder_only.init_transformer(config, body),
        'token_in': linear(inward, token_dim), 'token_out': linear(outward, dim),
        'head': config.head.init(
            head, jnp.zeros((1, token_dim)), jnp.zeros(1), jnp.zeros((1, dim)))['params']}

  return jax.jit(run)(key)


def target(config: NextStepConfig, *, guided: bool) -> base.Target:
  """Returns the model as a decoding target, whose condition is a `Prompt` of text tokens.

  The second stream is the prompt that guidance leads away from; it is ignored unless `guided`.
  """
  streams = 2 if guided else 1
  model = _causal(config, streams)
  return base.Target(
      transform=None, denoise=ends.denoise(config.head), num_tokens=config.num_tokens,
      token_dim=config.token_dim, num_streams=streams, check_condition=model.check_condition,
      modulation=ends.modulation(config.head), cached=_cached(causal.target(model, streams)),
      make_schedule=config.schedule, num_levels=config.num_levels, guidance=config.guidance,
      sizes=_sizes(config))


def _sizes(config: NextStepConfig) -> base.Sizes:
  """Returns the bytes of intermediate results in float32: of a token's pass, and of a state.

  A layer has the hidden features of its gated network, the token's features, and two arrays of
  attention scores.
  """
  per_token = 3 * config.ffn_dim + 8 * config.dim + 2 * config.num_heads * config.num_tokens
  modulation = diffusion_head.num_parts(config.head_layers) * config.head_width
  return base.Sizes(4.0 * per_token, 4.0 * modulation)


def _causal(config: NextStepConfig, streams: int) -> causal.Causal:
  """Returns the transformer as a model whose tokens are vectors, and whose logits are `z`."""
  return decoder_only.prompted(config, streams)._replace(
      embed=lambda params, tokens: _linear(params['token_in'], normalized(config, tokens)),
      logits=lambda params, features: _linear(params['token_out'], features),
      num_outputs=config.dim)


def _cached(target: decoding_base.Target) -> base.Cached:
  def prefill(params: Params, condition: Prompt, num_slots: int
              ) -> tuple[jax.Array, causal.Cache]:
    z, _, cache = target.prefill(params, condition, num_slots)
    return z, cache

  def score(params: Params, cache: causal.Cache, tokens: jax.Array, start: jax.Array
            ) -> tuple[jax.Array, causal.Cache]:
    z, _, cache = target.score(params, cache, tokens, start, tree.chain(tokens.shape[1] - 1))
    return z, cache

  return base.Cached(prefill, score)


def forward(params: Params, config: NextStepConfig, prompt: Prompt, tokens: jax.Array
            ) -> jax.Array:
  """Returns the condition of the head `[B, T, D]` for every token of images, in one pass.

  Prompts have one stream; of the tokens `[B, T, C]` the last one is not read.
  """
  model = _causal(config, 1)
  return causal.forward(params, model, model.embed_condition(params, prompt, 1), tokens[:, :-1])[0]


def normalized(config: NextStepConfig, tokens: jax.Array) -> jax.Array:
  """Returns sampled tokens `[..., C]` as the transformer reads them and as they are decoded."""
  return kl_vae.normalize(tokens) if config.token_norm else tokens


def unpatchify(config: NextStepConfig, tokens: jax.Array) -> jax.Array:
  """Returns the scaled latents of sampled tokens `[B, T, C]`, like `mar.unpatchify`."""
  return mar.unpatchify(config, normalized(config, tokens))


def _linear(params: Params, x: jax.Array) -> jax.Array:
  return x.astype(params['kernel'].dtype) @ params['kernel'] + params['bias']
