"""Corrected windows on the shipped model: 2000 images that must be vanilla's, and their likelihood.

  python -m experiments.topologies --config=configs/corrected/proof.py

Images of the seed-exact form are compared with those of vanilla, token for token; those of the
exact form must be as likely as the target's entropy says. Runtime: half an hour on two CPU cores.
Result: in runs/corrected_proof, both figures (rows.csv, report.json).
"""

from cspd_jax.cli import groups
from experiments.topologies import Config


def get_config() -> Config:
  """The configuration."""
  return Config(
      decoder=('corrected_seed_exact(passes=4)', 'corrected(passes=4)'),
      window=(16,), metrics=('step_compression', 'nll_excess'), batch_size=50,
      images=groups.Images(num_images=2000, seed=14), workdir='runs/corrected_proof')
