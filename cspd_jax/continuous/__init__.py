"""The continuous engine: decoders of models of continuous tokens with a diffusion head."""

from typing import TYPE_CHECKING

from cspd_jax.continuous.base import (
  Cached,
  Context,
  Draft,
  Drafter,
  Env,
  Modulation,
  Target,
  Verdict,
  Verifier,
)
from cspd_jax.continuous.context import BLOCK, CACHED, TRUE
from cspd_jax.continuous.head import HeadSampler, ancestral
from cspd_jax.continuous.loop import Decoder, State, make_decoder
from cspd_jax.continuous.result import Decoded
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.specification import DECODERS
from cspd_jax.continuous.speculative_head import speculative

if TYPE_CHECKING:  # Type checkers read the functions, not the table.
  from cspd_jax.continuous.cspd import *  # noqa: F403
  from cspd_jax.continuous.decoders import *  # noqa: F403

globals().update({name: entry.build for name, entry in DECODERS.items()})

__all__ = [
    'BLOCK', 'CACHED', 'TRUE', 'Cached', 'Context', 'Decoded', 'Decoder', 'Draft', 'Drafter', 'Env',
    'HeadSampler', 'Modulation', 'Sampling', 'Schedule', 'State', 'Target', 'Verdict', 'Verifier',
    'ancestral', 'make_decoder', 'speculative']
# A statement of its own: mkdocstrings warns of names in a list that it cannot read.
__all__ += list(DECODERS)
