"""Measures decoders: times, memory, comparisons, tuning and tables."""
