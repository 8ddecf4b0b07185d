"""Drafters: where drafts come from."""

from cspd_jax.decoding.drafters.ancestral import ancestral
from cspd_jax.decoding.drafters.corrected import corrected
from cspd_jax.decoding.drafters.corrector import Corrector
from cspd_jax.decoding.drafters.dynamic import eagle2
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.drafters.medusa import Heads, medusa
from cspd_jax.decoding.drafters.model import model
from cspd_jax.decoding.drafters.network import Network
from cspd_jax.decoding.drafters.small_model import from_model
from cspd_jax.decoding.drafters.small_network import from_network

__all__ = (
    'Corrector',
    'Heads',
    'Network',
    'ancestral',
    'corrected',
    'eagle',
    'eagle2',
    'from_model',
    'from_network',
    'jacobi',
    'medusa',
    'model',
)
