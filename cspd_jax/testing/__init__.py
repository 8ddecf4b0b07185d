"""Checks that a model is a valid target and that a decoder is exact, for library and user code."""

from cspd_jax.testing.exactness import check_decoder, check_sampler, class_probs
from cspd_jax.testing.target_checks import check_target

__all__ = (
    'check_decoder',
    'check_sampler',
    'check_target',
    'class_probs',
)
