"""Figures of images, acceptance and speed as files, without a display."""
