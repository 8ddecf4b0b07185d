"""Verifiers: which drafts are accepted, and what follows the last of them.

Each is in the module of its name; `Rule` and `rejection` make others.
"""

from cspd_jax.decoding.verifiers.rule import Rule, rejection

__all__ = (
    'Rule',
    'rejection',
)
