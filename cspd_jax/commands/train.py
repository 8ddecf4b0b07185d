"""Trains a corrector or a drafter for a model: it changes the speed, and no distribution.

  cspd-train --model=checkpoints/c2i_xl_384
  cspd-train --model=checkpoints/lumina_7b_768 --kind=corrector --num_images=512
  cspd-train --config=recipe.py --workdir=runs/mine

--kind=neighbours is a small network on the tokens to the left and above, for `corrected` windows;
it takes a minute or two after the images are sampled. --kind=local also reads the target's features
of these tokens and takes an hour. An EAGLE network, Medusa heads and a corrector with attention
(--kind=eagle, medusa, corrector) take hours. All but the first learn from the model in float32. The
sizes of the network follow from the model; --config names a Python file with a recipe instead.

Samples images with the model, trains, and measures on held-out images (report.json in --workdir).
At the end it prints the acceptance per position that the training predicts and the one that
decoding measures on a few images; a neighbours corrector, which learns from tokens alone, has no
prediction. The network records the prediction, and cspd-verify compares with it.
The network is stored in --output. Without it, a neighbours corrector becomes part of the model's
folder; it is stored only if it gains more tokens per forward pass than what the model has. A
stopped command resumes when it is repeated. The work folder stores its recipe and refuses another
one.
"""

import contextlib
import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import cspd_jax
from cspd_jax import cli, families, metrics, sharding
from cspd_jax.cli import groups, inputs
from cspd_jax.core import compilations, fields, matrices
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.files import atomic, paths, run_folder, store
from cspd_jax.generation.cascade import Cascade
from cspd_jax.generation.parts import Kept
from cspd_jax.measure import tables
from cspd_jax.training import (
  corrector,
  drafter,
  loop,
  neighbours,
  optimizer as optimizer_lib,
  samples,
)
from cspd_jax.training.corrector import CorrectorRecipe
from cspd_jax.training.corrector_loss import CorrectorTrainConfig
from cspd_jax.training.drafter import DrafterRecipe, DrafterTrainConfig
from cspd_jax.training.neighbours import NeighboursRecipe
from cspd_jax.training.optimizer import OptimizerConfig

Recipe = DrafterRecipe | CorrectorRecipe | NeighboursRecipe
_PROGRAM = 'cspd-train'
_RECIPES: dict[type, Any] = {DrafterRecipe: drafter, CorrectorRecipe: corrector,
                             NeighboursRecipe: neighbours}
# Records the windows that a corrector learns from, by what the model has to draft with.
_WINDOWS = 'corrected(corrector={by}, window={window}, iterations=2, tree=chain())'
# A decoder with each network, and those that a neighbours corrector must be better than.
_DECODERS = dict(neighbours='corrected(corrector=neighbours)', local='corrected(corrector=local)',
                 corrector='corrected', eagle='eagle', medusa='medusa')
# Images on which the acceptance is measured, and its table.
_MEASURED = 16
_ACCEPTANCE = {'position': '{position}', 'predicted': '{predicted:.3f}',
               'measured': '{measured:.3f}', 'drafts tested': '{tested}'}
_NEEDED = dict(dtype='float32', quantize=None, cache_dtype=None)


@dataclasses.dataclass(frozen=True)
class Own(groups.ModelFlags):
  """A model, which a recipe names too.

  Attributes:
    model: a shipped model, or a folder that cspd-convert wrote. None is the recipe's, or else
      emoji.
  """

  model: str | None = None  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class Flags:
  """The network to train, and its folders.

  Attributes:
    loading: the model, of discrete tokens, and how it is loaded to sample images.
    kind: what to train, without a recipe. None is neighbours.
    prompts: file with one prompt per line for the sampled images; None uses the model's own
      prompts, or a built-in list for models of words.
    num_images: images to train on. None uses the recipe's number; for neighbours, as many as ten
      minutes allow.
    num_steps: optimiser steps, of which the warm-up takes at most half; None uses the recipe's
      number.
    batch_size: images per step; None uses the recipe's number.
    sampling: sampling options of the images; None uses the options of the recipe or the model.
    smoke: trains for a few steps on a few images, to try the command.
    workdir: folder of the images, checkpoints, metrics and the report; None uses runs/train/ and
      the names of model and kind.
    output: folder of the network; None uses the model's folder for neighbours, or else output in
      the work folder.
  """

  loading: Own = Own()
  kind: Literal['neighbours', 'local', 'corrector', 'eagle', 'medusa'] | None = None
  prompts: str | None = None
  num_images: int | None = None
  num_steps: int | None = None
  batch_size: int | None = None
  sampling: groups.SamplingFlags = groups.SamplingFlags()
  smoke: bool = False
  workdir: str | None = None
  output: str | None = None

  def __post_init__(self):
    fields.check(self)


