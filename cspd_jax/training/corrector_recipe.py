"""Recipe of a corrector: training on whole images, then on windows.

While images are decoded, every round records its main chain and the target's features along it, the
windows. The image's final tokens are the context that the next round should have had.

`train` continues the run that its folder holds and does nothing if that run is complete. `model` is
the target with its tokenizer and drafters.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax.core import batches, programs
from cspd_jax.core.random import row_keys
from cspd_jax.decoding.base import RoundResult
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.tree import Tree
from cspd_jax.files import atomic, matrices, npz, run_folder
from cspd_jax.generation import memory, run
from cspd_jax.generation.model import Model, Request
from cspd_jax.models import eagle
from cspd_jax.training import (
  corrector as corrector_lib,
  drafter_recipe,
  loop,
  optimizer as optimizer_lib,
  samples,
)
from cspd_jax.training.corrector import Windows
from cspd_jax.training.optimizer import OptimizerConfig

Params = Any
_DECODE_BATCH = 64


@dataclasses.dataclass(frozen=True)
class CorrectorRecipe(samples.Sampled, loop.Intervals):
  """Configuration of a corrector, its training data and its training.

  Attributes:
    drafter: configuration of the network.
    plain: configuration of the optimiser on whole images; None begins with windows, which suffices
      if the model's EAGLE network is the start.
    train: configuration of the training on windows.
    decoder: decoder that records the windows: a corrected decoder whose drafts are a chain.
    images: file of whole images to train on, see `samples.stored`; None samples them from the
      target.
    num_plain_images: whole images to train on, the first ones of the file.
    num_train_images: images whose windows to train on.
    num_held_out_images: images whose windows to measure on, as far as they fill whole batches.
  """

  drafter: eagle.EagleConfig
  plain: OptimizerConfig | None
  train: corrector_lib.CorrectorTrainConfig
  decoder: str = 'corrected(corrector=eagle, window=32, iterations=2, tree=chain())'
  images: str | None = None
  num_plain_images: int = 4096
  num_train_images: int = 1152
  num_held_out_images: int = 128
  seed: int = dataclasses.field(default=500, kw_only=True)

  def __post_init__(self):
    super().__post_init__()
    samples.check_batch_size('train.optimizer', self.train.optimizer,
                             min(self.num_train_images, self.num_held_out_images))
    if self.plain is not None:
      samples.check_batch_size('plain', self.plain, self.num_plain_images)

  kind = 'eagle'  # Of the checkpoint.


def check(recipe: CorrectorRecipe, model: Model) -> None:
  """Raises ValueError unless the corrector fits the model, whose parameters are in float32."""
  drafter_recipe.check(recipe, model)
  if recipe.images is not None:  # Before anything is sampled.
    samples.stored(recipe.images, model, recipe.prompts, recipe.num_plain_images)
  decoder: Any = model.decoder(recipe.decoder)  # Of discrete tokens.
  tree = decoder.drafter.layout.tree
  if not (isinstance(tree, Tree) and tree.is_chain):
    raise ValueError(f'decoder is {recipe.decoder!r}; its drafts must be a chain; add '
                     'tree=chain().')


def recorded(recipe: CorrectorRecipe, model: Model, split: str, workdir: pathlib.Path
             ) -> tuple[Windows, np.ndarray]:
  """Returns the windows of a split and the index `[N]` of every image's prompt.

  They are recorded in `workdir` if they are absent; a file of another target or run, and more
  windows than the memory holds, raise ValueError.
  """
  name = f'num_{split}_images'
  count = getattr(recipe, name)
  prompts = samples.prompts_of(model, recipe.prompts)
  indices = np.arange(count) % len(prompts)
  key, sampling = jax.random.key(recipe.seed + (split != 'train')), samples.sampling(recipe, model)
  decoder: Any = model.decoder(recipe.decoder)
  # A recorder carries more from round to round, so the batch size is chosen for it.
  request = samples.request(model, prompts, count, sampling, seed=key, decoder=recipe.decoder,
                            batch_size=1)
  settings = run.settings(request)
  path = run_folder.Run(workdir / f'windows_{split}', settings).folder / 'windows.npz'
  if path.exists():
    arrays = npz.arrays(path, atomic.REMAKE, needed=Windows._fields)
    return Windows(*(arrays[name] for name in Windows._fields)), indices
  memory.check_host(name, count, _least_bytes(decoder, request), 'windows')
  needs = dataclasses.replace(request, sampler=dataclasses.replace(
      request.sampler, decoder=recording(decoder),
      names=(f'windows of {request.sampler.specification}',))).estimate()
  size = needs.most(min(_DECODE_BATCH, count))
  model.check_memory(recipe.decoder, needs, size)
  record = recorder(decoder)
  result = concatenate(list(batches.each(
      lambda index: record(*request.arguments(index)), count, size,
      lambda done, total: logging.info('windows of %s: %d of %d images', split, done, total))))
  atomic.write_arrays(path, result._asdict())
  return result, indices


def _least_bytes(decoder: Decoder, request: Request) -> float:
  """Returns the bytes of host memory that the windows of an image need at the least.

  That is if every round accepts all drafts. They are held twice while those of all images are
  joined.
  """
  watched = recording(decoder)
  state = jax.eval_shape(
      lambda params, condition, key, *rest: watched.start(
          params, condition, row_keys(key, 1), *rest),
      *request.arguments(np.zeros(1, int)))
  windows = [getattr(state.drafter, name) for name in Windows._fields[1:]]
  rounds = -(-(decoder.target.num_tokens - 1) // state.drafter.features.shape[1])
  return 2 * rounds * memory.size(windows)


def sample(recipe: CorrectorRecipe, model: Model, workdir: pathlib.Path) -> None:
  """Samples the images that `workdir` does not hold yet, and records their windows."""
  for split in ('train', 'held_out'):
    recorded(recipe, model, split, workdir)
  if recipe.plain:
    _plain_images(recipe, model, workdir)


def _plain_images(recipe: CorrectorRecipe, model: Model, workdir: pathlib.Path
                  ) -> tuple[np.ndarray, np.ndarray]:
  """Returns the tokens `[N, T]` of whole images and the index `[N]` of every image's prompt."""
  if recipe.images is not None:
    return samples.stored(recipe.images, model, recipe.prompts, recipe.num_plain_images)
  return samples.sampled(
      model, recipe.prompts, recipe.num_plain_images, jax.random.key(recipe.seed + 2),
      samples.sampling(recipe, model), workdir / 'tokens')


