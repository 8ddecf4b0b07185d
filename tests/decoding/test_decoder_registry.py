"""The registry: what specifications build, fill in and promise, and every mistake."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.spec import parse
from cspd_jax.decoding import decoders, registry, tree as trees
from cspd_jax.decoding.drafters.ancestral import ancestral
from cspd_jax.decoding.drafters.dynamic import eagle2
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.drafters.model import model
from cspd_jax.decoding.drafters.small_model import from_model
from cspd_jax.decoding.drafters.small_network import from_network
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.block import block
from cspd_jax.decoding.verifiers.cool import cool, cool_linear, uniform
from cspd_jax.decoding.verifiers.exact import exact
from cspd_jax.decoding.verifiers.grouped import grouped
from cspd_jax.decoding.verifiers.kseq import kseq
from cspd_jax.decoding.verifiers.lantern import lantern, lantern_pp
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.neighbours import neighbour_table
from cspd_jax.decoding.verifiers.typical import typical
from cspd_jax.decoding.warp import Warp
from cspd_jax.testing.tabular import drafts, heads, network, tabular
from tests.marks import representative

MODEL = tabular(jax.random.key(0), 4, 6, guided=True, num_classes=3, row_width=3)
DRAFT = tabular(jax.random.key(1), 4, 6, guided=True, num_classes=3, row_width=3)
NETWORK, HEADS = network(MODEL.target), heads(MODEL.target, 3)
CODEBOOK = np.random.default_rng(0).standard_normal((4, 2))
DRAFTS = drafts(MODEL.target, DRAFT.target, 3)
RESOURCES = registry.Resources(DRAFTS, CODEBOOK)
PARAMS = {None: None, **dict.fromkeys(DRAFTS, DRAFT.params),
          'medusa': jnp.stack([DRAFT.params] * 3)}
WARP = Warp(guidance_scale=1.5, temperature=0.9, top_k=3)

T = MODEL.target
TABLE = neighbour_table(CODEBOOK, 3)
MAXIMAL = functools.partial(jacobi, coupling='maximal')
# Specifications, and the same by hand: with the functions of `decoders`, or part by part.
BUILT = {
    'vanilla': lambda: decoders.vanilla(T),
    'vanilla(window=4)': lambda: decoders.vanilla(T, 4),
    'speculative(length=3)': lambda: decoders.speculative(T, DRAFT.target, 3),
    'jacobi(window=4)': lambda: decoders.jacobi(T, 4),
    'sjd(window=4)': lambda: decoders.sjd(T, 4),
    'mc_sjd(window=4)': lambda: decoders.mc_sjd(T, 4),
    'sjd_pac(window=4)': lambda: decoders.sjd_pac(T, 4),
    'sjd_pac(window=6, tree=caterpillar(2, 2))': lambda: decoders.sjd_pac(
        T, 6, trees.caterpillar(2, 2, 5)),
    'seed_exact(window=4)': lambda: decoders.seed_exact(T, 4),
    'seed_exact(window=7, tree=kary(2, 3))': lambda: decoders.seed_exact(
        T, 7, trees.kary(2, 3, 6)),
    'corrected(window=4)': lambda: decoders.corrected(T, DRAFTS['corrector'], 4),
    'corrected(by=eagle, window=4, passes=2)': lambda: decoders.corrected(
        T, from_network(NETWORK), 4, 2),
    'corrected(by=model, tree=caterpillar(2, 2), window=6)': lambda: decoders.corrected(
        T, from_model(DRAFT.target), 6, tree=trees.caterpillar(2, 2, 5)),
    'corrected_seed_exact(window=4)': lambda: decoders.corrected_seed_exact(
        T, DRAFTS['corrector'], 4),
    'eagle': lambda: decoders.eagle(T, NETWORK),
    'eagle(tree=chain(3))': lambda: decoders.eagle(T, NETWORK, trees.chain(3)),
    'eagle2(num_nodes=5, width=2, depth=3)': lambda: decoders.eagle2(T, NETWORK, 5, 2, 3),
    'medusa': lambda: decoders.medusa(T, HEADS),
    'medusa(length=2)': lambda: decoders.medusa(T, HEADS, trees.chain(2)),
    'ancestral': lambda: make_decoder(T, ancestral(), exact()),
    'ancestral(window=3)+block': lambda: make_decoder(T, ancestral(3), block()),
    'model(length=2)+block': lambda: make_decoder(T, model(DRAFT.target, 2), block()),
    'jacobi(window=4)+match': lambda: make_decoder(T, jacobi(4), match()),
    'jacobi(window=4, fresh=resample-above)+exact': lambda: make_decoder(
        T, jacobi(4, fresh='resample-above'), exact()),
    'mc_sjd(window=4)+grouped(group=3)': lambda: make_decoder(T, MAXIMAL(4), grouped(3)),
    'mc_sjd(window=4)+grouped(group=3, d_threshold=1)': lambda: make_decoder(
        T, MAXIMAL(4), grouped(3, embeddings=CODEBOOK, d_threshold=1.0)),
    'eagle(tree=kary(2, 3))+kseq': lambda: make_decoder(
        T, eagle(NETWORK, trees.kary(2, 3, 6), 'iid'), kseq()),
    'eagle(tree=kary(3, 2), draws=fixed)+typical(epsilon=0.1)': lambda: make_decoder(
        T, eagle(NETWORK, trees.kary(3, 2, 3), 'fixed'), typical(0.1)),
    'eagle2(num_nodes=5, width=2, depth=3)+exact': lambda: make_decoder(
        T, eagle2(NETWORK, 5, 2, 3), exact()),
    'medusa(tree=cut(EAGLE, 1))+uniform(delta=2)': lambda: make_decoder(
        T, medusa(HEADS, trees.Tree((-1, 0, 0, 0, 0))), uniform(2.0)),
    'medusa(tree=(-1, 0, 0))+cool(length=1)': lambda: make_decoder(
        T, medusa(HEADS, trees.Tree((-1, 0, 0))), cool(1.1, length=1)),
    'model+cool_linear(l=5)': lambda: make_decoder(
        T, model(DRAFT.target, 4), cool_linear(1.1, 5)),
    'eagle(tree=branching("2 0:1"))+lantern(k=2)': lambda: make_decoder(
        T, eagle(NETWORK, trees.branching('2 0:1')), lantern(TABLE, 0.1, k=2)),
    'model+lantern_pp': lambda: make_decoder(
        T, model(DRAFT.target, 4), lantern_pp(TABLE, 2.0)),
    'model+lantern_pp(residual=released_llamagen)': lambda: make_decoder(
        T, model(DRAFT.target, 4), lantern_pp(TABLE, 2.0, k=2, residual='released_llamagen')),
}
GUARANTEES = {'match(seed_exact=False)': 'exact', 'match': 'seed-exact', 'exact': 'exact',
              'block': 'exact', 'kseq': 'exact'}


def build(spec):
  return registry.build(spec, T, RESOURCES)


def program(decoder, needs):
  """The text of what is computed; equal programs give equal tokens."""
  jaxpr = jax.make_jaxpr(decoder)(MODEL.params, jnp.arange(2), jax.random.key(0), WARP,
                                  PARAMS[needs])
  return re.sub(r'0x[0-9a-f]+', '', str(jaxpr))


@pytest.mark.parametrize('spec', BUILT)
def test_a_specification_builds_what_a_hand_does(spec):
  decoder, needs = build(spec), registry.needs(spec)
  assert program(decoder, needs) == program(BUILT[spec](), needs)
  # The verifier says what is promised.
  verifier = str(registry.expand(spec)[1])
  assert registry.guarantee(decoder) == GUARANTEES.get(verifier, 'relaxed')


@pytest.mark.parametrize('spec', representative(BUILT, 'mc_sjd(window=4)'))
def test_tokens(spec):
  run = lambda decoder: jax.jit(decoder)(
      MODEL.params, jnp.arange(3), jax.random.key(1), WARP, PARAMS[registry.needs(spec)])
  np.testing.assert_array_equal(run(build(spec)).tokens, run(BUILT[spec]()).tokens)


def test_every_entry_is_built_by_hand_above():
  parts = {part.name for spec in BUILT for part in registry.expand(spec)}
  assert parts == registry.DRAFTERS.keys() | registry.VERIFIERS.keys()
  assert {parse(spec).parts[0].name for spec in BUILT} >= registry.DECODERS.keys()
  assert all(entry.summary for entries in (
      registry.DRAFTERS, registry.VERIFIERS, registry.DECODERS) for entry in entries.values())


def test_needs():
  assert {name: registry.needs(name) for name in registry.DECODERS} == {
      'vanilla': None, 'speculative': 'model', 'jacobi': None, 'sjd': None, 'mc_sjd': None,
      'sjd_pac': None, 'seed_exact': None, 'corrected': 'corrector',
      'corrected_seed_exact': 'corrector', 'eagle': 'eagle', 'eagle2': 'eagle',
      'medusa': 'medusa'}


@pytest.mark.parametrize('spec,expanded', [
    ('jacobi(window=3)', 'jacobi(window=3)+match(seed_exact=False)'),
    ('jacobi(window=3)+exact', 'jacobi(window=3)+exact'),
    ('mc_sjd', 'jacobi(coupling=maximal)+exact'),
    ('mc_sjd(window=3)+grouped', 'jacobi(coupling=maximal, window=3)+grouped'),
    ('sjd_pac', 'jacobi(coupling=maximal, tree=auto)+exact'),
    ('seed_exact(tree=chain())', 'jacobi(coupling=noise, tree=chain())+match'),
    ('ancestral', 'ancestral+exact'),
    ('vanilla(window=3)', 'ancestral(window=3)+match'),
    ('corrected(by=eagle)', 'corrected(by=eagle, tree=auto)+exact'),
    ('corrected(passes=1)+exact', 'corrected(passes=1)+exact'),
    ('corrected_seed_exact', 'corrected(tree=auto)+match'),
    ('eagle', 'eagle+exact'),
    ('eagle2', 'eagle2+match'),
    ('speculative+match', 'model+match'),
])
def test_expansion(spec, expanded):
  assert '+'.join(map(str, registry.expand(spec))) == expanded


@pytest.mark.parametrize('spec,window,completed', [
    ('vanilla', 16, 'vanilla'),
    ('vanilla(window=4)', 16, 'vanilla(window=4)'),
    ('speculative', 16, 'speculative(length=4)'),
    ('speculative(length=2)', 16, 'speculative(length=2)'),
    ('mc_sjd', 16, 'mc_sjd(window=16)'),
    ('mc_sjd(window=8)', 16, 'mc_sjd(window=8)'),
    ('sjd_pac', 64, 'sjd_pac(window=64)'),
    ('corrected', 64, 'corrected(window=64)'),
    ('eagle', 25, 'eagle(tree=chain(4))'),
    ('eagle', 26, 'eagle(tree=EAGLE)'),
    ('eagle(tree=LANTERN)+exact', 16, 'eagle(tree=LANTERN)+exact'),
    ('eagle+kseq', 26, 'eagle(draws=iid, tree=EAGLE)+kseq'),
    ('eagle(draws=distinct)+kseq', 26, 'eagle(draws=distinct, tree=EAGLE)+kseq'),
    ('jacobi+kseq', 16, 'jacobi(window=16)+kseq'),
    ('eagle2', 16, 'eagle2(depth=3, num_nodes=15, width=8)'),
    ('eagle2', 64, 'eagle2(depth=5, num_nodes=63, width=10)'),
    ('eagle2', 1, 'eagle2(depth=3, num_nodes=1, width=1)'),
    ('eagle2(width=3)', 64, 'eagle2(width=3)'),
    ('medusa', 64, 'medusa(length=4)'),
    ('medusa(tree=MEDUSA)', 64, 'medusa(tree=MEDUSA)'),
    ('mc_sjd+cool', 16, 'mc_sjd(window=16)+cool'),
])
def test_completion(spec, window, completed):
  found = registry.complete(spec, window=window, length=4)
  assert str(found) == completed
  assert registry.complete(found, window=9, length=9) == found
  if not spec.endswith('kseq'):
    assert str(registry.complete(spec)) == spec


def test_eagle_fills_a_small_window_with_a_chain():
  assert str(registry.complete('eagle+block', window=8)) == 'eagle(tree=chain(7))+block'
  assert str(registry.complete('eagle', window=1)) == 'eagle(tree=chain(1))'


def test_a_long_window_has_the_default_tree():
  big = T._replace(num_tokens=64)
  for window in (8, 16, 48):
    decoder = registry.build(f'sjd_pac(window={window})', big)
    assert decoder.drafter.tree == decoders.default_tree(window)


def test_heads_limit_the_chain():
  assert build('medusa(length=9)').drafter.tree == trees.chain(3)


def test_number_of_neighbours():
  supply = registry.VERIFIERS['lantern'].supply
  codebook = np.random.default_rng(0).standard_normal((64, 2))
  assert supply(codebook, {})['k'] == 4 and supply(codebook, {})['table'].shape == (64, 4)
  assert supply(codebook, {'k': 7})['table'].shape == (64, 7)
  assert supply(CODEBOOK, {})['k'] == 1
  wide = supply(codebook, {'k': 7, 'residual': 'released_lumina'})
  assert (wide['k'], wide['table'].shape) == (7, (64, 8))
  assert registry.VERIFIERS['lantern_pp'].supply(codebook, {})['k'] == 10


def test_usage():
  assert registry.usage('mc_sjd') == 'mc_sjd(window=16, fresh=uniform, tree=None)'
  assert registry.usage('eagle') == 'eagle(tree=EAGLE, draws=distinct)'
  assert registry.usage('exact') == 'exact()'


@pytest.mark.parametrize('spec,message', [
    ('falcon', "there is no 'falcon'; it must be one of vanilla, .*, or a drafter, one of anc"),
    ('exact', "there is no 'exact'"),
    ('exact+exact', "there is no 'exact'"),
    ('jacobi+falcon', "there is no verifier 'falcon'; it must be one of exact, match"),
    ('jacobi+sjd', "there is no verifier 'sjd'"),
    ('mc_sjd(windows=3)', "mc_sjd has no parameter 'windows'; it has window, fresh, tree"),
    ('mc_sjd(coupling=redraw)', "mc_sjd has no parameter 'coupling'"),
    ('vanilla(length=3)', "vanilla has no parameter 'length'; it has window"),
    ('jacobi+match(windw=3)', "match has no parameter 'windw'"),
    ('jacobi+block(window=3)', "block has no parameter 'window'; it has none"),
    ('vanilla(window=0)', 'window is 0; it must be at least 1'),
    ('vanilla(window=-2)', 'window is -2; it must be at least 1'),
    ('vanilla(window=True)', 'window is True; it must be a whole number'),
    ('vanilla(window=7)', 'window is 7 with a main chain of 6 drafts, but an image has 6 tokens'),
    ('jacobi(window=3)+exact(delta=1)', "exact has no parameter 'delta'"),
    ('eagle(network=x)', "eagle has no parameter 'network'; it has tree, draws"),
    ('eagle+lantern(table=x)', "lantern has no parameter 'table'"),
    ('sjd(window=2.5)', 'window is 2.5; it must be a whole number'),
    ('sjd(window=0)', 'window is 0; it must be at least 1'),
    ('sjd(window=7)', 'window is 7'),
    ('sjd(window=9999999999)', 'window is 9999999999; it may be at most'),
    ('sjd(window=4, fresh=zero)', "fresh is 'zero'"),
    ('sjd(window=4, tree=EAGEL)', "tree is 'EAGEL'; it must be a tree by name .EAGLE, LANTERN"),
    ('sjd(window=4, tree="12")', "tree is '12'; it must be a tree"),
    ('sjd(window=4, tree=2)', 'tree is 2; it must be a tree'),
    ('sjd(window=4, tree=EAGLE)', 'tree has 25 draft nodes'),
    ('sjd(window=x, tree=kary(3, 3))', "window is 'x'"),
    ('sjd(window=-1, tree=kary(3, 3))', 'window is -1'),
    ('sjd(window=4, tree=kary(3, 3))', 'num_nodes is 3, but the tree has'),
    ('eagle(tree=auto)', "tree is 'auto'"),
    ('eagle(tree=chain())', r'chain needs length; give it as chain\(length=...\)'),
    ('eagle(tree=kary(3, x))', "levels is 'x'; it must be a whole number"),
    ('eagle(tree=kary(3, 3, 12, 4))', 'kary has 3 parameters: num_candidates, levels, num_nodes'),
    ('eagle(tree=kary(3, num_candidates=3))', 'gives num_candidates twice'),
    ('eagle(tree=kary(3, depth=3))', "kary has no parameter 'depth'"),
    ('eagle(tree=kary(9999, 9999))', 'more than 16384 nodes'),
    ('eagle(tree=cut(EAGEL, 3))', "tree is 'EAGEL'"),
    ('eagle(tree=bush(3))', r'tree is bush\(3\); it must be a tree by name'),
    ('eagle(tree=(-1, 0.5))', 'tree is .* it must be a tree'),
    ('eagle(tree=(-1, 1))', r'parents\[1\] is 1'),
    ('eagle(draws=sorted)', "draws is 'sorted'"),
    ('medusa(tree=chain(2), length=2)', 'length is 2, .* but a tree is given'),
    ('model(length=0)', 'length is 0; it must be at least 1'),
    ('eagle+lantern(k=4)', 'a codebook of 4 rows has 1 to 3 neighbours'),
    ('eagle+lantern(k=3, residual=released_lumina)', 'k is 3'),
    ('eagle+grouped', 'group is 10, but the target has 4 tokens'),
    ('eagle+block', 'block verification is for chains'),
])
def test_mistakes(spec, message):
  with pytest.raises(ValueError, match=message):
    build(spec)


@pytest.mark.parametrize('spec,message', [
    ('speculative', r"model drafts with a draft model, and there is none; give drafts\['model'\]"),
    ('eagle', r"drafts with an EAGLE network, and there is none; give drafts\['eagle'\]"),
    ('corrected', r"drafts with a corrector, and there is none; give drafts\['corrector'\]"),
    ('corrected(by=medusa)', "by is 'medusa'; it must be one of corrector, neighbours, eagle, "),
    ('medusa', r"drafts with Medusa heads, and there is none; give drafts\['medusa'\]"),
    ('sjd(window=4)+lantern', 'codebook is None, but the verifier lets neighbours'),
    ('sjd(window=4)+grouped(group=2, d_threshold=1)', 'codebook is None, but d_threshold'),
])
def test_missing_resources(spec, message):
  with pytest.raises(ValueError, match=message):
    registry.build(spec, T)


def test_a_codebook_of_another_size():
  with pytest.raises(ValueError, match='table has 5 rows, but the target has 4'):
    registry.build('sjd(window=4)+lantern', T, registry.Resources(codebook=np.eye(5)))
