"""Images from the shipped MAR model with its fastest exact decoder.

  cspd-generate --config=configs/generate/mar_demo.py

Result: in runs/mar_generate, one PNG per image with its prompt, seed, decoder and versions inside,
and report.json.
"""

from cspd_jax.cli import groups
from cspd_jax.commands.generate import Config


def get_config() -> Config:
  """The configuration of `cspd-generate`."""
  return Config(groups.Loading('mar_demo'), output='runs/mar_generate')
