"""Tables and figures of published papers: one program per paper."""
