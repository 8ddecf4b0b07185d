"""Messages of functions on targets: decoders, drafters, verifiers, trees, checks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax import continuous, decoding
from cspd_jax.continuous import (
    coupling,
    decoders as by_levels,
    head as head_lib,
    loop as loop_of_levels,
    path,
    schedule as schedule_lib,
    specification,
)
from cspd_jax.continuous.cspd import released
from cspd_jax.continuous.visibility import TRUE
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import decoders, tree as trees
from cspd_jax.decoding.base import Verdict, Verifier
from cspd_jax.decoding.drafters import from_model, from_network, jacobi as jacobi_lib
from cspd_jax.decoding.drafters.corrected import corrected
from cspd_jax.decoding.drafters.draft_model import model as draft_model
from cspd_jax.decoding.drafters.eagle import eagle, eagle2
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.block import block
from cspd_jax.decoding.verifiers.cool import cool, cool_linear, uniform
from cspd_jax.decoding.verifiers.grouped import grouped
from cspd_jax.decoding.verifiers.kseq import kseq
from cspd_jax.decoding.verifiers.lantern import lantern, lantern_pp, neighbour_table
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import rejection, typical
from cspd_jax.metrics import image_scores, likelihood
from cspd_jax.testing import check_drafter, check_target, check_verifier, exactness
from cspd_jax.testing.enumerate import enumerate_rounds
from cspd_jax.testing.proofs import analytic
from cspd_jax.testing.tabular import heads, network, tabular, tabular_drafter
from tests.messages import said
from tests.messages.said import each

MODEL = tabular(jax.random.key(0), 4, 6, guided=True, num_classes=3, row_width=3)
T, KEY, LABELS = MODEL.target, jax.random.key(0), np.asarray([0, 1])
PLAIN = tabular(jax.random.key(0), 3, 4)
OTHER = tabular(jax.random.key(0), 5, 6, guided=True).target
TREE, CODEBOOK = trees.Tree((-1, 0, 1, 0, 1)), np.random.default_rng(0).normal(size=(4, 2))
TABLE = neighbour_table(CODEBOOK, 3)

LEVELS, FLOW = schedule_lib.make(6), schedule_lib.flow(6)
SILENT = LEVELS._replace(min_log_variance=np.where(np.arange(6) < 1, -np.inf, 0.0))
CHAIN = analytic.gaussian_chain(8, 0.9, schedule=LEVELS, means=(0.0, 1.0))
CAUSAL = analytic.causal_chain(4, 2, schedule=FLOW, means=(0.0, 1.0), null=0.5).target
DISCRETE, CONTINUOUS = (f'cspd_jax.{engine}.base.Target' for engine in ('decoding', 'continuous'))
PATH, OWN = path.path_test(split=1), head_lib.no_drafts(head_lib.ancestral(CHAIN.target, LEVELS))
BLOCKS = [
    (dict(block_length=0), 'block_length is 0; it must be a whole number from 1'),
    (dict(block_length=9), 'block_length is 9; .* number of tokens, 8'),
    (dict(prefix_share=-0.1), 'prefix_share is -0.1; it must be from 0 to 1'),
    (dict(prefix_share=1.1), 'prefix_share is 1.1'),
    (dict(kappa=0.0), 'kappa is 0.0; it must be finite and above 0'),
    (dict(guidance='cosine'), "guidance is 'cosine'"),
    # Drafts of a kernel without noise would never be accepted, and all become zero as released.
    (dict(schedule=SILENT), 'a kernel without noise')]


def _traced(at, arguments):
  """Everything but Python numbers is traced; nothing is compiled."""
  defaults = dict(params=MODEL.params, labels=LABELS, key=KEY, sampling=SamplingParams())
  make = arguments.get('make', decoders.vanilla)
  return jax.eval_shape(make(T), *(arguments.get(name, value) for name, value in defaults.items()))


def _decode_eagerly(labels=LABELS, key=KEY, sampling=SamplingParams(guidance_scale=1.5)):
  return decoders.sjd(T, 2)(MODEL.params, labels, key, sampling)


def _needy(drafter):
  """A verifier of one's own that reads the drafts' distributions."""
  def verify(rng, layout, tokens, probs, target_probs, positions):
    return Verdict(jnp.int32(0), rng.draw(jnp.maximum(target_probs[:1], probs[:1]))[0])

  return make_decoder(T, drafter, Verifier(verify, exact=False, needs_probs=True))


def _careless(target):
  """A verifier that neither asks for distributions nor gives samples."""
  def verify(rng, layout, tokens, probs, target_probs, positions):
    return Verdict(jnp.int32(0), rng.draw(target_probs[:1])[0])

  return make_decoder(
      target, jacobi(3, 'maximal'), Verifier(verify, exact=True, needs_probs=False))


def _reusing_without_distributions():
  verifier = rejection()._replace(
      needs_probs=False, verify=lambda rng, layout, tokens, probs, target_probs, positions:
      rejection().verify(rng, layout, tokens, target_probs[:-1], target_probs, positions))
  decoder = make_decoder(PLAIN.target, jacobi_lib.reuse(3), verifier)
  jax.eval_shape(decoder, PLAIN.params, jnp.zeros(2, jnp.int32), KEY)


def _without_features():
  target = T._replace(prefill=lambda *args: (lambda logits, features, cache: (
      logits, None, cache))(*T.prefill(*args)))
  decoder = make_decoder(target, corrected(from_network(network(target)), 4), rejection())
  jax.eval_shape(decoder, MODEL.params, LABELS, KEY, SamplingParams(), MODEL.params)


def _block_or_kseq(at, verifier, tree, draws):
  drafter = tabular_drafter(PLAIN, TREE if tree is TREE else trees.chain(2), draws)
  drafter = drafter._replace(layout=drafter.layout._replace(tree=tree))
  return make_decoder(PLAIN.target, drafter, verifier())


def _of_levels(at, name, options):
  models = [CHAIN.target] * (2 if specification.needs(name) else 1)
  return specification.DECODERS[name].build(*models, **dict(schedule=LEVELS) | options)


def _parts_of_levels(at, verifier, stops, options):
  return loop_of_levels.make_decoder(CHAIN.target, LEVELS, verifier, stops, **options)


def _traced_by_levels(at, changes, verifier=OWN, labels=LABELS):
  decoder = loop_of_levels.make_decoder(
      CHAIN.target._replace(**changes), LEVELS, verifier, (3, 8)) if verifier is not OWN else (
          by_levels.mar(CHAIN.target._replace(**changes), None, LEVELS))
  return jax.eval_shape(decoder, CHAIN.params, labels, KEY)


CALLS = [
    # Decodes: options, keys, conditions, parameters.
    *each(_traced,
    # Options.
    (dict(sampling=SamplingParams(temperature=np.ones(3))),
     r'temperature has shape \(3,\).* shape \(2,\)'),
    (dict(sampling=SamplingParams(top_k=np.ones((2, 1), int))), r'top_k has shape \(2, 1\)'),
    (dict(sampling=SamplingParams(top_p=np.asarray([True, False]))),
     'top_p is .* must be a number'),
    (dict(sampling=SamplingParams(guidance_scale=np.ones(2, complex))),
     'guidance_scale is .* must be a number'),
    (dict(sampling={'temperature': 1.0}), 'sampling is .* it must be a cspd_jax.SamplingParams'),
    # Keys.
    (dict(key=np.zeros(2, np.float32)), r'key is float32\[2\]; it must be a random key'),
    (dict(key=jax.random.split(KEY, 3)), r'key has shape \(3,\)'),
    # Conditions.
    (dict(labels=[0, 1]), r'condition has leaves .* convert lists to arrays'),
    (dict(labels=np.zeros(0, int)), 'at least 1 row'),
    (dict(labels=np.zeros((2, 1), int)), r'shape \(2, 1\).* one integer class label per image'),
    (dict(labels=np.zeros(2, np.float32)), 'dtype float32; this model requires one i'),
    (dict(labels=(np.zeros(2, int), np.zeros(3, int))), 'one leading axis'),
    # What drafts has no parameters.
    (dict(make=lambda t: decoders.speculative(t, t, 2)), 'draft_params is None'),
    (dict(make=lambda t: decoders.eagle2(t, network(t), 2, 2, 2)), 'draft_params is None'),
    (dict(make=lambda t: decoders.medusa(t, heads(t, 2))), 'draft_params is None')),
    *each(lambda at, sampling: decoders.vanilla(T).check(LABELS, sampling),
    (SamplingParams(temperature='1'), "temperature is '1'"), (SamplingParams(temperature=None),
                                                              'temperature is None'),
    (SamplingParams(top_k=True), 'top_k is True'), (SamplingParams(guidance_scale=[[1.0], 2.0]),
                                                    'guidance_scale is')),
    *each(lambda at, call, decoder, sampling: call(decoder, sampling), *(
        (call, decoder, sampling, 'must be a cspd_jax.SamplingParams, such as SamplingParams')
        for decoder in (decoders.vanilla(T), by_levels.mar(CHAIN.target, None, LEVELS))
        for sampling in ({'temperature': 1.0}, 1.0, (1.0, 1.0)) for call in (
            lambda decoder, sampling: decoder.check(LABELS, sampling),
            lambda decoder, sampling: jax.eval_shape(decoder, None, LABELS, KEY, sampling)))),
    # What one types first.
    *each(lambda at, make: make(at.demo),
    (lambda model: cspd_jax.mc_sjd(model), "target is Model.'demo'.*such as model.target.gu"),
    (lambda model: cspd_jax.seed_exact(model.target), 'target is .*such as .*guided=True'),
    (lambda model: cspd_jax.vanilla(None), 'target is None; it must be a .*decoding.base.Target'),
    (lambda model: cspd_jax.vanilla(CHAIN.target), f'{CONTINUOUS}; it must be a {DISCRETE}'),
    (lambda model: decoding.build('mc_sjd', model), 'target is Model.*such as model.target'),
    (lambda model: continuous.mar(T), f'{DISCRETE}; it must be a {CONTINUOUS}'),
    (lambda model: continuous.mar(model), 'target is Model.*such as model.target.guided=True'),
    (lambda model: continuous.parallel(model.target), 'target is .*such as model.target.guided'),
    (lambda model: continuous.exact_path(CHAIN.target, T), f'draft is a {DISCRETE}; it must be'),
    (lambda model: cspd_jax.speculative(T, model), 'draft_target is Model.*such as model.target'),
    (lambda model: cspd_jax.eagle(T, model.drafts['eagle']), 'network is .*such as model.dra'),
    (lambda model: cspd_jax.eagle(T, network(T), 'EAGLE'), "tree is 'EAGLE'; it must be a .*Tree"),
    (lambda model: cspd_jax.medusa(T, network(T)), 'heads is a Network; it must be a .*Heads'),
    (lambda model: cspd_jax.corrected(T, network(T)), 'corrector is a Network; it must be a '),
    (lambda model: from_model(network(T)), 'small is a Network; it must be a .*Target'),
    (lambda model: cspd_jax.sjd(T, tree='chain'), "tree is 'chain'; it must be a .*Tree"),
    (lambda model: cspd_jax.sjd_pac(T, 2.5), 'window is 2.5; it must be a whole number'),
    (lambda model: cspd_jax.decoder(model, 'mc_sjd'), 'pass the text first, then the model: cspd'),
    (lambda model: cspd_jax.decoder('mc_sjd', T), 'model is Target.*decoding.build.text, target')),
    *each(lambda at, call: call(),
    # Parts that do not fit each other or the target.
    (lambda: decoders.speculative(T, T, 999),
     'tree of drafts has depth 999, but an image has 6 tokens; .* of depth at most 5'),
    (lambda: decoders.eagle(T, network(T), trees.chain(6)), 'has depth 6'),
    (lambda: decoders.speculative(T, T, '3'), "length is '3'"),
    (lambda: decoders.mc_sjd(T, 4.0), 'window is 4.0; it must be a whole number'),
    (lambda: _needy(eagle(network(T), trees.chain(2), 'fixed')),
     "draws is 'fixed', so it records none"),
    (lambda: _needy(medusa(heads(T, 2), trees.chain(2), 'fixed')), 'records none'),
    (lambda: _traced(None, dict(make=_careless)), "coupling is 'maximal'.*set needs_probs"),
    (lambda: jacobi(4, 'minimal'), "coupling is 'minimal'"),
    (lambda: jacobi(4, tree=trees.Tree((-1, 0, 0, 2))), 'beyond the main chain'),
    (lambda: decoders.speculative(T, tabular(jax.random.key(0), 3, 6).target),
     'vocab_size of the draft model is 3, of the target 4'),
    (lambda: _decode_eagerly(labels=jnp.asarray([0, 5])), 'supports 0 to 2'),
    (lambda: _decode_eagerly(sampling=SamplingParams(top_p=0.0)), 'top_p is 0'),
    (lambda: _decode_eagerly(key=jax.random.split(jax.random.key(0), 3)), r'key has shape \(3,\)'),
    (_reusing_without_distributions, "the drafter is 'reuse', which needs the distributions"),
    (_without_features, 'The target returns no features'),
    (lambda: make_decoder(PLAIN.target, jacobi(3), block()), 'keeps drafts.*depends on later ones'),
    (lambda: tabular_drafter(PLAIN, trees.chain(2), 'all'), "draws is 'all'"),
    (lambda: make_decoder(PLAIN.target, tabular_drafter(
        tabular(KEY, 2, 4), trees.chain(2)), rejection()),
     'other has 2 tokens and length 4, the target 3'),
    (lambda: make_decoder(T, jacobi(3, initialization='repeat-small'), rejection()),
     "initialization is 'repeat-small', but the target draws no small im"),
    (lambda: jacobi(3, initialization='repeat-below'), 'initialization'),
    (lambda: eagle(network(T), trees.chain(0)), 'no draft nodes'),
    (lambda: eagle(network(T), TREE, 'some'), "draws is 'some'; it must be one of"),
    (lambda: eagle2(network(T), 0), 'num_nodes is 0; .* from 1 to'),
    (lambda: eagle2(network(T), 9, 2, 2), 'num_nodes is 9, but a beam .* has 6'),
    (lambda: medusa(heads(T, 2), trees.chain(3)), 'tree is 3 deep; with 2 heads'),
    (lambda: make_decoder(T, eagle(network(OTHER), TREE), rejection()),
     'vocab_size of the drafting network is 5, of the target 4'),
    (lambda: make_decoder(T, medusa(heads(OTHER, 2), TREE), rejection()),
     'vocab_size of the heads is 5'),
    # Correctors and verifiers.
    *((lambda arguments=arguments: corrected(None, **arguments), words) for arguments, words in [
    (dict(window=0), 'window is 0'), (dict(iterations=0), 'iterations is 0'),
    (dict(num_corrected=0), 'num_corrected is 0'),
    (dict(window=8, num_corrected=9), 'num_corrected is 9; .* from 1 to 7'),
    (dict(window=8, tree=trees.paths(2, 3, 7)), 'side nodes with children'),
    (dict(window=8, tree=trees.chain(3)), 'tree has 3 draft nodes, but window is 8')]),
    (lambda: from_network(None, -1), 'decay is -1'),
    (lambda: lantern(TABLE, 1.0), 'delta is 1.0.* at least 0 .*below 1'),
    (lambda: lantern(TABLE, -0.1), 'delta is -0.1'),
    (lambda: lantern(TABLE, 0.7, metric='jsd'), "metric 'jsd', below 0.693"),
    (lambda: lantern(TABLE, 0.1, metric='kld'), "metric is 'kld'.*tvd, jsd"),
    (lambda: lantern_pp(TABLE, 0.9), 'lam is 0.9; it must be at least 1'),
    (lambda: lantern(TABLE, 0.1, k=4), 'k is 4; with a table of 3 .*must be 1 to 3'),
    (lambda: lantern(TABLE, 0.1, k=0), 'k is 0'),
    (lambda: lantern_pp(TABLE, 2, residual='released_lumina'),
     r'1 to 2, because the released code sets k \+ 1'),
    (lambda: lantern(TABLE, 0.1, residual='van'), "residual is 'van'.*gstar, paper"),
    (lambda: lantern(TABLE, 0.1, residual='paper', greedy=True), 'leave it out'),
    (lambda: lantern(TABLE[0], 0.1), 'must be integers'),
    (lambda: lantern(TABLE * 1.0, 0.1), 'type float64; it must be integers'),
    (lambda: lantern(TABLE + 1, 0.1), 'must be tokens, 0 to 3'),
    (lambda: lantern(np.array([[1], [1]]), 0.1), 'row 1 contains 1 itself'),
    (lambda: lantern(np.array([[1, 2], [2, 2], [0, 1]]), 0.1),
     'row 1 lists a neighbour twice'),
    (lambda: grouped(0), 'group is 0; it must be at least 1'),
    (lambda: grouped(3, 0.0), 'p_threshold is 0.0; it must be above 0'),
    (lambda: grouped(3, d_threshold=1.0), 'embeddings are missing'),
    (lambda: grouped(3, embeddings=CODEBOOK), 'd_threshold is None'),
    (lambda: grouped(3, embeddings=CODEBOOK[0], d_threshold=1.0), r'must be \[V, D\]'),
    (lambda: grouped(3, embeddings=CODEBOOK, d_threshold=0.0), 'd_threshold is'),
    (lambda: typical(1.0), 'epsilon is 1.0; it must be above 0 and below 1'),
    (lambda: typical(0.1, 0.0), 'delta is 0.0'),
    (lambda: uniform(0.9), 'delta is 0.9; .* a factor of at least 1'),
    (lambda: cool(0.0), 'delta is 0.0'),
    (lambda: cool(1.1, -0.1), 'nu is -0.1; .* a rate of at least 0'),
    (lambda: cool(1.1, length=0), 'length is 0'),
    (lambda: cool_linear(1.1, np.inf), 'l is inf; it must be a whole number'),
    (lambda: cool_linear(1.1, 5, length=5), 'l is 5, .*depths 1 to 5: l must be larger'),
    *((lambda build=build: make_decoder(T, jacobi(4), build()), words) for build, words in [
    (lambda: lantern(TABLE[:3, :1] % 3, 0.1), 'table has 3 rows, .* 4 tokens'),
    (lambda: grouped(5), 'group is 5, but the target has 4 tokens'),
    (lambda: grouped(3, embeddings=CODEBOOK[:3], d_threshold=1.0),
     'embeddings have 3 rows, .* 4 tokens'),
    (lambda: cool_linear(1.1, 3), 'l is 3, .*depths 1 to 3')]),
    (lambda: make_decoder(T, jacobi(4), lantern(TABLE, 0.1, greedy=True)).check(LABELS),
     'temperature is 1.0'),
    (lambda: neighbour_table(CODEBOOK, k=4), 'k is 4; a codebook of 4 rows has 1 to 3'),
    (lambda: neighbour_table(CODEBOOK, k=0), 'k is 0'),
    (lambda: neighbour_table(CODEBOOK[0], k=3), r'shape \(2,\)'),
    (lambda: neighbour_table(CODEBOOK * np.inf, k=3), 'finite matrix'),
    (lambda: decoders.vanilla(PLAIN.target).check(LABELS * 0, SamplingParams(2.)),
     'no null condition'),
    (lambda: decoders.vanilla(T).check(LABELS, SamplingParams(temperature=-1.)),
     'temperature is -1'),
    # Trees.
    (lambda: trees.Tree((0,)), 'must be -1'), (lambda: trees.Tree((-1, 2, 0)), r'\[1\] is 2'),
    (lambda: trees.chain(-1), 'length is -1'), (lambda: trees.paths(3, 2, 5), 'at least 6 nodes'),
    (lambda: trees.caterpillar(0, 2, 5), 'num_candidates is 0'),
    (lambda: trees.kary(2, 1, 5), 'levels is 1'), (lambda: trees.kary(4, 4, 64), 'nodes is 64'),
    # Ranks are one digit each: the eleventh child would be the child of a child.
    (lambda: trees.branching('12'), "entry '12'; it must have path:number .* from 1 to 10"),
    (lambda: trees.branching((1, 2)), r'counts is \(1, 2\); it must be a string'),
    (lambda: trees.branching(12), 'counts is 12; it must be a string'),
    (lambda: trees.branching('99999999'), 'from 1 to 10'),
    (lambda: trees.branching('1' * 5000), 'from 1 to 10'),
    (lambda: trees.branching('\u0662'), 'it must be a string, such as'),
    (lambda: trees.Tree('12'), "parents is '12'; it must be a tuple"),
    (lambda: trees.Tree((-1, 0.0)), 'of which each is a whole number'),
    (lambda: trees.Tree((-1, False)), 'of which each is a whole number'),
    (lambda: trees.Tree((-1, *[0] * 2**15)), 'has 32768 nodes; it may have at most'),
    (lambda: trees.chain('3'), "length is '3'; it must be a whole number"),
    (lambda: trees.chain(2.0), 'length is 2.0; it must be a whole number'),
    (lambda: trees.kary(True, 3), 'num_candidates is True'),
    (lambda: trees.paths(2, 2, '9'), "num_nodes is '9'"),
    (lambda: trees.caterpillar(2, 1.5), 'depth is 1.5'),
    (lambda: trees.cut(trees.chain(3), '1'), "depth is '1'"),
    *((functools.partial(trees.branching, counts), words) for counts, words in [
    ('2 5:1', 'has children for 5'), ('2 0:x', "entry '0:x'"), ('2 0:1 0:2', "entry '0:2'"),
    ('2 0:0', "entry '0:0'")])),
    *each(_block_or_kseq,
          (block, TREE, 'distinct', 'block verification is for chains.*rejection'),
          (block, trees.Budget(2, 2, 1), 'iid', 'block verification is for chains.*Budget'),
          (block, trees.chain(2), 'fixed', "draws is 'fixed'.*records none"),
          (kseq, TREE, 'distinct', "draws of the drafter is 'distinct'.*'iid'"),
          (kseq, TREE, 'fixed', "'fixed'; kseq needs"),
          (kseq, trees.Budget(2, 2, 1), 'iid', 'Budget.*run time')),
    # Continuous tokens.
    *each(_of_levels,
    ('mar', dict(num_iter=0), 'num_iter is 0'),
    ('mar', dict(num_iter=9), 'num_iter is 9; .* from 1 to the number of tokens, 8'),
    ('mar', dict(num_iter=2.5), r'num_iter is 2\.5; it must be a whole number'),
    ('mar', dict(guidance='cosine'), "guidance is 'cosine'; it must be one of linear, constant"),
    ('mar', dict(schedule='6'), "schedule is '6'; it must be a Schedule or the number of levels"),
    ('mar', dict(schedule=1), 'num_levels is 1; it must be a whole number from 2 to 1000'),
    ('parallel', dict(block_length=0), 'block_length is 0; .* 1 to .* 8'),
    ('parallel', dict(block_length=9), 'block_length is 9'),
    ('parallel', dict(block_length=2.5), r'block_length is 2\.5; it must be a whole number'),
    ('exact_head', dict(kernels_per_call=0),
     'kernels_per_call is 0; it must be a whole number from 1 to the number of levels, 6'),
    ('exact_head', dict(kernels_per_call=7), 'kernels_per_call is 7'),
    ('exact_head', dict(kernels_per_call=2.0), r'kernels_per_call is 2\.0; .* a whole number'),
    ('exact_head', dict(rho=np.ones(9)), r'rho has shape \(9,\)'),
    ('exact_head', dict(rho=np.full(6, np.nan)), 'one finite number per level'),
    ('windows', dict(window=0), 'window is 0'), ('windows', dict(window=9), 'window is 9'),
    ('windows', dict(window='8'), "window is '8'; it must be a whole number"),
    ('windows', dict(window=2.0), r'window is 2\.0; it must be a whole number'),
    ('windows', dict(window=True), 'window is True; it must be a whole number'),
    ('windows', dict(kernels_per_call=0), 'kernels_per_call is 0'),
    ('windows', dict(kernels_per_call=2.5), r'kernels_per_call is 2\.5; .* a whole number'),
    ('windows', dict(rho=np.ones(3)), 'rho has shape'),
    ('windows', dict(num_iter=9), 'num_iter is 9'),
    ('windows', dict(guidance='none'), 'guidance is'),
    ('windows', dict(schedule=SILENT), 'a kernel without noise'),
    ('windows', dict(schedule=schedule_lib.flow(6, last_step=0.1, last_deviation=0)),
     'a kernel without noise'),
    ('exact_path', dict(draft_length=0), 'draft_length is 0; it must be a whole number from 1'),
    ('exact_path', dict(draft_length=9), 'draft_length is 9; .* number of tokens, 8'),
    ('exact_path', dict(max_trials=0), 'max_trials is 0; .* from 1 to 65536'),
    ('exact_path', dict(max_trials=2**16 + 1), 'max_trials is 65537; .* from 1 to 65536'),
    ('exact_path', dict(eta=0.0), 'eta is 0.0'), ('exact_path', dict(eta=2.0), 'eta is 2.0'),
    ('exact_path', dict(split=-1), 'split is -1; .* 0 to the last level, 5'),
    ('exact_path', dict(split=6), 'split is 6'),
    ('exact_path', dict(split=2.0), 'split is 2.0; it must be a whole number'),
    ('exact_path', dict(prefix_share=2.0), 'prefix_share is 2.0; it must be from 0 to 1'),
    ('exact_path', dict(prefix_share=-0.1), 'prefix_share is -0.1; it must be from 0 to 1'),
    ('exact_path', dict(guidance='none'), "guidance is 'none'"),
    ('exact_path', dict(schedule=SILENT), 'a kernel without noise'),
    ('cspd_paper', dict(draft_length=0), 'draft_length is 0; it must be a whole number from 1'),
    ('cspd_released', dict(sigma='on'), "sigma is 'on'; it must be one of off, paper"),
    *((name, *case) for name in ('cspd_released', 'cspd_relaxed') for case in BLOCKS)),
    *each(_parts_of_levels,
          (PATH, (8,), dict(visibility=TRUE), 'drafter is None, but the verifier requires drafts'),
          (OWN, (8,), dict(drafter=path.model(CHAIN.target)), 'the verifier accepts no drafts'),
          (OWN, (8,), dict(visibility=TRUE), "visibility is 'true'; the verifier requires 'block'"),
          (PATH, (8,), dict(drafter=path.model(CHAIN.target)), "visibility is 'block'; .* 'true'"),
          (OWN, (3, 6), {}, r'stops is \(3, 6\) after a prefix of 0; .* number of tokens, 8'),
          (OWN, (4, 4, 8), {}, r'stops is \(4, 4, 8\)'), (OWN, (), {}, r'stops is \(\) after'),
          (OWN, (2, 8), dict(prefix=2), 'prefix of 2'),
          (released(42.0, 'off'), (8,), dict(drafter=path.model(
              CHAIN.target._replace(token_dim=2))), 'draft has 2 numbers per token, the target 1'),
          (OWN, (8,), dict(guidance='none'), "guidance is 'none'")),
    *each(_traced_by_levels,
          ({}, OWN._replace(verify=lambda *args: OWN.verify(*args)._replace(length=jnp.int32(1))),
           r'verify of the verifier returned .*int32\[\]; .* \(2\)'),
          (dict(transform=lambda params, condition, tokens, visible: tokens),
           r'transform of the model returned z float32\[2, 8, 1\]; .* shape \(1, 2, 8, any\)'),
          (dict(denoise=lambda params, x, step, z: (x[:, 0], x)),
           r'denoise of the model returned eps float32\[2\]; .* float32 numbers of shape \(2, 1'),
          (dict(denoise=lambda params, x, step, z: (x, x.astype(jnp.bfloat16))),
           r'denoise of the model returned v bfloat16\[2, 1\]; .* float32'),
          (dict(check_condition=lambda labels: jnp.ones(3, bool)),
           r'check_condition of the model returned supported rows'),
          *(({}, OWN, labels, words) for labels, words in [
          ([0, 1], 'convert lists to arrays'), (np.zeros((0,), np.int32), 'at least 1 row'),
    (np.array([0.5]), 'one integer class label')])),
    *each(lambda at, sampling: by_levels.mar(CHAIN.target, None, LEVELS).check(LABELS, sampling),
          (SamplingParams(2.0), 'guidance_scale is 2.0; it must be 1, .* no null condition'),
          (SamplingParams('high'), "guidance_scale is 'high'; it must be a number"),
          (SamplingParams(1.0, True), 'temperature is True; it must be a number'),
          *((SamplingParams(**{name: np.ones(3, np.float32)}), name + (
              r' has shape \(3,\); .* 2 rows')) for name in ('guidance_scale', 'temperature'))),
    *each(lambda at, labels: by_levels.mar(CHAIN.target).check(labels),
          (np.array([3]), r'class labels \[3\]; this model supports 0 to 1')),
    *each(lambda at, change: by_levels.exact_path(CHAIN.target, CHAIN.target._replace(**change)),
          (dict(num_tokens=4), 'draft has 4 tokens per image, the target 8; they must be equal'),
          (dict(token_dim=2), 'draft has 2 numbers per token, the target 1'),
          (dict(num_streams=2), 'draft has 2 guidance streams, the target 1')),
    *each(lambda at, eta: coupling.check(eta, 1), *(
        (eta, f'eta is {eta}; it must be above 0 and at most 1')
        for eta in (0.0, -1.0, 1.5, float('nan')))),
    *each(lambda at: jax.eval_shape(by_levels.exact_path(
        CHAIN.target, CHAIN.target, 2, LEVELS, split=2), CHAIN.params, LABELS, KEY),
          ('draft_params is None',)),
    *each(lambda at, levels, options: schedule_lib.flow(levels, **options),
    (1001, {}, 'num_levels is 1001; .* 2 to 1000'),
    (9, {'shift': 0}, 'shift is 0'), (9, {'shift': np.inf}, 'shift is inf'),
    (9, {'last_step': 0}, 'last_step is 0'), (9, {'last_step': 1}, 'last_step is 1'),
    (9, {'last_deviation': -1}, 'last_deviation is -1'),
    (9, {'last_deviation': np.nan}, 'last_deviation is nan')),
    *each(lambda at, build: build(CAUSAL), *((build, (
        r'one token per step.* steps that end at .*4.*leave')) for build in (
            lambda target: by_levels.windows(target, 2, 2, FLOW),
            lambda target: by_levels.mar(target, 2, FLOW),
            lambda target: by_levels.exact_head(target, 2, 2, FLOW)))),
    # Checks of targets, drafters and verifiers, and the tabular models for them.
    *each(lambda at, call: call(),
          (lambda: check_target(T, MODEL.params, jnp.asarray([5])),
           'holds the class labels .5.; this model supports 0 to 2'),
          (lambda: check_drafter(draft_model(OTHER, 2), PLAIN.params),
           'vocab_size of the draft model is 5'),
          (lambda: check_drafter(jacobi(2), samples=8), 'samples is 8; it must be at least 256'),
          (lambda: check_drafter(jacobi(40)), '39 tokens deep, .* at most 16 deep'),
          (lambda: check_verifier(rejection(), vocab_size=16384),
           'vocab_size is 16384; it must be 2 to 4'),
          (lambda: enumerate_rounds(make_decoder(
              PLAIN.target, jacobi(4), rejection()), PLAIN, rounds=2, max_outcomes=1000),
           'more than max_outcomes = 1000'),
          (lambda: enumerate_rounds(make_decoder(
              PLAIN.target, jacobi(3, 'gumbel', tree=trees.caterpillar(2, 1, 2)), match()), PLAIN),
           'compare a seed-exact decoder with vanilla'),
          (lambda: exactness.compare(np.zeros((3, 2)), np.zeros((3, 1))),
           r'shapes \(3, 2\) and \(3, 1\)'),
          (lambda: exactness.compare(np.full((99, 2), np.nan), np.zeros((99, 2))), 'NaN or inf'),
          (lambda: exactness.compare(np.zeros((5, 2)), np.ones((5, 2))),
           '5 and 5 samples are too few'),
          (lambda: likelihood.log_probs(PLAIN.target, PLAIN.params, LABELS * 0, np.zeros(
              (2, 2), int), SamplingParams()),
           r'tokens has shape \(2, 2\); .* \(2, 4\)'),
          *((lambda points=points: image_scores.gaussian(points), 'points have shape')
            for points in (np.zeros((1, 3)), np.zeros(3), np.full((4, 3), np.nan))),
          (lambda: exactness.energy_test(np.zeros((9, 8)), np.zeros((9, 3))),
           'all but the first axis must agree'),
          (lambda: exactness.check_sampler(lambda key, labels: np.tile(
              [0, 3], (len(labels), 1)), np.full((1, 9), 1 / 9), 3, samples=64, batch_size=64),
           'tokens from 0 to 3; they must be from 0 to 2')),
    *each(lambda at, counts, probs: exactness.fit(np.array(counts), np.array(probs)),
    ([1, 2], [0.5, 0.25, 0.25], 'have shapes'),
    ([1, 2], [0.5, 0.6], 'must sum to 1'),
    ([1, 2], [1.5, -0.5], 'must sum to 1'),
    ([2, 3, 2], [0.3, 0.4, 0.3], 'draw more samples')),
    *each(lambda at, cells, vocab_size, batch_size: exactness.check_sampler(
        None, np.full((1, cells), 1 / cells), vocab_size, batch_size=batch_size),
    (9, 3, 65, 'batch_size is 65; it must be an even number'),
    (8, 3, 64, 'probs has 8 sequences; with vocab_size 3'), (1, 1, 64, 'with vocab_size 1')),
    *each(lambda at, sizes: tabular(KEY, *sizes),
    ((1, 3), 'at least 2'), ((3, 0), 'at least'),
                                           ((10, 9), 'prefixes')),
    *each(lambda at, position, token: tabular(KEY, 2, 3, forced={position: token}), *(
        (*forced, 'forced has token {1} at position {0}; tokens must be from 0 to 1 and positions '
         'from 0 to 2'.format(*forced)) for forced in (
    (-1, 0), (3, 0), (0, -1), (0, 2)))),
]


@pytest.mark.parametrize('call, words', CALLS)
def test_what_is_refused(at, call, words):
  said.check(lambda: call(at), words)


def test_what_the_calls_are_made_from_is_right():
  make_decoder(T, eagle(network(T), trees.chain(2), 'fixed'), rejection())
  make_decoder(T, eagle(network(T), TREE), rejection())
  by_levels.mar(CHAIN.target, None, LEVELS).check(LABELS)
  assert trees.Tree([-1, 0]) == trees.Tree((-1, 0)) and hash(trees.Tree([-1, 0]))
