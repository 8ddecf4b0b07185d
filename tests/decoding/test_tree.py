"""The topologies, against their definition by brute force."""

import numpy as np
from absl.testing import parameterized

from cspd_jax.decoding import tree as trees

ALL = {
    'no draft': trees.chain(0),
    'chain': trees.chain(5),
    'paths': trees.paths(3, 2, 9),
    'caterpillar': trees.caterpillar(3, 2, 9),
    'kary': trees.kary(3, 3, 15),
    'by hand': trees.Tree((-1, 0, 0, 1, 1, 2, 5)),
}


class TreeTest(parameterized.TestCase):

  @parameterized.named_parameters((name.replace(' ', '_'), tree) for name, tree in ALL.items())
  def test_derived_tables(self, tree):
    for node in range(len(tree.parents)):
      above, at = [], node
      while at != -1:
        above.append(at)
        at = tree.parents[at]
      self.assertEqual(tree.depth[node], len(above) - 1)
      self.assertEqual(set(np.flatnonzero(tree.ancestors[node])), set(above))
      self.assertEqual(list(tree.paths[node][:len(above)]), above[::-1])
      beyond = np.arange(len(above), tree.max_depth + 1)
      np.testing.assert_array_equal(tree.paths[node][len(above):], beyond)
      children = [n for n, parent in enumerate(tree.parents) if parent == node]
      self.assertEqual([c for c in tree.children[node] if c >= 0], children)
      self.assertEqual([tree.rank[c] for c in children], list(range(len(children))))

  def test_topologies(self):
    # Three paths of depth 2, the first one longer: K D nodes at depths 1 and 2.
    tree = trees.paths(3, 2, 9)
    self.assertEqual((tree.main_length, tree.side_depth), (5, 2))
    np.testing.assert_array_equal(np.bincount(tree.depth), [1, 3, 3, 1, 1, 1])
    np.testing.assert_array_equal(tree.rank[6:], [1, 0, 2, 0])
    # Three candidates at depths 1 and 2, siblings of the spine.
    tree = trees.caterpillar(3, 2, 9)
    self.assertEqual((tree.main_length, tree.side_depth), (5, 2))
    np.testing.assert_array_equal(tree.rank[6:], [1, 2, 1, 2])
    self.assertEqual(tree.parents[6:], (0, 0, 1, 1))
    # The full ternary tree with three levels: 3 + 9 nodes.
    tree = trees.kary(3, 3, 15)
    np.testing.assert_array_equal(np.bincount(tree.depth), [1, 3, 9, 1, 1, 1])
    self.assertTrue(np.all(np.sum(tree.children[tree.depth < 2] > 0, axis=1) == 3))
    # The tree of the released code with its defaults: 13 nodes with the root, then a chain.
    self.assertEqual(trees.kary(3, 3, 63).main_length, 63 - 12 + 2)

  def test_hashable_and_equal(self):
    self.assertEqual(hash(trees.chain(3)), hash(trees.paths(1, 1, 3)))
    self.assertEqual(trees.chain(3), trees.caterpillar(1, 2, 3))
