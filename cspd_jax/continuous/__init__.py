"""Continuous image tokens: masked bidirectional models with a diffusion head."""

from cspd_jax.continuous.base import Modulation, Target
from cspd_jax.continuous.compose import make_decoder
from cspd_jax.continuous.context import BLOCK, TRUE
from cspd_jax.continuous.cspd import cspd_paper, cspd_relaxed, cspd_released
from cspd_jax.continuous.decoders import exact_head, exact_path, mar, parallel
from cspd_jax.continuous.head import ancestral
from cspd_jax.continuous.loop import Decoder
from cspd_jax.continuous.parts import Drafter, Rule
from cspd_jax.continuous.result import Decoded
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.speculative_head import speculative

__all__ = (
    'BLOCK', 'TRUE', 'Decoded', 'Decoder', 'Drafter', 'Modulation', 'Rule', 'Sampling', 'Schedule',
    'Target', 'ancestral', 'cspd_paper', 'cspd_relaxed', 'cspd_released', 'exact_head',
    'exact_path', 'make_decoder', 'mar', 'parallel', 'speculative')
