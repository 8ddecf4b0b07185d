"""Specifications and the table of decoders: what they build, fill in and promise, and mistakes."""

import functools
import inspect
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.core.table import Entry
from cspd_jax.decoding import decoders, specification, tree as trees
from cspd_jax.decoding.base import Drafter, Target
from cspd_jax.decoding.drafters.corrected import corrected
from cspd_jax.decoding.drafters.correctors import from_model, from_network
from cspd_jax.decoding.drafters.draft_model import model
from cspd_jax.decoding.drafters.eagle import eagle, eagle2
from cspd_jax.decoding.drafters.jacobi import ancestral, jacobi, reuse
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.verifiers.block import block
from cspd_jax.decoding.verifiers.cool import cool, cool_linear, uniform
from cspd_jax.decoding.verifiers.grouped import grouped
from cspd_jax.decoding.verifiers.kseq import kseq
from cspd_jax.decoding.verifiers.lantern import lantern, lantern_pp, neighbour_table
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import rejection, typical
from cspd_jax.testing.tabular import drafts, heads, network
from docs import lists
from tests.builders import tables
from tests.marks import representative

DECODERS = specification.DECODERS
PAIR = tables.pair(num_heads=3, num_classes=3, row_width=3)
MODEL, DRAFT, DRAFTS, CODEBOOK = PAIR.model, PAIR.draft, PAIR.drafts, PAIR.codebook
NETWORK, HEADS = network(MODEL.target), heads(MODEL.target, 3)
WARP = SamplingParams(guidance_scale=1.5, temperature=0.9, top_k=3)

