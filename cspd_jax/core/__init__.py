"""What `decoding`, `continuous` and everything above them share."""
