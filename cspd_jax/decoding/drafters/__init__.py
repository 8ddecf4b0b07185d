"""Drafters: where drafts come from, each in the module of its name.

Here are what some of them are made from: heads, networks and cheap models.
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
