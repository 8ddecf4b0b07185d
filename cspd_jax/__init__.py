"""Fast autoregressive image generation in JAX that preserves the model's distribution."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding.base import Decoded, Target
from cspd_jax.decoding.decoders import (
  corrected,
  corrected_seed_exact,
  eagle,
  eagle2,
  jacobi,
  mc_sjd,
  medusa,
  seed_exact,
  sjd,
  sjd_pac,
  sjd_pp,
  speculative,
  vanilla,
)
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.families import Model, decoder, load, shipped
from cspd_jax.version import __version__

if TYPE_CHECKING:  # Imported when a caller asks for it, because it imports this package.
  from checkpoints_conversion.from_torch import from_torch

__all__ = (
    'Decoded',
    'Decoder',
    'Model',
    'Target',
    'SamplingParams',
    '__version__',
    'corrected',
    'corrected_seed_exact',
    'decoder',
    'eagle',
    'eagle2',
    'from_torch',
    'jacobi',
    'load',
    'make_decoder',
    'mc_sjd',
    'medusa',
    'seed_exact',
    'shipped',
    'sjd',
    'sjd_pac',
    'sjd_pp',
    'speculative',
    'vanilla',
)


def __getattr__(name: str) -> Any:
  """Imports what is in packages that import this one."""
  if name == 'from_torch':
    return importlib.import_module('checkpoints_conversion.from_torch').from_torch
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  """The public names, also those not imported yet, and the packages and modules inside."""
  inside = (name for name in globals() if f'{__name__}.{name}' in sys.modules)
  return sorted({*__all__, *inside})
