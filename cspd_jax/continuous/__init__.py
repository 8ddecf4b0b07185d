"""Continuous image tokens: masked bidirectional models with a diffusion head."""
