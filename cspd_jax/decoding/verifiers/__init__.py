"""Verifiers decide which drafts are accepted and draw the token after the last of them.

Each verifier is in the module of its name; `AcceptanceRule` and `tree_rejection` build others.
"""

from cspd_jax.decoding.verifiers.rejection import AcceptanceRule, tree_rejection

__all__ = ['AcceptanceRule', 'tree_rejection']
