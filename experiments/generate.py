"""Generates images with every decoder and shows what each of them costs.

  python -m experiments.generate
  python -m experiments.generate --prompt=cat,rocket --num_images=2 --seed=7
  python -m experiments.generate --decoder=vanilla,sjd,seed_exact --window=8
  python -m experiments.generate --model=checkpoints/c2i_b_256 --tokenizer=checkpoints/vq16 \\
      --label=207,360 --guidance_scale=4 --config.dtype=bfloat16 --workdir=runs/llamagen
  python -m experiments.generate --config=configs/mar_demo.py

Uses the small models that come with the package, or any class-conditional
LlamaGen or, with configs/mar_demo.py, MAR checkpoint made by
`experiments.convert`. Into --workdir go a grid of images per decoder
(images_*.png), in which round each token was fixed
(acceptance.png), for MAR what was accepted (accepted.png), bars of the work
and the wall-clock (speed.png), and all figures (report.json). Times are for one
image at a time, without compilation.

What is not given on the command line comes from --config; every field of it can
also be set as --config.field=value. Anything wrong with the input ends with one
message and exit code 2, before anything is compiled or written.
"""

from absl import app
from absl import flags

import cspd_jax
from cspd_jax.continuous import registry
from configs import demo
from configs import mar_demo
from experiments import config_flags
from experiments import generation
from experiments import mar_generation
from experiments import mar_report
from experiments import options
from experiments import report
from experiments import report_files
from experiments import turns

_CONFIG = config_flags.DEFINE_config(default='configs/demo.py')

flags.declare_key_flag('config')

_FAMILIES = (
    options.Family(demo.Config, 'configs/demo.py', (generation, report)),
    options.Family(mar_demo.Config, 'configs/mar_demo.py', (mar_generation, mar_report)))

_OPTIONS = {holder.name: holder for holder in (
    flags.DEFINE_string(
        'decoder', None, 'Decoders separated by commas, or all: ' + '; '.join(
            f'{name}: {entry.summary}'
            for name, entry in (cspd_jax.DECODERS | registry.DECODERS).items()) + '.'),
    flags.DEFINE_integer('num_images', None, 'Images per decoder; the classes take turns.'),
    flags.DEFINE_string('prompt', None, 'Names of classes with commas between, as cat,rocket.'),
    flags.DEFINE_string('label', None, 'Numbers of classes separated by commas, from 0.'),
    flags.DEFINE_integer('seed', None, 'The same seed gives the same images.'),
    flags.DEFINE_float('guidance_scale', None, 'Classifier-free guidance; 1 is none.'),
    flags.DEFINE_float(
        'temperature', None,
        'Divides the logits, 0 is greedy; for MAR multiplies the noise of the kernels.'),
    flags.DEFINE_integer('top_k', None, 'Keeps the k most probable tokens; 0 keeps all.'),
    flags.DEFINE_float('top_p', None, 'Keeps the likeliest tokens up to this mass; 1 keeps all.'),
    flags.DEFINE_integer('window', None, 'Tokens per forward pass of the Jacobi decoders.'),
    flags.DEFINE_string('model', None, 'Checkpoint of the target: a shipped name or a folder.'),
    flags.DEFINE_string(
        'draft_model', None, 'Checkpoint of the draft model. Another --model has none by default, '
        'which leaves out the decoders that need one.'),
    flags.DEFINE_string('eagle', None, 'Checkpoint of an EAGLE network; likewise.'),
    flags.DEFINE_string('medusa', None, 'Checkpoint of Medusa heads; likewise.'),
    flags.DEFINE_string('tokenizer', None, 'Checkpoint of the image tokenizer.'),
    flags.DEFINE_string('workdir', None, 'Folder of the results.'),
)}


def main(argv: list[str]) -> int:
  begun = options.begin(
      argv, _CONFIG, _OPTIONS, _FAMILIES, lambda config, work: work[0].prepare(config))
  (work, report_lib), job = begun.work, begun.prepared
  print(work.headline(begun.config, job), flush=True)
  for name, reason in job.left_out.items():
    print(f'{name} is left out: {reason}', flush=True)
  measured = turns.measure(job, lambda line: print(line, flush=True))
  images = work.draw(job, measured)
  report = report_lib.figures(begun.config, job, measured)
  if report_lib is mar_report:
    mar_report.draw_accepted(begun.workdir, job, measured, images)
  report_files.write(
      begun.workdir, job, report, measured, images, report_lib.title, report_lib.BAR)
  print(f'\n{report_lib.table(report)}\n\nPictures and report.json are in {begun.workdir}.')
  return 0


if __name__ == '__main__':
  app.run(main, flags_parser=config_flags.parse)
