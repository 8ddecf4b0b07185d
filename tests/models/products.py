"""Matrix products of functions as they are lowered for a platform."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Product(NamedTuple):
  """A matrix product: types of its operands and of its result, and whether at full precision."""

  left: str
  right: str
  result: str
  full: bool


# Exact on every device: in float32 at full precision, and in bfloat16 with sums in float32.
FLOAT32 = Product('f32', 'f32', 'f32', True)
BFLOAT16 = Product('bf16', 'bf16', 'f32', False)


def lowered(function: Callable[..., Any], *args: Any, platform: str = 'cpu') -> list[Product]:
  """Returns the products of a function of arrays or shapes."""
  text = jax.jit(function).trace(*args).lower(lowering_platforms=(platform,)).as_text()
  lines = [line for line in text.splitlines() if 'stablehlo.dot_general' in line]
  types = lambda line: re.findall(r'(\w+)>', line.rsplit(' : ', 1)[1])
  return [Product(*(kind.split('x')[-1] for kind in types(line)),
                  full='precision = [HIGHEST, HIGHEST]' in line) for line in lines]
