"""Drafters: where drafts come from."""

from cspd_jax.decoding.drafters.ancestral import ancestral
from cspd_jax.decoding.drafters.dynamic import eagle2
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.drafters.medusa import Heads, medusa
from cspd_jax.decoding.drafters.model import model
from cspd_jax.decoding.drafters.network import Network

__all__ = (
    'Heads',
    'Network',
    'ancestral',
    'eagle',
    'eagle2',
    'jacobi',
    'medusa',
    'model',
)
