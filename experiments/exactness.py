"""Shows that the decoders are exact: their output distribution against the enumerated one.

Every decoder of the registry decodes a random tabular model (every prefix has a
distribution of its own, supports are cut so that they differ, guidance is on, rows of a
batch have different classes) through the library's own jitted path; the distribution of
whole sequences is compared with the enumerated one.

  python -m experiments.exactness
  python -m experiments.exactness --vocab=4 --length=4 --window=3 --samples=1000000
  python -m experiments.exactness --decoder=eagle,medusa --json=exactness.json

Printed per decoder: total variation (TV) to the exact distribution, the TV an exact
sampler has on average with as many samples, the p-value of a G-test, and a
verdict; a correct decoder fails anywhere with probability 1e-6 at most. For a
seed-exact decoder the tokens must also equal those of `vanilla`, one by one.
Beside the registry, pairs of exact verifiers and drafters that it does not name.
Relaxed verifiers are compared with their own bound, the mean of `Decoded.tv_bound`.
Exits with 1 if a decoder fails.
"""

import os
import pathlib
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging

from cspd_jax.core import files
from cspd_jax.decoding import decoders, tree as trees
from cspd_jax.decoding.drafters.dynamic import eagle2
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.drafters.model import model as model_drafter
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.verifiers.block import block
from cspd_jax.decoding.verifiers.cool import cool, cool_linear, uniform
from cspd_jax.decoding.verifiers.exact import exact
from cspd_jax.decoding.verifiers.grouped import grouped
from cspd_jax.decoding.verifiers.kseq import kseq
from cspd_jax.decoding.verifiers.lantern import lantern, lantern_pp
from cspd_jax.decoding.verifiers.neighbours import neighbour_table
from cspd_jax.decoding.verifiers.typical import typical
from cspd_jax.decoding.warp import Warp
from cspd_jax.testing import exactness, tabular as tabular_lib
from experiments import config_flags

_VOCAB = flags.DEFINE_integer('vocab', 3, 'Vocabulary size of the tabular model.', lower_bound=2)
_LENGTH = flags.DEFINE_integer('length', 5, 'Tokens per sequence.', lower_bound=2)
_WINDOW = flags.DEFINE_integer(
    'window', 4, 'Tokens per forward pass; trees get two more.', lower_bound=1)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the model and of the samples.')
_SAMPLES = flags.DEFINE_integer('samples', 2**19, 'Sequences per decoder.', lower_bound=1000)
_DECODER = flags.DEFINE_string('decoder', 'all', 'Rows to check, separated by commas, or all.')
_JSON = flags.DEFINE_string('json', None, 'File to write the rows to, as JSON.')

WARP = Warp(guidance_scale=1.3, temperature=0.9, top_p=0.95)


class Case(NamedTuple):
  """A decoder, what it promises, and the parameters of what drafts for it."""

  decoder: Decoder
  guarantee: str
  draft_params: Any


def cases(model, draft, window: int, seed: int) -> dict[str, Case]:
  """Decoders of `model` by name.

  Args:
    model: the tabular model.
    draft: another one like it, from whose table the drafters draw.
    window: tokens per forward pass of Jacobi windows.
    seed: of the random codebook that neighbours are found in.
  """
  network, heads = tabular_lib.network(model.target), tabular_lib.heads(model.target, 2)
  drafts = {'model': draft.target, 'eagle': network, 'medusa': heads}
  params = {None: None, 'model': draft.params, 'eagle': draft.params,
            'medusa': jnp.stack([draft.params] * 2)}
  length = min(window, model.length - 1)
  built = {
      name: decoders.build(name, model.target, window=window, drafts=drafts, draft_length=length)
      for name in decoders.DECODERS}
  bushy, deep = trees.kary(2, 3, 6), trees.chain(length)
  if window >= 3:  # The defaults of so short a window are chains.
    tree = trees.caterpillar(2, 2, window + 1)
    for name in ('sjd_pac', 'seed_exact'):
      built[name] = getattr(decoders, name)(model.target, window + 2, tree)
    built['eagle'] = decoders.eagle(model.target, network, bushy)
    built['medusa'] = decoders.medusa(model.target, heads, bushy)
  found = {
      name: Case(decoder, decoders.DECODERS[name].guarantee, params[decoders.DECODERS[name].drafts])
      for name, decoder in built.items()}

  def add(name, guarantee, drafter, verifier, source):
    found[name] = Case(make_decoder(model.target, drafter, verifier), guarantee, params[source])

  add('eagle iid', 'exact', eagle(network, bushy, 'iid'), exact(), 'eagle')
  add('eagle iid + kseq', 'exact', eagle(network, bushy, 'iid'), kseq(), 'eagle')
  add('eagle top + exact', 'exact', eagle(network, bushy, 'fixed'), exact(), 'eagle')
  add('eagle2 + exact', 'exact', eagle2(network, 5, 2, 3), exact(), 'eagle')
  add('eagle + block', 'exact', eagle(network, deep), block(), 'eagle')
  add('model + block', 'exact', model_drafter(draft.target, length), block(), 'model')
  add('medusa + block', 'exact', medusa(heads, trees.chain(2)), block(), 'medusa')

  codebook = np.random.default_rng(seed).standard_normal((model.vocab_size, 4))
  table = neighbour_table(codebook, min(2, model.vocab_size - 1))
  relaxed = {
      'uniform': uniform(1.5), 'cool': cool(1.2), 'cool printed': cool(1.2, clamp=False),
      'cool_linear': cool_linear(1.5), 'lantern': lantern(table, 0.2),
      'lantern_pp': lantern_pp(table, 2.0), 'grouped': grouped(3), 'typical': typical()}
  for name, verifier in relaxed.items():
    add(f'eagle + {name}', 'relaxed', eagle(network, bushy), verifier, 'eagle')
    add(f'mc_sjd + {name}', 'relaxed', jacobi(min(window, model.length), 'maximal'), verifier, None)
  return found


