"""Compares draft trees, couplings and fresh tokens at equal numbers of tokens per round.

  python -m experiments.topologies
  python -m experiments.topologies --window=16,64 --num_images=32 --json=topologies.json

Decodes a batch of images with the shipped target and prints, per window and
variant, the step compression (mean over images, with its standard error) and the
share of rounds that commit one token. Counts only: wall-clock is the business of
`experiments.generate`.
"""

import sys
from collections.abc import Iterator

from absl import app
from absl import flags
from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import checkpoint
from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.drafters.fresh import KINDS
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.verifiers.exact import exact
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.warp import Warp
from cspd_jax.metrics import acceptance
from cspd_jax.models import llamagen
from experiments import config_flags
from experiments import json_file

_WINDOW = flags.DEFINE_list('window', ['16', '64'], 'Tokens per forward pass, several allowed.')
_NUM_IMAGES = flags.DEFINE_integer('num_images', 16, 'Images per variant.', lower_bound=2)
_GUIDANCE_SCALE = flags.DEFINE_float('guidance_scale', 2.0, 'Classifier-free guidance.')
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the images.')
_MODEL = flags.DEFINE_string('model', 'demo/target', 'Checkpoint of a class-conditional target.')
_JSON = flags.DEFINE_string('json', None, 'File to write the rows to.')


def topologies(window: int) -> Iterator[tuple[str, trees.Tree]]:
  """Trees of `window - 1` draft tokens, with names."""
  for name, build, sizes in (
      ('paths', trees.paths, [(2, 3), (3, 3), (4, 3)]),
      ('caterpillar', trees.caterpillar, [(2, 3), (4, 1), (4, 3)]),
      ('kary', trees.kary, [(2, 3), (2, 4), (3, 3), (4, 3)])):
    for size in sizes:
      try:
        yield f'{name}({size[0]}, {size[1]})', build(*size, window - 1)
      except ValueError:
        continue  # The tree is larger than the window.


def variants(target, window: int) -> Iterator[tuple[str, Decoder]]:
  """Decoders to compare."""
  for coupling, verifier, name in (('redraw', exact(), 'sjd'), ('maximal', exact(), 'mc_sjd'),
                                   ('noise', exact(), 'noise coupling, exact'),
                                   ('noise', match(), 'seed_exact')):
    yield f'{name}, chain', make_decoder(target, jacobi(window, coupling), verifier)
  for kind in KINDS[1:]:
    for coupling, verifier, name in (
        ('maximal', exact(), 'mc_sjd'), ('noise', match(), 'seed_exact')):
      yield f'{name}, {kind}', make_decoder(
          target, jacobi(window, coupling, fresh=kind), verifier)
  for coupling, verifier, name in (
      ('maximal', exact(), 'sjd_pac'), ('noise', match(), 'seed_exact')):
    for shape, tree in topologies(window):
      yield f'{name}, {shape}', make_decoder(
          target, jacobi(window, coupling, tree=tree), verifier)


def run(model: str, windows: list[int], num_images: int, guidance_scale: float, seed: int) -> list:
  """Decodes with every variant; prints and returns a list of JSON-ready rows."""
  loaded = checkpoint.load(model, dtype='float32')
  target = llamagen.target(loaded.config, guided=guidance_scale != 1)
  labels = jnp.arange(num_images) % loaded.config.num_classes
  warp = Warp(guidance_scale=guidance_scale)
  rows = []
  for window in windows:
    for name, decoder in variants(target, window):
      decoder.check(labels, warp)
      decoded = jax.jit(decoder)(loaded.params, labels, jax.random.key(seed), warp)
      summary = acceptance.summarise(jax.device_get(decoded))
      compression = target.num_tokens / np.asarray(decoded.rounds)
      rows.append({
          'window': window, 'variant': name, 'step_compression': summary.step_compression,
          'standard_error': float(compression.std(ddof=1) / np.sqrt(num_images)),
          'one_token_rounds': summary.one_token_rounds, 'images': num_images})
      print(f'{window:>4}  {name:<30} {summary.step_compression:6.3f} '
            f'+- {rows[-1]["standard_error"]:.3f}  one-token {summary.one_token_rounds:.1%}',
            flush=True)
  return rows


def main(argv: list[str]) -> int:
  logging.set_verbosity(logging.WARNING)  # JAX and Orbax report every step they take.
  try:
    if len(argv) > 1:
      raise ValueError(f'{" ".join(argv[1:])!r} is not a flag; see --help.')
    if not all(text.isdecimal() and int(text) > 0 for text in _WINDOW.value):
      raise ValueError(f'window is {_WINDOW.value}; give whole numbers from 1, with commas.')
    rows = run(_MODEL.value, [int(text) for text in _WINDOW.value], _NUM_IMAGES.value,
               _GUIDANCE_SCALE.value, _SEED.value)
  except ValueError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  if _JSON.value:
    json_file.write(_JSON.value, rows)
  return 0


if __name__ == '__main__':
  app.run(main, flags_parser=config_flags.parse)
