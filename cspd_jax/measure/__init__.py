"""Measuring decoders: one timer, comparisons, tuning and tables."""
