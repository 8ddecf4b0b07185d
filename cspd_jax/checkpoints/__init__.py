"""The store: one folder per network, files that are complete whenever they exist."""
