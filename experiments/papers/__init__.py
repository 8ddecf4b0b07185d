"""The tables and figures of the papers, one program per paper."""
