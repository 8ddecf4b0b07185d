"""Families of models, one file each, and what all of them share.

A new family is a file like `llamagen.py` and a line in the list below.
"""

from cspd_jax.families import llamagen
from cspd_jax.families import mar
from cspd_jax.families.family import Family
from cspd_jax.families.family import FAMILIES
from cspd_jax.families.family import Parts
from cspd_jax.families.family import register
from cspd_jax.families.folder import decoder
from cspd_jax.families.folder import load
from cspd_jax.families.folder import part_folder
from cspd_jax.families.folder import save
from cspd_jax.families.folder import shipped
from cspd_jax.families.images import Generated
from cspd_jax.families.model import Conditions
from cspd_jax.families.model import Drafts
from cspd_jax.families.model import Model
from cspd_jax.families.model import Tokenizer

__all__ = (
    'Conditions', 'Drafts', 'FAMILIES', 'Family', 'Generated', 'Model', 'Parts', 'Tokenizer',
    'decoder', 'load', 'part_folder', 'register', 'save', 'shipped')

for _one in (llamagen.FAMILY, mar.FAMILY):
  register(_one)
