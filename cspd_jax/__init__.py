"""Fast autoregressive image generation in JAX, without changing what is generated."""

from cspd_jax.decoding.base import Decoded, Target
from cspd_jax.decoding.decoders import (
    eagle,
    eagle2,
    jacobi,
    mc_sjd,
    medusa,
    seed_exact,
    sjd,
    sjd_pac,
    speculative,
    vanilla,
)
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.warp import Warp
from cspd_jax.families import Model, decoder, load, shipped
from cspd_jax.version import __version__

__all__ = (
    'Decoded',
    'Decoder',
    'Model',
    'Target',
    'Warp',
    '__version__',
    'decoder',
    'eagle',
    'eagle2',
    'jacobi',
    'load',
    'make_decoder',
    'mc_sjd',
    'medusa',
    'seed_exact',
    'shipped',
    'sjd',
    'sjd_pac',
    'speculative',
    'vanilla',
)
