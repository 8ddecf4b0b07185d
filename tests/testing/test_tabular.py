"""The tabular model: its enumerated distribution, and that its target reads the right prefixes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import tree as trees
from cspd_jax.testing.tabular import prefix_lengths, prefix_number, tabular
from tests.marks import representative


def test_prefixes_are_numbered_shortest_first():
  prefixes = [
      prefix for length in range(4) for prefix in itertools.product(range(3), repeat=length)]
  numbers = [int(prefix_number(np.array(prefix, int), 3)) for prefix in prefixes]
  assert numbers == list(range(len(prefixes)))
  np.testing.assert_array_equal(prefix_lengths(3, 4), [len(prefix) for prefix in prefixes])


@pytest.mark.slow
def test_distribution_is_the_product_of_conditionals():
  model = tabular(jax.random.key(0), 3, 3, guided=True, num_classes=2, forced={1: 2})
  sampling = SamplingParams(guidance_scale=1.4, temperature=0.8)
  distribution = model.distribution(sampling, label=1)
  np.testing.assert_allclose(distribution.sum(), 1)
  logits = np.asarray(model.params[1], np.float64)
  for sequence, probability in zip(model.sequences(), distribution):
    want = 1.0
    for k, token in enumerate(sequence):
      number = prefix_number(sequence[:k], 3)
      x = (logits[1, number] + 1.4 * (logits[0, number] - logits[1, number])) / 0.8
      conditional = np.exp(x) / np.exp(x).sum() if k != 1 else np.eye(3)[2]
      want *= conditional[token]
    np.testing.assert_allclose(probability, want, rtol=1e-5)


@pytest.mark.parametrize('tree', representative(
    [trees.kary(2, 3, 6), trees.chain(3), trees.paths(2, 2, 4)], trees.kary(2, 3, 6)))
def test_score_and_commit_read_the_right_prefix(tree):
  model = tabular(jax.random.key(0), 3, 6)
  rng = np.random.default_rng(0)
  image = rng.integers(0, 3, 6)
  _, _, cache = model.target.prefill(model.params, jnp.zeros(1, int), 12)
  logits_of = lambda prefix: model.params[0, 0, prefix_number(np.asarray(prefix), 3)]
  for start in range(3):
    nodes = np.concatenate([[image[start]], rng.integers(0, 3, tree.num_nodes)])
    logits, _, after = model.target.score(
        model.params, cache, jnp.asarray(nodes)[None], jnp.asarray([start]), tree)
    for node in range(tree.num_nodes + 1):
      path = nodes[tree.paths[node][:tree.depth[node] + 1]]
      prefix = np.concatenate([image[:start], path])
      if len(prefix) < 6:
        np.testing.assert_array_equal(logits[0, 0, node], logits_of(prefix))
    # The deepest node is committed; its path becomes part of the image.
    last = tree.num_nodes
    path = tree.paths[last]
    committed = model.target.commit(after, jnp.asarray([start]), jnp.asarray(path[None, 1:]))
    depth = tree.depth[last]
    np.testing.assert_array_equal(committed[1][0, start:start + depth + 1], nodes[path[:depth + 1]])
    cache = after
