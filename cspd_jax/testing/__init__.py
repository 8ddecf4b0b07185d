"""Tools that show a model to be a target and a decoder to be exact, for ours and for yours."""

from cspd_jax.testing.exactness import check_decoder, check_sampler, class_probs
from cspd_jax.testing.target_checks import check_target

__all__ = (
    'check_decoder',
    'check_sampler',
    'check_target',
    'class_probs',
)
