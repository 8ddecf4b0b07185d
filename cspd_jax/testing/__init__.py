"""Tools that show a model to be a target and a decoder to be exact, for ours and for yours."""

from cspd_jax.testing.check_target import check_target
from cspd_jax.testing.exactness import check_decoder, check_sampler, class_probs

__all__ = (
    'check_decoder',
    'check_sampler',
    'check_target',
    'class_probs',
)
