"""Verifiers of continuous tokens: which drafts are accepted, and what follows them."""