def recipe_for(model: cspd_jax.Model, name: str, kind: str) -> Recipe:
  """Returns a recipe with a model's sizes; ValueError if its family trains none of this kind."""
  family = families.FAMILIES[model.family]
  if model.table.tokens != 'discrete':
    raise ValueError(f'model is {name!r}, a {model.family!r} model of continuous tokens, for which '
                     'nothing is trained; give a model of discrete tokens.')
  if kind == 'neighbours' and kind not in family.roles:
    raise ValueError(
        f'kind is {kind!r}, but the family {model.family!r} of model {name!r} has no role of this '
        'name; add it to the roles and use it in build, or fit a corrector to the target alone '
        'with cspd_jax.training.fit_corrector.')
  if kind != 'neighbours' and model.teacher is None:
    raise ValueError(
        f'kind is {kind!r}, but the family {model.family!r} of model {name!r} has no teacher, from '
        'which such networks learn; give its Model a families.Teacher, or train --kind=neighbours.')
  if kind == 'neighbours':
    return NeighboursRecipe(neighbours.sizes(model), target=name)
  fields.check_choice('kind', kind, family.trained(model.config))
  sizes = family.published.networks(model.config)
  if kind not in ('local', 'corrector'):
    return DrafterRecipe(drafter=sizes[kind][1], train=DrafterTrainConfig(), target=name)
  by = next(by for by in ('eagle', 'neighbours', 'layers') if by in model.drafts)
  scales = (atomic.plain(model.sampling().guidance_scale),)
  plain, train = ((corrector.LOCAL_PLAIN, corrector.LOCAL_TRAIN) if kind == 'local' else
                  (OptimizerConfig(), CorrectorTrainConfig()))
  train = dataclasses.replace(train, guidance_scales=scales)
  return CorrectorRecipe(drafter=sizes[kind][1], plain=plain, train=train, target=name,
                         decoder=_WINDOWS.format(by=by, window=min(32, model.num_tokens)))


def override(recipe: Recipe, flags: Flags) -> Recipe:
  """Returns a recipe with the values of flags that are specified."""
  optimizer = functools.partial(_optimizer, flags=flags)
  changes: dict[str, Any] = {'train': dataclasses.replace(
      recipe.train, optimizer=optimizer(recipe.train.optimizer))}
  changes |= inputs.overrides(flags.sampling)
  if flags.prompts is not None:
    changes['prompts'] = flags.prompts
  if flags.num_images is not None:
    changes['num_train_images'] = flags.num_images
  if isinstance(recipe, CorrectorRecipe) and recipe.plain:
    changes['plain'] = optimizer(recipe.plain)
    changes['num_plain_images'] = flags.num_images or recipe.num_plain_images
  if isinstance(recipe, CorrectorRecipe) and flags.sampling.guidance_scale is not None:
    changes['train'] = dataclasses.replace(
        changes['train'], guidance_scales=(flags.sampling.guidance_scale,))
  recipe = dataclasses.replace(recipe, **changes)
  return loop.smoke(recipe) if flags.smoke else recipe


def _optimizer(config: OptimizerConfig, flags: Flags) -> OptimizerConfig:
  if flags.batch_size is not None:
    config = dataclasses.replace(config, batch_size=flags.batch_size)
  return (config if flags.num_steps is None else
          optimizer_lib.with_num_steps(config, flags.num_steps))


def acceptance(recipe: DrafterRecipe | CorrectorRecipe, model: cspd_jax.Model, params: Any,
               figures: Mapping[str, float]) -> tuple[str, list[dict[str, Any]]]:
  """Returns the acceptance that a training predicts per position of the window, beside another.

  The other is what decoding measures on a few images of another seed, along a chain: a decoder,
  in words, and for every position that `figures` predict the rates that a draft is accepted once
  it is reached, and how many drafts were `tested`.
  """
  decoder, length = _RECIPES[type(recipe)].measured_by(recipe, model)
  count = min(_MEASURED, recipe.num_held_out_images)
  decoded = samples.decoded(recipe, _with(model, recipe, params), decoder, count)
  accepted, tested = metrics.acceptance.by_depth(decoded, length)
  positions = [int(name.removeprefix('overlap_')) for name in figures
               if name.startswith('overlap_')]
  rows = [dict(position=at, predicted=figures[f'overlap_{at}'], tested=int(tested[at - 1]),
               measured=accepted[at - 1] / tested[at - 1] if tested[at - 1] else None)
          for at in positions if at <= length]
  return f'{decoder} on {count} images', rows


