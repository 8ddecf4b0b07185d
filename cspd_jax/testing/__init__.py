"""Checks that targets, drafters, verifiers and decoders are right, for library and user code."""

from cspd_jax.testing.drafter_checks import check_drafter
from cspd_jax.testing.exactness import check_decoder, check_sampler, class_probs
from cspd_jax.testing.target_checks import check_target
from cspd_jax.testing.verifier_checks import check_verifier

__all__ = ['check_decoder', 'check_drafter', 'check_sampler', 'check_target', 'check_verifier',
           'class_probs']
