"""Shared by `decoding`, `continuous` and everything above them."""
