"""Tools that show a decoder to be exact, for our decoders and for yours."""
