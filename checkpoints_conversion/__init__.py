"""From published PyTorch and safetensors files to the checkpoints of cspd_jax."""
