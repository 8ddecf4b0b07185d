"""Drafters propose the tokens that the target scores; each has its own module.

This package exports the parts that some of them are built from: heads, networks and correctors.
"""

from cspd_jax.decoding.drafters.corrector import Corrector
from cspd_jax.decoding.drafters.feature_network import Network
from cspd_jax.decoding.drafters.medusa import Heads
from cspd_jax.decoding.drafters.model_corrector import from_model
from cspd_jax.decoding.drafters.network_corrector import from_network

__all__ = (
    'Corrector',
    'Heads',
    'Network',
    'from_model',
    'from_network',
)