def init(recipe: CorrectorRecipe, model: Model) -> Params:
  """Returns the initial parameters: those of the model's EAGLE network of the same name and shape.

  Further layers add 0 to the residual stream at first.
  """
  params = eagle.init(recipe.drafter, jax.random.key(recipe.seed))
  if 'eagle' not in model.drafts:
    return params
  pretrained = matrices.plain(model.drafts['eagle'].params)
  if recipe.drafter.own_embedding:  # The network's own table starts as the target's embedding.
    pretrained = {'token_embedding': drafter_recipe.teacher(model).ends.embed(
        model.params, jnp.arange(recipe.drafter.vocab_size)), **pretrained}
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  for name, value in params.items():
    if name in pretrained and shapes(pretrained[name]) == shapes(value):
      # A training step donates the memory of its input.
      params[name] = jax.tree.map(jnp.copy, pretrained[name])
    elif name.startswith('layer_'):
      params[name] = value | {kernel: jnp.zeros_like(value[kernel]) for kernel in ('out', 'down')}
  return params


def train_plain(recipe: CorrectorRecipe, model: Model, params: Params, workdir: pathlib.Path
                ) -> Params:
  """Trains on whole images in `workdir` or continues; returns the average of the parameters."""
  optimizer, teacher = recipe.plain, drafter_recipe.teacher(model)
  if optimizer is None:
    return params
  tokens, indices = _plain_images(recipe, model, workdir)
  conditions = model.condition(samples.prompts_of(model, recipe.prompts))
  sampling = model.engine.drop_inactive(samples.sampling(recipe, model))

  def batch_of(index):
    images, prompts = loop.batch_of(tokens, indices, optimizer.seed, index, optimizer.batch_size)
    return images, batches.select(conditions, prompts)

  return drafter_recipe.fit(
      model, optimizer_lib.start(params, optimizer),
      lambda state, batch, frozen: corrector_lib.plain_step(
          state, batch, frozen, recipe.drafter, optimizer, teacher, sampling),
      batch_of, optimizer, recipe, workdir, 'plain').result