def _with(model: cspd_jax.Model, recipe: Recipe, params: Any) -> cspd_jax.Model:
  """The model with the trained network; its own parameters are not loaded again."""
  family = families.FAMILIES[model.family]
  kind = next(name for name, kind in family.roles['target'].items()
              if isinstance(model.config, kind.config))
  built = family.build(families.Parts(model.name, {
      'target': store.Loaded(kind, model.config, model.params, {}),
      _role(recipe): store.Loaded(recipe.kind, recipe.drafter, store.for_decoding(
          recipe.kind, params), {})}, {}))
  return dataclasses.replace(model, drafts=built.drafts, kept=Kept())


def _role(recipe: Recipe) -> str:
  return recipe.role if isinstance(recipe, CorrectorRecipe) else recipe.kind


@contextlib.contextmanager
def _opened(recipe: Recipe, model: cspd_jax.Model, workdir: pathlib.Path) -> Iterator[Any]:
  """Holds `workdir` for a recipe; yields its module and the recipe with all sampling options."""
  module = _RECIPES[type(recipe)]
  module.check(recipe, model)
  recipe = samples.completed(recipe, model)
  with run_folder.Run(workdir, samples.identity(recipe, model), name='workdir', alone=False):
    print(f'{_role(recipe)} for {model.name} on {sharding.in_words(model.devices)}', flush=True)
    yield module, recipe


def run(recipe: Recipe, model: cspd_jax.Model, workdir: pathlib.Path, output: pathlib.Path, *,
        measured: Callable[[Any, Any], Mapping[str, float]] | None = None) -> bool:
  """Trains in `workdir` or resumes, writes the report, and stores the network, if it returns True.

  `measured` is `(recipe, params) ->` tokens per forward pass of decoders, the trained network's
  last; unless that is the most, the network is not stored. None stores it in any case. A drafter
  that does not fit the model and a folder that holds another run raise ValueError.
  """
  with _opened(recipe, model, workdir) as (module, recipe):
    params, figures = module.train(recipe, model, workdir)
    passes = measured(recipe, params) if measured else {}
    by, rates = ('', []) if isinstance(recipe, NeighboursRecipe) else acceptance(
        recipe, model, params, figures)
    stored = not passes or max(passes, key=lambda name: passes[name]) == [*passes][-1]
    if stored:
      extra: dict[str, Any] = {'target': recipe.target}
      if rates:  # Which cspd-verify compares with what it measures.
        extra['acceptance'] = dict(
            decoder=module.measured_by(recipe, model)[0],
            sampling={name: getattr(recipe, name) for name in SamplingParams._fields},
            predicted=[float(row['predicted']) for row in rates])
      store.save(output, recipe.kind, recipe.drafter, params, dtype=jnp.bfloat16, extra=extra)
      inputs.log_size(output)
    run_folder.Report(workdir, program=_PROGRAM).write(
        settings=dataclasses.asdict(recipe), rows=[{**figures, **passes}], stored=stored,
        **(dict(acceptance=rates, acceptance_of=by) if rates else {}))
    print(', '.join(f'{name.replace("_", " ")} {value:.4g}' for name, value in figures.items()))
    for name, value in passes.items():
      print(f'{name}: {value:.2f} tokens per forward pass')
    if rates:
      print(f'\nAcceptance by position, as the training predicts it, and measured with {by}:\n\n'
            f'{tables.text(_ACCEPTANCE, rates, left=0)}\n')
    return stored


def _measured(loading: groups.ModelFlags, model: cspd_jax.Model, output: pathlib.Path,
              recipe: NeighboursRecipe, params: Any) -> dict[str, float]:
  """Tokens per forward pass of windows without a corrector, with those there are, and a new one."""
  window = f'window={min(32, model.num_tokens)}'
  by = lambda name: f'corrected(corrector={name}, {window}, tree=chain())'
  decoders, load = {f'mc_sjd({window})': model}, lambda network: inputs.model(
      loading, neighbours=network)
  if 'layers' in model.drafts:
    decoders[by('layers')] = model
  earlier = model if 'neighbours' in model.drafts else (
      load(output) if (output / 'model.json').exists() else None)
  # This run, if it was stopped or is repeated, may have stored the network already.
  if earlier is not None and not _is_stored_as(earlier.drafts['neighbours'].params, params):
    decoders[by('neighbours')] = earlier
  passes = {f'{text} before' if 'neighbours' in text else text:
           neighbours.tokens_per_pass(recipe, of, text) for text, of in decoders.items()}
  fitted = load(store.Loaded('neighbours', recipe.drafter, params, {}))
  return passes | {by('neighbours'): neighbours.tokens_per_pass(recipe, fitted, by('neighbours'))}


