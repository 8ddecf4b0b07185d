"""What both engines, discrete and continuous, are built on."""
