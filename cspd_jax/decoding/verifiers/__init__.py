"""Verifiers: which drafts are accepted, and what follows the last of them.

Each is in the module of its name; `NodeTest` and `rejection` make others.
"""

from cspd_jax.decoding.verifiers.node_tests import NodeTest, rejection

__all__ = (
    'NodeTest',
    'rejection',
)
