"""Inception features of sets of images, kept in files, and the scores of two sets."""

import hashlib
import io
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.checkpoints import files, store
from cspd_jax.generation.features import Extractor
from cspd_jax.measure import image_sets
from cspd_jax.metrics import frechet, image_scores, inception
from cspd_jax.metrics.frechet import Gaussian
from cspd_jax.models.inception import Features

_KIND = 'inception'
# Arrays of a features file, and of statistics as ADM and torch-fidelity publish them.
_FEATURES = ('pool', 'spatial', 'logits', 'evaluator', 'network')
_MOMENTS = ('mu', 'sigma')
_SPATIAL_MOMENTS = ('mu_s', 'sigma_s')
_WHERE = (
    'convert the file pt_inception-2015-12-05-6726825d.pth of the releases of mseitzer/pytorch-fid '
    'with cspd-convert --family=inception --source=FILE --output=FOLDER')


class Network(NamedTuple):
  """A converted Inception network.

  Attributes:
    params: its parameters.
    config: its sizes.
    evaluator: a key of `inception.EVALUATORS`.
    digest: identifies the parameters.
  """

  params: Any
  config: inception.InceptionConfig
  evaluator: str
  digest: str


class Source(NamedTuple):
  """A set of images, or what is computed from it; None is not available.

  Attributes:
    images: the images.
    features: their features.
    pool: published moments of the pool features.
    spatial: published moments of the spatial features.
  """

  images: image_sets.ImageSet | None
  features: Features | None
  pool: Gaussian | None
  spatial: Gaussian | None


class Scored(NamedTuple):
  """The numbers of a set of images that scores need; None is not available.

  Attributes:
    num_images: number of images; None for published statistics.
    features: `[N, ...]` of the images.
    pool: moments of the pool features.
    spatial: moments of the spatial features.
  """

  num_images: int | None
  features: Features | None
  pool: Gaussian
  spatial: Gaussian | None


def network(folder: str | None, evaluator: str) -> Network:
  """Loads a converted network.

  Raises:
    ValueError: if the folder does not hold one.
  """
  if folder is None:
    raise ValueError('inception is None; it must be the folder of the converted network: '
                     f'{_WHERE}.')
  kind, config, *_ = store.describe(folder)
  if kind != _KIND:
    raise ValueError(f'inception is {folder!r}, which holds a {kind!r} network; {_WHERE}.')
  params = store.load(folder, dtype=jnp.float32).params
  return Network(params, config, evaluator, digest(params))


def digest(params: Any) -> str:
  """Returns a hexadecimal digest of the parameters of a network."""
  result = hashlib.sha256()
  for leaf in jax.tree.leaves(params):
    result.update(np.asarray(leaf).tobytes())
  return result.hexdigest()


def features(images: image_sets.ImageSet, of: Network, batch_size: int,
             progress: Callable[[int, int], None]) -> Features:
  """Returns the features of a set of images, in host memory.

  Args:
    images: the images.
    of: the network.
    batch_size: images per pass.
    progress: called with the number of images so far and in total.

  Raises:
    ValueError: if an image cannot be read.
  """
  parts, done = [], 0
  for batch in images.batches(batch_size):
    count = len(batch)
    # The last batch is filled up, so that one program suffices.
    full = np.concatenate([batch, np.repeat(batch[-1:], batch_size - count, axis=0)])
    parts.append(jax.tree.map(
        lambda leaf, count=count: np.asarray(leaf)[:count],
        inception.features(of.params, of.config, full, of.evaluator)))
    done += count
    progress(done, images.shape[0])
  return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def save(path: pathlib.Path, values: Features, of: Network) -> None:
  """Writes features to an .npz file, with the evaluator and the network."""
  content = io.BytesIO()
  np.savez(content, **values._asdict(), evaluator=of.evaluator, network=of.digest)
  files.write(path, content.getvalue())


def extractor(of: Network) -> Extractor:
  """Returns what computes features while images are generated, as `save` would write them."""
  compute = lambda images: inception.features(
      of.params, of.config, images, of.evaluator)._asdict()
  return Extractor(compute, dict(evaluator=of.evaluator, network=of.digest))


