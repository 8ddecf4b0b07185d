"""Verifiers decide which drafts are accepted and draw the token after the last of them.

Each verifier is in the module of its name; `NodeTest` and `rejection` build others.
"""

from cspd_jax.decoding.verifiers.node_tests import NodeTest, rejection

__all__ = ['NodeTest', 'rejection']
