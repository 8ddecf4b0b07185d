"""Checks of `cspd-verify` on this device: kernels, decoders of shipped models, and of tables."""

import functools
from typing import Any

import cspd_jax
from cspd_jax.core import spec
from cspd_jax.decoding import specification
from cspd_jax.measure.bench import Bench
from cspd_jax.testing.proofs import enumerated
from cspd_jax.verify import decoders, device
from experiments.stages.piece import Piece

# The last one's side branches are the first suspect where images differ.
_SEED_EXACT = ('seed_exact(window=16)', 'corrected_seed_exact(window=16)',
               'seed_exact(tree=caterpillar(3, 1), window=16)')
_KERNELS = {'kernel': '{kernel}', 'largest difference': '{difference:.2g}', 'result': '{result}'}
_SAME = {
    'decoder': '{decoder}', 'dtype': '{dtype}', 'images': '{images}',
    'of vanilla(window=N)': '{in_window:.2%}', 'of vanilla': '{plain:.2%}',
    'log-probabilities': '{log_probs:.2%}', 'NLL - entropy': '{nll_excess:+.4f}',
    'guarantee': '{guarantee}', 'failed': '{failed}'}
_TABLES = {
    'decoder': '{decoder}', 'guarantee': '{guarantee}', 'TV': '{tv:.5f}',
    'expected': '{tv_expected:.5f}', 'p-value': '{p_value:.2g}', 'result': '{result}'}
_SAMPLES, _THREADS = 20_000, 8


def kernels(piece: Piece) -> None:
  """Compares kernels for NVIDIA GPUs, and products with int8 matrices, with plain operations."""
  title = 'kernels and plain operations'
  if not piece.has(title):
    for result in piece.attempt(title, lambda: list(device.check())) or ():
      piece.add(title, _KERNELS, dict(
          kernel=result.name, result=result.verdict, words=result.words, **result.numbers))


def seeds(piece: Piece, name: str, count: int) -> None:
  """Checks `count` images of seed-exact decoders of a model, and that they are `vanilla`'s."""
  title = f'{name}, images of the same seeds'
  for dtype in ('float32',) if piece.rehearses else ('bfloat16', 'float32'):
    texts = [text for text in map(str, map(spec.parse, _SEED_EXACT))
             if not piece.has(title, decoder=text, dtype=dtype)]
    if texts and not piece.is_over:
      model = cspd_jax.load(name, dtype=dtype)
      prompts = [model.prompts[i % len(model.prompts)] for i in range(count // 2)]
      bench = Bench(model, prompts * 2, seed=1, batch_size=count)
      for text in texts:
        piece.measure(title, _SAME, dict(decoder=text, dtype=dtype), functools.partial(
            _compared, bench, text))


def _compared(bench: Bench, text: str) -> dict[str, Any]:
  results = {result.name: result for result in decoders.exact(bench.model, bench, [text])}
  same, distribution = (results.get(f'{text}: {name}') for name in (
      'same images', 'distribution'))
  tokens, plain = (bench.sample(each).tokens for each in (text, bench.baseline))
  return dict(
      images=len(tokens), plain=float((tokens == plain).all(axis=1).mean()),
      **(dict(in_window=same.numbers['images'], log_probs=same.numbers['log_probs'],
              guarantee=same.numbers['guarantee']) if same else {}),
      nll_excess=distribution and distribution.numbers['nll_excess'],
      failed=', '.join(result.name for result in results.values() if result.verdict == 'failed'))


def distributions(piece: Piece) -> None:
  """Compares sequences of named decoders on tables with the enumerated distributions."""
  names = list(specification.DECODERS)[:2 if piece.rehearses else None]
  for greedy in (False,) if piece.rehearses else (False, True):
    of = enumerated.table(greedy)
    title = f'sequences against their distribution, temperature {of.sampling.temperature}'
    missing = {text: functools.partial(decoders.on_table, of, text, 2 * len(names), _SAMPLES)
               for text in names if not piece.has(title, decoder=text)}
    for group in piece.in_groups(title, missing, _THREADS):
      for text, result in group.items():
        piece.add(title, _TABLES, dict(decoder=text, result=result.verdict, **result.numbers))
