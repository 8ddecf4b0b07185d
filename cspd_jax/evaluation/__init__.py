"""Measuring decoders: one timer, one runner for many images, tables and reports."""
