"""Tables and figures of published papers."""
