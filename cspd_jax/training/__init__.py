"""Training of drafters and correctors; the loop, state and optimiser of every training."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from cspd_jax.training.own_target import fit_corrector

__all__ = ('fit_corrector',)


def __getattr__(name: str) -> Any:
  """Imports what needs the packages of the trainings, which commands that do not train go without.
  """
  if name == 'fit_corrector':
    from cspd_jax.training.own_target import fit_corrector
    return fit_corrector
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
