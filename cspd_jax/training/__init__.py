"""Training of tokenizers (`vq`) and autoregressive models (`autoregressive`) on one `loop`."""
