"""Networks in Flax Linen, as pure functions of parameters and sizes.

- Decoding targets, built by `target(config, ...)`: `llamagen`, `early_fusion` (of the configs of
  `mammothmoda2` too), `janus`, `glm_image` and `tar` with discrete tokens, `mar` with continuous
  ones. New decoder-only models are specifications for `causal`; `decoder_only` has the functions
  that they share.
- Drafters that read a target's features, and share the two `ends` of the target: `eagle.network`
  and `medusa.heads`.
- The correctors `neighbours`, trained on sampled images, and `local`, which also reads features.
- Image tokenizers: `vq`, `cosmos` and `kl_vae`. Text encoder: `t5`.
"""
