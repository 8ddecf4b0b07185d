"""Pictures of images, acceptance and speed as PNG files; no display needed."""
