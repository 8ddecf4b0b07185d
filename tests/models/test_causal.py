"""The adapter with families whose condition is text tokens, by configuration alone.

The reference is written here from scratch: one sequence without padding at a time, weights as
`[out, in]` matrices with heads that rotate halves, as Chameleon and Emu3 publish them.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import specification, tree as tree_lib
from cspd_jax.decoding.drafters.eagle import eagle as eagle_drafter
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.models import causal, conditions, eagle, transformer

# 19 codes and a token that ends a row, then text; rows of 4 codes, 5 rows.
CODES, NEW_LINE, IMAGE, VOCAB = 19, 19, 20, 33
WIDTH, LENGTH = 5, 25


class Family(NamedTuple):
  sizes: transformer.TransformerConfig
  base: float


def _family(base, **changes):
  sizes = dict(vocab_size=VOCAB, num_outputs=IMAGE, dim=24, num_layers=2, num_heads=4,
               num_kv_heads=4, head_dim=6, ffn_dim=20)
  return Family(transformer.TransformerConfig(**{**sizes, **changes}), base)


FAMILIES = {
    'chameleon': _family(1e4, qk_norm=True),
    'chameleon_34b': _family(1e4, qk_norm=True, swin_norm=True, num_kv_heads=2),
    'emu3': _family(1e6, num_kv_heads=2),
    'emu3_5': _family(1e6, num_kv_heads=2, head_dim=8, qk_rms_norm=True),
    'qwen2_5': _family(1e6, num_kv_heads=2, qkv_bias=True),
    'gemma': _family(1e4, head_dim=8, activation='gelu_tanh'),
}

# The prompts of two images in two streams, of any length each.
PROMPTS = [[[20, 25, 31, 22, 30, 21, 27], [21]], [[28, 21], [23, 20, 32]]]


@pytest.fixture(autouse=True)
def _precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module', params=list(FAMILIES))
def name(request):
  return request.param


def _forced(positions):
  return jnp.where(positions % WIDTH == WIDTH - 1, NEW_LINE, -1)


@functools.cache
def _model(name, num_streams=2):
  family = FAMILIES[name]
  return causal.Causal(
      transformer=family.sizes,
      embed_condition=lambda params, prompt, _: causal.embed_prompt(params, family.sizes, prompt),
      rope=transformer.sequence_rope(family.sizes.head_dim, family.base), num_tokens=LENGTH,
      row_width=WIDTH, forced=_forced,
      check_condition=lambda prompt: conditions.check_prompt(prompt, num_streams, VOCAB))


@functools.cache
def _target(name, num_streams=2):
  return causal.target(_model(name, num_streams), num_streams)


@functools.cache
def _score(name):
  return jax.jit(_target(name).score, static_argnums=4)


def _prompt(prompts=PROMPTS):
  """Left-padded tokens `[B, S, C]`; padding holds tokens that would matter if they were seen."""
  longest = max(len(tokens) for image in prompts for tokens in image)
  padded = [[[24] * (longest - len(tokens)) + tokens for tokens in image] for image in prompts]
  visible = [[np.arange(longest) >= longest - len(tokens) for tokens in image]
             for image in prompts]
  return causal.Prompt(jnp.asarray(padded), jnp.asarray(visible))


@functools.cache
def _weights(name):
  """Published tensors, nothing left at a special value."""
  sizes, rng = FAMILIES[name].sizes, np.random.default_rng(len(name))
  dim, width = sizes.dim, sizes.head_dim
  normal = lambda *shape: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
  scale = lambda *shape: (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
  layers = []
  for _ in range(sizes.num_layers):
    layer = {
        'q': normal(sizes.num_heads, width, dim), 'k': normal(sizes.num_kv_heads, width, dim),
        'v': normal(sizes.num_kv_heads, width, dim), 'o': normal(dim, sizes.num_heads * width),
        'gate': normal(sizes.ffn_dim, dim), 'up': normal(sizes.ffn_dim, dim),
        'down': normal(dim, sizes.ffn_dim), 'norm_1': scale(dim), 'norm_2': scale(dim)}
    if sizes.qk_norm:
      for part, heads in (('q', sizes.num_heads), ('k', sizes.num_kv_heads)):
        layer[f'{part}_scale'] = scale(heads, width)
        layer[f'{part}_bias'] = 0.1 * normal(heads, width)
    if sizes.qk_rms_norm:
      layer |= {f'{part}_rms': scale(width) for part in 'qk'}
    if sizes.qkv_bias:
      layer |= {f'{part}_shift': normal(*layer[part].shape[:2]) for part in 'qkv'}
    layers.append(layer)
  return {'layers': layers, 'embedding': normal(VOCAB, dim) * 5, 'norm': scale(dim),
          'head': normal(VOCAB, dim) * 3}


def _pairs(x):
  """Axis 1 from halves that rotate together to neighbours that do."""
  return x[:, np.arange(x.shape[1]).reshape(2, -1).T.ravel()]


def _params(name):
  weights, sizes = _weights(name), FAMILIES[name].sizes
  params = {'token_embedding': weights['embedding'], 'norm': {'scale': weights['norm']},
            'output': weights['head'][:IMAGE].T}
  for number, layer in enumerate(weights['layers']):
    ours = {
        'query': _pairs(layer['q']).transpose(2, 0, 1),
        'key': _pairs(layer['k']).transpose(2, 0, 1),
        'value': layer['v'].transpose(2, 0, 1),
        'out': layer['o'].T.reshape(sizes.num_heads, sizes.head_dim, sizes.dim),
        'gate': layer['gate'].T, 'up': layer['up'].T, 'down': layer['down'].T,
        'attention_norm': {'scale': layer['norm_1']}, 'ffn_norm': {'scale': layer['norm_2']}}
    if sizes.qk_norm:
      for theirs, part in (('q', 'query'), ('k', 'key')):
        ours[f'{part}_norm'] = {key: _pairs(layer[f'{theirs}_{key}']) for key in ('scale', 'bias')}
    if sizes.qk_rms_norm:
      ours |= {f'{part}_rms': {'scale': _pairs(layer[f'{part[0]}_rms'][None])[0]}
               for part in ('query', 'key')}
    if sizes.qkv_bias:
      ours |= {'query_bias': _pairs(layer['q_shift']), 'key_bias': _pairs(layer['k_shift']),
               'value_bias': layer['v_shift']}
    params[f'layers_{number}'] = ours
  return {'transformer': jax.tree.map(jnp.asarray, params)}


def _rms(x, scale):
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale


def _heads(x, layer, part, turn):
  """Queries or keys `[L, heads, E]` of `x` `[L, D]`, rotated."""
  heads = np.einsum('ld,hed->lhe', x, layer[part]) + layer.get(f'{part}_shift', 0)
  if f'{part}_scale' in layer:
    centred = heads - heads.mean(-1, keepdims=True)
    heads = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    heads = heads * layer[f'{part}_scale'] + layer[f'{part}_bias']
  if f'{part}_rms' in layer:
    heads = _rms(heads, layer[f'{part}_rms'])
  first, second = np.split(heads, 2, axis=-1)
  cos, sin = np.cos(turn)[:, None], np.sin(turn)[:, None]
  return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _reference(name, tokens):
  """Logits `[L, V]` of one sequence of tokens `[L]`, none of it padding."""
  family, weights = FAMILIES[name], _weights(name)
  half, length = family.sizes.head_dim // 2, len(tokens)
  turn = np.arange(length)[:, None] * family.base**(-np.arange(half) / half)
  groups = family.sizes.num_heads // family.sizes.num_kv_heads
  swin, x = family.sizes.swin_norm, weights['embedding'][np.asarray(tokens)].astype(np.float64)
  for layer in weights['layers']:
    before = x if swin else _rms(x, layer['norm_1'])
    query = _heads(before, layer, 'q', turn)
    key = _heads(before, layer, 'k', turn).repeat(groups, axis=1)
    value = np.einsum('ld,hed->lhe', before, layer['v']) + layer.get('v_shift', 0)
    value = value.repeat(groups, axis=1)
    scores = np.einsum('qhe,khe->hqk', query, key) / np.sqrt(family.sizes.head_dim)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    attended = np.einsum('hqk,khe->qhe', scores / scores.sum(-1, keepdims=True), value)
    branch = attended.reshape(length, -1) @ layer['o'].T
    x = x + (_rms(branch, layer['norm_1']) if swin else branch)
    before = x if swin else _rms(x, layer['norm_2'])
    gate = before @ layer['gate'].T
    # GELU's approximation by tanh is a sigmoid too.
    steep = 1 if family.sizes.activation == 'silu' else (
        np.sqrt(8 / np.pi) * (1 + 0.044715 * gate**2))
    branch = (gate / (1 + np.exp(-steep * gate)) * (before @ layer['up'].T)) @ layer['down'].T
    x = x + (_rms(branch, layer['norm_2']) if swin else branch)
  return _rms(x, weights['norm']) @ weights['head'][:IMAGE].T


def _full(name, tokens, prompts=PROMPTS):
  """Reference logits `[S, B, L + 1, V]` after `0 .. L` of the image tokens `[B, L]`."""
  return np.stack([[
      _reference(name, [*image[stream], *np.asarray(row)])[len(image[stream]) - 1:]
      for image, row in zip(prompts, tokens)] for stream in range(len(prompts[0]))])


def _tokens(seed=0, shape=(2, LENGTH)):
  return np.random.default_rng(seed).integers(0, IMAGE, shape)


@pytest.fixture(scope='module')
def filled(name):
  """Target, parameters, tokens, and the cache with all of them."""
  target, params, tokens = _target(name), jax.tree.map(jnp.asarray, _params(name)), _tokens()
  with jax.default_matmul_precision('highest'):
    first, features, cache = jax.jit(target.prefill, static_argnums=2)(
        params, _prompt(), LENGTH + 15)
    rest, _, cache = _score(name)(
        params, cache, jnp.asarray(tokens), jnp.zeros(2, jnp.int32), tree_lib.chain(LENGTH - 1))
  assert features.shape == (2, 2, 7, 24)
  return target, params, tokens, cache, np.concatenate([first[:, :, None], rest], axis=2)


@pytest.mark.slow
def test_streams_with_prompts_of_their_own_length_agree_with_the_reference(name, filled):
  *_, logits = filled
  np.testing.assert_allclose(logits, _full(name, _tokens()), atol=1e-4, rtol=0)


def test_a_whole_pass_agrees_with_the_reference(name):
  sizes, tokens = FAMILIES[name].sizes, _tokens(3)
  params = _params(name)
  model = causal.Causal(sizes, None, transformer.sequence_rope(sizes.head_dim, FAMILIES[name].base),
                        LENGTH, WIDTH)
  logits, features, layers = jax.jit(lambda params, prompt, tokens: causal.forward(
      params, model, causal.embed_prompt(params, sizes, prompt), tokens))(
          params, _prompt(), jnp.tile(tokens, (2, 1)))
  np.testing.assert_allclose(
      causal.split(logits, 2), _full(name, tokens), atol=1e-4, rtol=0)
  assert features.shape == (4, 7 + LENGTH, 24)
  assert layers[1][0].shape == (4, sizes.num_kv_heads, 7 + LENGTH, sizes.head_dim)


@pytest.mark.slow
@pytest.mark.parametrize('per_row', [False, True])
def test_windows_and_committed_branches_agree_with_the_reference(name, filled, per_row):
  target, params, tokens, cache, _ = filled
  tree = tree_lib.kary(2, 3, 8)
  start = np.array([11, 3])
  drafts = _tokens(7, (2, tree.num_nodes + 1))
  drafts[:, 0] = tokens[np.arange(2), start]
  if per_row:
    parents = jnp.tile(jnp.asarray(tree.parents, jnp.int32), (2, 1))
    score, used = jax.jit(target.score), tree_lib.runtime_tree(parents, tree_lib.Budget(8, 4, 2))
  else:
    score, used = _score(name), tree
  logits, _, cache = score(params, cache, jnp.asarray(drafts), jnp.asarray(start), used)

  def branch(row, node):
    return [*tokens[row, :start[row]], *drafts[row, tree.paths[node, :tree.depth[node] + 1]]]

  for row, node in np.ndindex(2, tree.num_nodes + 1):
    for stream in range(2):
      expected = _reference(name, [*PROMPTS[row][stream], *branch(row, node)])[-1]
      np.testing.assert_allclose(logits[stream, row, node], expected, atol=1e-4, rtol=0)

  last = tree.num_nodes
  path = tree.paths[last, 1:tree.side_depth + 1]
  cache = jax.jit(target.commit)(cache, jnp.asarray(start), jnp.tile(path, (2, 1)))
  after = start + tree.depth[last]
  window = np.concatenate([drafts[:, last:], _tokens(8, (2, 3))], axis=1)
  logits, _, _ = _score(name)(
      params, cache, jnp.asarray(window), jnp.asarray(after), tree_lib.chain(3))
  for row in range(2):
    committed = [[*branch(row, last), *window[row, 1:]]]
    np.testing.assert_allclose(
        logits[:, row], _full(name, committed, [PROMPTS[row]])[:, 0, after[row] + 1:],
        atol=1e-4, rtol=0)


@pytest.mark.slow
def test_token_numbers_past_the_end_stay_finite(name, filled):
  _, params, tokens, cache, _ = filled
  logits, _, _ = _score(name)(
      params, cache, jnp.asarray(tokens[:, :7]), jnp.full(2, LENGTH - 1), tree_lib.chain(6))
  assert np.isfinite(logits).all()


@functools.cache
def _decoded(decoder):
  """Tokens of a seed-exact decoder, and its forward passes."""
  target, params, draft_params = _target('chameleon'), _params('chameleon'), None
  if decoder == 'eagle':
    config = eagle.EagleConfig(
        'chameleon', LENGTH, WIDTH, dim=24, num_heads=4, ffn_dim=20, vocab_size=VOCAB,
        num_outputs=IMAGE)
    draft_params = eagle.attach(params, eagle.init(config, jax.random.key(1)))
    built = make_decoder(
        target, eagle_drafter(eagle.network(config, causal.ends(_model('chameleon'))),
                              tree_lib.kary(3, 3, 12)), match())
  else:
    built = specification.build(specification.complete(decoder, window=6), target)
  decoded = jax.jit(built)(
      params, _prompt(), jax.random.key(0), SamplingParams(guidance_scale=2.0), draft_params)
  return np.asarray(decoded.tokens), np.asarray(decoded.rounds)


@pytest.mark.parametrize('room,slots', [(8, 11), (508, 511), (509, 512), (510, 576), (900, 960)])
def test_large_caches_are_made_of_tiles(room, slots):
  layers = ((jnp.ones((2, 1, 3, 4)),) * 2,)
  positions = causal.prompt_positions(jnp.ones((2, 3), bool))
  cache = causal.allocate(layers, positions, room)
  assert cache.layers[0][1].shape == (2, 1, slots, 4)
  np.testing.assert_array_equal(cache.layers[0][0][:, :, :3], 1)
  assert not cache.layers[0][0][:, :, 3:].any()


@pytest.mark.slow
def test_images_hold_the_tokens_that_the_grammar_forces():
  tokens, _ = _decoded('vanilla')
  ends = np.arange(LENGTH) % WIDTH == WIDTH - 1
  assert (tokens[:, ends] == NEW_LINE).all() and (tokens < IMAGE).all()
  assert len(np.unique(tokens[:, ~ends])) > 5


@pytest.mark.slow
@pytest.mark.parametrize('decoder', ['seed_exact', 'eagle'])
def test_windows_and_drafters_of_any_kind_repeat_vanilla(decoder):
  (expected, _), (tokens, rounds) = _decoded('vanilla'), _decoded(decoder)
  np.testing.assert_array_equal(tokens, expected)
  assert (rounds < LENGTH).all()


@pytest.mark.slow
def test_an_image_does_not_depend_on_the_other_prompts_or_on_their_lengths():
  target, params = _target('emu3'), _params('emu3')
  run = jax.jit(lambda prompt: target.prefill(params, prompt, 4)[0])
  both, alone = run(_prompt()), run(_prompt(PROMPTS[1:]))
  np.testing.assert_allclose(both[:, 1], alone[:, 0], atol=1e-5)


@pytest.mark.parametrize('tokens, visible, message', [
    (np.zeros((1, 3), int), np.ones((1, 3), bool), r'tokens \(1, 3\).*requires \[B, 2, C\]'),
    (np.zeros((1, 1, 3), int), np.ones((1, 1, 3), bool), r'tokens \(1, 1, 3\)'),
    (np.zeros((1, 2, 3), int), np.ones((1, 2, 2), bool), r'visible \(1, 2, 2\)'),
    (np.zeros((1, 2, 3), int), np.arange(3) < [[[2], [3]]], 'padded on the left'),
    (np.zeros((1, 2, 3), int), np.array([[[1, 0, 1], [1, 1, 1]]], bool), 'padded on the left'),
    (np.zeros((1, 2, 0), int), np.zeros((1, 2, 0), bool), 'at least one token'),
    (np.full((1, 2, 3), VOCAB), np.ones((1, 2, 3), bool), 'tokens from 33 to 33.*0 to 32'),
])
def test_unusable_prompts_are_refused(tokens, visible, message):
  with pytest.raises(ValueError, match=message):
    _target('emu3').check_condition(causal.Prompt(tokens, visible))


def test_prompts_of_the_right_kind_are_accepted():
  target = _target('emu3')
  target.check_condition(_prompt())
  with pytest.raises(ValueError, match='condition is a list; this model requires a models.con'):
    target.check_condition(PROMPTS)


def test_a_condition_of_the_wrong_number_of_streams_is_refused_while_tracing():
  with pytest.raises(ValueError, match='4 rows for 2 images; this target has 1 guidance streams'):
    jax.eval_shape(lambda: _target('emu3', 1).prefill(_params('emu3'), _prompt(), 4))


@pytest.mark.slow
@pytest.mark.parametrize('ids, message', [
    ([[[3]]], 'tokens from 3 to 3; this model supports 0 to 2'),
    ([[[-1]]], 'tokens from -1 to -1'),
    ([[[1.0]]], 'tokens of dtype float64; they must be integers')])
def test_published_ids_that_are_none_are_refused(ids, message):
  prompt = conditions.Prompt(np.array(ids), np.ones((1, 1, 1), bool))
  with pytest.raises(ValueError, match=message):
    conditions.renumbered(prompt, np.array([2, 0, 1]))
