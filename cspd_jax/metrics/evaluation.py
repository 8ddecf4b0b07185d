"""Inception features of sets of images, kept in files, the scores of two sets, and warnings.

A warning is about a score that misleads, for the number, the order or the range of the images.
"""

import functools
import hashlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from cspd_jax.core import batches, progress as progress_lib
from cspd_jax.files import atomic, npz, reading, store, weights
from cspd_jax.files.run_folder import Keep, nothing
from cspd_jax.generation import memory
from cspd_jax.generation.gallery import Extractor
from cspd_jax.metrics import image_scores, image_sets, inception
from cspd_jax.metrics.image_scores import FeatureMoments
from cspd_jax.models import inception as network_lib
from cspd_jax.models.inception import SIDE, Features

# Arrays of a features file, and of statistics as ADM and torch-fidelity publish them by features.
_LABELS = ('evaluator', 'network')
_FEATURES = (*Features._fields, *_LABELS)
_MOMENTS = {'pool': ('mu', 'sigma'), 'spatial': ('mu_s', 'sigma_s')}
_STATISTICS = tuple(name for pair in _MOMENTS.values() for name in pair)
# How far a covariance may be from symmetric and positive, as a share of its largest eigenvalue:
# in float16 they are off by half of it. Larger numbers than the limit overflow in a distance.
_ROUNDING, _LIMIT = 1e-3, 1e100
_REMEDY = 'give a folder of images or an .npz file'
# Bytes of a batch per number of its pixels, which become float32, and per number of the network's
# input and unit of its width, for the results of its first layers.
_PIXELS, _LAYERS = 10, 16
# Images of `extractor` that pass the network at once.
_BATCH = 32
_WHERE = (
    'convert the file pt_inception-2015-12-05-6726825d.pth of the releases of mseitzer/pytorch-fid '
    'with cspd-convert --family=inception --source=FILE --output=FOLDER')


class InceptionEvaluator(NamedTuple):
  """A converted Inception network, an evaluator of `inception.EVALUATORS`, and the digest of it."""

  params: Any
  config: inception.InceptionConfig
  evaluator: str
  digest: str


class Source(NamedTuple):
  """A set of images, or what is computed from it; None is not available.

  `pool` and `spatial` are published moments; `left_out` names files or arrays that are neither.
  """

  images: image_sets.ImageSet | None
  features: Features | None
  pool: FeatureMoments | None
  spatial: FeatureMoments | None
  left_out: tuple[str, ...] = ()

  @property
  def num_images(self) -> int | None:
    """The number of images, None for published statistics alone."""
    if self.features is not None:
      return len(self.features.pool)
    return None if self.images is None else self.images.num_images


def load(folder: str | None, evaluator: str) -> InceptionEvaluator:
  """Loads a converted network; raises ValueError if there is none in the folder."""
  if folder is None:
    raise ValueError('inception is None; it must be the folder of the converted network: '
                     f'{_WHERE}.')
  params, config, digest = network('inception', folder, _WHERE)
  return InceptionEvaluator(params, config, evaluator, digest)


def network(kind: str, folder: str, remedy: str) -> tuple[Any, Any, str]:
  """Loads a network of a kind: parameters, config and digest; ValueError without one."""
  stored, config, *_ = store.describe(folder, name=kind, remedy=remedy)
  if stored != kind:
    raise ValueError(f'{kind} is {folder!r}, which holds a {stored!r} network; {remedy}.')
  params = store.load(folder, dtype=jnp.float32, allow_nonfinite=True).params
  digest = hashlib.sha256()
  for name, leaf in weights.named(params).items():
    array = np.asarray(leaf)
    if not np.isfinite(array).all():
      raise ValueError(f'{kind} is {folder!r}, whose {name} holds numbers that are not finite, so '
                       f'that no score would be a number; {remedy}.')
    digest.update(array.tobytes())
  return params, config, digest.hexdigest()


