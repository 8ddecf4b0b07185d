"""Fast autoregressive image generation in JAX that preserves the model's distribution.

  import cspd_jax

  model = cspd_jax.load()  # a small model that is part of the package, or a folder
  print(model, cspd_jax.shipped(), model.prompts[:4])
  out = model.generate(['a fox on white', 'a bear on blue'], seed=4, decoder='corrected_seed_exact')
  print(out, out.decoded.rounds)  # forward passes of each; one token at a time takes 273
  out.save('runs/fox')  # PNGs with prompt, seed and decoder inside

Models: load, shipped, from_torch, Model, SamplingParams. Decoders, each also a function of a target
that returns a function of arrays: vanilla, speculative, jacobi, sjd, mc_sjd, sjd_pp, sjd_pac,
seed_exact, corrected, corrected_seed_exact, eagle, eagle2, medusa; make_decoder builds others from
parts, decoder from text, and jit compiles them. Their types: Target, Decoder, Decoded. Packages:
continuous (decoders of continuous tokens), metrics, plots, testing (checks of your own target,
drafter or verifier) and training. The version is __version__.
"""

import importlib
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cspd_jax.core import programs as _programs
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
    'jit',
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


# Packages that are imported when a caller asks for them, because importing them takes long.
_PACKAGES = ('measure', 'metrics', 'plots', 'testing', 'training')


def jit(function: Any, *, compiler_options: Mapping[str, Any] = MappingProxyType({}), **options: Any
        ) -> Any:
  """Compiles a decoder, or a function that calls one, as `generate` does for the default device.

  It is `jax.jit` with options of the compiler. On a CPU, `jax.jit` alone compiles slower decoders,
  and with jax 0.10 some sums of products wrongly. A sum of more than 2^18 terms may be less
  accurate. JAX refuses a call of the result inside of another function under `jax.jit`; compile
  the outer one.

  Example:
    decode = cspd_jax.jit(cspd_jax.mc_sjd(target, window=32))

  Args:
    function: the function.
    compiler_options: further options of the compiler, which take precedence.
    **options: other arguments of `jax.jit`, such as `donate_argnums`.
  """
  return _programs.jit(function, short_sums=True, options=compiler_options, **options)


def __getattr__(name: str) -> Any:
  """Imports what imports this package, or takes long to import."""
  if name == 'from_torch':
    return importlib.import_module('checkpoints_conversion.from_torch').from_torch
  if name in _PACKAGES:
    return importlib.import_module(f'{__name__}.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  """The public names, and the packages and modules inside, also those not imported yet."""
  inside = (name for name in globals() if f'{__name__}.{name}' in sys.modules)
  return sorted({*__all__, *_PACKAGES, *inside})
