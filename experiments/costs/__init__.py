"""The cost of rounds: compiled programs, predictions, artificial rounds, PyTorch alongside."""
