"""Modules that both decoding engines and everything above them share."""
