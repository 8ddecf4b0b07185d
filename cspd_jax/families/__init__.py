"""Model families, one file each, and the code that they share.

A new family is a file like `llamagen.py` and a line in the list below or, outside the package, a
file that calls `register`: a user imports it, or a package names it among its entry points, in the
group `cspd_jax.families`. Everything specific to a family (kinds of networks by role, formats of
tokenizer files, prompt writers, forms of EAGLE layers) is in its `Family`.
"""

from cspd_jax.families import (
  early_fusion,
  glm_image,
  janus,
  llamagen,
  mammothmoda2,
  mar,
  nextstep,
  tar,
)
from cspd_jax.families.family import (
  FAMILIES,
  Family,
  Parts,
  Published,
  load_installed,
  register,
)
from cspd_jax.families.folder import decoder, describe, load, part_folder, roles, shipped
from cspd_jax.families.model_file import check_place, joining, save
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import DraftNetwork, ImageTokenizer, PromptKind, Teacher
from cspd_jax.generation.results import Generated

__all__ = (
    'DraftNetwork', 'FAMILIES', 'Family', 'Generated', 'ImageTokenizer', 'Model', 'Parts',
    'PromptKind', 'Published', 'Teacher', 'check_place', 'decoder', 'describe', 'joining', 'load',
    'load_installed', 'part_folder', 'register', 'roles', 'save', 'shipped')

for _family in (llamagen.FAMILY, mar.FAMILY, early_fusion.FAMILY, nextstep.FAMILY, janus.FAMILY,
                glm_image.FAMILY, tar.PRIOR_FAMILY, tar.FAMILY, mammothmoda2.FAMILY):
  register(_family)
