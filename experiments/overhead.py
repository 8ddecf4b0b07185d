"""How much of a round is the target's forward pass, and how much the decoder's own work.

  python -m experiments.overhead
  python -m experiments.overhead --window=64 --repeats=9

For every decoder that drafts without a model: milliseconds per round of the whole
jitted loop at batch 1 with guidance, the same number of bare forward passes of the
target in a jitted loop, and the share of the rest (drafting, verifying, committing).
The two take turns; medians are shown.
"""

import sys
import time

from absl import app
from absl import flags
from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import checkpoint
from cspd_jax.decoding import decoders
from cspd_jax.decoding.warp import Warp
from cspd_jax.models import llamagen
from experiments import config_flags

_WINDOW = flags.DEFINE_integer('window', 16, 'Tokens per forward pass.')
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Timed runs of each.', lower_bound=1)
_MODEL = flags.DEFINE_string('model', 'demo/target', 'Checkpoint of a class-conditional target.')


def forward_passes(decoder: decoders.Decoder):
  """A function that does the forward passes of `count` rounds and nothing else."""
  target, tree = decoder.target, decoder.drafter.tree

  def run(params, labels, count):
    logits, _, cache = target.prefill(params, labels, target.num_tokens + tree.num_nodes)
    tokens = jnp.zeros((labels.shape[0], tree.num_nodes + 1), jnp.int32)

    def body(i, carry):
      tokens, cache, _ = carry
      start = jnp.broadcast_to(i % target.num_tokens, labels.shape)
      logits, _, cache = target.score(params, cache, tokens, start, tree)
      # The next tokens depend on all logits, so that no pass is left out.
      unchanged = (jnp.sum(logits) * 0).astype(jnp.int32)
      return tokens + unchanged, cache, jnp.sum(logits)

    return jax.lax.fori_loop(0, count, body, (tokens, cache, jnp.sum(logits)))[2]

  return run


def compare(decoder, params, labels, key, warp, repeats: int) -> tuple[float, float]:
  """Milliseconds per round of the decoder, and of its forward passes alone."""
  decode, forward = jax.jit(decoder), jax.jit(forward_passes(decoder))
  rounds = decode(params, labels, key, warp).rounds.max() - 1
  runs = (lambda: decode(params, labels, key, warp), lambda: forward(params, labels, rounds))
  seconds = np.zeros((repeats + 1, 2))
  for repeat in range(repeats + 1):
    for i, run in enumerate(runs):
      start = time.perf_counter()
      jax.block_until_ready(run())
      seconds[repeat, i] = time.perf_counter() - start
  whole, alone = 1e3 * np.median(seconds[1:], axis=0) / int(rounds)
  return float(whole), float(alone)


def main(argv: list[str]) -> int:
  logging.set_verbosity(logging.WARNING)  # JAX and Orbax report every step they take.
  try:
    if len(argv) > 1:
      raise ValueError(f'{" ".join(argv[1:])!r} is not a flag; see --help.')
    loaded = checkpoint.load(_MODEL.value, dtype='float32')
    target = llamagen.target(loaded.config, guided=True)
    built = {name: decoders.build(name, target, window=_WINDOW.value)
             for name, named in decoders.DECODERS.items() if named.drafts is None}
  except ValueError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  print(f'{"decoder":<12} {"ms/round":>9} {"forward":>9} {"rest":>6}')
  for name, decoder in built.items():
    whole, alone = compare(decoder, loaded.params, jnp.zeros(1, jnp.int32), jax.random.key(0),
                           Warp(guidance_scale=2.0), _REPEATS.value)
    print(f'{name:<12} {whole:9.2f} {alone:9.2f} {1 - alone / whole:6.1%}', flush=True)
  return 0


if __name__ == '__main__':
  app.run(main, flags_parser=config_flags.parse)
