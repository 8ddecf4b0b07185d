"""The official loop of NextStep-1, at a size that a CPU computes.

The published model has 14 billion parameters; this one has the widths and half of the layers of
Qwen2.5-0.5B, and a head of about the published share of the parameters. A token is one of
`NextStepPipeline.decoding`, with its static cache; its `torch.compile` is off.
"""

import os
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import families
from cspd_jax.core import programs
from cspd_jax.files import store
from cspd_jax.generation.model import Model
from cspd_jax.models import nextstep
from cspd_jax.models.conditions import Prompt
from experiments import released
from experiments.costs import forced_rounds
from experiments.released import Loops, Method, Sizes, Work

_NEEDS = ('torch torchvision transformers==4.49.0 diffusers==0.32.2 loguru pendulum tabulate '
          'megfile webdataset')
_SIZE = 'nextstep_184m'
CONFIG = nextstep.NextStepConfig(
    height=16, width=16, vocab_size=2048, dim=896, num_layers=12, num_heads=14, num_kv_heads=2,
    ffn_dim=4864, head_width=256, head_layers=6)


def _described(*, dtype: str) -> Model:
  """Returns a model of `CONFIG` with shapes for parameters."""
  network = store.sketch('nextstep', CONFIG)
  params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), network.params)
  return families.FAMILIES['nextstep'].build(families.Parts(
      _SIZE, {'target': network._replace(params=params)}, {}))


def check(model: Model) -> None:
  """Raises ValueError, because there is no model with trained weights of this size."""
  raise ValueError(f'model is {model.name!r}, and the official loop of NextStep-1 is timed at a '
                   f'size with random weights only; use {_SIZE}.')


class _Middle:
  """The official loop in the middle of an image with guidance."""

  def __init__(self, torch: Any, module: Any, work: Work, count: int):
    """Runs the prompt of the first image and `count` random tokens."""
    self.torch, self.work, self.module, config = torch, work, module, work.target.config
    prompt = np.asarray(work.conditions[0].tokens[0])
    length = prompt.shape[1] + config.num_tokens
    # The model's own code has these names of transformers' Llama.
    settings = sys.modules['nextstep.models.configuration_nextstep'].NextStepConfig(
        vocab_size=config.vocab_size, hidden_size=config.dim, intermediate_size=config.ffn_dim,
        num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads, rms_norm_eps=config.norm_eps,
        rope_theta=config.rope_base, attention_bias=True, o_attention_bias=False, pad_token_id=0,
        max_position_embeddings=length, latent_channels=config.latent_channels,
        latent_patch_size=config.patch_size, fm_head_dim=config.head_width,
        fm_head_layers=config.head_layers, attn_implementation='sdpa')
    self.net = module.NextStep(settings).eval()
    # The matrix of text is not read; tables are computed.
    self.net.load_state_dict(released.tensors(torch, work.target, 'nextstep'), strict=False)
    self._cache = module.StaticCache(config=settings, max_batch_size=2, max_cache_len=length,
                                     device='cpu', dtype=torch.float32)
    tokens = np.random.default_rng(0).standard_normal((1, count, config.token_dim), np.float32)
    self.tokens = np.asarray(nextstep.normalized(config, jnp.asarray(tokens)))
    with torch.no_grad():
      text = self.net.embed_tokens(torch.tensor(prompt, dtype=torch.long))
      image = self.net.image_in_projector(torch.tensor(self.tokens))
      inputs = torch.cat([text, image.expand(2, -1, -1)], dim=1)
      self._length = inputs.shape[1]
      self._hidden = self.net.forward_model(
          inputs_embeds=inputs, attention_mask=self._mask(), past_key_values=self._cache,
          use_cache=True).last_hidden_state[:, -1:]

  def difference(self) -> float:
    """Returns the largest difference of the inputs of the two heads for the next token."""
    # Every stream as a prompt of its own; the last token of `forward` is not read.
    streams = Prompt(*(np.swapaxes(part, 0, 1) for part in self.work.conditions[0]))
    padded = np.pad(np.repeat(self.tokens, 2, axis=0), ((0, 0), (0, 1), (0, 0)))
    ours = programs.jit(lambda params: nextstep.forward(
        params, self.work.target.config, streams, padded))(self.work.target.params)
    with self.torch.no_grad():
      theirs = self.net.image_out_projector(self._hidden)[:, 0].numpy()
    return float(np.abs(np.asarray(ours)[:, -1] - theirs).max())

  def token(self) -> None:
    """Draws a token by the official loop, which then runs the transformer for it."""
    config = self.work.target.config
    self.module.NextStepPipeline.decoding(
        types.SimpleNamespace(model=self.net), c=self._hidden, attention_mask=self._mask(),
        past_key_values=self._cache, max_new_len=1, num_images_per_caption=1,
        use_norm=config.token_norm, cfg=float(self.work.sampling.guidance_scale),
        num_sampling_steps=config.num_levels, progress=False)
    self._length += 1

  def _mask(self) -> Any:
    return self.torch.ones(2, self._length, dtype=self.torch.long)


def _load(clone: pathlib.Path, work: Work) -> Loops:
  os.environ['ENABLE_TORCH_COMPILE'] = 'false'
  torch, module = released.imported(
      _NEEDS, [clone], 'torch', 'nextstep.models.pipeline_nextstep')

  def parts(count: int) -> dict[str, Callable[[], Any]]:
    return {'round': _Middle(torch, module, work, count).token}

  return Loops(_Middle(torch, module, work, CONFIG.num_tokens // 2).difference(), {}, None, parts)


METHODS = {'nextstep': Method(
    'https://github.com/stepfun-ai/NextStep-1', '6e49bae', 'nextstep/models/pipeline_nextstep.py',
    '6ee4dcd46e148e8eef17d3a043249f036fbc6ca70db6ee8b9cade3c1bdcc6989', lambda model: (), check,
    _load, sizes=Sizes({_SIZE: _described}, forced_rounds.DECODERS, released.OF_ROUNDS,
                       'emoji_continuous'))}
