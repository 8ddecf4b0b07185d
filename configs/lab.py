"""Measurements of this library's own, each a table of a page or a line of docs/lab/performance.md.

  python -m experiments.sweep --config=configs/lab.py:NAME

  overhead   the share of a round that is not a forward pass of the target
  queue      images in slots that are refilled, and in batches
  rounding   how often images of seed-exact decoders differ from those of vanilla
  head       windows over continuous tokens: tokens per round and calls of the head, with one
             setting after the other varied from the first; rounds of large models of random weights
             are timed at these numbers
  int8       the distance of int8 targets from the original
  quality    how often images of scenes of emoji show what was asked for, of complete requests with
             a pair of a thing and a colour, a ground or another thing that no training scene has;
             --scales=2 is another guidance scale

Results: in runs/NAME (rows.csv, report.json, for `quality` the first images and the worst).
"""

from cspd_jax import cli
from cspd_jax.cli import groups
from experiments.scenes import PROMPTS
from experiments.sweep import Config, Setting


def _setting(words: str, decoder: str = 'windows(window=8)', raster: bool = False,
             **options: float) -> Setting:
  options = dict(guidance_scale=3.0) | options
  return Setting(decoder, options, dict(setting=words, options=options), raster)


# Models leave out what they do not have, such as steps of several tokens.
_WINDOWS = (
    _setting('window 8, guidance 3'),
    *(_setting(f'window {window}', f'windows(window={window})') for window in (2, 4, 16, 32)),
    _setting('guidance 1', guidance_scale=1.0), _setting('guidance 6', guidance_scale=6.0),
    _setting('temperature 0.9', temperature=0.9),
    *(_setting(f'{levels} kernels', f'windows(window=8, schedule={levels})')
      for levels in (25, 50, 100)),
    _setting('16 steps', 'windows(window=8, num_iter=16)'), _setting('raster order', raster=True),
    *(_setting(f'`{decoder}`', decoder)
      for decoder in ('exact_head', 'exact_head(kernels_per_call=32)')))

CONFIGS = dict(
    overhead=Config(
        decoder=('vanilla', 'jacobi', 'sjd', 'mc_sjd', 'sjd_pac', 'seed_exact'), window=(16,),
        metrics=(), measure=('overhead',), images=groups.Images(num_images=1),
        workdir='runs/overhead'),
    queue=Config(
        decoder=('vanilla', 'mc_sjd', 'corrected', 'eagle'), window=(16,), metrics=(),
        measure=('queue',), images=groups.Images(num_images=64), batch_size=8,
        workdir='runs/queue'),
    rounding=Config(
        decoder=('seed_exact', 'corrected_seed_exact', 'seed_exact(tree=caterpillar(3, 1))'),
        window=(4,), metrics=(), measure=('rounding',), images=groups.Images(num_images=2000),
        batch_size=32, workdir='runs/rounding'),
    head=Config(
        models=('emoji_continuous', 'mar_demo'), settings=_WINDOWS, metrics=(), measure=('head',),
        images=groups.Images(num_images=16, seed=29), batch_size=8, workdir='runs/head'),
    int8=Config(
        loading=groups.LoadFlags('demo', dtype='float32'), decoder=('vanilla',), scales=(1.0, 3.0),
        metrics=(), measure=('int8',), images=groups.Images(num_images=32, seed=12),
        workdir='runs/int8'),
    quality=Config(
        loading=groups.LoadFlags(), decoder=('vanilla',), scales=(1.5,), metrics=(),
        measure=('asked',), images=groups.Images(prompts=PROMPTS, num_images=1000), batch_size=50,
        workdir='runs/quality'))


def get_config(name: str = '') -> Config:
  return cli.named(CONFIGS, name)
