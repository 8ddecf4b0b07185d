"""Decoders on small tables, whose sequences can be enumerated, through the library's jitted path.

There are two random tables, in which every prefix has a distribution of its own, with guidance and
with different classes in a batch. Top-p cuts the supports of the first so that they differ; the
second has tied logits and temperature 0. The empirical distribution of whole sequences is compared
with the enumerated one by a chi-squared test, which fails any correct decoder with a probability of
at most 1e-6 over all of them together.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.core.spec import Spec, parse
from cspd_jax.decoding import specification
from cspd_jax.decoding.base import Decoded
from cspd_jax.decoding.loop import Decoder
from cspd_jax.testing import exactness, tabular as tabular_lib

_VOCAB, _LENGTH = 3, 5
_WINDOW = 4  # Tokens per forward pass; trees have two more.
_CUT = SamplingParams(guidance_scale=1.3, temperature=0.9, top_p=0.95)
# Integer logits stay tied under a guidance scale of 2.
_GREEDY = SamplingParams(guidance_scale=2.0, temperature=0.0)
_ROWS = 2**14  # The batch size of `check_decoder`, so that its compiled program is reused.
_MARGIN = 0.01  # Of a bound on total variation, well above the noise of both numbers.


class Table(NamedTuple):
  """A table on which decoders are tested.

  Attributes:
    model: the table.
    sampling: the sampling options.
    probs: `[C, V**T]` exact distributions of its sequences.
    drafts: networks of drafters, by the keys of `core.table.Table.networks`.
    codebook: `[V, D]` vectors of its tokens.
    draft_params: parameters of the networks; those of none for None.
  """

  model: tabular_lib.Tabular
  sampling: SamplingParams
  probs: np.ndarray
  drafts: Mapping[str, Any]
  codebook: np.ndarray
  draft_params: Mapping[str | None, Any]


class Tested(NamedTuple):
  """The result of a test of a decoder.

  Attributes:
    report: how well its sequences fit the enumerated distribution.
    guarantee: what it promises.
    bound: the mean of its own bounds on total variation; 0 if it is exact.
    passed: whether an exact decoder has the enumerated distribution, one that repeats the tokens of
      `vanilla` has those too, and a relaxed one stays within its bound.
  """

  report: exactness.ExactnessReport
  guarantee: Guarantee
  bound: float
  passed: bool


def table(greedy: bool = False) -> Table:
  """Returns the table with cut supports, or the one with tied logits."""
  key, draft_key = jax.random.split(jax.random.key(0))
  model, draft = (tabular_lib.tabular(
      each, _VOCAB, _LENGTH, guided=True, num_classes=2, spread=0.5 if greedy else 1.0,
      tied=greedy) for each in (key, draft_key))
  sampling = _GREEDY if greedy else _CUT
  drafts = tabular_lib.drafts(model.target, draft.target)
  return Table(
      model, sampling, exactness.class_probs(model, sampling), drafts,
      np.random.default_rng(0).standard_normal((_VOCAB, 4)),
      {None: None, **dict.fromkeys(drafts, draft.params),
       'medusa': jnp.stack([draft.params] * 2)})


def every(of: Table) -> list[str]:
  """Returns named decoders, drafters with each exact verifier, and relaxed verifiers."""
  relaxed = ('uniform(delta=1.5)', 'cool(delta=1.2)', 'cool(clamp=False, delta=1.2)',
             'cool_linear(delta=1.5)', 'lantern(delta=0.2, k=2)', 'lantern_pp(k=2, lam=2)',
             'grouped(group=3)', 'typical')
  return [*specification.DECODERS, *pairs(of),
          *(f'{drafter}+{verifier}' for verifier in relaxed
            for drafter in ('eagle', 'jacobi(coupling=maximal)', 'corrected'))]


def pairs(of: Table) -> list[str]:
  """Returns every drafter, with chains and trees, with every exact verifier, if it has no name."""
  drafters = [
      *specification.DRAFTERS, 'eagle(draws=iid)', 'eagle(draws=fixed)', 'medusa(draws=iid)',
      'medusa(draws=fixed)', f'ancestral(window={_WINDOW})', 'eagle(tree=chain(2))',
      'medusa(length=2)', 'jacobi(coupling=maximal)',
      *(f'jacobi(coupling={coupling}, window={_WINDOW + 2}, tree=caterpillar(2, 2))'
        for coupling in ('maximal', 'gumbel')),
      'corrected(iterations=1)', 'corrected(corrector=neighbours)']
  seen = [specification.expand(sized(name)) for name in specification.DECODERS]
  result = []
  for drafter in drafters:
    for verifier in specification.VERIFIERS:
      spec = sized(f'{drafter}+{verifier}')
      try:
        exact = build(of, spec).verifier.exact
      except ValueError:
        continue  # The verifier does not support this drafter.
      if exact and (parts := specification.expand(spec)) not in seen:
        seen.append(parts)
        result.append(str(spec))
  return result


# Sizes at which decoders of trees branch.
_SIZES = {
    **{name: f'{name}(window={_WINDOW + 2}, tree=caterpillar(2, 2))' for name in (
        'sjd_pac', 'seed_exact', 'corrected', 'corrected_seed_exact')},
    'eagle': 'eagle(tree=kary(2, 3))', 'medusa': 'medusa(tree=kary(2, 3))'}


def sized(text: str) -> Spec:
  """Parses a specification and fills in sizes that suit a small model, in which trees branch."""
  spec = parse(text)
  first = spec.parts[0]
  if first.name in _SIZES and not first.arguments.keys() & {'window', 'tree', 'length'}:
    sized = parse(_SIZES[first.name]).parts[0]
    first = dataclasses.replace(sized, arguments={**sized.arguments, **first.arguments})
  return specification.complete(
      Spec((first, *spec.parts[1:])), window=_WINDOW, length=min(_WINDOW, _LENGTH - 1))


def build(of: Table, spec: Spec) -> Decoder:
  """Builds the decoder of a specification for a table; raises ValueError if it cannot."""
  return specification.build(spec, of.model.target, of.drafts, of.codebook)


def tested(of: Table, text: str, count: int, samples: int) -> Tested:
  """Tests one of `count` decoders with a number of sequences; ValueError if it cannot be built."""
  spec = sized(text)
  decoder, needs = build(of, spec), specification.needs(spec)
  report = exactness.check_decoder(
      decoder, of.model, of.probs, of.sampling, draft_params=of.draft_params[needs],
      samples=samples, false_alarm=exactness.FALSE_ALARM / count, progress=False)
  guarantee, passed, bound = decoder.guarantee, report.passed, 0.0
  if guarantee.satisfies(Guarantee.UP_TO_ROUNDING):  # A table's rows are not sums.
    passed = passed and np.array_equal(
        _decoded(of, decoder, needs).tokens, _decoded(of, build(of, parse('vanilla')), None).tokens)
  if guarantee is Guarantee.BOUNDED:
    bound = float(_decoded(of, decoder, needs).tv_bound.mean())
    passed = report.tv - report.tv_expected <= bound + _MARGIN
  return Tested(report, guarantee, bound, bool(passed))


def _decoded(of: Table, decoder: Decoder, needs: str | None) -> Decoded:
  """Returns a batch of sequences; `needs` is the key of the drafter's parameters."""
  return jax.device_get(programs.jit(decoder, short_sums=True)(
      of.model.params, jnp.arange(_ROWS) % 2, jax.random.key(0), of.sampling,
      of.draft_params[needs]))