def features(images: image_sets.ImageSet, of: InceptionEvaluator, batch_size: int,
             progress: Callable[[int, int], None], keep: Keep = nothing) -> Features:
  """Returns the features of a set of images, in host memory.

  At most `batch_size` images pass the network at once; `progress` is called with the number of
  images so far and in total, and `keep` keeps the results of batches. An unreadable image raises
  ValueError.
  """
  batch_size = min(batch_size, images.num_images)
  prepare = functools.partial(inception.resized, evaluator=of.evaluator)
  # They are read in their order.
  stream = images.batches(batch_size) if images.other is None else images.batches(
      batch_size, prepare)

  def of_batch(index: np.ndarray) -> dict[str, np.ndarray]:
    # The last batch is filled up, so that one program suffices.
    full = batches.padded(next(stream), len(index))
    compute = lambda: {name: np.asarray(leaf) for name, leaf in inception.features(
        of.params, of.config, full, of.evaluator)._asdict().items()}
    return dict(keep((of.digest, of.evaluator, full), compute))

  values = batches.mapped(of_batch, images.num_images, batch_size, progress)
  return Features(*(values[name] for name in Features._fields))


def save(path: pathlib.Path, values: Features, of: InceptionEvaluator) -> None:
  """Writes features to an .npz file, with the evaluator and the network."""
  atomic.write_arrays(path, {
      **values._asdict(), 'evaluator': np.array(of.evaluator), 'network': np.array(of.digest)})


def extractor(of: InceptionEvaluator) -> Extractor:
  """Returns an extractor of features for a `Gallery`, which writes them in the format of `save`."""
  def compute(images: Sequence[pathlib.Path], keep: Keep) -> dict[str, np.ndarray]:
    of_images = image_sets.ImageSet(
        images[0].parent, tuple(path.name for path in images), len(images),
        reading.size_of_photograph(images[0], _REMEDY))
    with progress_lib.bar('features') as show:
      return features(of_images, of, _BATCH, show, keep)._asdict()

  return Extractor(compute, dict(evaluator=of.evaluator, network=of.digest))


def opened(argument: str, path: str, of: InceptionEvaluator, batch_size: int) -> Source:
  """Opens a set of images, their features or published statistics; nothing is computed.

  The path leads to a folder of images, or an .npz file of images, statistics (`mu`, `sigma`), or
  of `save`. Anything else, features of another network, arrays that contradict each other, and
  batches that do not fit in memory raise ValueError.
  """
  arrays = image_sets.stored(argument, path)
  left_out = lambda names, *read: tuple(name for name in names if name not in (*_STATISTICS, *read))
  where, widths = f'{argument} is {path!r}', network_lib.widths(of.config)
  pool, spatial = (_moments(where, path, arrays, pair, getattr(widths, kind))
                   for kind, pair in _MOMENTS.items())
  if set(_FEATURES) <= set(arrays):
    return Source(None, _stored(where, path, arrays, of, widths), pool, spatial,
                  left_out(arrays, 'arr_0', *_FEATURES))
  if arrays and 'arr_0' not in arrays:
    if pool is None:
      raise ValueError(f'{where}, which holds the arrays {", ".join(arrays)}; it must hold arr_0, '
                       'or mu and sigma.')
    return Source(None, None, pool, spatial, left_out(arrays))
  images = image_sets.opened(argument, path)
  if images.num_images < 2:
    raise ValueError(f'{where} with 1 image; at least 2 are required.')
  if images.other is not None and inception.EVALUATORS[of.evaluator].one_size:
    name, size = images.other
    raise ValueError(f'{where}, whose image {name!r} has {size[0]}x{size[1]} pixels and the first '
                     f'one {images.size[0]}x{images.size[1]}; the evaluator {of.evaluator} reads '
                     'images of one size, so resize them, or give --evaluator=pytorch_fid.')
  height, width = images.size if images.other is None else (SIDE, SIDE)
  each = 3 * _PIXELS * height * width + _LAYERS * of.config.unit * SIDE**2
  memory.check_batch(min(batch_size, images.num_images), each, f' of {height}x{width} pixels')
  return Source(images, None, pool, spatial, left_out(images.left_out))


def check_counts(samples: Source, reference: Source, of: InceptionEvaluator) -> None:
  """Raises ValueError if there are too few images for the scores of an evaluator."""
  kind = inception.EVALUATORS[of.evaluator]
  counts = dict(images=samples.num_images, reference=reference.num_images)
  least = dict.fromkeys(counts, 2)
  if 'precision' in kind.scores and None not in counts.values():
    least = dict.fromkeys(counts, image_scores.LEAST_IMAGES)
  if 'IS' in kind.scores and kind.split is None:
    least['images'] = image_scores.SPLITS
  for name, count in counts.items():
    if count is not None and count < least[name]:
      raise ValueError(f'{name} has {count} images; the evaluator {of.evaluator} requires at least '
                       f'{least[name]}.')


