"""The embedded models: photographs, captions, training steps and recipes."""
