"""The parts that families of continuous tokens share."""

import types
from collections.abc import Mapping

from cspd_jax.continuous.head_drafter import stored_rho
from cspd_jax.families.family import Family, Parts
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import DraftNetwork, ImageTokenizer, PromptKind
from cspd_jax.models import kl_vae


def build(parts: Parts, family: Family, module: types.ModuleType, prompt_kind: PromptKind,
          drafts: Mapping[str, DraftNetwork] = types.MappingProxyType({})) -> Model:
  """Builds a model of networks that belong together; `module` is the target's."""
  target = parts.loaded['target']
  config = target.config
  parts.pair('tokenizer', z_channels='latent_channels')
  tokenizer = None
  if (loaded := parts.loaded.get('tokenizer')) is not None:
    tokenizer = ImageTokenizer(
        loaded.config, loaded.params, decode=lambda params, tokens: kl_vae.decode(
            params, loaded.config, module.unpatchify(config, tokens)))
  return Model(
      name=parts.name, family=family.name, config=config, params=target.params,
      grid=(config.height, config.width),
      build_target=lambda guided: module.target(config, guided=guided)._replace(
          rho=lambda schedule: stored_rho(schedule, target.metadata, guided)),
      prompt_kind=prompt_kind, tokenizer=tokenizer, drafts=drafts, defaults=parts.defaults,
      metadata=target.metadata)
