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
  vqgan,
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


register(llamagen.FAMILY)
register(vq.FAMILY)
register(t5.FAMILY)
register(eagle.LLAMAGEN)
register(eagle.ANOLE)
register(eagle.LUMINA_MGPT)
register(mar.FAMILY)
register(early_fusion.LUMINA_MGPT)
register(early_fusion.LUMINA_MGPT_2)
register(early_fusion.ANOLE)
register(early_fusion.EMU3)
register(vqgan.CHAMELEON_FAMILY)
register(emu3_vq.FAMILY)
register(vqgan.MOVQGAN_FAMILY)
register(text.LUMINA_MGPT)
register(text.LUMINA_MGPT_2)
register(text.ANOLE)
register(text.EMU3)
register(text.T5)
register(kl_vae.LATENT_DIFFUSION)
register(nextstep.FAMILY)
register(kl_vae.NEXTSTEP)
register(text.NEXTSTEP)
register(janus.FAMILY)
register(janus.VQ)
register(text.JANUS_PRO)
register(emu3_5.FAMILY)
register(emu3_5.VQ)
register(text.EMU3_5)
register(language_models.SIMPLEAR)
register(language_models.LIQUID)
register(cosmos.FAMILY)
register(text.SIMPLEAR)
register(text.LIQUID)
register(inception.FAMILY)
register(clip.FAMILY)
