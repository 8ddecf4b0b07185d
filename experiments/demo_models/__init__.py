"""The shipped models: photographs, captions, training steps and recipes."""
