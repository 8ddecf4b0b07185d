"""Several devices: the model divided within a group of devices, the images between groups."""

from cspd_jax.sharding.mesh import (
  DATA,
  MODEL,
  check_mesh,
  gathered,
  least,
  make_mesh,
  over_images,
  split,
)

__all__ = (
    'DATA', 'MODEL', 'check_mesh', 'gathered', 'least', 'make_mesh', 'over_images', 'split')
