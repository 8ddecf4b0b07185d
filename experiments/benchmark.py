"""Measures every drafter with every verifier, and what relaxation costs in fidelity.

  python -m experiments.benchmark
  python -m experiments.benchmark --suite=pairs --drafter=eagle_tree,eagle2 --num_images=64
  python -m experiments.benchmark --suite=curves --num_images=128
  python -m experiments.benchmark --model=checkpoints/c2i_b_256 --tokenizer=checkpoints/vq16 \\
      --label=207,360 --guidance_scale=4 --config.dtype=bfloat16 --workdir=runs/llamagen_benchmark

Uses the small models that come with the package, or any class-conditional LlamaGen
checkpoint with its drafters. `pairs` is a table of all drafters with all verifiers; pairs
that cannot work are listed with the reason. `curves` follows the relaxed verifiers from mild
to strong on a chain and on a tree (Figures 3 to 5 of Cool-SD, 5 of LANTERN). For each decoder:

  step compr.    tokens per forward pass of the target, over a whole image
  acc. length    tokens per round after the prefill: accepted drafts and one more
  speed          wall-clock of `vanilla` over its own, one image at a time, without compilation
  TV bound       bound on the total variation between the distribution of the images and the
                 target's; it says something below 1 only
  /token         the same bound per token
  NLL - vanilla  mean negative log-likelihood per token under the target's guided distribution,
                 above that of vanilla's images of the same classes
  NLL - entropy  the same above the entropy of the distributions along the very images; 0 for all
                 exact decoders, and much sharper
  Frechet        distance to vanilla's images in the features of the tokenizer's encoder; to
                 be held against the distance that noise alone makes, which is told as well

Errors are standard errors over images. Every finished row is in --workdir at once
(benchmark.csv, curves.csv); curves.png, curves.svg and report.json follow at the end.
What is not given on the command line comes from --config.
"""

import dataclasses
import functools
import pathlib
import time
from typing import Any

from absl import app
from absl import flags
import jax

from cspd_jax.decoding.drafters.ancestral import ancestral
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.plots import curves as curves_plot
from configs import benchmark as default
from experiments import benchmark_conclusions as conclusions
from experiments import benchmark_parts as parts_lib
from experiments import benchmark_plan as plan_lib
from experiments import benchmark_report as report_lib
from experiments import benchmark_runs as runs_lib
from experiments import config_flags
from experiments import json_file
from experiments import options
from experiments import text_table

_CONFIG = config_flags.DEFINE_config(default='configs/benchmark.py')

flags.declare_key_flag('config')

_OPTIONS = {holder.name: holder for holder in (
    flags.DEFINE_string('suite', None, 'pairs, curves, or all.'),
    flags.DEFINE_string('drafter', None, 'Drafters of the pairs, separated by commas, or all: '
                        f'{", ".join(parts_lib.DRAFTERS)}.'),
    flags.DEFINE_string('verifier', None, 'Verifiers of the pairs, separated by commas, or all: '
                        f'{", ".join(parts_lib.VERIFIERS)}.'),
    flags.DEFINE_string('curve_drafter', None, 'Drafters of the curves, separated by commas.'),
    flags.DEFINE_integer('num_images', None, 'Images per decoder; the classes take turns.'),
    flags.DEFINE_integer('batch_size', None, 'Images decoded at once, except for the times.'),
    flags.DEFINE_string('label', None, 'Numbers of classes separated by commas, from 0.'),
    flags.DEFINE_integer('seed', None, 'Seed of all images.'),
    flags.DEFINE_float('guidance_scale', None, 'Classifier-free guidance; 1 is none.'),
    flags.DEFINE_float('temperature', None, 'Divides the logits; above 0.'),
    flags.DEFINE_integer('window', None, 'Tokens per forward pass of the Jacobi windows.'),
    flags.DEFINE_integer('draft_length', None, 'Tokens drafted per round as a chain.'),
    flags.DEFINE_string('model', None, 'Checkpoint of the target: a shipped name or a folder.'),
    flags.DEFINE_string(
        'draft_model', None, 'Checkpoint of the draft model. Another --model has none by default, '
        'which leaves out its drafter.'),
    flags.DEFINE_string('eagle', None, 'Checkpoint of an EAGLE network; likewise.'),
    flags.DEFINE_string('medusa', None, 'Checkpoint of Medusa heads; likewise.'),
    flags.DEFINE_string('tokenizer', None, 'Checkpoint of the image tokenizer.'),
    flags.DEFINE_string('workdir', None, 'Folder of the results.'),
)}


