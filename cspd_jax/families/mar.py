"""MAR: class-conditional images of continuous tokens with a diffusion head and a KL autoencoder."""

import jax
import numpy as np

from cspd_jax.continuous import specification
from cspd_jax.families import continuous, prompt_kinds
from cspd_jax.families.family import Family, Parts, Published
from cspd_jax.files.store import Kind
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import DraftNetwork
from cspd_jax.models import kl_vae, mar


def build(parts: Parts) -> Model:
  """Builds a MAR model of its networks; raises ValueError unless they belong together."""
  config, drafts = parts.loaded['target'].config, {}
  parts.pair('draft', 'height', 'width', 'token_dim', 'patch_size', 'num_classes')
  if (draft := parts.loaded.get('draft')) is not None:
    drafts['model'] = DraftNetwork(lambda guided: mar.target(draft.config, guided=guided),
                                   draft.params)
  labels = parts.loaded['target'].metadata.get('labels', ())
  return continuous.build(
      parts, FAMILY, mar, prompt_kinds.classes(config.num_classes, labels), drafts)


_MAR = Kind(mar.MARConfig, mar.init)
FAMILY = Family(
    name='mar',
    roles={'target': {'mar': _MAR}, 'tokenizer': {'kl_vae': Kind(kl_vae.KLVAEConfig, kl_vae.init)},
           'draft': {'mar': _MAR}},
    build=build, table=specification.TABLE,
    published=Published(mar.PRESETS, condition=lambda config, count: jax.ShapeDtypeStruct(
        (count,), np.int32)))
