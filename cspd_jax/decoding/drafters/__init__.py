"""Drafters propose the tokens that the target scores; each has its own module.

This package exports the parts that some of them are built from: heads, networks and correctors.
"""

from cspd_jax.decoding.drafters.correctors import Corrector, from_model, from_network
from cspd_jax.decoding.drafters.feature_network import Network
from cspd_jax.decoding.drafters.medusa import Heads

__all__ = ['Corrector', 'Heads', 'Network', 'from_model', 'from_network']
