"""Exact speculative sampling with a draft model, by the denoising paths of its tokens."""
