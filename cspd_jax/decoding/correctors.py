"""Correctors by name: how what drafts for a target can correct its windows."""

from collections.abc import Callable
from typing import Any

from cspd_jax.decoding.drafters.corrector import Corrector
from cspd_jax.decoding.drafters.model_corrector import from_model
from cspd_jax.decoding.drafters.network_corrector import from_network

# By the keys of `specification.DRAFTS`. The first layers say the same of both contexts up to what
# changed, so the whole of the change is carried over.
CORRECTORS: dict[str, Callable[[Any], Corrector]] = {
    'corrector': lambda corrector: corrector,
    'neighbours': lambda corrector: corrector,
    'eagle': from_network,
    'model': from_model,
    'layers': lambda network: from_network(network, decay=0.0),
}
