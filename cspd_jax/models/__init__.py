"""Networks in Flax Linen, as pure functions of parameters and sizes.

- Decoding targets, built by `target(config, ...)`: `llamagen`, `early_fusion` and `janus` with
  discrete tokens, `mar` with continuous ones. New decoder-only models are specifications for
  `causal`; `decoder_only` has the functions that they share.
- Drafters that read a target's features, and share the two `ends` of the target: `eagle.network`
  and `medusa.drafting_heads`.
- The corrector `neighbours`, trained on sampled images.
- Image tokenizers: `vq`, `emu3_vq` and `kl_vae`. Text encoder: `t5`.
"""

from cspd_jax.models import (
  causal,
  conditions,
  eagle,
  early_fusion,
  emu3_vq,
  ends,
  janus,
  kl_vae,
  llamagen,
  mar,
  medusa,
  neighbours,
  nextstep,
  t5,
  transformer,
  vq,
)
from cspd_jax.models.causal import Causal
from cspd_jax.models.conditions import Prompt
from cspd_jax.models.eagle import EagleConfig
from cspd_jax.models.early_fusion import EarlyFusionConfig
from cspd_jax.models.emu3_vq import Emu3VQConfig
from cspd_jax.models.ends import Ends
from cspd_jax.models.janus import JanusConfig
from cspd_jax.models.kl_vae import KLVAEConfig
from cspd_jax.models.llamagen import Caption, LlamaGenConfig
from cspd_jax.models.mar import MARConfig
from cspd_jax.models.medusa import MedusaConfig
from cspd_jax.models.neighbours import NeighboursConfig
from cspd_jax.models.nextstep import NextStepConfig
from cspd_jax.models.t5 import T5Config
from cspd_jax.models.transformer import TransformerConfig
from cspd_jax.models.vq import VQConfig

__all__ = [
    'Caption', 'Causal', 'EagleConfig', 'EarlyFusionConfig', 'Emu3VQConfig', 'Ends', 'JanusConfig',
    'KLVAEConfig', 'LlamaGenConfig', 'MARConfig', 'MedusaConfig', 'NeighboursConfig',
    'NextStepConfig', 'Prompt', 'T5Config', 'TransformerConfig', 'VQConfig', 'causal', 'conditions',
    'eagle', 'early_fusion', 'emu3_vq', 'ends', 'janus', 'kl_vae', 'llamagen', 'mar', 'medusa',
    'neighbours', 'nextstep', 't5', 'transformer', 'vq',
]
