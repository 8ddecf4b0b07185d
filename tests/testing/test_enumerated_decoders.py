"""Decoders on tables whose distributions are enumerated."""

import dataclasses

import pytest

from cspd_jax.core.spec import parse
from cspd_jax.testing.proofs import enumerated


@pytest.mark.slow
def test_pairs():
  """Those that a verifier does not support, and no others, are left out."""
  every = enumerated.pairs(enumerated.table())
  assert len(every) == 36
  of = lambda verifier: {str(parse(pair).parts[0].name) for pair in every
                         if pair.endswith(f'+{verifier}')}
  assert of('rejection') == {'ancestral', 'corrected', 'eagle', 'eagle2', 'jacobi', 'medusa'}
  assert of('block') == {'ancestral', 'eagle', 'medusa', 'model'}
  assert of('kseq') == {'eagle', 'medusa'}


@pytest.mark.slow
@pytest.mark.parametrize('greedy', [False, True])
def test_decoders_pass(greedy):
  of = enumerated.table(greedy)
  for text, guarantee in {
      'vanilla': 'seed-exact', 'seed_exact': 'seed-exact up to rounding', 'eagle': 'exact',
      'jacobi(coupling=maximal)+cool': 'bounded'}.items():
    found = enumerated.tested(of, text, 4, 2**16)
    assert found.passed and found.report.samples == 2**16 and found.guarantee == guarantee, found


@pytest.mark.slow
def test_a_relaxed_decoder_that_claims_to_be_exact_fails(monkeypatch):
  of, text = enumerated.table(), 'eagle(tree=kary(2, 3))+lantern(delta=0.4, k=2)'
  found = enumerated.tested(of, text, 1, 2**14)
  assert found.passed and found.bound > found.report.tv > 0.05
  relaxed = enumerated.build(of, enumerated.sized(text))
  wrong = dataclasses.replace(relaxed, verifier=relaxed.verifier._replace(exact=True))
  monkeypatch.setattr(enumerated, 'build', lambda of, spec: wrong)
  assert not enumerated.tested(of, text, 1, 2**14).passed
