"""Verifiers: which drafts are accepted, and what follows the last of them."""

from cspd_jax.decoding.verifiers.block import block
from cspd_jax.decoding.verifiers.cool import cool, cool_linear, uniform
from cspd_jax.decoding.verifiers.exact import exact
from cspd_jax.decoding.verifiers.grouped import grouped
from cspd_jax.decoding.verifiers.kseq import kseq
from cspd_jax.decoding.verifiers.lantern import lantern, lantern_pp
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.neighbours import neighbour_table
from cspd_jax.decoding.verifiers.rule import Rule, rejection
from cspd_jax.decoding.verifiers.typical import typical

__all__ = (
    'Rule',
    'block',
    'cool',
    'cool_linear',
    'exact',
    'grouped',
    'kseq',
    'lantern',
    'lantern_pp',
    'match',
    'neighbour_table',
    'rejection',
    'typical',
    'uniform',
)
