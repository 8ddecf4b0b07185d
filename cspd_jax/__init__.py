"""Fast autoregressive image generation in JAX that preserves the model's distribution."""

from typing import TYPE_CHECKING

from cspd_jax.decoding import DECODERS as _DECODERS
from cspd_jax.decoding.base import Decoded, Target
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.warp import Warp
from cspd_jax.families import Model, decoder, load, shipped
from cspd_jax.version import __version__

if TYPE_CHECKING:  # Type checkers do not see the functions that the table adds below.
  from cspd_jax.decoding.decoders import *  # noqa: F403

globals().update({name: entry.build for name, entry in _DECODERS.items()})

__all__ = (  # noqa: PLE0604
    'Decoded',
    'Decoder',
    'Model',
    'Target',
    'Warp',
    '__version__',
    'decoder',
    'load',
    'make_decoder',
    'shipped',
    *_DECODERS,
)