def measure(plan: plan_lib.Plan, sets: int, workdir: pathlib.Path) -> dict[str, Any]:
  """Runs everything; rows are printed and written when they are finished.

  Returns:
    The content of report.json, without settings.
  """
  bench, look = plan.bench, runs_lib.viewer(plan.bench)
  alone = plan_lib.Group('vanilla', None, ancestral(), {'match': match()})
  runs = runs_lib.Runs(bench, alone)
  vanilla = functools.partial(runs, 'match')
  reference = runs_lib.reference(bench, vanilla, look, sets)
  own = runs_lib.sample(bench, vanilla, look)
  noise, spread = reference.frechet_noise
  print(f'noise of the Frechet distance: {noise:.4f} +- {spread:.4f} (standard deviation), of '
        f'the distance of unigrams: {reference.unigram_noise:.3f}\n\n{report_lib.heading()}',
        flush=True)
  compile_seconds = {}

  def rows_of(group, runs, timed, path, earlier):
    """All rows of a group; the file always holds the earlier ones as well."""
    rows = list(earlier)
    for number, (key, verifier) in enumerate(group.verifiers.items()):
      name, value = key if isinstance(key, tuple) else (key, None)
      decode = functools.partial(runs, key)
      sample = own if group is alone else runs_lib.sample(bench, decode, look)
      figures = report_lib.figures(bench, verifier, sample, reference, own)
      if timed:
        if not number:  # Compiles; the first run is not timed.
          runs_lib.seconds(bench, [vanilla, decode])
        seconds = runs_lib.seconds(bench, [vanilla, decode])
        figures |= report_lib.times(sample.decoded.rounds[:bench.timed_images], seconds)
      rows.append(report_lib.Row(group.name, name, value, figures, sample))
      print(report_lib.line(rows[-1]), flush=True)
      text_table.write_csv(path, report_lib.entries(rows))
    compile_seconds[f'{group.name}, {len(group.verifiers)} verifiers'] = runs.seconds
    return rows

  pairs, curves = [], {}
  if plan.pairs:
    pairs = rows_of(alone, runs, True, workdir / 'benchmark.csv', [])
  for group in plan.pairs:
    pairs = rows_of(group, runs_lib.Runs(bench, group), True, workdir / 'benchmark.csv', pairs)
  for group in plan.curves:
    earlier = [row for rows in curves.values() for row in rows]
    curves[group.name] = rows_of(
        group, runs_lib.Runs(bench, group), False, workdir / 'curves.csv', earlier)[len(earlier):]

  for name, why in plan.left_out.items():
    print(f'{name} is left out: {why}')
  found = (conclusions.of_pairs(pairs) if pairs else []) + conclusions.of_curves(curves)
  print('\nDoes it hold here?')
  for one in found:
    print(f'  {one.answer:<8} {one.claim}: {one.numbers}')
  if curves:
    titles = {group.name: f'{group.name}, {group.drafter.tree.num_nodes} drafts'
              for group in plan.curves}
    panels = report_lib.panels(
        {titles[name]: rows for name, rows in curves.items()}, reference)
    for ending in ('png', 'svg'):
      curves_plot.save_curves(
          workdir / f'curves.{ending}', panels, xlabel='accepted length, tokens per round')
  return dict(
      conclusions=[one._asdict() for one in found], pairs=report_lib.entries(pairs),
      curves=report_lib.entries([row for rows in curves.values() for row in rows]),
      left_out=plan.left_out, frechet_noise=noise, frechet_noise_deviation=spread,
      unigram_noise=reference.unigram_noise, compile_seconds=compile_seconds,
      labels=bench.labels.tolist())


def main(argv: list[str]) -> int:
  begun = options.begin(
      argv, _CONFIG, _OPTIONS, [options.Family(default.Config, 'configs/benchmark.py')],
      lambda config, _: plan_lib.make(config))
  config, todo, workdir = begun.config, begun.prepared, begun.workdir
  start = time.perf_counter()
  print(f'{config.num_images} images of {todo.bench.target.num_tokens} tokens per decoder; model '
        f'{config.model}, guidance scale {config.guidance_scale}, window {config.window}, chains '
        f'of {config.draft_length}', flush=True)
  report = measure(todo, config.reference_sets, workdir)
  report |= dict(
      settings=dataclasses.asdict(config), minutes=(time.perf_counter() - start) / 60,
      device=jax.devices()[0].device_kind, jax_version=jax.__version__)
  json_file.write(workdir / 'report.json', report)
  print(f'\n{report["minutes"]:.1f} minutes; tables, pictures and report.json are in {workdir}.')
  return 0


if __name__ == '__main__':
  app.run(main, flags_parser=config_flags.parse)
