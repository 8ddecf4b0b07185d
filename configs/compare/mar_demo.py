"""Images from the shipped MAR model with decoders of continuous tokens.

  cspd-compare --config=configs/compare/mar_demo.py          # mar, exact_head
  cspd-compare --config=configs/compare/mar_demo.py --all

Result: in runs/mar_demo, a grid of images per decoder, maps of when tokens were fixed and of what
was accepted, bars of head calls and wall-clock time, and report.json. `mar` and `exact_head` sample
one distribution; those of the others are printed below the table.
"""

from cspd_jax.cli import groups
from cspd_jax.commands.compare import Config


def get_config() -> Config:
  """The configuration of `cspd-compare`."""
  return Config(groups.Loading('mar_demo'))
