"""Exact verification: the output follows the target's distribution."""

from cspd_jax.decoding import accept
from cspd_jax.decoding.base import Verifier
from cspd_jax.decoding.verifiers.node_tests import NodeTest, rejection


def exact() -> Verifier:
  """Multi-candidate speculative verification along a tree.

  Candidate `k` of a group of siblings is accepted with probability `min(1, p / q)`, where `p` is
  the residual target distribution after `k - 1` rejections and `q` is the draft distribution
  without the earlier candidates (unchanged if candidates are drawn independently). Lossless:
  Leviathan et al., arXiv 2211.17192, and for trees SJD-PAC, arXiv 2603.18599, Theorem 2.
  """
  return rejection(lambda max_depth: _TEST, exact=True)


_TEST = NodeTest(
    mass=lambda p, q, token, depth: accept.take(p, token),
    residual=lambda p, q, token, depth: accept.residual(p, q))
