"""The store: one folder per network, safe files, checked input."""