def train(recipe: CorrectorRecipe, model: Model, workdir: pathlib.Path
          ) -> tuple[Params, dict[str, float]]:
  """Trains the corrector in `workdir` or continues.

  Returns the moving average of the parameters, and its held-out metrics; the names of those before
  the training begin with 'before_'.
  """
  splits = {split: recorded(recipe, model, split, workdir) for split in ('train', 'held_out')}
  of_prompts = model.condition(samples.prompts_of(model, recipe.prompts))
  conditions = {split: batches.select(of_prompts, indices)
                for split, (_, indices) in splits.items()}
  config, train_config, teacher = recipe.drafter, recipe.train, drafter_recipe.teacher(model)
  optimizer = train_config.optimizer
  sampling = model.engine.drop_inactive(samples.sampling(recipe, model))
  batch_of = lambda split, index, **order: corrector_lib.batch_of(
      splits[split][0], conditions[split], train_config, index, **order)
  evaluate = drafter_recipe.evaluation(
      model, lambda params, frozen, batch: corrector_lib.measure(
          params, frozen, batch, config, train_config, teacher, sampling),
      lambda: (batch_of('held_out', index, in_order=True)
               for index in range(recipe.num_held_out_images // optimizer.batch_size)))
  params = init(recipe, model)
  before = {f'before_{name}': value for name, value in evaluate(params).items()}
  params = train_plain(recipe, model, params, workdir)
  average = drafter_recipe.fit(
      model, optimizer_lib.start(params, optimizer),
      lambda state, batch, frozen: corrector_lib.step(
          state, batch, frozen, config, train_config, teacher, sampling),
      lambda index: batch_of('train', index), optimizer, recipe, workdir, 'corrector',
      lambda state: evaluate(state.result)).result
  return average, before | evaluate(average)


class _Recorded(NamedTuple):
  """A drafter's state and the last round; the fields are those of `Windows`, per round."""

  inner: Any
  first: jax.Array
  accepted: jax.Array
  nodes: jax.Array
  features: jax.Array


def recording(decoder: Decoder) -> Decoder:
  """Returns the decoder with a state that also holds the last round; it has a static tree."""
  drafter = decoder.drafter
  if not isinstance(drafter.tree, Tree):
    raise ValueError(f'decoder has drafts of {drafter.tree}; use a decoder with a static tree.')
  slots = drafter.tree.main_length + 1

  def recorded(inner: Any, outcome: RoundResult) -> _Recorded:
    # The outcome of the prefill has one node.
    fill = lambda x: jnp.pad(
        x[:, :slots], ((0, 0), (0, max(slots - x.shape[1], 0))) + ((0, 0),) * (x.ndim - 2))
    return _Recorded(
        inner, outcome.root, outcome.accepted, fill(outcome.nodes)[:, 1:],
        fill(jnp.moveaxis(outcome.features, 0, 2)).astype(jnp.float16))

  def init(env, condition, rng, outcome):
    if outcome.features is None:
      raise ValueError('The target returns no features, which a corrector learns from; use a '
                       'target with features.')
    rng, inner = drafter.init(env, condition, rng, outcome)
    return rng, recorded(inner, outcome)

  def propose(env, state, rng, root, start):
    rng, inner, draft = drafter.propose(env, state.inner, rng, root, start)
    return rng, state._replace(inner=inner), draft

  def update(env, state, rng, outcome):
    rng, inner = drafter.update(env, state.inner, rng, outcome)
    return rng, recorded(inner, outcome)

  return dataclasses.replace(
      decoder, drafter=drafter._replace(init=init, propose=propose, update=update))


def recorder(decoder: Decoder) -> Callable[..., Windows]:
  """Returns a function of a decoder's arguments that decodes images and records all rounds."""
  recorded = recording(decoder)
  jit = functools.partial(programs.jit, short_sums=True)
  start, next_round = jit(recorded.start), jit(recorded.round, donate_argnums=1)

  def record(params, condition, key, sampling, draft_params):
    batch = jax.tree.leaves(condition)[0].shape[0]
    state, rounds = start(params, condition, row_keys(key, batch), sampling, draft_params), []
    while np.any(np.asarray(state.count) < decoder.target.num_tokens):
      state = next_round(params, state, sampling, draft_params)
      rounds.append([np.asarray(getattr(state.drafter, name)) for name in Windows._fields[1:]])
    return Windows(np.asarray(decoder.finish(state).tokens),
                   *(np.stack(part, axis=1) for part in zip(*rounds)))

  return record


def concatenate(windows: list[Windows]) -> Windows:
  """Concatenates recordings, padded by rounds with -1 accepted drafts, as of complete images."""
  most = max(part.first.shape[1] for part in windows)

  def padded(name: str, x: np.ndarray) -> np.ndarray:
    widths = ((0, 0), (0, most - x.shape[1])) + ((0, 0),) * (x.ndim - 2)
    return x if name == 'tokens' else np.pad(
        x, widths, constant_values=-1 if name == 'accepted' else 0)

  return Windows(*(np.concatenate([padded(name, getattr(part, name)) for part in windows])
                   for name in Windows._fields))
