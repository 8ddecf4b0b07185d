"""Decoders of discrete tokens: the decoding loop, its drafters and verifiers, and their types."""

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding.base import (
    DecodeContext,
    Decoded,
    Draft,
    Drafter,
    Layout,
    RoundResult,
    Target,
    Verdict,
    Verifier,
)
from cspd_jax.decoding.loop import Decoder, State, make_decoder
from cspd_jax.decoding.specification import (
    DECODERS,
    DRAFTERS,
    VERIFIERS,
    build,
    complete,
    needs,
)
from cspd_jax.decoding.tree import (
    Budget,
    RuntimeTree,
    Tree,
    branching,
    caterpillar,
    chain,
    cut,
    kary,
    paths,
    runtime_tree,
)

__all__ = [
    'Budget', 'DECODERS', 'DRAFTERS', 'DecodeContext', 'Decoded', 'Decoder', 'Draft', 'Drafter',
    'Layout', 'RoundResult', 'RuntimeTree', 'SamplingParams', 'State', 'Target', 'Tree',
    'VERIFIERS', 'Verdict', 'Verifier', 'branching', 'build', 'caterpillar', 'chain', 'complete',
    'cut', 'kary', 'make_decoder', 'needs', 'paths', 'runtime_tree']