def run(vocab_size: int, length: int, window: int, seed: int, samples: int, names: str = 'all',
        show=print) -> list:
  """Checks the decoders in `names`; returns a list of JSON-ready rows.

  Raises:
    ValueError: for sizes that do not fit together, or unknown names.
  """
  key, draft_key = jax.random.split(jax.random.key(seed))
  make = lambda key: tabular_lib.tabular(
      key, vocab_size, length, guided=True, num_classes=2, spread=1.0)
  model, draft = make(key), make(draft_key)
  known = cases(model, draft, window, seed)
  chosen = list(known) if names == 'all' else names.split(',')
  if unknown := [name for name in chosen if name not in known]:
    raise ValueError(
        f'decoder is {names!r}, but there is no {unknown[0]!r}; it must be all or some of: '
        f'{", ".join(known)}.')
  built = {name: known[name] for name in chosen}
  probs = exactness.class_probs(model, WARP)
  show(f'{vocab_size}^{length} sequences, {int((probs > 0).sum())} possible in 2 classes; '
       f'{samples} samples per decoder')
  show(f'{"decoder":<22} {"guarantee":<11} {"TV":>8} {"expected":>8} {"bound":>8} {"p-value":>9}  '
       'verdict')

  labels = jnp.arange(4096) % 2
  def decode(name):
    case = built[name]
    return jax.jit(case.decoder)(
        model.params, labels, jax.random.key(seed), WARP, case.draft_params)

  built = {'vanilla': known['vanilla'], **built}
  rows, vanilla = [], np.asarray(decode('vanilla').tokens)
  for name, case in built.items():
    report = exactness.check_decoder(
        case.decoder, model, probs, WARP, draft_params=case.draft_params, samples=samples,
        seed=seed, false_alarm=exactness.FALSE_ALARM / len(built))
    passed, bound = report.passed, 0.0
    if case.guarantee == 'seed-exact':
      passed = passed and np.array_equal(decode(name).tokens, vanilla)
    if case.guarantee == 'relaxed':
      # A hundredth for the noise of both figures, which is well below.
      bound = float(decode(name).tv_bound.mean())
      passed = report.tv - report.tv_expected <= bound + 0.01
    rows.append({
        'decoder': name, 'guarantee': case.guarantee, 'tv': report.tv,
        'tv_expected': report.tv_expected, 'bound': bound, 'p_value': report.p_value,
        'samples': report.samples, 'pass': bool(passed)})
    show(f'{name:<22} {case.guarantee:<11} {report.tv:8.5f} {report.tv_expected:8.5f} '
         f'{bound:8.5f} {report.p_value:9.2g}  {"pass" if passed else "FAIL"}')
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
    rows = run(_VOCAB.value, _LENGTH.value, _WINDOW.value, _SEED.value, _SAMPLES.value,
               _DECODER.value)
  except ValueError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  if path is not None:
    files.write_json(path, rows)
  return 0 if all(row['pass'] for row in rows) else 1


if __name__ == '__main__':
  app.run(main, flags_parser=config_flags.parse)
