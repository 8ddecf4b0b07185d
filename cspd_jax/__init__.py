"""Fast autoregressive image generation in JAX, without changing what is generated."""

from cspd_jax.decoding.base import Decoded
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.decoders import build
from cspd_jax.decoding.decoders import DECODERS
from cspd_jax.decoding.decoders import eagle
from cspd_jax.decoding.decoders import eagle2
from cspd_jax.decoding.decoders import jacobi
from cspd_jax.decoding.decoders import mc_sjd
from cspd_jax.decoding.decoders import medusa
from cspd_jax.decoding.decoders import seed_exact
from cspd_jax.decoding.decoders import sjd
from cspd_jax.decoding.decoders import sjd_pac
from cspd_jax.decoding.decoders import SOURCES
from cspd_jax.decoding.decoders import speculative
from cspd_jax.decoding.decoders import vanilla
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.warp import Warp

__all__ = (
    'DECODERS',
    'Decoded',
    'Decoder',
    'SOURCES',
    'Target',
    'Warp',
    'build',
    'eagle',
    'eagle2',
    'jacobi',
    'make_decoder',
    'mc_sjd',
    'medusa',
    'seed_exact',
    'sjd',
    'sjd_pac',
    'speculative',
    'vanilla',
)
