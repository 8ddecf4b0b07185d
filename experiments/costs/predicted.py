"""Predicts the cost of a decoder's round on an accelerator from its compiled program.

A kernel takes a launch, and its bytes at the bandwidth of the device, or its products at the peak
rate where these take longer. The layers of a model are alike, so that the cost of all
is extrapolated from programs with few layers and with one layer more. True times are shorter where
a cache of the device holds the result of one kernel for the next, and longer because no device
reaches its stated rates.

Also reads the step compression of decoders, on which their speed-up depends, from measured reports.
"""

import dataclasses
import os
from typing import Any, NamedTuple

import jax

from cspd_jax.core import fields, spec as spec_lib
from cspd_jax.decoding import warp
from cspd_jax.families import FAMILIES
from cspd_jax.files import reading, weights
from cspd_jax.generation import memory
from cspd_jax.generation.model import Model
from experiments.costs import devices, hlo

_TOKEN_BY_TOKEN = ('vanilla', 'mar')  # Decoders that commit one token per round.
# What rows of one decoder in a report may differ in.
_SETTINGS = ('model', 'setting', 'temperature', 'guidance_scale', 'top_k', 'window', 'curve')


def seconds(cost: hlo.Cost, accelerator: devices.Accelerator) -> float:
  """Returns the predicted time of a round."""
  return cost.lasting / accelerator.bandwidth + cost.kernels * accelerator.kernel_seconds


def extrapolated(few: hlo.Cost, more: hlo.Cost, steps: int) -> hlo.Cost:
  """Extrapolates to `steps` additional layers, from few layers and from one layer more."""
  return few.plus(more, steps).plus(few, -steps)


def least_bytes(model: Model, guided: bool, condition: Any) -> float:
  """Returns the bytes that a round must read: weights but embeddings, and half of the cache."""
  read = [leaf for name, leaf in weights.named(model.params).items() if 'embed' not in name]
  return memory.size(read) + memory.live_cache(model.target(guided), model.params, condition)


def decode(model: Model, specification: Any, batch: int, guided: bool, condition: Any,
           accelerator: devices.Accelerator, device: Any, iterations: float = 1) -> hlo.Cost:
  """Compiles a decoder for a device and returns the cost of its round.

  The parameters of the model and the condition of `batch` images are shapes; `iterations` are those
  of loops inside the round that end by run-time values.
  """
  decoder = model.decoder(specification, guided=guided)
  arguments = [model.params, condition, jax.random.split(jax.random.key(0), batch),
               warp.drop_inactive(model.sampling()), model.draft_params(specification)]
  program = devices.compiled(decoder, arguments, device, FAMILIES[model.family].target.orders)
  temporaries = program.memory_analysis().temp_size_in_bytes
  return hlo.Program(program.as_text(), iterations, accelerator.balance).round()._replace(
      temporaries=temporaries)


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


def measured(path: str | os.PathLike, text: str, model: str | None = None,
             override: float | None = None) -> Measured:
  """Returns what a report has on a round of a decoder; empty if it does not contain the decoder.

  The rows of the report, of `model` if it has several, have 'decoder', maybe 'calls_per_round', and
  'tokens_per_pass' or else 'step_compression', which is larger; another file raises ValueError, and
  so do rows of the decoder that disagree. Of rows with 'options' only the first counts: the others
  vary it (`--measure=head` of the sweep). The report is not read for `vanilla` and `mar`, which
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
