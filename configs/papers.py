"""The measurements of the papers' pages, by the program that makes them.

  python -m experiments.sweep --config=configs/papers.py:NAME

  sjd      SJD (arXiv 2410.01699) and MC-SJD (2510.24211): step compression of Jacobi windows whose
           drafts are redrawn (SJD), maximally coupled (MC-SJD) or share their noise with the
           target's draws, and of every method to fill the free positions of a window
  sjd_pac  SJD-PAC (arXiv 2603.18599): step compression and one-token rounds of trees of candidates
           in a Jacobi window and of MC-SJD's chain, at equal numbers of tokens per round
  variants, variants_emoji
           SJD++ (arXiv 2512.07503), the two paths of PathSpec (2606.10492) and the other Jacobi
           windows at equal numbers of tokens per round, with `demo` and with `emoji`
  chains   block verification (arXiv 2403.10444) compared with token-by-token verification, on the
           same chains of drafts
  cool_sd  Cool-SD (arXiv 2601.09212): the bound on total variation, the likelihood and the Frechet
           distance over the accepted length (Figures 3 to 5), on a chain and on a tree, for the
           schedules with clamping and as printed, and for uniform relaxation; tests of its claims
  lantern  LANTERN (arXiv 2410.03355) and LANTERN++ (2502.06352), the cost of accepting latent
           neighbours: the relaxed verifiers on the published static tree and on a dynamic tree, and
           the curves of LANTERN++, with the optimal and with the released residual distribution
           (Figure 5 of LANTERN), and of grouped speculative decoding

  python -m experiments.papers.published --config=configs/papers.py:NAME

  published_demo  the rows of LlamaGen in the papers' tables, and ours next to them, with `demo`
  published_cspd  the rows of the CSpD paper's tables, and ours next to them, with `mar_demo`

  python -m experiments.papers.fidelity --config=configs/papers.py:fidelity_demo

  fidelity_demo   the Frechet distance of the rows of `demo`; without --config, of those of `emoji`

Results: in runs/papers/NAME, the files of the program. More images are flags: --num_images=128.
"""

from configs import relaxed
from cspd_jax import cli
from cspd_jax.cli import groups
from experiments import sweep
from experiments.papers import fidelity, published

COUPLINGS = (
    'jacobi(coupling=independent)+rejection', 'jacobi(coupling=maximal)+rejection',
    'jacobi(coupling=gumbel)+rejection', 'jacobi(coupling=gumbel)+match')
FRESH = tuple(
    f'jacobi(coupling={coupling}, initialization={fresh})+{verifier}'
    for fresh in ('repeat-left', 'repeat-above', 'resample-left', 'resample-above')
    for coupling, verifier in (('maximal', 'rejection'), ('gumbel', 'match')))
# Trees larger than a window are left out.
TREES = tuple(
    f'{decoder}(tree={tree})'
    for decoder in ('sjd_pac', 'seed_exact')
    for tree in ('paths(2, 3)', 'paths(3, 3)', 'paths(4, 3)', 'caterpillar(2, 3)',
                 'caterpillar(4, 1)', 'caterpillar(4, 3)', 'kary(2, 3)', 'kary(2, 4)',
                 'kary(3, 3)', 'kary(4, 3)'))

_COOL_SD = ('uniform', 'Cool-SD', 'Cool-SD, printed', 'Cool-SD linear', 'Cool-SD linear, printed')
_LANTERN = ('LANTERN++, G*', 'LANTERN++, released', 'GSD')
# Two paths that share the window, as in PathSpec.
_VARIANTS = ('sjd', 'sjd_pp', 'sjd(tree=paths(2, 7))', 'mc_sjd(tree=paths(2, 7))', 'mc_sjd',
             'sjd_pac', 'corrected(corrector=neighbours)')
# Chains of new drafts whose distributions are known.
_CHAINS = ('speculative(length=4)', 'model(length=4)+block', *(
    f'{drafter}{verifier}' for drafter in (
        'medusa(tree=chain(4))', 'eagle(tree=chain(4))', 'eagle(tree=chain(7))')
    for verifier in ('', '+block')))

Config = sweep.Config | published.Config | fidelity.Config

CONFIGS: dict[str, Config] = dict(
    sjd=sweep.Config(
        decoder=COUPLINGS + FRESH, window=(16, 64), workdir='runs/papers/sjd'),
    sjd_pac=sweep.Config(
        decoder=('mc_sjd', *TREES), window=(16, 64), workdir='runs/papers/sjd_pac'),
    variants=sweep.Config(
        decoder=_VARIANTS, window=(16,), images=groups.Images(num_images=32),
        workdir='runs/papers/variants'),
    variants_emoji=sweep.Config(
        loading=groups.LoadFlags('emoji'), decoder=_VARIANTS, window=(16,),
        images=groups.Images(num_images=32), workdir='runs/papers/variants_emoji'),
    chains=sweep.Config(
        decoder=_CHAINS, window=(16,), images=groups.Images(num_images=128),
        workdir='runs/papers/chains'),
    cool_sd=relaxed.measured(
        curves=tuple(curve for curve in relaxed.CURVES if curve.name in _COOL_SD),
        claims=tuple(claim for claim in relaxed.CLAIMS if claim.better in _COOL_SD),
        workdir='runs/papers/cool_sd'),
    lantern=relaxed.measured(
        drafter=('eagle(tree=EAGLE)', 'eagle2(num_nodes=25, width=10, depth=5)'),
        verifier=(
            'rejection', 'lantern(delta=0.1)', 'lantern_pp(lam=2)',
            'lantern_pp(lam=2, residual=released_llamagen)',
            'lantern_pp(lam=2, residual=released_dynamic)'),
        curves=tuple(curve for curve in relaxed.CURVES if curve.name in _LANTERN),
        claims=tuple(claim for claim in relaxed.CLAIMS
                     if claim.better in _LANTERN or claim.metric is not None),
        timed_images=2, workdir='runs/papers/lantern'),
    published_demo=published.Config(
        rows='demo', loading=groups.LoadFlags('demo'), images=groups.Images(num_images=64),
        asked=False, paper=('this_project', 'sjd', 'lantern', 'cool_sd'),
        workdir='runs/papers/published_demo'),
    published_cspd=published.Config(
        rows='mar_demo', loading=groups.LoadFlags('mar_demo'), images=groups.Images(num_images=64),
        asked=False, paper=('cspd',), batch_size=64, workdir='runs/papers/published_cspd'),
    fidelity_demo=fidelity.Config(
        rows='demo', loading=groups.LoadFlags('demo'), images=groups.Images(num_images=2048),
        workdir='runs/papers/fidelity_demo'))


def get_config(name: str = '') -> Config:
  return cli.named(CONFIGS, name)