def _is_stored_as(stored: Any, params: Any) -> bool:
  """Whether a network has the parameters `params`, in the dtype that `run` stores."""
  stored, params = (jax.tree.leaves(matrices.plain(tree)) for tree in (stored, params))
  return all(np.array_equal(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))
             for x, y in zip(stored, params, strict=True))


@cli.command(lambda: None, flags=Flags(), kept='sampled images and saved steps are kept')
def main(recipe: Any, flags: Flags) -> None:
  if recipe is not None:
    _check_recipe(recipe, flags)
  name = recipe.target if recipe is not None else flags.loading.model or store.DEFAULT
  role = flags.kind or 'neighbours' if recipe is None else _role(recipe)
  asked = dataclasses.replace(flags.loading, model=name)
  loading = _loading(asked, role)
  run_name = f'{inputs.run_name(name)}_{role}'
  workdir = loop.check_folder(
      'workdir', flags.workdir or pathlib.Path('runs', 'train', run_name))
  # Whether the network becomes part of the model: a folder that networks can be added to.
  own = (flags.output is None and role == 'neighbours' and not flags.smoke
         and name not in cspd_jax.shipped()
         and families.part_folder(name, 'target') != paths.find('model', name))
  output = (paths.folder('output', pathlib.Path(name) / role) if own else
            inputs.output_folder('output', flags.output, workdir))
  store.check_place(output)
  run_folder.check(workdir, program=_PROGRAM)
  inputs.log_progress()
  model = inputs.model(loading)
  if isinstance(model, Cascade):
    raise ValueError(f'model is {name!r}, in which two models draw in turn; pass a folder of its '
                     'prior alone.')
  recipe = recipe_for(model, name, role) if recipe is None else recipe
  if own:
    families.check_place(name, model.family, {role: role})
  recipe = override(recipe, flags)
  measures = role == 'neighbours' and not flags.smoke
  if role != 'neighbours' and loading.mesh is not None:
    with _opened(recipe, model, workdir) as (module, completed):
      module.sample(completed, model, workdir)
    del model  # Its parameters leave the devices before those for the training are loaded.
    model = inputs.model(dataclasses.replace(loading, mesh=None))
  with compilations.reported(6, at_most=True) if measures else contextlib.nullcontext():
    stored = run(recipe, model, workdir, output, measured=functools.partial(
        _measured, loading, model, output) if measures else None)
  if not stored:
    print('Nothing is stored: others gain as many tokens per forward pass; give more --num_images, '
          'and another --workdir.')
    return
  if own:
    families.save(name, model.family, {role: role})
  print(f'Stored in {output}. Next: {_next_step(asked, model, recipe, role, output, own)}')
  if own:
    print(f"--decoder='{_DECODERS[role]}' uses it; the default decoder is as before, until "
          'cspd-tune stores another.')


def _check_recipe(recipe: Any, flags: Flags) -> None:
  """Raises ValueError unless a configuration is a recipe, and no flag contradicts it."""
  inputs.check_kind(recipe, tuple(_RECIPES), 'configs/train/drafters.py:eagle')
  if flags.kind is not None:
    raise ValueError(f'kind is {flags.kind!r}, but --config is a recipe, which determines what '
                     'is trained; leave one of them out.')
  if flags.loading.model not in (None, recipe.target):
    raise ValueError(f'model is {flags.loading.model!r}, but --config is a recipe for '
                     f'{recipe.target!r}; give --target={flags.loading.model} in its place.')
  if flags.prompts is not None and getattr(recipe, 'images', None) is not None:
    raise ValueError(f'prompts is {flags.prompts!r}, but the images of --config, '
                     f'{recipe.images!r}, have prompts of their own; leave --prompts out.')


def _loading(loading: groups.ModelFlags, role: str) -> groups.ModelFlags:
  """How the model is loaded; raises ValueError for what the training does not support."""
  if role == 'neighbours':
    return loading
  for name, needed in _NEEDED.items():
    if (value := getattr(loading, name)) not in (None, needed):
      raise ValueError(f'{name} is {value!r}, and kind is {role!r}, which learns from the model in '
                       f'float32; leave {name} out.')
  return dataclasses.replace(loading, dtype='float32')


def _next_step(loading: groups.ModelFlags, model: cspd_jax.Model, recipe: Recipe, role: str,
               output: pathlib.Path, own: bool) -> str:
  """The command that measures what the network gains."""
  prompts = samples.prompts_of(model, recipe.prompts)
  if own:
    return inputs.next_command('cspd-tune', loading, model, prompts)
  return inputs.next_command('cspd-compare', loading, model, prompts, parts=f'{role}={output}',
                             decoder=f'vanilla,{_DECODERS[role]}')


if __name__ == '__main__':
  sys.exit(main())
