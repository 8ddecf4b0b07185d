"""Trains a small model with the layout of GLM-Image, and measures drafts from its small grid.

  python -m experiments.two_grids --workdir=runs/two_grids
  python -m experiments.two_grids --num_steps=8000 --batch_size=32 --workdir=runs/longer

The model draws scenes of emoji: 8 x 8 tokens of the scene at half its size, then 16 x 16 of the
whole one, both by the image tokenizer of `emoji`. The training continues when the command is
repeated, and `model` in the folder is one that `cspd_jax.load` reads. Then every decoder generates
the same images, and report.json has the tokens per forward pass of both grids. docs/embedded.md has
the commands that fetch the sources.
"""

import dataclasses
import functools
import pathlib
import sys
from typing import Any

import numpy as np

import cspd_jax
from cspd_jax import cli, families
from cspd_jax.cli import inputs
from cspd_jax.core import fields, programs
from cspd_jax.files import atomic, npz, paths, run_folder, store
from cspd_jax.measure import tables
from cspd_jax.models import glm_image, vq
from cspd_jax.models.conditions import Prompt
from cspd_jax.plots import grid
from cspd_jax.text import templates
from cspd_jax.training import loop, neighbours, optimizer as optimizer_lib
from experiments import measured
from experiments.demo_models import emoji, emoji_recipe, recipe as recipe_lib, stages

_TOKENIZER = 'emoji'
_SMALL, _LARGE = 8, 16  # Rows and columns of the grids.
_SEED, _BATCH, _SHOWN = 4, 8, 12
_END = '<|dit_token_16385|>'
_DECODERS = tuple(f'{name}(window={window}{options})' for window in (16, 64) for name, options in (
    *(('mc_sjd', f', initialization={kind}') for kind in (
        'uniform', 'repeat-left', 'repeat-above', 'repeat-small', 'resample-small')),
    ('corrected', ', corrector=neighbours, iterations=3')))
_COLUMNS = {
    'decoder': '{decoder}', 'corrector reads the small grid': '{reads_small}',
    'forward passes': '{passes:.1f}', 'tokens/pass': '{tokens_per_pass:.2f}',
    'of the small grid': '{of_small:.2f}', 'of the large grid': '{of_large:.2f}'}


@functools.cache
def _tokenizer() -> Any:
  """Returns the image tokenizer of both grids."""
  return cspd_jax.load(_TOKENIZER).tokenizer


def names(num_codes: int) -> list[str]:
  """Returns the tokens in the order of their ids: codes, both ends of images, control, words."""
  return [*(f'<|code_{code}|>' for code in range(num_codes)), templates.GLM_TOKENS[-1], _END,
          *templates.GLM_TOKENS[:2], emoji_recipe.UNKNOWN, str(_SMALL), str(_LARGE), *emoji.WORDS]


