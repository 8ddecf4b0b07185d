"""Continuous speculative decoding: token by token tests of what two models would emit."""
