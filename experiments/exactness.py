"""Tests that decoders are exact: compares their output distributions with the enumerated one.

Every decoder runs through the library's jitted path on two random tabular models, in which every
prefix has a different distribution, with guidance and with different classes in a batch. The
empirical distribution of whole sequences is compared with the enumerated one. For one model, top-p
cuts the supports so that they differ; the other has tied logits and temperature 0.

  python -m experiments.exactness
  python -m experiments.exactness --vocab=4 --length=4 --window=3 --samples=1000000
  python -m experiments.exactness --decoder='eagle,jacobi(window=3)+cool' --json=exactness.json

Without --decoder: every named decoder, every drafter with every compatible exact verifier, and
relaxed verifiers on a tree and on a Jacobi window.

Prints per decoder: total variation (TV) to the exact distribution, the expected TV of an exact
sampler with equally many samples, the p-value of a chi-squared test, and a verdict, which fails any
correct decoder with a probability of at most 1e-6. The tokens of a seed-exact decoder must also
equal those of `vanilla`. A relaxed decoder is compared with its own bound, the mean of
`Decoded.tv_bound`. Exits with 1 if a decoder fails.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import cli
from cspd_jax.core import fields, programs
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.core.spec import Spec, parse
from cspd_jax.decoding import specification
from cspd_jax.decoding.base import Decoded
from cspd_jax.decoding.loop import Decoder
from cspd_jax.files import atomic, paths
from cspd_jax.testing import exactness, tabular as tabular_lib
from experiments.measured import listed

CUT = SamplingParams(guidance_scale=1.3, temperature=0.9, top_p=0.95)
# Integer logits stay tied under a guidance scale of 2.
GREEDY = SamplingParams(guidance_scale=2.0, temperature=0.0)
COLUMNS = {
    'decoder': '{decoder}', 'guarantee': '{guarantee}', 'TV': '{tv:.5f}',
    'expected': '{tv_expected:.5f}', 'bound': '{bound:.5f}', 'p-value': '{p_value:.2g}',
    'passed': '{pass}'}
_ROWS = 2**14  # The batch size of `check_decoder`, so that its compiled program is reused.


@dataclasses.dataclass(frozen=True)
class Flags:
  """Command-line flags.

  Attributes:
    vocab: vocabulary size of the tabular model.
    length: tokens per sequence.
    window: tokens per forward pass; trees have two more.
    seed: seed of the model and of the samples.
    samples: sequences per decoder.
    decoder: specifications of decoders; all by default.
    json: file to write the rows to.
  """

  vocab: int = 3
  length: int = 5
  window: int = 4
  seed: int = 0
  samples: int = 2**19
  decoder: tuple[str, ...] | None = None
  json: str | None = None

  def __post_init__(self):
    fields.check(self, vocab=(2, 2**10), length=(2, 2**10), samples=(1000, 2**40),
                 seed=fields.SEEDS)


class Bench(NamedTuple):
  """A tabular model on which all decoders are tested."""

  flags: Flags  # Command-line flags.
  model: tabular_lib.Tabular  # The tabular model.
  sampling: SamplingParams  # Sampling options.
  probs: np.ndarray  # `[C, V**T]` exact distributions of its sequences.
  # Networks for drafters, by the keys of `Table.networks`, and a codebook.
  resources: tuple[Mapping[str, Any], np.ndarray]
  # Parameters of these networks.
  draft_params: dict[str | None, Any]


@cli.command(flags=Flags())
def main(flags: Flags) -> int:
  path = paths.file('json', flags.json) if flags.json else None
  benches = prepare(flags), prepare(flags, greedy=True)
  rows = run(benches, every(benches[0]) if flags.decoder is None else flags.decoder)
  if path is not None:
    atomic.write_json(path, rows)
  return 0 if all(row['pass'] for row in rows) else 1


def prepare(flags: Flags, greedy: bool = False) -> Bench:
  """Builds the model and the networks for drafters; tied logits and temperature 0 if `greedy`."""
  key, draft_key = jax.random.split(jax.random.key(flags.seed))
  create = lambda key: tabular_lib.tabular(
      key, flags.vocab, flags.length, guided=True, num_classes=2, spread=0.5 if greedy else 1.0,
      tied=greedy)
  model, draft, sampling = create(key), create(draft_key), GREEDY if greedy else CUT
  codebook = np.random.default_rng(flags.seed).standard_normal((flags.vocab, 4))
  drafts = tabular_lib.drafts(model.target, draft.target)
  params = {None: None, **dict.fromkeys(drafts, draft.params),
            'medusa': jnp.stack([draft.params] * 2)}
  return Bench(
      flags, model, sampling, exactness.class_probs(model, sampling),
      (drafts, codebook), params)


def every(bench: Bench) -> list[str]:
  """Returns the named decoders, and pairs of drafters and verifiers."""
  relaxed = [
      'uniform(delta=1.5)', 'cool(delta=1.2)', 'cool(clamp=False, delta=1.2)',
      'cool_linear(delta=1.5)', f'lantern(delta=0.2, k={min(2, bench.model.vocab_size - 1)})',
      f'lantern_pp(k={min(2, bench.model.vocab_size - 1)}, lam=2)',
      f'grouped(group={min(3, bench.model.vocab_size)})', 'typical']
  return [*specification.DECODERS, *pairs(bench),
          *(f'{drafter}+{verifier}' for verifier in relaxed
            for drafter in ('eagle', 'jacobi(coupling=maximal)', 'corrected'))]


def pairs(bench: Bench) -> list[str]:
  """Returns every drafter, with chains and trees, with every exact verifier, if it has no name."""
  drafters = list(specification.DRAFTERS)
  drafters += [f'{name}(draws={draws})' for name in ('eagle', 'medusa') for draws in (
      'iid', 'fixed')]
  drafters += [f'ancestral(window={bench.flags.window})', 'eagle(tree=chain(2))',
               'medusa(length=2)', 'jacobi(coupling=maximal)',
               *(f'jacobi(coupling={coupling}, window={bench.flags.window + 2}, '
                 'tree=caterpillar(2, 2))' for coupling in ('maximal', 'gumbel')),
               'corrected(iterations=1)', 'corrected(corrector=neighbours)']
  seen = [specification.expand(sized(name, bench)) for name in specification.DECODERS]
  result = []
  for drafter in drafters:
    for verifier in specification.VERIFIERS:
      try:
        spec = sized(f'{drafter}+{verifier}', bench)
        if build(spec, bench).verifier.exact and (parts := specification.expand(spec)) not in seen:
          seen.append(parts)
          result.append(str(spec))
      except ValueError:
        continue  # The verifier does not support this drafter.
  return result


def sized(text: str, bench: Bench) -> Spec:
  """Parses a specification and fills in sizes that suit a small model, in which trees branch."""
  spec, window = parse(text), bench.flags.window
  first, length = spec.parts[0], min(window, bench.model.length - 1)
  trees = {**{name: f'{name}(window={window + 2}, tree=caterpillar(2, 2))' for name in (
               'sjd_pac', 'seed_exact', 'corrected', 'corrected_seed_exact')},
           'eagle': 'eagle(tree=kary(2, 3))', 'medusa': 'medusa(tree=kary(2, 3))'}
  if window >= 3 and first.name in trees and not first.arguments.keys() & {
      'window', 'tree', 'length'}:
    tree = parse(trees[first.name]).parts[0]
    first = dataclasses.replace(tree, arguments=tree.arguments | first.arguments)
  return specification.complete(Spec((first, *spec.parts[1:])), window=window, length=length)


def build(spec: Spec, bench: Bench) -> Decoder:
  """Builds the decoder of a specification for the tabular model."""
  return specification.build(spec, bench.model.target, *bench.resources)


def run(benches: Sequence[Bench], texts: Sequence[str]) -> list[dict]:
  """Tests decoders on every bench; returns a row of JSON values for each."""
  specs = {text: sized(text, benches[0]) for text in texts}
  for spec in specs.values():
    build(spec, benches[0])

  def rows() -> Iterator[dict[str, Any]]:
    for bench in benches:
      print(f'temperature {bench.sampling.temperature}: '
            f'{bench.model.vocab_size}^{bench.model.length} sequences, '
            f'{int((bench.probs > 0).sum())} possible in 2 classes; '
            f'{bench.flags.samples} samples per decoder')
      vanilla = decode(bench, build(parse('vanilla'), bench), None)
      for text, spec in specs.items():
        yield row(bench, text, build(spec, bench), specification.needs(spec), vanilla,
                   len(specs) * len(benches))

  return listed(COLUMNS, rows())


def row(bench: Bench, text: str, decoder: Decoder, needs: str | None, vanilla: Decoded,
         count: int) -> dict[str, Any]:
  """Tests one of `count` decoders; `vanilla` is the result of `vanilla`."""
  report = exactness.check_decoder(
      decoder, bench.model, bench.probs, bench.sampling, draft_params=bench.draft_params[needs],
      samples=bench.flags.samples, seed=bench.flags.seed, false_alarm=exactness.FALSE_ALARM / count)
  guarantee, passed, bound = decoder.guarantee, report.passed, 0.0
  if guarantee.satisfies(Guarantee.UP_TO_ROUNDING):  # A table's rows are not sums.
    passed = passed and np.array_equal(decode(bench, decoder, needs).tokens, vanilla.tokens)
  if guarantee is Guarantee.BOUNDED:
    # The margin of 0.01 is well above the noise of both numbers.
    bound = float(decode(bench, decoder, needs).tv_bound.mean())
    passed = report.tv - report.tv_expected <= bound + 0.01
  return {
      'decoder': text, 'temperature': bench.sampling.temperature, 'guarantee': guarantee,
      'tv': report.tv, 'tv_expected': report.tv_expected,
      'bound': bound, 'p_value': report.p_value, 'samples': report.samples, 'pass': bool(passed)}


def decode(bench: Bench, decoder: Decoder, needs: str | None) -> Decoded:
  """Returns a batch of sequences; `needs` is the key of the drafter's parameters."""
  return jax.device_get(programs.jit(decoder, short_sums=True)(
      bench.model.params, jnp.arange(_ROWS) % 2, jax.random.key(bench.flags.seed), bench.sampling,
      bench.draft_params[needs]))


if __name__ == '__main__':
  sys.exit(main())
