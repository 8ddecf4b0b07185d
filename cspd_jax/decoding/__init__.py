"""The discrete engine: one loop, its drafters and verifiers, and the types they are made of."""

from cspd_jax.decoding.base import Decoded
from cspd_jax.decoding.base import Draft
from cspd_jax.decoding.base import Drafter
from cspd_jax.decoding.base import Env
from cspd_jax.decoding.base import Layout
from cspd_jax.decoding.base import Outcome
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.base import Verdict
from cspd_jax.decoding.base import Verifier
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.loop import State
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.registry import DECODERS
from cspd_jax.decoding.registry import DRAFTERS
from cspd_jax.decoding.registry import Resources
from cspd_jax.decoding.registry import VERIFIERS
from cspd_jax.decoding.registry import build
from cspd_jax.decoding.registry import complete
from cspd_jax.decoding.registry import guarantee
from cspd_jax.decoding.registry import needs
from cspd_jax.decoding.tree import Budget
from cspd_jax.decoding.tree import RuntimeTree
from cspd_jax.decoding.tree import Tree
from cspd_jax.decoding.tree import branching
from cspd_jax.decoding.tree import caterpillar
from cspd_jax.decoding.tree import chain
from cspd_jax.decoding.tree import cut
from cspd_jax.decoding.tree import kary
from cspd_jax.decoding.tree import paths
from cspd_jax.decoding.tree import runtime_tree
from cspd_jax.decoding.warp import Warp

__all__ = (
    'Budget',
    'DECODERS',
    'DRAFTERS',
    'Decoded',
    'Decoder',
    'Draft',
    'Drafter',
    'Env',
    'Layout',
    'Outcome',
    'Resources',
    'RuntimeTree',
    'State',
    'Target',
    'Tree',
    'VERIFIERS',
    'Verdict',
    'Verifier',
    'Warp',
    'branching',
    'build',
    'caterpillar',
    'chain',
    'complete',
    'cut',
    'guarantee',
    'kary',
    'make_decoder',
    'needs',
    'paths',
    'runtime_tree',
)
