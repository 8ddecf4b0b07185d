"""Draft trees as values of specifications: `EAGLE`, `kary(3, 3)`, `(-1, 0, 0)`."""

from collections.abc import Callable
from typing import Any

from cspd_jax.core import binding
from cspd_jax.core.spec import Call, Part
from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.tree import Tree

PUBLISHED: dict[str, Tree] = {
    name: tree for name, tree in vars(trees).items() if isinstance(tree, Tree)}
CALLS = {build.__name__: build for build in (
    trees.chain, trees.paths, trees.caterpillar, trees.kary, trees.branching, trees.cut)}
WORDS = (f'a tree by name ({", ".join(PUBLISHED)}), by call ({", ".join(CALLS)}; such as '
         'kary(3, 3)), by the parents of its nodes, such as (-1, 0, 0), or, in a window, auto')
# The parameter of a call that sets the number of nodes of the tree.
_NUM_NODES = {'chain': 'length', 'paths': 'num_nodes', 'caterpillar': 'num_nodes',
              'kary': 'num_nodes'}


def tree(name: str, value: Any, window: int | None = None,
         auto: Callable[[int], Tree] | None = None) -> Tree:
  """Returns the tree that a value of a specification describes.

  Args:
    name: the name of the parameter, for errors.
    value: a name, a call or parents; or the tree.
    window: the window of the drafter, if it has one. It is the default number of nodes of a call,
      less one for the root, and the value 'auto' becomes `auto(window)`.
    auto: see `specification.DrafterEntry.auto_tree`.

  Raises:
    ValueError: if the value does not describe a tree.
  """
  if isinstance(value, Tree):
    return value
  if isinstance(value, str) and value in PUBLISHED:
    return PUBLISHED[value]
  if value == 'auto' and window is not None and auto is not None:
    return auto(window)
  if isinstance(value, tuple) and all(isinstance(parent, int) for parent in value):
    return Tree(value)
  if not isinstance(value, Call) or value.name not in CALLS:
    raise ValueError(f'{name} is {value!r}; it must be {WORDS}.')
  build = CALLS[value.name]
  allowed = binding.parameters(build, {Tree})
  if len(value.positional) > len(allowed):
    raise ValueError(
        f'{name} is {value}; {value.name} has {len(allowed)} parameters: {", ".join(allowed)}.')
  arguments = dict(zip(allowed, value.positional))
  if twice := sorted(arguments.keys() & value.arguments):
    raise ValueError(f'{name} is {value}, which sets {twice[0]} twice; set it once.')
  arguments |= value.arguments
  if window is not None and value.name in _NUM_NODES:
    arguments.setdefault(_NUM_NODES[value.name], window - 1)
  inner = binding.Converter(WORDS, lambda name, value: tree(name, value, window, auto))
  return build(**binding.bind(Part(value.name, arguments), allowed, {Tree: inner}))
