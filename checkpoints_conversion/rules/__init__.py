"""The registry of file families.

A new family is a module like `llamagen.py` and a line in the list below.
"""

from checkpoints_conversion.rules import (
  eagle,
  early_fusion,
  evaluators,
  glm_image,
  janus,
  language_models,
  llamagen,
  mammothmoda2,
  mar,
  nextstep,
  tar,
  text,
  vq,
)
from checkpoints_conversion.rules.family import ConversionError, FileFamily
from cspd_jax.cli import imports
from cspd_jax.core import guesses, naming

FAMILIES: dict[str, FileFamily] = {}


def register(family: FileFamily) -> None:
  """Registers a family, so that `cspd-convert` supports it.

  Raises ValueError if another family has this name.
  """
  if FAMILIES.setdefault(family.name, family) is not family:
    raise ValueError(f'name is {family.name!r}, which is registered already; choose another name.')


def get(name: str, argument: str = 'family') -> FileFamily:
  """Looks up a family; raises ConversionError if no family has this name."""
  if name not in FAMILIES:
    own = (f'{", ".join(imports.MODULES)} registers no rules of this name with '
           'checkpoints_conversion.rules.register' if imports.MODULES else
           'rules of your own are registered by their module, which --import=MODULE imports first')
    raise ConversionError(
        f'{argument} is {name!r}; it must be one of: {", ".join(sorted(FAMILIES))}; {own}'
        + naming.suggestion(name, FAMILIES, guesses.ALIASES))
  return FAMILIES[name]


for _family in (
    llamagen.FAMILY, vq.LLAMAGEN, text.T5, eagle.LLAMAGEN, eagle.ANOLE, eagle.LUMINA_MGPT,
    mar.FAMILY, early_fusion.LUMINA_MGPT, early_fusion.LUMINA_MGPT_2, early_fusion.ANOLE,
    early_fusion.EMU3, vq.CHAMELEON, vq.EMU3, vq.MOVQGAN,
    text.LUMINA_MGPT, text.LUMINA_MGPT_2, text.ANOLE, text.EMU3, text.T5_TEXT, vq.LATENT_DIFFUSION,
    nextstep.FAMILY, vq.NEXTSTEP, text.NEXTSTEP, janus.FAMILY, janus.VQ, text.JANUS_PRO,
    early_fusion.EMU3_5, vq.EMU3_5, text.EMU3_5, language_models.SIMPLEAR, language_models.LIQUID,
    vq.COSMOS, text.SIMPLEAR, text.LIQUID, glm_image.FAMILY, text.GLM_IMAGE, tar.PRIOR,
    tar.TEXT, tar.AR_DTOK, tar.BRIDGE, tar.VQ, mammothmoda2.FAMILY,
    mammothmoda2.TEXT, evaluators.INCEPTION, evaluators.CLIP):
  register(_family)
