"""Photographs to train and evaluate the shipped demonstration models on; see `data.photos`."""
