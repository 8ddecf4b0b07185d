"""Shows that the decoders are exact: their output law against the enumerated one.

Every decoder of the registry decodes a random tabular model (every prefix has a
law of its own, supports are cut so that they differ, guidance is on, rows of a
batch have different classes) through the library's own jitted path; the law of
whole sequences is compared with the enumerated one.

  python -m experiments.exactness
  python -m experiments.exactness --vocab=4 --length=4 --window=3 --samples=1000000
  python -m experiments.exactness --json=exactness.json

Printed per decoder: total variation (TV) to the exact law, the TV an exact
sampler has on average with as many samples, the p-value of a G-test, and a
verdict; a correct decoder fails anywhere with probability 1e-6 at most. For a
seed-exact decoder the tokens must also equal those of `vanilla`, one by one.
Exits with 1 if a decoder fails.
"""

import json
import os
import pathlib
import sys

from absl import app
from absl import flags
from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import decoders
from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.warp import Warp
from cspd_jax.plots import canvas
from cspd_jax.testing import exactness
from cspd_jax.testing import tabular as tabular_lib
from experiments import config_flags

_VOCAB = flags.DEFINE_integer('vocab', 3, 'Vocabulary size of the tabular model.', lower_bound=2)
_LENGTH = flags.DEFINE_integer('length', 5, 'Tokens per sequence.', lower_bound=2)
_WINDOW = flags.DEFINE_integer(
    'window', 4, 'Tokens per forward pass; trees get two more.', lower_bound=1)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the model and of the samples.')
_SAMPLES = flags.DEFINE_integer('samples', 2**19, 'Sequences per decoder.', lower_bound=1000)
_JSON = flags.DEFINE_string('json', None, 'File to write the rows to, as JSON.')

WARP = Warp(guidance_scale=1.3, temperature=0.9, top_p=0.95)


def run(vocab_size: int, length: int, window: int, seed: int, samples: int, show=print) -> list:
  """Checks every decoder; returns a list of JSON-ready rows.

  Raises:
    ValueError: for sizes that do not fit together.
  """
  key, draft_key = jax.random.split(jax.random.key(seed))
  make = lambda key: tabular_lib.tabular(
      key, vocab_size, length, guided=True, num_classes=2, spread=1.0)
  model, draft = make(key), make(draft_key)
  drafts = {'model': draft.target, 'eagle': tabular_lib.network(model.target),
            'medusa': tabular_lib.heads(model.target, 2)}
  draft_params = {'model': draft.params, 'eagle': draft.params,
                  'medusa': jnp.stack([draft.params] * 2)}
  built = {
      name: decoders.build(name, model.target, window=window, drafts=drafts,
                           draft_length=min(window, length - 1))
      for name in decoders.DECODERS}
  if window >= 3:  # The defaults of so short a window are chains.
    tree = trees.caterpillar(2, 2, window + 1)
    for name in ('sjd_pac', 'seed_exact'):
      built[name] = getattr(decoders, name)(model.target, window + 2, tree)
    built['eagle'] = decoders.eagle(model.target, drafts['eagle'], trees.kary(2, 3, 6))
    built['medusa'] = decoders.medusa(model.target, drafts['medusa'], trees.kary(2, 3, 6))
  laws = exactness.class_laws(model, WARP)
  show(f'{vocab_size}^{length} sequences, {int((laws > 0).sum())} possible in 2 classes; '
       f'{samples} samples per decoder')
  show(f'{"decoder":<12} {"guarantee":<11} {"TV":>8} {"expected":>8} {"p-value":>9}  verdict')

  labels = jnp.arange(4096) % 2
  def params_of(name):
    return draft_params.get(decoders.DECODERS[name].drafts)

  def some_tokens(name):
    return jax.jit(built[name])(
        model.params, labels, jax.random.key(seed), WARP, params_of(name)).tokens

  rows, vanilla = [], np.asarray(some_tokens('vanilla'))
  for name, decoder in built.items():
    guarantee = decoders.DECODERS[name].guarantee
    report = exactness.check_decoder(
        decoder, model, laws, WARP, draft_params=params_of(name), samples=samples, seed=seed,
        false_alarm=exactness.FALSE_ALARM / len(built))
    passed = report.passed
    if guarantee == 'seed-exact':
      passed = passed and np.array_equal(some_tokens(name), vanilla)
    rows.append({
        'decoder': name, 'guarantee': guarantee, 'tv': report.tv,
        'tv_expected': report.tv_expected, 'p_value': report.p_value,
        'samples': report.samples, 'pass': bool(passed)})
    show(f'{name:<12} {guarantee:<11} {report.tv:8.5f} {report.tv_expected:8.5f} '
         f'{report.p_value:9.2g}  {"pass" if passed else "FAIL"}')
  return rows


def main(argv: list[str]) -> int:
  logging.set_verbosity(logging.WARNING)  # JAX and Orbax report every step they take.
  path = pathlib.Path(_JSON.value) if _JSON.value else None
  try:
    if len(argv) > 1:
      raise ValueError(f'{" ".join(argv[1:])!r} is not a flag; see --help.')
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
      raise ValueError(
          f'json is {str(path)!r}; {path.absolute().parent} is not a folder that can be written.')
    rows = run(_VOCAB.value, _LENGTH.value, _WINDOW.value, _SEED.value, _SAMPLES.value)
  except ValueError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  if path is not None:
    canvas.write(path, (json.dumps(rows, indent=2) + '\n').encode())
  return 0 if all(row['pass'] for row in rows) else 1


if __name__ == '__main__':
  app.run(main, flags_parser=config_flags.parse)
