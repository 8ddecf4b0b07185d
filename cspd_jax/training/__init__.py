"""Training of tokenizers, autoregressive models, drafters and masked models on one `loop`."""
