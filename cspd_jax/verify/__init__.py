"""Is a model right, are its decoders exact on this device, and how fast are they?

Each module is one kind of check: a function of a model that yields a `Result` per question, the
cheap and decisive questions first. `cspd-verify` runs them.
"""
