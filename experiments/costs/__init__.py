"""The cost of rounds: compiled programs, predictions, timed rounds."""
