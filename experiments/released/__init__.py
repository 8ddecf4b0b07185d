"""Other people's code: loops of clones of their projects, run with the weights of a model here.

The code of other projects is not part of this repository. A method names the clone that it needs;
what a module here changes of it, it changes in memory, and its docstring says so.
"""

import contextlib
import importlib
import importlib.metadata
import pathlib
import re
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from checkpoints_conversion import convert, rules
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp
from cspd_jax.files import store
from cspd_jax.generation.model import Model

# The tokens and head calls per pass of decoders of continuous tokens.
OF_ROUNDS = 'docs/reports/continuous_windows.json'


class Decodes(NamedTuple):
  """Images of one decoder.

  Attributes:
    tokens: `[N, T, ...]`.
    passes: `[N]` forward passes of the target's transformer.
    seconds: `[N]`.
    head_calls: `[N]` calls of the target's diffusion head, for continuous tokens; else None.
  """

  tokens: np.ndarray
  passes: np.ndarray
  seconds: np.ndarray
  head_calls: np.ndarray | None = None


class Work(NamedTuple):
  """What other people's code is to do.

  Attributes:
    model: the model whose weights it has.
    target: its target as it is stored.
    source: the name of the model, or its folder; a published size has no other networks.
    conditions: the condition of every image, with a leading axis of one.
    sampling: the sampling options of all images.
    official: whether the positions are drafted that the programs of the method draft, instead of
      all.
    compiled: whether `torch.compile` compiles the network.
  """

  model: Model
  target: store.Loaded
  source: str
  conditions: Sequence[Any]
  sampling: Any
  official: bool = False
  compiled: bool = False


class Loops(NamedTuple):
  """The loops of a method, ready to decode.

  Attributes:
    difference: the largest difference between the first outputs of their networks and of ours.
    windows: tokens that a pass scores, by the name of a loop; the first loop, which scores one, is
      the baseline of the others.
    decode: `(name, number of the image, seed) -> ` its tokens `[T, ...]`, as ours are numbered and
      ordered, and its other entries of `Decodes`.
    parts: `number of complete tokens -> ` functions that draw the next token of the first image,
      or do a part of that, by the names that `forced_rounds.rows` gives them; of continuous tokens
      of published sizes.
  """

  difference: float
  windows: Mapping[str, int]
  decode: Callable[[str, int, int], tuple[Any, ...]] | None
  parts: Callable[[int], Mapping[str, Callable[[], Any]]] | None = None


class Sizes(NamedTuple):
  """Published sizes, at which a method is timed with random weights.

  Attributes:
    models: `(*, dtype) -> ` the described model of a size, by its name.
    decoders: specifications of decoders to compare with.
    accepted: report.json of a program that measured the tokens per pass of decoders.
    measured: the model whose rows of that report count; None if it has one model.
  """

  models: Mapping[str, Callable[..., Model]] = types.MappingProxyType({})
  decoders: tuple[str, ...] = ()
  accepted: str = ''
  measured: str | None = None


class Method(NamedTuple):
  """Other people's code of one method.

  Attributes:
    url: its repository.
    commit: the commit that the changes in memory are for; None if it is an installed package,
      which needs no clone.
    file: the file of the loop in the clone.
    sha256: of that file at that commit.
    ours: the decoders for a model here that correspond to its loops.
    check: raises ValueError for a model with trained weights that the loops cannot decode.
    load: imports the clone, whose folder is given, or the package, and gives it the weights.
    best: further decoders here that its loops are compared with.
    guidance_scale: of its programs, if they can be followed in it and in the positions that they
      draft; else None.
    sizes: the published sizes that it is timed at.
  """

  url: str
  commit: str | None
  file: str | None
  sha256: str | None
  ours: Callable[[Model], tuple[str, ...]]
  check: Callable[[Model], None]
  load: Callable[[Any, Work], Loops]
  best: tuple[str, ...] = ('corrected(iterations=4, window=64)',)
  guidance_scale: float | None = None
  sizes: Sizes = Sizes()


class Calls:
  """Counts the calls of a method of a network of PyTorch."""

  def __init__(self, network: Any, name: str = 'forward'):
    self.count, method = 0, getattr(network, name)

    def counted(*args, **options):
      self.count += 1
      return method(*args, **options)

    setattr(network, name, counted)


def imported(needs: str, folders: Sequence[pathlib.Path], *names: str) -> list[Any]:
  """Returns modules of the folders of a clone, or of packages.

  Raises ValueError if one cannot be imported, or is of another version than `needs` has, the
  packages to install.
  """
  sys.path[:0] = [str(folder) for folder in folders]
  try:
    for name, version in re.findall(r"([\w-]+)==([\d.]+)", needs):
      if (found := importlib.metadata.version(name)) != version:
        raise ImportError(f'{name} is version {found}')
    return [importlib.import_module(name) for name in names]
  except ImportError as error:
    raise ValueError(
        f'the released code cannot be imported ({error}); run pip install {needs}.') from error


def tensors(torch: Any, network: store.Loaded, family: str) -> dict[str, Any]:
  """Returns the published tensors of a stored network in float32, by name."""
  expanded, leaves = convert.rules_of(rules.get(family), network.config, network.params)
  return {name: torch.tensor(np.asarray(array, np.float32))
          for rule in expanded for name, array in rule.publish(leaves).items()}


def check_sampling(model: Model, instead: str) -> None:
  """Raises ValueError if a model's default options are more than a guidance scale."""
  usual = SamplingParams()._replace(guidance_scale=None)
  active = warp.drop_inactive(model.sampling())._replace(guidance_scale=None)
  if active != warp.drop_inactive(usual):
    raise ValueError(f'model is {model.name!r}, whose default sampling options are more than a '
                     f'guidance scale, which the released loops do not have here; use {instead}.')


@contextlib.contextmanager
def on_cpu(torch: Any) -> Iterator[None]:
  """Replaces what released code requires of CUDA by the same on a CPU."""

  class Event:
    """A moment."""

    def __init__(self, **_):
      self.time = 0.0

    def record(self):
      self.time = time.perf_counter()

    def elapsed_time(self, other):
      return 1e3 * (other.time - self.time)

  def on_host(function):
    return lambda *args, device=None, **options: function(
        *args, device='cpu' if str(device).startswith('cuda') else device, **options)

  news = {(torch.cuda, 'Event'): Event, (torch.cuda, 'synchronize'): lambda *_: None,
          (torch.Tensor, 'cuda'): lambda tensor, *_, **__: tensor}
  news |= {(torch, name): on_host(getattr(torch, name))
           for name in ('tensor', 'zeros', 'ones', 'randn')}
  olds = {place: getattr(*place) for place in news}
  try:
    for place, new in news.items():
      setattr(*place, new)
    yield
  finally:
    for place, old in olds.items():
      setattr(*place, old)