def scored(source: Source, of: InceptionEvaluator, batch_size: int,
           progress: Callable[[int, int], None], keep: Keep = nothing) -> Source:
  """Returns what `opened` returned with the features of its images and their moments."""
  values = source.features
  if source.images is not None:
    values = features(source.images, of, batch_size, progress, keep)
  if values is None:
    return source
  # Published statistics are of more images than the file contains.
  return source._replace(
      features=values, pool=source.pool or image_scores.gaussian(values.pool),
      spatial=source.spatial or image_scores.gaussian(values.spatial))


def _stored(where: str, path: str, arrays: Mapping[str, npz.Header], of: InceptionEvaluator,
            widths: Features) -> Features:
  """Features of `save`; raises ValueError for another network's, or inconsistent ones."""
  if wrong := [name for name in _LABELS if arrays[name].shape or arrays[name].dtype.kind != 'U'
               or arrays[name].dtype.itemsize > 4000]:  # A thousand letters.
    raise ValueError(f'{where}, whose {wrong[0]} is not a text; give the images.')
  labels = npz.arrays(path, _REMEDY, only=_LABELS)
  stored = inception.EVALUATORS.get(evaluator := str(labels['evaluator']))
  if stored is None or not inception.EVALUATORS[of.evaluator].has_features_of(stored):
    raise ValueError(f'{where} with features for the evaluator {evaluator!r}, and evaluator is '
                     f'{of.evaluator}; give the images.')
  if str(labels['network']) != of.digest:
    raise ValueError(f'{where} with features of another network; give the images.')
  count = arrays['arr_0' if 'arr_0' in arrays else 'pool'].shape[:1]
  for name, width in widths._asdict().items():
    shape, dtype, _ = arrays[name]
    if shape != (*count, width) or shape[0] < 2 or dtype != np.float32:
      raise ValueError(f'{where}, whose {name} is {dtype}{list(shape)}; it must be float32 [N, '
                       f'{width}], and all arrays must have the same N, at least 2: give the '
                       'images.')
  values = Features(**npz.arrays(path, _REMEDY, only=Features._fields))
  for name, value in values._asdict().items():
    if not np.isfinite(value).all():
      raise ValueError(f'{where}, whose {name} is not finite; give the images.')
  return values


def _moments(where: str, path: str, arrays: Mapping[str, npz.Header], pair: tuple[str, str],
             width: int) -> FeatureMoments | None:
  """Published statistics of `width` features; None if they are not in the file."""
  if not set(pair) & set(arrays):
    return None
  if missing := set(pair) - set(arrays):
    raise ValueError(f'{where}, which holds no {missing.pop()}; statistics are '
                     f'{" and ".join(pair)}.')
  shapes = (width,), (width, width)
  for name, shape in zip(pair, shapes, strict=True):
    actual, dtype, _ = arrays[name]
    if actual != shape or dtype.kind not in 'fiu':
      raise ValueError(f'{where}, whose {name} is {dtype}{list(actual)}; for this network it must '
                       f'be real numbers {list(shape)}, so give statistics of its features.')
  read = npz.arrays(path, _REMEDY, only=pair)
  mean, covariance = (np.asarray(read[name], np.float64) for name in pair)
  if problem := _problem(mean, covariance):
    raise ValueError(f'{where}, whose {pair[0]} and {pair[1]} are no mean and covariance; those '
                     f'are {problem}, so compute them again.')
  return FeatureMoments(mean, covariance)


def _problem(mean: np.ndarray, covariance: np.ndarray) -> str | None:
  """Returns what a mean and a covariance should be and are not; None if there is nothing."""
  # Comparisons with NaN are False.
  if not all(np.all(np.abs(values) < _LIMIT) for values in (mean, covariance)):
    return 'finite'
  values = np.linalg.eigvalsh(covariance)
  if np.abs(covariance - covariance.T).max() > _ROUNDING * np.abs(values).max():
    return 'symmetric'
  return 'without negative eigenvalues' if values[0] < -_ROUNDING * values[-1] else None