def target(num_codes: int) -> glm_image.GlmImageConfig:
  """Returns the sizes of the model."""
  return glm_image.GlmImageConfig(
      height=_LARGE, width=_LARGE, small_side=_SMALL, dim=128, num_layers=6, num_heads=2,
      num_kv_heads=1, ffn_dim=352, sections=(4, 6, 6), num_codes=num_codes,
      image_end=num_codes + 1, output_size=num_codes + 2, vocab_size=len(names(num_codes)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(emoji.Sources, loop.Intervals):
  """The training and the measurement.

  Attributes:
    num_steps: steps of the training.
    batch_size: images of a step.
    num_train_images: different images that it draws from.
    num_held_out_images: images whose likelihood is measured.
    num_corrector_steps: steps of the training of a neighbours corrector, at most.
    num_measured_images: images of every decoder, of held-out captions.
    decoder: specifications of the decoders.
    workdir: folder of the training and of the report.
  """

  num_steps: int = 2000
  batch_size: int = 16
  num_train_images: int = 16384
  num_held_out_images: int = 256
  num_corrector_steps: int = 400
  num_measured_images: int = 64
  decoder: tuple[str, ...] = _DECODERS
  workdir: str = 'runs/two_grids'

  def __post_init__(self):
    fields.check(self, num_steps=(1, fields.MOST), batch_size=(1, fields.MOST),
                 num_train_images=(1, fields.MOST), num_held_out_images=(1, fields.MOST),
                 num_corrector_steps=(1, fields.MOST), num_measured_images=(1, fields.MOST))

  @property
  def training(self) -> recipe_lib.ARTrainConfig:
    """The training of the model, which has no null condition."""
    return recipe_lib.ARTrainConfig(optimizer_lib.OptimizerConfig(
        num_steps=self.num_steps, batch_size=self.batch_size, learning_rate=2e-3,
        muon_learning_rate=0.02, warmup_steps=min(50, self.num_steps // 2),
        cooldown_steps=self.num_steps // 2, weight_decay=0.02, ema_decay=0.99), drop_rate=0.0)


def halved(images: np.ndarray) -> np.ndarray:
  """Returns images `[N, H, W, 3]` of half the height and width, means of two by two pixels."""
  count, height, width, channels = images.shape
  return images.reshape(count, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))


def tokenised(config: Config, split: str, workdir: pathlib.Path) -> stages.Split:
  """Returns tokens `[N, T]` of both grids and the captions `[N]` of a split, kept in `workdir`."""
  path = workdir / f'tokens_{split}.npz'
  if path.exists():
    arrays = npz.arrays(path, atomic.REMAKE, needed=('tokens', 'captions'))
    return arrays['tokens'], arrays['captions']
  part, sprites = _tokenizer(), config.sprites()
  encode = programs.jit(lambda images: vq.encode(part.params, part.config, images))
  rows = lambda images: np.asarray(encode(images)).reshape(len(images), -1)
  count = config.num_train_images if split == 'train' else config.num_held_out_images
  tokens, captions = stages.encoded(
      lambda *batch: emoji.scenes(sprites, 1, *batch)[:2], split, count,
      lambda images: np.concatenate([rows(halved(images)), rows(images)], axis=1))
  end = np.full((count, 1), part.config.codebook_size)
  tokens = np.concatenate([tokens, end], axis=1).astype(np.int32)
  atomic.write_arrays(path, dict(tokens=tokens, captions=captions))
  return tokens, captions


def _text(num_codes: int) -> store.Loaded:
  return emoji_recipe.network('glm_image', emoji_recipe.tokenizer(names(num_codes)))


def _prompts(config: glm_image.GlmImageConfig, captions: np.ndarray) -> Prompt:
  write = functools.partial(templates.glm_image, small=config.small)
  return glm_image.renumbered(config, emoji_recipe.prompts(
      _text(config.num_codes), write, captions.tolist(), (config.height, config.width)))


def trained(config: Config, workdir: pathlib.Path) -> cspd_jax.Model:
  """Trains the model in `workdir`, or continues, and returns it."""
  sizes, train = target(_tokenizer().config.codebook_size), config.training
  data = {split: (tokens, _prompts(sizes, captions)) for split, (tokens, captions) in (
      (split, tokenised(config, split, workdir)) for split in emoji.SPLITS)}
  nll = programs.jit(lambda params, tokens, prompt: recipe_lib.nll(
      params, sizes, tokens, prompt).mean())

  def evaluate(state: Any) -> dict[str, float]:
    parts = [recipe_lib.part(data['held_out'], start, config.batch_size)
             for start in range(0, config.num_held_out_images, config.batch_size)]
    return loop.mean_metrics([{'held_out_nll': nll(state.result, *part)} for part in parts])

  state = loop.run(
      recipe_lib.start(sizes, train), stages.jit_step(recipe_lib.loss, sizes, train),
      lambda index: loop.batch_of(*data['train'], train.optimizer.seed, index, config.batch_size),
      train.optimizer, config, workdir, 'target', evaluate)
  networks = {'target': store.Loaded('glm_image', sizes, state.result, {
      'prompts': list(emoji.EXAMPLES)}), 'text': _text(sizes.num_codes)}
  folder = workdir / 'model'
  for role, network in networks.items():
    store.save(folder / role, *network[:3], extra=network.metadata)
  families.save(folder, 'glm_image', {role: role for role in networks}, {'dtype': 'float32'})
  return cspd_jax.load(folder)


def corrected(config: Config, model: cspd_jax.Model, workdir: pathlib.Path
              ) -> dict[str, cspd_jax.Model]:
  """Returns the model with a neighbours corrector that reads the small grid, and one that does not.

  Both are fitted to the images of the training, unless they are in `workdir`.
  """
  tokens, held_out = (tokenised(config, split, workdir)[0] for split in emoji.SPLITS)
  train = neighbours.NeighboursTrainConfig()
  train = dataclasses.replace(
      train, optimizer=optimizer_lib.with_num_steps(train.optimizer, config.num_corrector_steps))
  models = {}
  for name, small in (('yes', model.config.small), ('no', (0, 0))):
    folder = workdir / f'neighbours_{name}'
    if not folder.exists():
      sizes = dataclasses.replace(neighbours.sizes(model), small=small)
      store.save(folder, 'neighbours', sizes, neighbours.fit(sizes, train, tokens, held_out)[0])
    models[name] = cspd_jax.load(workdir / 'model', neighbours=folder)
  return models


def measure(model: cspd_jax.Model, decoder: str, captions: list[str], reads_small: str
            ) -> dict[str, Any]:
  """Returns the tokens per forward pass of a decoder, in both grids together and in each."""
  out = model.generate(captions, seed=_SEED, decoder=decoder, batch_size=_BATCH)
  rounds, first = np.asarray(out.decoded.round_of_token), model.config.num_small
  # A pass that commits tokens of both grids counts in each.
  per_pass = lambda part: part.size / sum(len(np.unique(row)) for row in part)
  passes = np.asarray(out.decoded.rounds)
  return dict(
      decoder=decoder, reads_small=reads_small, num_images=len(captions),
      passes=float(passes.mean()), tokens_per_pass=rounds.size / int(passes.sum()),
      of_small=per_pass(rounds[:, :first]), of_large=per_pass(rounds[:, first:-1]))


def pictures(model: cspd_jax.Model, captions: list[str]) -> np.ndarray:
  """Returns the small grids of images, then the large ones, `[2 N, H, W, 3]` in [-1, 1]."""
  part = _tokenizer()
  out = model.generate(captions, seed=_SEED, decoder=model.table.baseline, batch_size=_BATCH)
  grids = glm_image.grids(model.config, np.asarray(out.tokens))
  small, large = (np.asarray(vq.decode(part.params, part.config, tokens)) for tokens in grids)
  return np.concatenate([small.repeat(2, axis=1).repeat(2, axis=2), large])


@cli.command(Config, kept='saved steps are kept')
def main(config: Config) -> None:
  workdir = paths.folder('workdir', config.workdir)
  # Other decoders are measured on the same model.
  training = {name: value for name, value in dataclasses.asdict(config).items()
              if name not in ('decoder', 'num_measured_images', 'num_corrector_steps')}
  with run_folder.Run(workdir, training, name='workdir', alone=False):
    inputs.log_progress()
    model = trained(config, workdir)
    captions = tokenised(config, 'held_out', workdir)[1].tolist()
    report = run_folder.Report(workdir, ['grids.png'])
    shown = captions[:_SHOWN]
    grid.save_grid(report.path('grids.png'), pictures(model, shown), captions=[*shown, *shown],
                   columns=len(shown))
    models = corrected(config, model, workdir)
    # Only decoders with the corrector differ between the two.
    of = lambda text: models if 'neighbours' in text else {'-': model}
    rows = measured.listed(_COLUMNS, (
        measure(one, text, captions[:config.num_measured_images], reads_small)
        for text in (model.table.baseline, *config.decoder)
        for reads_small, one in of(text).items()))
    title = f'{len(rows)} decoders'
    measured.write(report, config, [tables.Table(title, _COLUMNS, rows)])


if __name__ == '__main__':
  sys.exit(main())