T = MODEL.target
TABLE = neighbour_table(CODEBOOK, 3)
MAXIMAL = functools.partial(jacobi, coupling='maximal')
# Specifications, and the same part by part, of what no named decoder is.
BUILT = {
    'sjd_pp(window=6, threshold=0.2, tree=paths(2, 2))': lambda: make_decoder(
        T, reuse(6, 0.2, tree=trees.paths(2, 2, 5)), rejection()),
    'sjd_pac(window=6, tree=caterpillar(2, 2))': lambda: make_decoder(
        T, MAXIMAL(6, tree=trees.caterpillar(2, 2, 5)), rejection()),
    'seed_exact(window=7, tree=kary(2, 3))': lambda: make_decoder(
        T, jacobi(7, 'gumbel', tree=trees.kary(2, 3, 6)), match()),
    'corrected(corrector=eagle, window=4, iterations=2)': lambda: make_decoder(
        T, corrected(from_network(NETWORK), 4, 2), rejection()),
    'corrected(corrector=model, tree=caterpillar(2, 2), window=6)': lambda: make_decoder(
        T, corrected(from_model(DRAFT.target), 6, tree=trees.caterpillar(2, 2, 5)), rejection()),
    'eagle(tree=chain(3))': lambda: make_decoder(
        T, eagle(NETWORK, trees.chain(3)), rejection()),
    'medusa(length=2)': lambda: make_decoder(T, medusa(HEADS, trees.chain(2)), rejection()),
    'ancestral+rejection': lambda: make_decoder(T, ancestral(), rejection()),
    'ancestral(window=3)+block': lambda: make_decoder(T, ancestral(3), block()),
    'model(length=2)+block': lambda: make_decoder(T, model(DRAFT.target, 2), block()),
    'jacobi(window=4)+match': lambda: make_decoder(T, jacobi(4), match()),
    'jacobi(window=4, initialization=resample-above)+rejection': lambda: make_decoder(
        T, jacobi(4, initialization='resample-above'), rejection()),
    'jacobi(coupling=maximal, window=4)+grouped(group=3)': lambda: make_decoder(
        T, MAXIMAL(4), grouped(3)),
    'jacobi(coupling=maximal, window=4)+grouped(group=3, d_threshold=1)': lambda: make_decoder(
        T, MAXIMAL(4), grouped(3, embeddings=CODEBOOK, d_threshold=1.0)),
    'eagle(draws=iid, tree=kary(2, 3))+kseq': lambda: make_decoder(
        T, eagle(NETWORK, trees.kary(2, 3, 6), 'iid'), kseq()),
    'eagle(tree=kary(3, 2), draws=fixed)+typical(epsilon=0.1)': lambda: make_decoder(
        T, eagle(NETWORK, trees.kary(3, 2, 3), 'fixed'), typical(0.1)),
    'eagle2(num_nodes=5, width=2, depth=3)+rejection': lambda: make_decoder(
        T, eagle2(NETWORK, 5, 2, 3), rejection()),
    'medusa(tree=(-1, 0, 0, 0, 0))+uniform(delta=2)': lambda: make_decoder(
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
GUARANTEES = {'match': 'seed-exact', 'rejection': 'exact', 'block': 'exact', 'kseq': 'exact'}


build = PAIR.build


def program(decoder, spec):
  """The text of what is computed; equal programs give equal tokens."""
  jaxpr = jax.make_jaxpr(decoder)(MODEL.params, jnp.arange(2), jax.random.key(0), WARP,
                                  PAIR.draft_params(spec))
  return re.sub(r'0x[0-9a-f]+', '', str(jaxpr))


@pytest.mark.slow
@pytest.mark.parametrize('spec', BUILT)
def test_a_specification_builds_the_decoder_of_its_functions(spec):
  decoder = build(spec)
  assert program(decoder, spec) == program(BUILT[spec](), spec)
  # The verifier says what is promised.
  verifier = str(specification.expand(spec)[1])
  promised = Guarantee(GUARANTEES.get(verifier, 'bounded'))
  is_chain = decoder.drafter.tree.is_chain
  assert decoder.guarantee == (promised if is_chain else promised.rounded)


@pytest.mark.parametrize('name', representative(DECODERS, 'mc_sjd', 'corrected', 'eagle2'))
def test_a_decoder_its_parts_and_its_function_are_the_same(name):
  needs, entry = specification.needs(name), DECODERS[name]
  network = [] if needs is None else [DRAFTS[needs]]
  spec = specification.complete(name, window=4, length=2)
  decoder = build(spec)
  parts = build('+'.join(map(str, specification.expand(spec))))
  assert program(parts, name) == program(decoder, name)
  arguments = {name: trees.chain(2) if name == 'tree' else value
               for name, value in spec.parts[0].arguments.items()}
  assert program(entry.build(T, *network, **arguments), name) == program(decoder, name)
  # With room for the defaults.
  big, small = T._replace(num_tokens=64), DRAFT.target._replace(num_tokens=64)
  networks = drafts(big, small, 3)
  function = entry.build(big, *([] if needs is None else [networks[needs]]))
  text = specification.build(name, big, networks)
  assert function.drafter.layout == text.drafter.layout
  assert entry.summary and decoder.guarantee in (
      'seed-exact', 'seed-exact up to rounding', 'exact', 'bounded')


@pytest.mark.parametrize('name', DECODERS)
def test_signatures(name):
  """A function has the parameters of the text, with the same defaults, and describes itself."""
  entry, text = DECODERS[name], specification.parameters(name)
  target, *own = inspect.signature(entry.build).parameters.values()
  assert target.name == 'target' and inspect.getdoc(entry.build)
  if specification.needs(name):
    # None of a corrector is refused with the way to get one.
    assert own.pop(0).default in (inspect.Parameter.empty, None)
  assert {parameter.name for parameter in own} == text.keys() - {'corrector'}
  for parameter in own:
    assert parameter.default == text[parameter.name].default


def test_a_drafter_and_a_decoder_are_an_entry_each():
  """Entries that are added work by text and by function, and are listed."""
  def short(length: int = 2) -> Drafter:
    return jacobi(length + 1)

  with mock.patch.dict(specification.DRAFTERS), mock.patch.dict(DECODERS):
    specification.DRAFTERS['short'] = Entry(short, 'a short window')

    def brief(target: Target, length: int = 3) -> Decoder:
      """Short windows."""
      return make_decoder(target, short(length), match())

    DECODERS['brief'] = specification.joined(
        brief, 'short windows', 'short(length=3)+match')
    assert specification.TABLE.decoders['brief'].summary == 'short windows'
    assert specification.usage('short') == 'short(length=2)'
    assert specification.usage('brief') == 'brief(length=3)'  # The default of the function.
    want = make_decoder(T, jacobi(4), match())
    for decoder in (brief(T), build('brief'), brief(T, 3), build('brief(length=3)')):
      assert program(decoder, 'mc_sjd') == program(want, 'mc_sjd')
    assert build('short(length=2)+rejection').drafter.tree == trees.chain(2)
    assert '| `brief(length=3)` | `short(length=3)+match` | seed-exact | - |' in lists.decoders()
    with pytest.raises(ValueError, match="brief has no parameter 'window'; it has length"):
      build('brief(window=3)')


def test_functions_accept_numbers_of_numpy():
  assert decoders.sjd(T, np.int64(4)).drafter.tree == trees.chain(3)
  big = T._replace(num_tokens=64)
  for decoder in (decoders.sjd_pac(big, 48, None),
                  specification.build('sjd_pac(window=48, tree=None)', big)):
    assert decoder.drafter.tree == decoders.default_tree(48)
  with pytest.raises(ValueError, match='window is 2.5; it must be a whole number'):
    decoders.sjd(T, 2.5)


@pytest.mark.parametrize('name', specification.DRAFTERS)
def test_every_drafter_goes_with_match(name):
  entry, spec = specification.DRAFTERS[name], f'{name}+match'
  assert entry.summary and entry.networks.keys() <= specification.TABLE.networks.keys()
  decoder = build(spec, window=4, length=2)
  tokens = jax.eval_shape(
      decoder, MODEL.params, jnp.arange(2), jax.random.key(0), WARP,
      PAIR.draft_params(spec)).tokens
  assert tokens.shape == (2, 6) and decoder.guarantee == (
      'seed-exact up to rounding' if name == 'eagle2' else 'seed-exact')
  if needs := specification.needs(spec):
    with pytest.raises(ValueError, match=f"which is missing; pass drafts.'{needs}'"):
      specification.build(spec, T)


@pytest.mark.parametrize('name', specification.VERIFIERS)
def test_every_verifier_goes_with_a_drafter(name):
  assert specification.VERIFIERS[name].summary
  sizes = 'group=3' if name == 'grouped' else ''
  assert build(f'eagle(tree=chain(2){", draws=iid" if name == "kseq" else ""})+{name}({sizes})')


@pytest.mark.parametrize('spec,expanded', [
    ('jacobi(window=3)', 'jacobi(coupling=independent, window=3)+match(seed_exact=False)'),
    ('jacobi(window=3)+rejection', 'jacobi(window=3)+rejection'),
    ('sjd_pp', 'reuse+rejection'),
    ('reuse(threshold=0.2)+cool', 'reuse(threshold=0.2)+cool'),
    ('mc_sjd', 'jacobi(coupling=maximal)+rejection'),
    ('jacobi(coupling=maximal, window=3)+grouped', 'jacobi(coupling=maximal, window=3)+grouped'),
    ('sjd_pac', 'jacobi(coupling=maximal, tree=default_tree)+rejection'),
    ('sjd_pac(tree=None)', 'jacobi(coupling=maximal, tree=default_tree)+rejection'),
    ('seed_exact(tree=chain())', 'jacobi(coupling=gumbel, tree=chain())+match'),
    ('vanilla(window=3)', 'ancestral(window=3)+match'),
    ('corrected(corrector=eagle)', 'corrected(corrector=eagle, tree=corrected_tree)+rejection'),
    ('corrected(iterations=1)+rejection', 'corrected(iterations=1)+rejection'),
    ('corrected_seed_exact', 'corrected+match'),
    ('eagle', 'eagle+rejection'),
    ('eagle2', 'eagle2+match'),
    ('model+match', 'model+match'),
])
def test_expansion(spec, expanded):
  assert '+'.join(map(str, specification.expand(spec))) == expanded


@pytest.mark.parametrize('spec,window,completed', [
    ('vanilla', 16, 'vanilla'),
    ('speculative', 16, 'speculative(length=4)'),
    ('speculative(length=2)', 16, 'speculative(length=2)'),
    ('sjd_pp', 16, 'sjd_pp(window=16)'),
    ('mc_sjd(window=8)', 16, 'mc_sjd(window=8)'),
    ('corrected', 64, 'corrected(window=64)'),
    ('eagle', 25, 'eagle(tree=chain(4))'),
    ('eagle', 26, 'eagle(tree=EAGLE)'),
    ('eagle(tree=LANTERN)+rejection', 16, 'eagle(tree=LANTERN)+rejection'),
    ('eagle(draws=distinct)+kseq', 26, 'eagle(draws=distinct, tree=EAGLE)+kseq'),
    ('jacobi+kseq', 16, 'jacobi(window=16)+kseq'),
    ('eagle2', 16, 'eagle2(depth=3, num_nodes=15, width=8)'),
    ('eagle2', 64, 'eagle2(depth=5, num_nodes=63, width=10)'),
    ('eagle2', 1, 'eagle2(depth=3, num_nodes=1, width=1)'),
    ('eagle2(width=3)', 64, 'eagle2(width=3)'),
    ('medusa', 64, 'medusa(length=4)'),
    ('medusa(tree=MEDUSA)', 64, 'medusa(tree=MEDUSA)'),
    ('jacobi(coupling=maximal)+cool', 16, 'jacobi(coupling=maximal, window=16)+cool'),
])
def test_completion(spec, window, completed):
  result = specification.complete(spec, window=window, length=4)
  assert str(result) == completed
  assert specification.complete(result, window=9, length=9) == result
  assert str(specification.complete(spec)) == spec
  if spec == 'eagle':  # A chain fills a small window, by default.
    assert str(specification.complete(spec, window=8)) == 'eagle(tree=chain(7))'
    assert str(specification.complete(spec, window=1)) == 'eagle(tree=chain(1))'


def test_a_long_window_has_the_default_tree():
  big = T._replace(num_tokens=64)
  for window in (8, 16, 48):
    decoder = specification.build(f'sjd_pac(window={window})', big)
    assert decoder.drafter.tree == decoders.default_tree(window)


def test_heads_limit_the_chain():
  assert build('medusa(length=9)').drafter.tree == trees.chain(3)


def test_number_of_neighbours():
  arguments = specification.FROM_CODEBOOK['lantern']
  codebook = np.random.default_rng(0).standard_normal((64, 2))
  assert arguments(codebook, {})['k'] == 4 and arguments(codebook, {})['table'].shape == (64, 4)
  assert arguments(codebook, {'k': 7})['table'].shape == (64, 7)
  assert arguments(CODEBOOK, {})['k'] == 1
  wide = arguments(codebook, {'k': 7, 'residual': 'released_lumina'})
  assert (wide['k'], wide['table'].shape) == (7, (64, 8))
  assert specification.FROM_CODEBOOK['lantern_pp'](codebook, {})['k'] == 10


def test_a_codebook_of_another_dtype_has_the_same_neighbours():
  arguments = specification.FROM_CODEBOOK['lantern']
  codebook = jax.random.normal(jax.random.key(0), (64, 4), jnp.bfloat16)
  tables = [arguments(np.asarray(codebook, dtype), {'k': 7})['table']
            for dtype in (jnp.bfloat16, np.float32, np.float64)]
  for table in tables[1:]:
    np.testing.assert_array_equal(table, tables[0])


@pytest.mark.parametrize('text', [
    'mc_sjd(window=16, tree=None, initialization=uniform)',
    'sjd_pac(window=16, tree=None, initialization=uniform)', 'eagle(tree=EAGLE, draws=distinct)',
    'rejection()'])
def test_usage(text):
  assert specification.usage(text.partition('(')[0]) == text


def test_a_name_before_a_plus_is_a_drafter():
  for name in specification.DRAFTERS.keys() & DECODERS:
    assert [specification.expand(text)[0].name for text in (name, f'{name}+match')] == [name] * 2
  for name in specification.DRAFTERS.keys() - DECODERS.keys():
    with pytest.raises(ValueError, match=f"'{name}' is a drafter; write a verifier after it, such "
                       rf'as {name}\+rejection'):
      specification.needs(name)
  with pytest.raises(ValueError, match=r"'mc_sjd' is a decoder, like jacobi\(coupling=maximal\)\+"
                     r'rejection; .* such as jacobi\(coupling=maximal\)\+cool\.'):
    build('mc_sjd(window=3)+cool')


@pytest.mark.parametrize('spec,message', [
    ('rejection', "'rejection' is a verifier; write it after a drafter"),
    ('falcon', "'falcon' is not registered; it must be one of vanilla, .*, or a drafter, one of"),
    ('vanila', "'vanila' is not registered; did you mean vanilla\\? Otherwise it must be one of"),
    ('jacobi+falcon', "no verifier is called 'falcon'; it must be one of rejection, match"),
    ('mc_sjd(windows=3)', "mc_sjd has no parameter 'windows'; it has window, tree, initialization"),
    ('jacobi+block(window=3)', "block has no parameter 'window'; it has none"),
    ('vanilla(window=0)', 'window is 0; it must be a whole number from 1'),
    ('vanilla(window=7)', 'window is 7 with a main chain of 6 drafts, but an image has 6 tokens'),
    ('eagle(network=x)', "eagle has no parameter 'network'; it has tree, draws"),
    ('eagle+lantern(table=x)', "lantern has no parameter 'table'"),
    *((f'sjd(window={value})', f'window is {value}; it must be a whole number')
      for value in ('2.5', 'True', 'None', "'3'")),
    ('sjd(window=(3, 4))', r'window is \(3, 4\); it must be a whole number'),
    ('sjd(initialization=3)', 'initialization is 3; it must be a string'),
    ('sjd(initialization=f(2))', r'initialization is f\(2\); it must be a string'),
    ('corrected(iterations=1.5)', 'iterations is 1.5; it must be a whole number or None'),
    ('jacobi+cool(delta=True)', 'delta is True; it must be a number'),
    ('jacobi+cool(clamp=1)', 'clamp is 1; it must be True or False'),
    ('jacobi+cool(clamp=yes)', "clamp is 'yes'; it must be True or False"),
    ('sjd(window=9999999999)', 'window is 9999999999; it must be a whole number'),
    ('sjd(window=4, initialization=zero)', "initialization is 'zero'"),
    ('sjd_pp(window=4, threshold=0)', 'threshold is 0.0; it must be above 0 and at most 1'),
    ('sjd_pp(window=4, threshold=high)', "threshold is 'high'"),
    ('sjd(window=4, tree=EAGEL)', "tree is 'EAGEL'; it must be a tree by name .EAGLE, LANTERN"),
    ('sjd(window=4, tree=EAGLE)', 'tree has 25 draft nodes'),
    ('sjd(window=-1, tree=kary(3, 3))', 'window is -1'),
    ('sjd(window=4, tree=kary(3, 3))', 'num_nodes is 3, but the tree has'),
    ('jacobi(window=4, tree=auto)+match', "tree is 'auto'; it must be a tree by name"),
    ('eagle(tree=chain())', r"tree is chain\(\): missing a required argument: 'length'; chain has"),
    ('eagle(tree=kary(3, x))', "levels is 'x'; it must be a whole number"),
    ('eagle(tree=kary(3, 3, 12, 4))',
     'too many positional arguments; kary has the parameters num_candidates, levels'),
    ('eagle(tree=kary(3, num_candidates=3))', "multiple values for argument 'num_candidates'"),
    ('eagle(tree=kary(3, depth=3))', "unexpected keyword argument 'depth'; kary has"),
    ('eagle(tree=kary(9999, 9999))', 'more than 16384 nodes'),
    ('eagle(tree=bush(3))', r'tree is bush\(3\); it must be a tree by name'),
    ('eagle(tree=(-1, 0.5))', 'tree is .* it must be a tree'),
    ('eagle(tree=(-1, 1))', r'parents\[1\] is 1'),
    ('eagle(draws=sorted)', "draws is 'sorted'"),
    ('medusa(tree=chain(2), length=2)', 'length is 2, .* but a tree is given'),
    ('model(length=0)+match', 'length is 0; it must be a whole number from 1'),
    ('eagle+lantern(k=4)', 'a codebook of 4 rows has 1 to 3 neighbours'),
    ('corrected(corrector=kary(3, 3))', r'corrector is kary\(3, 3\); it must be a string'),
    ('corrected(corrector=medusa)', "corrector is 'medusa'; it must be one of corrector, nei"),
])
def test_mistakes(spec, message):
  with pytest.raises(ValueError, match=message):
    build(spec)


def test_a_network_that_is_a_call():
  with pytest.raises(ValueError, match=r'corrector is kary\(3, 3\); it must be one of corrector'):
    specification.needs('corrected(corrector=kary(3, 3))')


@pytest.mark.parametrize('spec,resources,message', [
    ('speculative', {}, r"drafts with a draft model, which is missing; pass drafts\['model'\]"),
    ('corrected', {}, r"drafts with a corrector, which is missing; pass drafts\['corrector'\]"),
    ('jacobi(window=4)+lantern', {}, 'codebook is None, but the verifier accepts neighbours'),
    ('jacobi(window=4)+grouped(group=2, d_threshold=1)', {}, 'codebook is None, but d_threshold'),
    ('jacobi(window=4)+lantern', dict(codebook=np.eye(5)),
     'table has 5 rows, but the target has 4')])
def test_missing_resources(spec, resources, message):
  with pytest.raises(ValueError, match=message):
    specification.build(spec, T, **resources)


@pytest.mark.parametrize('text, other, is_same', [
    ('vanilla', 'vanilla(window=1)', True), ('vanilla', 'ancestral+match', True),
    ('vanilla', 'vanilla(window=2)', False), ('seed_exact(window=3)', 'mc_sjd(window=3)', False),
    ('mc_sjd(window=8)', 'jacobi(window=8, coupling=maximal)+rejection', True),
    ('jacobi(window=8)', 'jacobi(window=8)+rejection', False),
    ('eagle', 'eagle(tree=EAGLE)', True), ('eagle(tree=kary(2, 2))', 'eagle(tree=chain(6))', False),
    ('eagle(tree=kary(1, 3))', 'eagle(tree=chain(2))', True),
    ('corrected(window=8)', 'corrected(window=8, tree=corrected_tree, iterations=None)', True),
    ('medusa+kseq', 'medusa(draws=iid)+kseq', False),
    ('eagle+lantern', 'eagle+lantern(greedy=False)', True),
    ('eagle+lantern', 'eagle+lantern(greedy=True)', False)])
def test_texts_of_one_decoder_are_equal_in_full(text, other, is_same):
  assert (specification.in_full(text) == specification.in_full(other)) == is_same
