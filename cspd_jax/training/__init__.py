"""Training of drafters and correctors; the loop, state and optimiser of every training."""
