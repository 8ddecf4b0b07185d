"""One decoder of every kind at up to 64 tokens per forward pass: the table of the README.

  python -m experiments.sweep --config=configs/kinds.py
  python -m experiments.sweep --config=configs/kinds.py:demo

The first command measures scenes of emoji, with tokens per forward pass inside things and on plain
ground apart, the second the photographs of `demo`, which have no plain ground. Counts only; what
they are worth on an accelerator is measured by `experiments.compile_report`. Runtime: some minutes
on two CPU cores. Results: in runs/kinds and runs/kinds_demo (rows.csv, report.json).
"""

from cspd_jax import cli
from cspd_jax.cli import groups
from experiments.sweep import Config

DECODERS = (
    'vanilla', 'speculative(length=4)', 'eagle(tree=LANTERN)', 'mc_sjd', 'seed_exact',
    'corrected(corrector=neighbours, iterations=3)',
    'corrected_seed_exact(iterations=4)', 'corrected(iterations=4)',
    'eagle(tree=LANTERN)+lantern_pp(lam=2)')
# Only `demo` has a local corrector.
_OF_DEMO = *DECODERS, 'corrected(corrector=local, iterations=4)'

_METRICS = 'step_compression', 'tokens_per_pass', 'one_token_rounds'

CONFIGS = dict(
    emoji=Config(
        loading=groups.LoadFlags('emoji'), decoder=DECODERS, window=(64,), metrics=_METRICS,
        measure=('ground',),
        images=groups.Images(prompts='configs/held_out.txt', num_images=64), workdir='runs/kinds'),
    demo=Config(
        loading=groups.LoadFlags('demo'), decoder=_OF_DEMO, window=(64,), metrics=_METRICS,
        images=groups.Images(num_images=64, seed=12), workdir='runs/kinds_demo'))


def get_config(name: str = 'emoji') -> Config:
  return cli.named(CONFIGS, name)