def scores(samples: Source, reference: Source, evaluator: str) -> dict[str, float]:
  """Returns the scores by name, such as 'FID (ADM, 50k)'.

  Those that compare the samples with a reference are left out if these are equal up to rounding.
  Too few images raise ValueError.
  """
  kind, count = inception.EVALUATORS[evaluator], samples.num_images
  assert samples.pool is not None and reference.pool is not None  # See `scored`.
  label = lambda name: f'{name} ({kind.title}, {short(count)})'
  equal, result = image_scores.are_equal(samples.pool, reference.pool), {}
  if not equal:
    result[label('FID')] = image_scores.distance(samples.pool, reference.pool)
  if samples.features is None:
    return result
  if 'sFID' in kind.scores and not (equal or samples.spatial is None or reference.spatial is None):
    result[label('sFID')] = image_scores.distance(samples.spatial, reference.spatial)
  if 'IS' in kind.scores:
    result[label('IS')] = image_scores.inception_score(samples.features.logits, kind.split)
  if 'precision' in kind.scores and not (equal or reference.features is None):
    result[label('precision')], result[label('recall')] = image_scores.precision_recall(
        samples.features.pool, reference.features.pool)
  return result


def short(count: int | None) -> str:
  """Returns a number of images as scores name it, such as 50k."""
  return f'{count // 1000}k' if count and count % 1000 == 0 else str(count)


# Images that are looked at for the range of a set's numbers.
_FIRST = 8
# A split of shuffled images hardly ever scores this much more than one of the same images in order.
_ORDERED = 1.1


def warnings(samples: Source, reference: Source, evaluator: str) -> list[str]:
  """Returns sentences about the scores of `evaluation.scores`, with the remedy; often none."""
  kind, sentences = inception.EVALUATORS[evaluator], _black(samples, reference)
  assert samples.pool is not None and reference.pool is not None  # See `scored`.
  if image_scores.are_equal(samples.pool, reference.pool):
    sentences.append('images and reference are the same images up to rounding, so scores that '
                     'compare them are left out; give other images as the reference')
  else:
    sentences += _few(samples, reference, 'sFID' in kind.scores)
  if samples.features is not None and 'IS' in kind.scores:
    sentences += _splits(samples.features.logits, kind.split)
  return sentences


def _black(samples: Source, reference: Source) -> list[str]:
  """Sets whose first images have no number above 1, as numbers in [0, 1] that were made whole."""
  return [f'{name} is {str(source.images.path)!r}, whose first images have no number above 1 and '
          'are black, as when numbers from 0 to 1 are stored as uint8; multiply them by 255 before'
          for name, source in (('images', samples), ('reference', reference))
          if source.images is not None and source.images.largest(_FIRST) <= 1]


def _few(samples: Source, reference: Source, spatial: bool) -> list[str]:
  """Sets with fewer images than features, of the FID and, if `spatial`, of the sFID."""
  sentences = []
  for name, images in (('images', samples), ('reference', reference)):
    if images.features is None:
      continue
    sizes = {'FID': images.features.pool.shape[1]}
    if spatial and samples.spatial is not None and reference.spatial is not None:
      sizes['sFID'] = images.features.spatial.shape[1]
    count = len(images.features.pool)
    if short := [f'{size} of the {score}' for score, size in sizes.items() if count < size]:
      sentences.append(
          f'{name} has {count} images, fewer than features ({" and ".join(short)}), so that their '
          'number changes the score more than their quality; give at least '
          f'{max(sizes.values())}, and as many as the figure you compare with has')
  return sentences


def _splits(logits: np.ndarray, split: int | None) -> list[str]:
  """Splits of the inception score that are small, unequal or ordered."""
  count, classes = logits.shape
  sizes, sentences = np.diff(image_scores.bounds(count, split)), []
  least = int(sizes.min())
  if split is not None and least < sizes[0]:
    sentences.append(f'the last of {len(sizes)} splits of the IS has {least} images in place of '
                     f'{split}, and scores at most {least}; give a multiple of {split} images')
  elif least < classes:
    sentences.append(f'the IS has splits of {least} images, which score at most {least}, and the '
                     f'network has {classes} classes; give more images')
  if split is not None and len(sizes) > 1:
    order = np.random.default_rng(0).permutation(count)
    ordered, shuffled = (image_scores.inception_score(values, split)
                         for values in (logits, logits[order]))
    if shuffled > _ORDERED * ordered:
      sentences.append(f'the IS is {ordered:.2f} because splits are {split} images in their order, '
                       f'which is by class or alike; shuffled images have {shuffled:.2f}: give '
                       'them in random order, or the classes in turn')
  return sentences
