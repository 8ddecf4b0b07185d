"""Recipe of the shipped causal model of continuous tokens: latents of scenes of emoji, captions."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.models import kl_vae, nextstep
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import templates
from cspd_jax.training import loop
from experiments.demo_models import emoji, flow, latents, stages, words
from experiments.demo_models.emoji_recipe import Scenes
from experiments.demo_models.flow import FlowTrainConfig

# Number and size of the batches of held-out crops for the metrics.
_NUM_BATCHES, _BATCH = 16, 16
# The tokens of prompts.
TOKENS = ('<|image_area|>', '<|begin_of_image|>', words.UNKNOWN, *emoji.WORDS)
VOCABULARY = len(TOKENS)


@dataclasses.dataclass(frozen=True)
class ContinuousRecipe(Scenes, latents.Latents):
  """Recipe of a causal model of continuous tokens; see also `latents.Latents`.

  Attributes:
    target: configuration of the model.
    target_train: configuration of its training.
  """

  family: ClassVar[str] = 'nextstep'
  models: ClassVar[tuple[str, ...]] = ('target',)

  target: nextstep.NextStepConfig
  target_train: FlowTrainConfig

  def __post_init__(self):
    super().__post_init__()
    side = self.side(self.tokenizer.factor) // self.target.patch_size
    stages.check_model('target', self.target, {
        'height': side, 'width': side, 'vocab_size': VOCABULARY,
        'latent_channels': self.tokenizer.z_channels})

  def small(self) -> 'ContinuousRecipe':
    """Returns the recipe with tiny networks, for crops of 8x8 pixels."""
    tokenizer = kl_vae.KLVAEConfig(
        ch=8, ch_mult=(1, 1), num_res_blocks=1, z_channels=4, scale=1.0)
    model = dataclasses.replace(
        self.target, height=2, width=2, dim=16, num_layers=1, num_heads=1, num_kv_heads=1,
        ffn_dim=16, head_width=16, head_layers=1)
    return dataclasses.replace(
        self, tokenizer=tokenizer, target=model, tokenizer_of=None,
        tokenizer_from=None, image_size=8)

  @property
  def defaults(self) -> dict[str, Any]:
    """Defaults of the exported model."""
    return super().defaults | {'contexts': 'plain'}

  def train_model(self, role: str, data: Mapping[str, stages.Split],
                  workdir: pathlib.Path) -> Any:
    """Trains the target or the draft model in `workdir` or continues."""
    config, train = self.target, self.target_train
    optimizer, scale = train.optimizer, latents.scaled_tokenizer(self, data).scale
    prompts = {split: self._prompts(part[1].tolist()) for split, part in data.items()}

    def batch(split, index):
      moments = data[split][0]
      tokens, chosen = latents.batch_of(config, moments, np.arange(len(moments)), scale,
                                        optimizer.seed, index, optimizer.batch_size)
      return tokens, jax.tree.map(lambda leaf: leaf[chosen], prompts[split])

    held_out = [batch('held_out', index) for index in range(4)]
    measure = self._measured(config)
    state = self.train(
        role, flow.init(config, train), loop.jit_step(flow.step, config, train),
        lambda index: batch('train', index), optimizer, workdir,
        lambda state: [{'loss': measure(state.average, *part, jax.random.key(index))}
                       for index, part in enumerate(held_out)])
    return state.average

  def _measured(self, config: nextstep.NextStepConfig) -> Any:
    """Returns the compiled loss with the prompts, `(params, tokens, prompt, key) -> []`."""
    train = dataclasses.replace(self.target_train, drop_rate=0.0)
    return jax.jit(lambda params, tokens, prompt, key: flow.loss(
        params, config, tokens, prompt, flow.draw(key, tokens.shape, train)))

  def _prompts(self, captions: list[str]) -> Prompt:
    """Encodes captions as prompts of the model."""
    return words.prompts(
        self._text(), templates.plain, captions, (self.target.height, self.target.width))

  def _text(self) -> stages.Network:
    """Returns the text tokenizer as a network."""
    return words.network('nextstep', words.tokenizer(TOKENS))

  def networks(self, tokenizer: Any, models: Mapping[str, Any],
               data: Mapping[str, stages.Split]) -> dict[str, stages.Network]:
    """Returns the trained networks by their role in a model."""
    sizes = latents.scaled_tokenizer(self, data)
    return {'tokenizer': stages.Network('kl_vae', sizes, tokenizer)} | {'text': self._text()} | {
        role: stages.Network('nextstep', self.target, params) for role, params in models.items()}

  def metrics(self, tokenizer: Any, models: Mapping[str, Any],
              data: Mapping[str, stages.Split]) -> dict[str, dict[str, Any]]:
    """Returns held-out metrics by role; of the model, the loss with prompts and without."""
    images, _ = self.held_out()
    moments, captions = data['held_out']
    scale = latents.scaled_tokenizer(self, data).scale
    prompts, measure = self._prompts(captions.tolist()), self._measured(self.target)
    figures: dict[str, dict[str, Any]] = {
        'tokenizer': stages.errors(self.reconstruct(tokenizer, data, images), images)}
    for role, params in models.items():
      losses: dict[str, list[float]] = {'loss': [], 'loss_no_prompt': []}
      for index in range(_NUM_BATCHES):
        tokens, chosen = latents.batch_of(
            self.target, moments, np.arange(len(moments)), scale, 0, index, _BATCH)
        prompt = jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], prompts)
        null = Prompt(*(jnp.repeat(leaf[:, 1:], 2, axis=1) for leaf in prompt))
        for name, part in (('loss', prompt), ('loss_no_prompt', null)):
          losses[name].append(float(measure(params, tokens, part, jax.random.key(index))))
      figures[role] = {name: float(np.mean(values)) for name, values in losses.items()}
    return figures
