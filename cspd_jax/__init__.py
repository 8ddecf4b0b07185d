"""Fast autoregressive image generation in JAX, without changing what is generated."""

from cspd_jax.decoding.base import Decoded
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.decoders import eagle
from cspd_jax.decoding.decoders import eagle2
from cspd_jax.decoding.decoders import jacobi
from cspd_jax.decoding.decoders import mc_sjd
from cspd_jax.decoding.decoders import medusa
from cspd_jax.decoding.decoders import seed_exact
from cspd_jax.decoding.decoders import sjd
from cspd_jax.decoding.decoders import sjd_pac
from cspd_jax.decoding.decoders import speculative
from cspd_jax.decoding.decoders import vanilla
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.warp import Warp
from cspd_jax.families import decoder
from cspd_jax.families import load
from cspd_jax.families import Model
from cspd_jax.families import shipped
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
