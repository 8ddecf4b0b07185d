"""Rules that convert published tensors to parameters and back.

A rule names one published tensor and the parameters it becomes, or several that become one. Names
may contain placeholders such as `{i}` for numbers; a rule applies to every parameter of the network
whose path matches. Paths join the keys of the parameter tree with '/'. Every transform has an exact
inverse, so that the published names and shapes of any size follow from the network itself.
"""

import functools
import importlib.resources
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Transform(NamedTuple):
  """An exact rearrangement of numbers, from published arrays to a tuple of parameters and back.

  The inverse returns the published array, or a tuple if there are several.
  """

  forward: Callable[[Any], tuple[Any, ...]]
  inverse: Callable[..., Any]


class Rule(NamedTuple):
  """One published tensor and the parameters it becomes, or several that become one.

  `source` is the published name, or names, and `destinations` are the paths of the parameters, both
  in the order of the transform.
  """

  source: str | tuple[str, ...]
  destinations: tuple[str, ...]
  transform: Transform

  @property
  def sources(self) -> tuple[str, ...]:
    """All published names."""
    return (self.source,) if isinstance(self.source, str) else self.source

  def publish(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the published arrays by name, from all parameters by path."""
    arrays = self.transform.inverse(*(parameters[path] for path in self.destinations))
    if isinstance(self.source, str):
      arrays = (arrays,)
    return dict(zip(self.sources, arrays, strict=True))


KEEP = Transform(lambda x: (x,), lambda x: x)
# PyTorch stores matrices as [out, in] and convolutions as [out, in, height, width].
MATRIX = Transform(lambda x: (x.T,), lambda x: x.T)
CONVOLUTION = Transform(lambda x: (x.transpose(2, 3, 1, 0),), lambda x: x.transpose(3, 2, 0, 1))
# A 1x1 convolution is a matrix.
POINTWISE = Transform(lambda x: (x[:, :, 0, 0].T,), lambda x: x.T[:, :, None, None])


def separate_heads(num_heads: int, halves: bool = False, rotary: int | None = None) -> Transform:
  """Rearranges `[H E, D]` to `[D, H, E]`, and biases `[H E]` to `[H, E]`.

  Some published models rotate component `i` of an attention head with `i + E / 2`; the networks
  here rotate `2 i` with `2 i + 1`. With `halves`, queries and keys are reordered from those to
  these, alike, which preserves their products. If only the first `rotary` components rotate, these
  are reordered among themselves.
  """
  def reordered(x, order):
    if not halves or rotary is None:
      return order(x) if halves else x
    return x.__array_namespace__().concatenate([order(x[:, :rotary]), x[:, rotary:]], axis=1)

  def forward(x):
    x = x.reshape(num_heads, -1, *x.shape[1:])
    return (reordered(x, _to_pairs).transpose(*range(2, x.ndim), 0, 1),)

  def inverse(x):
    x = x.transpose(x.ndim - 2, x.ndim - 1, *range(x.ndim - 2))
    return reordered(x, _to_halves).reshape(-1, *x.shape[2:])

  return Transform(forward, inverse)


def split_heads(num_heads: int, num_kv_heads: int) -> Transform:
  """Splits `[(H + 2 K) E, ...]`, query then key then value, and separates the heads of each."""
  counts = (num_heads, num_kv_heads, num_kv_heads)
  parts = [separate_heads(count) for count in counts]

  def forward(fused):
    bounds = np.cumsum(counts[:-1]) * (len(fused) // sum(counts))
    return tuple(part.forward(x)[0] for part, x in zip(parts, np.split(fused, bounds)))

  def inverse(*separate):
    # `concatenate` of NumPy or JAX: the shapes of big networks are traced with JAX.
    library = separate[0].__array_namespace__()
    return library.concatenate([part.inverse(x) for part, x in zip(parts, separate)])

  return Transform(forward, inverse)


def join_heads(num_heads: int) -> Transform:
  """Rearranges `[D, H E]` to `[H, E, D]`."""
  return Transform(lambda x: (x.T.reshape(num_heads, -1, len(x)),),
                   lambda x: x.reshape(-1, x.shape[-1]).T)


def separate_shared_norm(halves: bool) -> Transform:
  """Reorders the scales `[E]` of a norm that all heads share."""
  return Transform(lambda x: (_to_pairs(x[None])[0] if halves else x,),
                   lambda x: _to_halves(x[None])[0] if halves else x)


def head_norm(num_heads: int, num_rows: int, halves: bool = True) -> Transform:
  """Repeats `[num_rows, E]`, a row for several adjacent heads, to `[H, E]`.

  With 0 rows the published tensor is one vector `[E]` for all heads.
  """
  repeats = num_heads // max(num_rows, 1)

  def forward(x):
    x = x.reshape(-1, x.shape[-1])
    return ((_to_pairs(x) if halves else x).repeat(repeats, axis=0),)

  def inverse(x):
    x = _to_halves(x[::repeats]) if halves else x[::repeats]
    return x if num_rows else x[0]

  return Transform(forward, inverse)


def _to_pairs(x):
  """Turns axis 1 from a first and a second half into pairs of both."""
  return x.reshape(x.shape[0], 2, -1, *x.shape[2:]).swapaxes(1, 2).reshape(x.shape)


def _to_halves(x):
  return x.reshape(x.shape[0], -1, 2, *x.shape[2:]).swapaxes(1, 2).reshape(x.shape)


def reorder(order: np.ndarray) -> Transform:
  """Reorders rows: row `i` of the parameter is row `order[i]` of the published tensor."""
  inverse = np.argsort(order)
  return Transform(lambda x: (x[order],), lambda x: x[inverse])


def only_rows(first: int, count: int, total: int) -> Transform:
  """Takes some of the `total` rows of a matrix, as columns; the inverse pads with zeros."""
  def inverse(x):
    library = x.__array_namespace__()
    zeros = lambda count: library.zeros((count, len(x)), dtype=x.dtype)
    return library.concatenate([zeros(first), x.T, zeros(total - first - count)])

  return Transform(lambda x: (x[first:first + count].T,), inverse)


def replaced(name: str, parts: Sequence[tuple[str, str]], backwards: bool = False) -> str:
  """Replaces parts of a name by others, in this order; `backwards` undoes it."""
  for old, new in [pair[::-1] for pair in reversed(parts)] if backwards else parts:
    name = name.replace(old, new)
  return name


def renamed(rules: Iterable[Rule], name: Callable[[str], str]) -> list[Rule]:
  """Returns rules with other published names, `name` of those that they have."""
  return [rule._replace(source=name(rule.source) if isinstance(rule.source, str)
                        else tuple(map(name, rule.source))) for rule in rules]


def layer(source: str, destination: str, transform: Transform, bias: Transform = KEEP
          ) -> list[Rule]:
  """Returns the rules of a linear or convolutional layer with a bias."""
  return [Rule(f'{source}.weight', (f'{destination}/kernel',), transform),
          Rule(f'{source}.bias', (f'{destination}/bias',), bias)]


def norm(source: str, destination: str) -> list[Rule]:
  """Returns the rules of a normalisation with scale and bias."""
  return [Rule(f'{source}.weight', (f'{destination}/scale',), KEEP),
          Rule(f'{source}.bias', (f'{destination}/bias',), KEEP)]


def llama_layer(source: str, destination: str, num_heads: int, num_kv_heads: int,
                halves: bool = True, rotary: int | None = None) -> list[Rule]:
  """Returns the rules of a layer like Llama's, with or without biases of queries, keys and values.

  `source` is the prefix of the published names, which are those of transformers, `destination` that
  of the parameters; `halves` and `rotary` as for `separate_heads`.
  """
  table = [
      Rule(f'{source}self_attn.o_proj.weight', (f'{destination}out',), join_heads(num_heads)),
      Rule(f'{source}input_layernorm.weight', (f'{destination}attention_norm/scale',), KEEP),
      Rule(f'{source}post_attention_layernorm.weight', (f'{destination}ffn_norm/scale',), KEEP)]
  table += [Rule(f'{source}mlp.{name}_proj.weight', (f'{destination}{name}',), MATRIX)
            for name in ('gate', 'up', 'down')]
  for name, count in (('query', num_heads), ('key', num_kv_heads), ('value', num_kv_heads)):
    separate = separate_heads(count, halves and name != 'value', rotary)
    table += [Rule(f'{source}self_attn.{name[0]}_proj.{leaf}', (f'{destination}{ours}',), separate)
              for leaf, ours in (('weight', name), ('bias', f'{name}_bias'))]
  return table


def head_norms(source: str, destination: str, num_heads: int, num_kv_heads: int,
               num_rows: int | None, halves: bool = True) -> list[Rule]:
  """Returns the rules of the norms of queries and keys; arguments as for `llama_layer`.

  A published norm has `num_rows`; 0 is one vector for all heads, None one row for each.
  """
  table = []
  for name, count in (('query', num_heads), ('key', num_kv_heads)):
    transform = head_norm(count, count if num_rows is None else min(num_rows, count), halves)
    published, ours = f'{source}self_attn.{name[0]}_norm', f'{destination}{name}_norm'
    table += [Rule(f'{published}.weight', (f'{ours}/scale',), transform),
              Rule(f'{published}.bias', (f'{ours}/bias',), transform)]
  return table


def expand(rules: Iterable[Rule], paths: Iterable[str]) -> list[Rule]:
  """Returns rules for every published tensor of one network, in the order of the parameters.

  Placeholders are filled in, and rules for parameters that the network does not have left out.
  Raises ValueError unless exactly one rule builds each parameter.
  """
  rules, paths = list(rules), list(paths)
  expanded: list[Rule] = []
  built: list[str] = []
  patterns = [_pattern(rule.destinations[0]) for rule in rules]
  for path in paths:
    for rule, pattern in zip(rules, patterns, strict=True):
      if match := pattern.fullmatch(path):
        numbers = match.groupdict()
        destinations = tuple(name.format(**numbers) for name in rule.destinations)
        expanded.append(Rule(rule.source.format(**numbers) if isinstance(rule.source, str) else
                             tuple(name.format(**numbers) for name in rule.source),
                             destinations, rule.transform))
        built.extend(destinations)
  if sorted(built) != sorted(paths):
    wrong = sorted(path for path in {*built, *paths} if built.count(path) != paths.count(path))
    raise ValueError(f'The rules do not build each of these parameters once: {wrong}.')
  return expanded


def _pattern(destination: str) -> re.Pattern[str]:
  return re.compile(re.sub(r'\\\{(\w)\\\}', r'(?P<\1>\\d+)', re.escape(destination)))


_NUM_CLASSES = 1000


def metadata(num_classes: int) -> dict[str, Any]:
  """Returns the class names as metadata of a checkpoint, if it has 1000 classes."""
  return {'labels': list(names())} if num_classes == _NUM_CLASSES else {}


@functools.cache
def names() -> tuple[str, ...]:
  """Returns the 1000 names in the order of ILSVRC 2012; no two are equal in lower case."""
  text = importlib.resources.files('checkpoints_conversion').joinpath('imagenet_classes.txt')
  return tuple(text.read_text(encoding='utf-8').splitlines())
