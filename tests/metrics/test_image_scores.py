"""Inception score, precision and recall, against plain loops."""

import numpy as np
import pytest

from cspd_jax.metrics import image_scores


def _plain_score(logits):
  p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  return np.exp(np.mean([np.sum(row * np.log(row / p.mean(axis=0))) for row in p]))


def test_inception_score():
  logits = np.random.default_rng(0).normal(0, 2, (25, 7))
  splits = [logits[:10], logits[10:20], logits[20:]]
  expected = np.mean([_plain_score(part) for part in splits])
  assert image_scores.inception_score(logits, 10) == pytest.approx(expected, rel=1e-9)
  assert image_scores.inception_score(logits, 5000) == pytest.approx(_plain_score(logits), rel=1e-9)
  order = np.random.RandomState(2020).permutation(25)
  parts = [logits[order][i * 25 // 10:(i + 1) * 25 // 10] for i in range(10)]
  shuffled = np.mean([_plain_score(part) for part in parts])
  assert image_scores.inception_score(logits, None) == pytest.approx(shuffled, rel=1e-9)


def _plain_share(points, manifold):
  distances = np.linalg.norm(manifold[:, None] - manifold[None], axis=-1)
  radii = np.sort(distances, axis=1)[:, 3]
  return np.mean([(np.linalg.norm(manifold - point, axis=-1) <= radii).any() for point in points])


@pytest.mark.parametrize('origin', [0, 10000])
def test_precision_and_recall(monkeypatch, origin):
  monkeypatch.setattr(image_scores, '_ROWS', 8)  # Several blocks, the last one smaller.
  rng = np.random.default_rng(0)
  samples = rng.normal(0, 1, (21, 3)).astype(np.float32)
  reference = rng.normal(.8, 1, (30, 3)).astype(np.float32)
  samples, reference = samples + np.float32(origin), reference + np.float32(origin)
  result = image_scores.precision_recall(samples, reference)
  assert result == (_plain_share(samples, reference), _plain_share(reference, samples))
  assert result[0] != result[1] and min(result) > 0 and max(result) < 1


@pytest.mark.slow
def test_inception_score_with_probabilities_that_underflow():
  logits = np.array([[0., 0., -1e4], [0., 3., -1e4], [5., 0., -1e4]])
  score = image_scores.inception_score(logits, 10)
  assert score == pytest.approx(image_scores.inception_score(logits[:, :2], 10), rel=1e-9)
