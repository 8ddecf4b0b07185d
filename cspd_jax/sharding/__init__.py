"""Several devices: a model split over some of them, images over the others."""

from cspd_jax.sharding.images import gathered, over_images
from cspd_jax.sharding.mesh import DATA, MODEL, check_mesh, make_mesh
from cspd_jax.sharding.parameters import split

__all__ = ('DATA', 'MODEL', 'check_mesh', 'gathered', 'make_mesh', 'over_images', 'split')
