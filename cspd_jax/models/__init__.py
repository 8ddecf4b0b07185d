"""Autoregressive image models and image tokenizers, in Flax Linen."""