def opened(argument: str, path: str, of: Network) -> Source:
  """Opens a set of images, their features or published statistics; nothing is computed.

  Args:
    argument: its name, for messages.
    path: a folder of images, an .npz file of images, statistics (`mu`, `sigma`), or of `save`.
    of: the network.

  Raises:
    ValueError: for anything else, features of another network, or numbers that are not finite.
  """
  names = image_sets.arrays(argument, path)
  moments = _moments(argument, path, names, _MOMENTS)
  spatial = _moments(argument, path, names, _SPATIAL_MOMENTS)
  if set(_FEATURES) <= set(names):
    return Source(None, _stored(argument, path, of), moments, spatial)
  if names and 'arr_0' not in names:
    if moments is None:
      raise ValueError(f'{argument} is {path!r}, which holds the arrays {", ".join(names)}; it '
                       'must hold arr_0, or mu and sigma.')
    return Source(None, None, moments, spatial)
  images = image_sets.opened(argument, path)
  if images.shape[0] < 2:
    raise ValueError(f'{argument} is {path!r} with 1 image; at least 2 are required.')
  return Source(images, None, moments, spatial)


def scored(source: Source, of: Network, batch_size: int,
           progress: Callable[[int, int], None]) -> Scored:
  """Computes the features of a set of images, if it has images, and their moments.

  Args:
    source: see `opened`.
    of: see `features`, also for `batch_size` and `progress`.
    batch_size: see `of`.
    progress: see `of`.

  Raises:
    ValueError: if an image cannot be read.
  """
  values = source.features
  if source.images is not None:
    values = features(source.images, of, batch_size, progress)
  if values is None:
    assert source.pool is not None
    return Scored(None, None, source.pool, source.spatial)
  # Published statistics are those of more images than the file holds.
  return Scored(len(values.pool), values, source.pool or frechet.gaussian(values.pool),
                source.spatial or frechet.gaussian(values.spatial))


def _stored(argument: str, path: str, of: Network) -> Features:
  """Features of `save`; raises ValueError for those of another network."""
  with np.load(path, allow_pickle=False) as arrays:
    evaluator, stored = str(arrays['evaluator']), str(arrays['network'])
    if evaluator != of.evaluator:
      raise ValueError(f'{argument} is {path!r} with features for the evaluator {evaluator}, and '
                       f'evaluator is {of.evaluator}; give the images.')
    if stored != of.digest:
      raise ValueError(f'{argument} is {path!r} with features of another network; give the images.')
    return Features(arrays['pool'], arrays['spatial'], arrays['logits'])


def _moments(argument: str, path: str, names: tuple[str, ...], pair: tuple[str, str]
             ) -> Gaussian | None:
  """Published statistics; None if the file does not hold them."""
  if not set(pair) <= set(names):
    return None
  with np.load(path, allow_pickle=False) as arrays:
    mean, covariance = (np.asarray(arrays[name], np.float64) for name in pair)
  if mean.ndim != 1 or covariance.shape != 2 * mean.shape or not (
      np.isfinite(mean).all() and np.isfinite(covariance).all()):
    raise ValueError(f'{argument} is {path!r}, whose {pair[0]} and {pair[1]} have the shapes '
                     f'{mean.shape} and {covariance.shape}; they must be finite, [F] and [F, F].')
  return Gaussian(mean, covariance)


def scores(samples: Scored, reference: Scored, evaluator: str) -> dict[str, float]:
  """Returns the scores by name, such as 'FID (ADM, 50k)'.

  Args:
    samples: generated images, with features.
    reference: other images, or published statistics.
    evaluator: a key of `inception.EVALUATORS`.

  Raises:
    ValueError: if the two have different features, or there are too few images.
  """
  kind, count = inception.EVALUATORS[evaluator], samples.num_images
  label = lambda name: f'{name} ({kind.title}, {short(count)})'
  result = {label('FID'): frechet.distance(samples.pool, reference.pool)}
  if samples.features is None:
    return result
  if 'sFID' in kind.scores and samples.spatial is not None and reference.spatial is not None:
    result[label('sFID')] = frechet.distance(samples.spatial, reference.spatial)
  if 'IS' in kind.scores:
    result[label('IS')] = image_scores.inception_score(samples.features.logits, kind.split)
  if 'precision' in kind.scores and reference.features is not None:
    result[label('precision')], result[label('recall')] = image_scores.precision_recall(
        samples.features.pool, reference.features.pool)
  return result


def short(count: int | None) -> str:
  """Returns a number of images as scores name it, such as 50k."""
  return f'{count // 1000}k' if count and count % 1000 == 0 else str(count)
