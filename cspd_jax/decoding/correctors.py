"""Correctors by name: how what drafts for a target can correct its windows."""

from collections.abc import Callable
from typing import Any

from cspd_jax.decoding.base import Drafter
from cspd_jax.decoding.drafters.corrected import corrected
from cspd_jax.decoding.drafters.corrector import Corrector
from cspd_jax.decoding.drafters.small_model import from_model
from cspd_jax.decoding.drafters.small_network import from_network
from cspd_jax.decoding.tree import Tree

# By the keys of `registry.DRAFTS`. The first layers say the same of both contexts up to what
# changed, so the whole of the change is carried over.
CORRECTORS: dict[str, Callable[[Any], Corrector]] = {
    'corrector': lambda made: made,
    'neighbours': lambda made: made,
    'eagle': from_network,
    'model': from_model,
    'layers': lambda made: from_network(made, decay=0.0),
}


def build(made: Any, by: str = 'corrector', window: int = 16, passes: int | None = None,
          tree: Tree | None = None, reads: int | None = None) -> Drafter:
  """Corrected windows.

  Args:
    made: what corrects, as `registry.Resources` has it.
    by: its name in `CORRECTORS`.
    window: see `drafters.corrected`; the others too.
    passes: see there.
    tree: see there.
    reads: see there.
  """
  return corrected(CORRECTORS[by](made), window, passes, tree, reads)
