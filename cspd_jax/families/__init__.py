"""Families of models, one file each, and what all of them share.

A new family is a file like `llamagen.py` and a line in the list below; outside of the package, a
file that calls `register`. What only a family knows (kinds of networks by their roles, forms of
tokenizer files, writers of prompts, forms of EAGLE's layer) is in its `Family`.
"""

from cspd_jax.families import early_fusion, llamagen, mar
from cspd_jax.families.family import FAMILIES, Family, Parts, Published, register
from cspd_jax.families.folder import (
  check_place,
  decoder,
  describe,
  joining,
  load,
  part_folder,
  save,
  shipped,
)
from cspd_jax.generation.model import Conditions, Drafts, Model, Tokenizer
from cspd_jax.generation.results import Generated

__all__ = (
    'Conditions', 'Drafts', 'FAMILIES', 'Family', 'Generated', 'Model', 'Parts', 'Published',
    'Tokenizer', 'check_place', 'decoder', 'describe', 'joining', 'load', 'part_folder',
    'register', 'save', 'shipped')

for _one in (llamagen.FAMILY, mar.FAMILY, early_fusion.FAMILY):
  register(_one)
