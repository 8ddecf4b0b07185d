"""Proofs of the decoders of this package: broken decoders, and models with analytic moments."""
