"""How the tokens of a round are drawn: one rule per module, in a function of the module's name."""
