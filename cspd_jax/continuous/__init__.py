"""Decoders of continuous tokens, of models with a diffusion head."""

from cspd_jax.continuous.base import (
  Cached,
  DecodeContext,
  Draft,
  Drafter,
  Modulation,
  Target,
  Verdict,
  Verifier,
  Visibility,
)
from cspd_jax.continuous.cspd import cspd_paper, cspd_relaxed, cspd_released
from cspd_jax.continuous.decoders import exact_head, exact_path, mar, parallel, windows
from cspd_jax.continuous.head import HeadSampler, ancestral
from cspd_jax.continuous.loop import Decoder, State, make_decoder
from cspd_jax.continuous.result import Decoded
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.specification import DECODERS
from cspd_jax.continuous.speculative_head import speculative
from cspd_jax.continuous.visibility import BLOCK, CACHED, TRUE

__all__ = [
    'BLOCK', 'CACHED', 'DECODERS', 'TRUE', 'Cached', 'DecodeContext', 'Decoded', 'Decoder', 'Draft',
    'Drafter', 'HeadSampler', 'Modulation', 'Schedule', 'State', 'Target', 'Verdict', 'Verifier',
    'Visibility', 'ancestral', 'cspd_paper', 'cspd_relaxed', 'cspd_released', 'exact_head',
    'exact_path', 'make_decoder', 'mar', 'parallel', 'speculative', 'windows']
