"""Values that may be traced."""

import jax


def is_concrete(*trees) -> bool:
  """Whether the values of all leaves can be looked at; those of a traced function cannot."""
  return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))
