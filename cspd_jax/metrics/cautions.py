"""Warnings about scores that mislead, for the number or the order of the images."""

import numpy as np

from cspd_jax.metrics import frechet, image_scores, inception
from cspd_jax.metrics.evaluation import Scored

# A split of shuffled images hardly ever scores this much more than one of the same images in order.
_ORDERED = 1.1


def warnings(samples: Scored, reference: Scored, evaluator: str) -> list[str]:
  """Returns sentences about the scores of `evaluation.scores`, with the remedy; often none.

  Args:
    samples: generated images, with features.
    reference: other images, or published statistics.
    evaluator: a key of `inception.EVALUATORS`.
  """
  kind, sentences = inception.EVALUATORS[evaluator], []
  if frechet.are_equal(samples.pool, reference.pool):
    sentences.append('images and reference are the same images up to rounding, so scores that '
                     'compare them are left out; give other images as the reference')
  else:
    sentences += _few(samples, reference, 'sFID' in kind.scores)
  if samples.features is not None and 'IS' in kind.scores:
    sentences += _splits(samples.features.logits, kind.split)
  return sentences


def _few(samples: Scored, reference: Scored, spatial: bool) -> list[str]:
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
      sentences.append(
          f'the IS is {ordered:.2f} because splits are {split} images in their order, which is by '
          f'class or alike; shuffled images have {shuffled:.2f}: give them in random order, or the '
          'classes in turn')
  return sentences
