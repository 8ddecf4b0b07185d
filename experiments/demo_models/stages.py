"""Base classes of the recipes of shipped models.

The tokens of a model on latents are stored as the Gaussians of a KL tokenizer and sampled in every
step that uses the crop, as in MAR.
"""

import abc
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

import cspd_jax
from cspd_jax.core import fields, programs
from cspd_jax.files import atomic, npz, store
from cspd_jax.models import kl_vae, mar
from cspd_jax.training import loop, optimizer as optimizer_lib
from experiments.demo_models import photos as photos_lib, tokenizers

_ENCODE_BATCH = 32  # Crops per batch of the encoder.
_PIXELS = 8  # Of a side of the crops of tiny networks.
# Number and size of the batches of held-out crops for the metrics of models on latents.
_NUM_BATCHES, _BATCH = 32, 16

# Arrays of a tokenised split, and labels `[N]` int32 or captions `[N]` str of its crops.
Split = tuple[np.ndarray, np.ndarray]

Conditions = TypeVar('Conditions')

photos = functools.cache(photos_lib.load)  # Opens the photographs once.
# Sizes of tiny networks, in whichever configuration has such a field.
_SMALL = dict(
    ch=8, ch_mult=(1, 1), num_res_blocks=1, z_channels=4, codebook_size=32, codebook_dim=4,
    scale=1.0, dim=16, num_layers=1, num_heads=1, num_kv_heads=1, ffn_dim=16, head_width=16,
    head_layers=1, buffer_size=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages(loop.Intervals, abc.ABC):
  """Recipe of a tokenizer, a target and maybe a draft model.

  Every method with a folder continues the work that it holds and does nothing if that is complete.

  Attributes:
    tokenizer: configuration of the tokenizer.
    tokenizer_train: configuration of its training.
    target: configuration of the target.
    target_train: configuration of its training.
    draft: configuration of a draft model, which has the same tokens and conditions, or None.
    draft_train: configuration of its training.
    image_size: side of a crop in pixels.
    num_train_images: crops that are tokenised for training.
    num_held_out_images: crops of the held-out parts for evaluation.
    guidance_scale: guidance scale of the guided samples and metrics of the report.
    tokenizer_of: a model, shipped or a folder, whose tokenizer is used; None to train a tokenizer.
    tokenizer_from: such a model, from whose tokenizer that training starts; None for random ones.
    seed: seed of the crops that are tokenised.
  """

  family: ClassVar[str]
  tokenizer_kind: ClassVar[str]

  tokenizer: Any
  tokenizer_train: Any
  target: Any
  target_train: Any
  draft: object = None
  draft_train: object = None
  image_size: int = 64
  num_train_images: int = 16384
  num_held_out_images: int = 256
  guidance_scale: float = 2.0
  tokenizer_of: str | None = None
  tokenizer_from: str | None = None
  seed: int = 0

  def __post_init__(self):
    fields.check(self, image_size=(1, fields.MOST_SIDE), guidance_scale=fields.FINITE,
                 seed=fields.SEEDS)
    for role in self.models:
      config = getattr(self, role)
      for name, wanted in self._fitting(self.tokenizer, self.side, config).items():
        if (value := getattr(config, name)) != wanted:
          raise ValueError(f'{role}.{name} is {value!r}; with this tokenizer, image size and set '
                           f'of photographs it must be {wanted!r}.')

  @property
  def models(self) -> tuple[str, ...]:
    """Roles of the models that are trained on the tokens."""
    return ('target',) if self.draft is None else ('target', 'draft')

  @abc.abstractmethod
  def _fitting(self, tokenizer: Any, side: int, config: Any) -> Mapping[str, Any]:
    """Returns the values that fields of a model's configuration must have.

    `side` are the latents of the tokenizer per side of a crop.
    """

  @property
  def metadata(self) -> dict[str, Any]:
    """Metadata that is stored with the networks, JSON-serialisable."""
    return {'labels': list(photos_lib.NAMES), 'image_size': self.image_size}

  @property
  def defaults(self) -> dict[str, Any]:
    """Defaults of the exported model."""
    return {'dtype': 'float32', 'guidance_scale': self.guidance_scale}

  def prepare(self) -> None:
    """Opens the images and other models, so that their errors come before the work."""
    self.crops(0, 0, 'train', 1)
    for field in ('tokenizer_of', 'tokenizer_from'):
      if (name := getattr(self, field)) is not None:
        tokenizer(field, name, self.tokenizer)

  def small(self) -> Self:
    """Returns the recipe with tiny networks, for crops of 8x8 pixels."""
    tiny = lambda config, **fitting: dataclasses.replace(config, **fitting, **{
        field.name: _SMALL[field.name] for field in dataclasses.fields(config)
        if field.name in _SMALL and field.name not in fitting})
    tokenizer = tiny(self.tokenizer)
    models = {role: getattr(self, role) for role in self.models}
    return dataclasses.replace(
        self, tokenizer=tokenizer, tokenizer_of=None, tokenizer_from=None, image_size=_PIXELS,
        **{role: tiny(config, **self._fitting(tokenizer, _PIXELS // tokenizer.factor, config))
           for role, config in models.items()})

  @abc.abstractmethod
  def _tokenizer_training(self, params: Any) -> tuple[Any, Callable, Callable]:
    """Returns the state before the first step of the tokenizer, the step, and a measure.

    `params` are those to start from, None for random ones; the measure is
    `(params, images, key) ->` held-out metrics.
    """

  def train_tokenizer(self, workdir: pathlib.Path) -> Any:
    """Returns the parameters of the tokenizer of `tokenizer_of`, or trains one or continues."""
    if self.tokenizer_of is not None:
      return tokenizer('tokenizer_of', self.tokenizer_of, self.tokenizer)
    optimizer, start = self.tokenizer_train.optimizer, None
    if self.tokenizer_from is not None:
      start = tokenizer('tokenizer_from', self.tokenizer_from, self.tokenizer)
    state, step, measure = self._tokenizer_training(start)
    seeds = dict(train=optimizer.seed, held_out=self.seed)
    batch = lambda split, index: self.crops(seeds[split], index, split, optimizer.batch_size)[0]
    return self.train('tokenizer', state, step, batch, optimizer, workdir,
                      lambda state, *arguments: measure(state.params, *arguments)).params

  @abc.abstractmethod
  def tokenize(self, tokenizer: Any, split: str, workdir: pathlib.Path) -> Split:
    """Tokenises random crops of a split; the result is cached in `workdir`."""

  @abc.abstractmethod
  def _model_training(self, role: str, data: Mapping[str, Split]
                     ) -> tuple[Any, Callable, Callable[[str, int], Any], Callable]:
    """Returns the state before the first step of one of `models`, the step, batches and a measure.

    `data` are results of `tokenize` by split, the batches `(split, index) ->` a batch, and the
    measure is `(params, batch, key) ->` held-out metrics of the averaged parameters.
    """

  def train_model(self, role: str, data: Mapping[str, Split], workdir: pathlib.Path) -> Any:
    """Trains one of `models` in `workdir` or continues; returns the average of its parameters."""
    state, step, batch, measure = self._model_training(role, data)
    return self.train(
        role, state, step, batch, getattr(self, f'{role}_train').optimizer, workdir,
        lambda state, *arguments: measure(state.result, *arguments)).result

  def sized_tokenizer(self, data: Mapping[str, Split]) -> Any:
    """Returns the configuration of the trained tokenizer."""
    return self.tokenizer

  def networks(self, tokenizer: Any, models: Mapping[str, Any],
               data: Mapping[str, Split]) -> dict[str, store.Loaded]:
    """Returns the networks by their role in a model, from the parameters of tokenizer and models.

    `data` are results of `tokenize` by split.
    """
    loaded = lambda *network: store.Loaded(*network, metadata=self.metadata)
    return {'tokenizer': loaded(self.tokenizer_kind, self.sized_tokenizer(data), tokenizer)} | {
        role: loaded(self.family, getattr(self, role), params) for role, params in models.items()}

  def metrics(self, tokenizer: Any, models: Mapping[str, Any],
              data: Mapping[str, Split]) -> dict[str, dict[str, Any]]:
    """Returns held-out metrics by role; arguments as for `networks`."""
    images, _ = self.held_out()
    reconstructions = self.reconstruct(tokenizer, data, images)
    return {'tokenizer': errors(reconstructions, images) | self._tokenizer_metrics(data)} | {
        role: self._model_metrics(role, params, data) for role, params in models.items()}

  @abc.abstractmethod
  def _tokenizer_metrics(self, data: Mapping[str, Split]) -> dict[str, float]:
    """Returns metrics of the tokenizer in addition to those of reconstructions."""

  @abc.abstractmethod
  def _model_metrics(self, role: str, params: Any, data: Mapping[str, Split]) -> dict[str, Any]:
    """Returns held-out metrics of a model."""

  @abc.abstractmethod
  def reconstruct(self, tokenizer: Any, data: Mapping[str, Split], images: np.ndarray
                  ) -> np.ndarray:
    """Encodes and decodes images `[N, H, W, 3]` in [-1, 1]."""

  @property
  def side(self) -> int:
    """The latents per side of a crop, whose side must be a multiple of the tokenizer's patches."""
    if self.image_size % (factor := self.tokenizer.factor):
      raise ValueError(f'image_size is {self.image_size}; it must be a multiple of the '
                       f"tokenizer's {factor} pixels per token.")
    return self.image_size // factor

  def crops(self, seed: int, index: int, split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns batch `index` of random crops `[size, H, W, 3]` of a split, and labels `[size]`."""
    return photos_lib.crops(photos(), seed, index, split, size, self.image_size)

  def captions(self, labels: np.ndarray) -> list[str]:
    """Returns descriptions of crops with these labels."""
    return [photos_lib.NAMES[label] for label in labels]

  def held_out(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns crops of the held-out parts, and labels, for metrics and pictures."""
    return self.crops(self.seed + 1, 0, 'held_out', self.num_held_out_images)

  def train(self, name: str, state: Any, step: Callable, batch: Callable[[str, int], Any],
            optimizer: optimizer_lib.OptimizerConfig, workdir: pathlib.Path,
            measure: Callable[[Any, Any, jax.Array], Mapping[str, Any]]) -> Any:
    """Trains in `workdir` or continues, as `loop.run`; returns the last state.

    The batches are `(split, index) ->` a batch, and the measure is `(state, batch, key) ->`
    held-out metrics, with the same keys every time.
    """
    count = min(4, -(-self.num_held_out_images // optimizer.batch_size))
    held_out = [(batch('held_out', index), jax.random.key(index)) for index in range(count)]

    def evaluate(state):
      means = loop.mean_metrics([measure(state, *part) for part in held_out])
      return {f'held_out_{key}': value for key, value in means.items()}

    return loop.run(state, step, functools.partial(batch, 'train'), optimizer, self, workdir, name,
                    evaluate)

  def encode_crops(self, path: pathlib.Path, name: str, split: str,
                   encode: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes random crops `[N, H, W, 3]` of a split, cached in a file, as array `name`.

    The crops are not those that the tokenizer was trained on: those of the held-out split are from
    other parts of the photographs, those of the training split are new random crops.
    """
    count = self.num_train_images if split == 'train' else self.num_held_out_images
    if path.exists():
      arrays = npz.arrays(path, atomic.REMAKE, needed=(name, 'labels'))
      if len(arrays[name]) == count and arrays['labels'].shape == (count,):
        return arrays[name], arrays['labels']
    # Not the tokenizer's seed, so that the training crops differ.
    codes, labels = encoded(
        lambda *batch: self.crops(self.seed + 1, *batch), split, count, encode)
    atomic.write_arrays(path, {name: codes, 'labels': labels})
    return codes, labels


def encoded(crops: Callable[[int, str, int], tuple[np.ndarray, np.ndarray]], split: str,
            count: int, encode: Callable[[np.ndarray], np.ndarray]
            ) -> tuple[np.ndarray, np.ndarray]:
  """Encodes `count` crops of `crops(index, split, size)`; also returns their labels."""
  parts = []
  for index in range(-(-count // _ENCODE_BATCH)):
    images, labels = crops(index, split, _ENCODE_BATCH)
    parts.append((encode(images), labels))
    if index % 50 == 0:
      logging.info('encoded %d of %d crops of %s', index * _ENCODE_BATCH, count, split)
  codes, labels = (np.concatenate(leaves)[:count] for leaves in zip(*parts))
  return codes, labels


def jit_step(loss: Callable, config: Any, train: Any,
             decayed: Callable[[Any], Any] = optimizer_lib.matrices) -> Callable[[Any, Any], Any]:
  """Compiles `optimizer.step` for a model and a training with an `optimizer`, `(state, batch) ->`.

  `loss` is `(params, batch, key, config, train) -> (loss, scalar metrics)`, `decayed` that of
  `optimizer.update`. The new state reuses the memory of the old one.
  """
  @functools.partial(programs.jit, donate_argnums=0)
  def step(state, batch):
    key = jax.random.fold_in(jax.random.key(train.optimizer.seed + 1), state.step)
    return optimizer_lib.step(state, lambda params: loss(params, batch, key, config, train),
                              train.optimizer, decayed=decayed)

  return step


def tokenizer(field: str, name: str, config: Any) -> Any:
  """Returns the parameters of a model's tokenizer; another configuration raises ValueError."""
  part = cspd_jax.load(name).tokenizer
  if part is None or part.config != config:
    raise ValueError(
        f'{field} is {name!r}, which has {"no tokenizer" if part is None else part.config}; it '
        f'must be a model with {config}, or None.')
  return part.params


def batched(run: Callable[[np.ndarray], Any], images: np.ndarray, size: int = 16) -> np.ndarray:
  """Applies a function to batches of images and concatenates the results as a NumPy array."""
  return np.concatenate([np.asarray(run(images[i:i + size])) for i in range(0, len(images), size)])


def errors(reconstructions: np.ndarray, images: np.ndarray) -> dict[str, float]:
  """Measures 'psnr' (mean over images, decibels for values in [0, 1]) and 'l1' (same scale)."""
  error = (reconstructions - images) / 2
  mean_square = np.mean(error ** 2, axis=(1, 2, 3))
  return {'psnr': float(np.mean(-10 * np.log10(np.maximum(mean_square, 1e-12)))),
          'l1': float(np.mean(np.abs(error)))}


@dataclasses.dataclass(frozen=True)
class Latents(Stages):
  """Recipe with a KL tokenizer, whose `scale` is replaced."""

  tokenizer_kind: ClassVar[str] = 'kl_vae'
  # The module with the training of its models: `start`, `draw`, `loss`, `batch_loss`, `decayed`.
  training: ClassVar[Any]
  without: ClassVar[str]  # What ends the names of metrics without the condition.

  tokenizer: kl_vae.KLVAEConfig
  tokenizer_train: tokenizers.KLVAETrainConfig

  def _tokenizer_training(self, params: Any) -> tuple[Any, Callable, Callable]:
    config, train = self.tokenizer, self.tokenizer_train
    if params is None:
      params = kl_vae.init(config, jax.random.key(train.optimizer.seed))
    measure = programs.jit(lambda *arguments: tokenizers.kl_loss(*arguments, config, train)[1])
    return (optimizer_lib.start(params, train.optimizer),
            jit_step(tokenizers.kl_loss, config, train), measure)

  def tokenize(self, tokenizer: Any, split: str, workdir: pathlib.Path) -> Split:
    """Returns labels, and `[N, 2, h, w, z_channels]` means and log-variances before scaling."""
    encode = programs.jit(lambda images: kl_vae.encode(tokenizer, self.tokenizer, images))
    return self.encode_crops(
        workdir / f'latents_{split}.npz', 'moments', split,
        lambda images: np.stack(jax.device_get(encode(images)), axis=1))

  def reconstruct(self, tokenizer: Any, data: Mapping[str, Split],
                  images: np.ndarray) -> np.ndarray:
    """Encodes and decodes images `[N, H, W, 3]` in [-1, 1]."""
    config = self.sized_tokenizer(data)
    run = programs.jit(lambda batch, key: kl_vae.decode(tokenizer, config, kl_vae.sample(
        config, kl_vae.encode(tokenizer, config, batch), key)))
    numbers = iter(range(len(images)))
    return batched(lambda batch: run(batch, jax.random.key(next(numbers))), images)

  def _tokenizer_metrics(self, data: Mapping[str, Split]) -> dict[str, float]:
    return {'scale': self.sized_tokenizer(data).scale}

  def conditions(self, labels: np.ndarray) -> Any:
    """Returns the conditions `[N, ...]` of crops with these labels."""
    return labels

  def _batches(self, role: str, data: Mapping[str, Split]
               ) -> Callable[[str, int, int, int], tuple[np.ndarray, Any]]:
    """Returns `(split, seed, index, size) -> ` a batch of tokens and conditions for a model."""
    scale = self.sized_tokenizer(data).scale
    conditions = {split: self.conditions(part[1]) for split, part in data.items()}
    return lambda split, *place: batch_of(
        getattr(self, role), data[split][0], conditions[split], scale, *place)

  def _terms(self, role: str, dropped: bool | None) -> Callable[[Any, Any, jax.Array], Any]:
    """Compiles `(params, batch, key) -> ` the terms of the loss, with all or no conditions dropped,
    or None for as many as in training."""
    config, train, training = getattr(self, role), getattr(self, f'{role}_train'), self.training

    def terms(params, batch, key):
      draws = training.draw(key, batch[0].shape, train)
      if dropped is not None:
        draws = draws._replace(drop=jnp.full_like(draws.drop, dropped))
      return training.loss(params, config, *batch, draws)[1]

    return programs.jit(terms)

  def _model_training(self, role: str, data: Mapping[str, Split]
                     ) -> tuple[Any, Callable, Callable[[str, int], Any], Callable]:
    config, train, training = getattr(self, role), getattr(self, f'{role}_train'), self.training
    optimizer, batches = train.optimizer, self._batches(role, data)
    return (training.start(config, train),
            jit_step(training.batch_loss, config, train, training.decayed),
            lambda split, index: batches(split, optimizer.seed, index, optimizer.batch_size),
            self._terms(role, None))

  def _model_metrics(self, role: str, params: Any, data: Mapping[str, Split]) -> dict[str, Any]:
    batches = self._batches(role, data)
    compiled = {suffix: self._terms(role, dropped)
                for suffix, dropped in (('', False), (self.without, True))}
    return loop.mean_metrics([
        {f'{name}{suffix}': value for suffix, terms in compiled.items()
         for name, value in terms(params, batches('held_out', 0, index, _BATCH),
                                  jax.random.key(index)).items()}
        for index in range(_NUM_BATCHES)])

  def sized_tokenizer(self, data: Mapping[str, Split]) -> kl_vae.KLVAEConfig:
    """Returns the tokenizer's configuration, by whose scale training latents have variance 1."""
    mean, log_variance = np.moveaxis(data['train'][0].astype(np.float64), 1, 0)
    deviation = np.sqrt(np.var(mean) + np.mean(np.exp(log_variance)))
    return dataclasses.replace(self.tokenizer, scale=round(float(1 / deviation), 5))


def batch_of(config: Any, moments: np.ndarray, conditions: Conditions, scale: float, seed: int,
             index: int, size: int) -> tuple[np.ndarray, Conditions]:
  """Returns batch `index`: tokens `[size, T, C]` sampled for random crops, and their conditions.

  `config` has the grid and the patches of a `mar.MARConfig`, and `conditions` leading axis `N`.
  """
  rng = np.random.default_rng([seed, index])
  chosen = rng.integers(len(moments), size=size)
  mean, log_variance = np.moveaxis(moments[chosen], 1, 0)
  noise = rng.standard_normal(mean.shape, dtype=np.float32)
  latents = (mean + np.exp(0.5 * log_variance) * noise) * np.float32(scale)
  return (np.asarray(mar.patchify(config, latents)),
          jax.tree.map(lambda leaf: leaf[chosen], conditions))
