"""Numbers that describe a decode and the images it made."""
