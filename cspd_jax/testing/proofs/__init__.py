"""Proofs of the decoders of this package: broken decoders, tables and analytic models."""
