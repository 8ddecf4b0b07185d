"""Predicts the cost of a decoder's round on an accelerator from its compiled program.

The layers of a model are alike, so the figures of all layers are extrapolated from programs with
few layers and with one layer more. The time of a kernel is its launch plus the longer of its memory
traffic at the device's bandwidth and its matrix products at the device's peak rate for their types.
True times are shorter where a cache of the device holds the result of one kernel for the next, and
longer because no device reaches its stated rates.

Also reads the step compression of decoders, on which their speed-up depends, from measured reports.
"""

import collections
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from cspd_jax.core import fields, random, spec as spec_lib
from cspd_jax.decoding import warp
from cspd_jax.families import FAMILIES
from cspd_jax.files import reading
from cspd_jax.generation.model import Model
from experiments.costs import devices, hlo, rounds

_TOKEN_BY_TOKEN = ('vanilla', 'mar')  # Decoders that commit one token per round.
# What rows of one decoder in a report may differ in.
_SETTINGS = ('model', 'setting', 'temperature', 'guidance_scale', 'top_k', 'window', 'curve')
LARGE = 1 << 20  # Smallest written size of a copy that is listed, bytes.


class Figures(NamedTuple):
  """The cost of a round; all figures are linear in the number of layers."""

  # Traffic of the main memory, by part of the decoder and kind of array.
  bytes: Mapping[tuple[str, str], float]
  weights: float  # Bytes of the target's parameters that a round reads, each counted once.
  drafter_weights: float  # Bytes of the drafter's parameters that a round reads, each counted once.
  # Bytes of partial sums of split products that fit in the second-level cache; in `bytes` too.
  cached_sums: float
  flops: float  # Multiplications and additions of matrix products.
  kernels: Mapping[str, float]  # Number of kernels, by part of the decoder.
  conditionals: float  # Branches at run time; on a GPU, by the host.
  loops: float  # Loops inside the round.
  # Number of kernels that only move a MiB or more, by types of their results and source line.
  copies: Mapping[tuple[str, str], float]
  copied: float  # Bytes of the cache that are not updated in place.
  seconds: Mapping[str, float]  # Predicted time, by cause: 'launches', 'bytes', 'products'.
  temporaries: float  # Bytes that the whole program needs in addition to parameters.

  @property
  def total_bytes(self) -> float:
    """Bytes of a round."""
    return sum(self.bytes.values())

  @property
  def total_kernels(self) -> float:
    """Kernels of a round."""
    return sum(self.kernels.values())

  @property
  def total_seconds(self) -> float:
    """Seconds of a round."""
    return sum(self.seconds.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accepted:
  """The tokens that decoders commit per round.

  Attributes:
    tokens_per_round: of every decoder; by default those of the report `accepted`.
    accepted: report.json of a program that measured step compression.
  """

  tokens_per_round: float | None = None
  accepted: str = 'docs/reports/corrected.json'

  def __post_init__(self):
    fields.check(self, tokens_per_round=(1, fields.MOST))


class Measured(NamedTuple):
  """Tokens that a round commits and its calls of the head in a report, None if it has none."""

  tokens: float | None = None
  head_calls: float | None = None


def figures(round_: rounds.Round, accelerator: devices.Accelerator, temporaries: float = 0
            ) -> Figures:
  """Returns the figures of a round: the totals over its kernels."""
  moved, weights, kernels, copies, seconds = (
      collections.defaultdict[Any, float](float) for _ in range(5))
  cached_sums = 0.0
  for kernel in round_.kernels:
    launches = 0 if kernel.overlapped else kernel.times
    kernels[kernel.part] += launches
    for array in kernel.moved:
      total = kernel.times * (array.read + array.written)
      moved[kernel.part, array.label.kind or kernel.scope] += total
      if array.label.is_weights:
        weights[array.label] += kernel.times * array.read
      if array.label.kind == rounds.PARTIAL_SUMS and total <= kernel.times * accelerator.cache:
        cached_sums += total
    if kernel.moves and kernel.written >= LARGE:
      copies[kernel.arrays, kernel.source] += kernel.times
    streaming = kernel.bytes / accelerator.bandwidth
    multiplying = sum(count / (accelerator.flops * accelerator.rates.get(arithmetic, 1))
                      for arithmetic, count in kernel.products.items())
    seconds['launches'] += launches * accelerator.kernel_seconds
    seconds['products' if multiplying > streaming else 'bytes'] += (
        kernel.times * max(streaming, multiplying))
  # A TPU reads an array in several parts; the array counts once.
  once = lambda kind: sum(
      min(label.size, read) for label, read in weights.items() if label.kind == kind)
  flops = sum(kernel.times * kernel.flops for kernel in round_.kernels)
  return Figures(
      moved, once('weights'), once('drafter weights'), cached_sums, flops, kernels,
      round_.conditionals, round_.loops, copies, round_.copied, seconds, temporaries)


def extrapolated(few: Figures, more: Figures, steps: int) -> Figures:
  """Extrapolates to `steps` additional layers, from few layers and from one layer more."""
  def part(first, second):
    if isinstance(first, Mapping):
      return {key: part(first.get(key, 0), second.get(key, 0)) for key in {**first, **second}}
    return first + steps * (second - first)

  return Figures(*map(part, few, more))


def decode(model: Model, specification: Any, batch: int, guided: bool, condition: Any,
           accelerator: devices.Accelerator, device: Any, iterations: float = 1) -> Figures:
  """Compiles a decoder for a device and returns the figures of its round.

  The parameters of the model and the condition of `batch` images are shapes; `iterations` are those
  of loops inside the round that end by run-time values.
  """
  decoder = model.decoder(specification, guided=guided)
  arguments = [model.params, condition, jax.random.split(jax.random.key(0), batch),
               warp.drop_inactive(model.sampling()), model.draft_params(specification)]
  program = devices.compiled(decoder, arguments, device, FAMILIES[model.family].target.orders)
  arguments[2] = random.row_keys(arguments[2], batch)
  start = jax.eval_shape(decoder.start, *arguments)
  caches = {leaf.shape for leaf in jax.tree.leaves(start.cache) if leaf.ndim > 2}
  round_ = rounds.read(hlo.parse(program.as_text()), caches, iterations)
  return figures(round_, accelerator, program.memory_analysis().temp_size_in_bytes)


def measured(path: str | os.PathLike, text: str, model: str | None = None,
             override: float | None = None) -> Measured:
  """Returns what a report has on a round of a decoder; empty if it does not contain the decoder.

  The rows of the report, of `model` if it has several, have 'decoder', maybe 'calls_per_round', and
  'tokens_per_pass' or else 'step_compression', which is larger; another file raises ValueError, and
  so do rows of the decoder that disagree. Of rows with 'options' only the first counts: the others
  vary it (`experiments.continuous_windows`). The report is not read for `vanilla` and `mar`, which
  commit one token, nor with an `override`, the number of tokens of all decoders.
  """
  spec = spec_lib.parse(text)
  if spec in map(spec_lib.parse, _TOKEN_BY_TOKEN):
    return Measured(1.0)
  if override is not None:
    return Measured(override)
  report = reading.json(path, 'give another report, or tokens_per_round', 'accepted')
  try:
    models = list(dict.fromkeys(str(row['model']) for row in report['rows'] if 'model' in row))
    rows = [row for row in report['rows'] if model is None or row.get('model') == model]
    matching = [(row, Measured(
        float(row.get('tokens_per_pass') or row['step_compression']), row.get('calls_per_round')))
             for row in rows if spec_lib.parse(row['decoder']) == spec]
    firsts = {row.get('model'): row for row, _ in reversed(matching)}
    matching = [each for each in matching
             if 'options' not in each[0] or each[0] is firsts[each[0].get('model')]]
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(f'accepted is {str(path)!r}, which is not a report with step_compression '
                     f'({type(error).__name__}: {error}); give another, or '
                     'tokens_per_round.') from error
  if model is not None and not rows:
    raise ValueError(
        f'accepted_model is {model!r}, but the models of accepted ({str(path)!r}) are: '
        f'{", ".join(models) or "none"}; give one of these, or another report.')
  if len({measured for _, measured in matching}) > 1:
    values = {name: list(dict.fromkeys(str(row.get(name)) for row, _ in matching))
              for name in _SETTINGS}
    several = '; '.join(f'{name}: {", ".join(each)}' for name, each in values.items()
                        if len(each) > 1)
    remedy = 'accepted_model' if len(values['model']) > 1 else 'a report with one of them'
    raise ValueError(f'accepted is {str(path)!r}, whose rows of {text!r} disagree ({several}); '
                     f'give {remedy}, or tokens_per_round.')
  return matching[0][1] if matching else Measured()


def iterations(decoder: Any, head_calls: float) -> float:
  """Returns how often the loop over calls of a diffusion head runs in a round of `head_calls`.

  `windows` calls the head at the states of the last round before that loop.
  """
  return head_calls - (decoder.verifier.start is not None)
