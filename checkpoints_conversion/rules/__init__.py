"""The registry of file families, one module for each.

A new family is a module like `llamagen.py` and a line in the list below.
"""

from checkpoints_conversion.rules import (
  clip,
  cosmos,
  eagle,
  early_fusion,
  emu3_5,
  emu3_vq,
  inception,
  janus,
  kl_vae,
  language_models,
  llamagen,
  mar,
  nextstep,
  t5,
  text,
  vq,
)
from checkpoints_conversion.rules.family import ConversionError, FileFamily

FAMILIES: dict[str, FileFamily] = {}


def register(family: FileFamily) -> None:
  """Registers a family, so that `cspd-convert` supports it.

  Raises:
    ValueError: if another family has this name.
  """
  if FAMILIES.setdefault(family.name, family) is not family:
    raise ValueError(f'name is {family.name!r}, which is registered already; choose another name.')


def get(name: str) -> FileFamily:
  """Looks up a family.

  Raises:
    ConversionError: if no family has this name.
  """
  if name not in FAMILIES:
    raise ConversionError(f'family is {name!r}; it must be one of: {", ".join(sorted(FAMILIES))}.')
  return FAMILIES[name]


for _family in (
    llamagen.FAMILY, vq.LLAMAGEN, t5.FAMILY, eagle.LLAMAGEN, eagle.ANOLE, eagle.LUMINA_MGPT,
    mar.FAMILY, early_fusion.LUMINA_MGPT, early_fusion.LUMINA_MGPT_2, early_fusion.ANOLE,
    early_fusion.EMU3, vq.CHAMELEON, emu3_vq.FAMILY, vq.MOVQGAN,
    text.LUMINA_MGPT, text.LUMINA_MGPT_2, text.ANOLE, text.EMU3, text.T5, kl_vae.LATENT_DIFFUSION,
    nextstep.FAMILY, kl_vae.NEXTSTEP, text.NEXTSTEP, janus.FAMILY, janus.VQ, text.JANUS_PRO,
    emu3_5.FAMILY, emu3_5.VQ, text.EMU3_5, language_models.SIMPLEAR, language_models.LIQUID,
    cosmos.FAMILY, text.SIMPLEAR, text.LIQUID, inception.FAMILY, clip.FAMILY):
  register(_family)
