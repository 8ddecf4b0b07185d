"""What both engines and everything above them share."""
