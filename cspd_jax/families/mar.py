"""MAR: class-conditional images of continuous tokens with a diffusion head and a KL autoencoder."""

import jax
import numpy as np

from cspd_jax.continuous.head_drafter import stored_rho
from cspd_jax.families import prompt_kinds
from cspd_jax.families.family import Family, Parts, Published
from cspd_jax.files.description import Kind
from cspd_jax.generation import engines
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Drafts, Tokenizer
from cspd_jax.models import kl_vae, mar


def build(parts: Parts) -> Model:
  """Builds a MAR model of its networks; raises ValueError unless they belong together."""
  loaded, target = parts.loaded, parts.loaded['target']
  config = target.config
  parts.pair('tokenizer', 'z_channels', 'latent_channels')
  for size in ('height', 'width', 'token_dim', 'patch_size', 'num_classes'):
    parts.pair('draft', size)
  drafts = {}
  if 'draft' in loaded:
    draft = loaded['draft']
    drafts['model'] = Drafts(lambda guided: mar.target(draft.config, guided=guided), draft.params)
  tokenizer = None
  if 'tokenizer' in loaded:
    sizes = loaded['tokenizer'].config
    tokenizer = Tokenizer(
        sizes, loaded['tokenizer'].params,
        decode=lambda params, tokens: kl_vae.decode(params, sizes, mar.unpatchify(config, tokens)))
  return Model(
      name=parts.name, family=FAMILY.name, config=config, params=target.params,
      grid=(config.height, config.width), engine=FAMILY.engine,
      target=lambda *, guided: mar.target(config, guided=guided),
      conditions=prompt_kinds.classes(config.num_classes, target.metadata.get('labels', ())),
      tokenizer=tokenizer, drafts=drafts, defaults=parts.defaults,
      head_drafter=lambda schedule, guided: stored_rho(schedule, target.metadata, guided),
      metadata=target.metadata)


_MAR = Kind(mar.MARConfig, mar.init)
FAMILY = Family(
    name='mar',
    roles={'target': {'mar': _MAR}, 'tokenizer': {'kl_vae': Kind(kl_vae.KLVAEConfig, kl_vae.init)},
           'draft': {'mar': _MAR}},
    build=build, engine=engines.CONTINUOUS,
    published=Published(mar.PRESETS, condition=lambda config, count: jax.ShapeDtypeStruct(
        (count,), np.int32)))
