"""NextStep-1: agreement with the official modules and sampler, caches, shapes, errors.

`tests/data/nextstep.npz` was recorded in float32 from github.com/stepfun-ai/NextStep-1 (6e49bae,
under transformers 5.23) at the sizes below, with the weights of `published.py` for seed 31.
Everything random comes from `default_rng(seed)` in the order given; normal numbers, and times, are
cast to float32.

Seed 32: states `standard_normal((20, 16))`, conditions `standard_normal((20, 64))`, times
`uniform(0, 1, 20)`; `velocity` `[20, 16]` is the output of the flow head.

Seed 40 + i: conditions `standard_normal((2, 3, 64))`, noise `standard_normal((n, 3, 16))`, of which
the first entry is the starting state; `sampled_{i}` `[3, 16]` is the result of
`FlowMatchingHead.sample` for the case `i` of `FIRST`: levels `n`, shift and guidance. Without
guidance only the first conditions are used.

Seed 50 + i: conditions `standard_normal((2, 1, 64))`, noise `standard_normal((n + 1, 1, 16))`;
`sampled_new_{i}` `[1, 16]` is the result of `FlowMatchingHead.sample_new`, whose first row has the
sampler of NextStep-1.1, for the case `i` of `SECOND`.

Seed 33: ids `integers(0, 50, (4, 7))` of prompts, of which the last 7, 5, 2 and 3 are visible;
tokens `standard_normal((4, 64, 16))`. `z` `[4, 65, 64]` is the output of one pass over the prompts
and the normalised tokens, after `image_out_projector`, from the last token of the prompts on.

Seed 34: ids like those, of two images with guidance and then of the negative prompts, with the same
mask; noise `standard_normal((9, 6, 2, 16))`. `decoded_normed` and `decoded_plain` `[2, 9, 16]` are
the results of `NextStepPipeline.decoding` with guidance 3 and 6 levels, with `use_norm` and
without; `unpatchified` `[2, 4, 6, 6]` are the latents of the latter.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import products
import pytest

from cspd_jax.continuous import (
    base,
  decoders,
  head as head_lib,
  noise as noise_lib,
  schedule as schedule_lib,
)
from cspd_jax.continuous.span import TokenBatch
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.models import nextstep
from cspd_jax.models.conditions import Prompt
from tests.builders import published
from tests.marks import representative

CONFIG = nextstep.NextStepConfig(
    height=8, width=8, vocab_size=50, latent_channels=4, dim=64, num_layers=2, num_heads=4,
    num_kv_heads=2, ffn_dim=96, head_width=48, head_layers=3)
FIRST = [(2, 1.0, 1.0), (5, 1.0, 7.5), (20, 3.2, 2.0), (50, 1.0, 7.5)]
SECOND = [(2, 1.0, 1.0), (28, 1.0, 7.5), (10, 3.2, 2.0)]
VISIBLE = np.arange(7) >= 7 - np.array([7, 5, 2, 3])[:, None]

_TARGETS = {guided: nextstep.target(CONFIG, guided=guided) for guided in (False, True)}


@pytest.fixture(scope='module')
def params():
  return jax.tree.map(jnp.asarray, published.params('nextstep', CONFIG, 31))


@pytest.fixture(scope='module')
def expected():
  return published.recorded('nextstep')


def _normal(rng, shape):
  return rng.standard_normal(shape).astype(np.float32)


def test_the_head_agrees_with_the_official_one(params, expected):
  rng = np.random.default_rng(32)
  x, z = _normal(rng, (20, 16)), _normal(rng, (20, 64))
  time = rng.uniform(0, 1, 20).astype(np.float32)
  velocity, v = jax.jit(_TARGETS[False].denoise)(params, x, time, z)
  np.testing.assert_allclose(velocity, expected['velocity'], atol=1e-5, rtol=0)
  assert v.shape == velocity.shape and not v.any()


def _sampled(params, schedule, scale, z, noise, last_noise):
  """The library's sampler of tokens `[N]` with recorded noise `[n or n + 1, N, C]`."""
  levels, num = schedule.num_levels, z.shape[1]
  table = jnp.asarray(np.concatenate([noise, np.zeros((1, *noise.shape[1:]), np.float32)]))

  def recorded(keys, purpose, level, size, trial=0):
    place = 0 if purpose == noise_lib.START else levels - level
    return table[place, keys.position] if np.ndim(place) == 0 else table[place, keys.position]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(noise_lib, 'normal', recorded)
    guided = z.shape[0] == 2
    keys = noise_lib.TokenKeys(jnp.zeros((num, 2), jnp.uint32), jnp.arange(num))
    batch = TokenBatch(jnp.asarray(z), jnp.full(num, scale), jnp.ones(num), keys,
                       jnp.ones(num, bool))
    sampler = head_lib.ancestral(_TARGETS[guided], schedule, last_noise)
    return jax.jit(lambda params: sampler.sample(params, batch).tokens)(params)


@pytest.mark.parametrize('release, case', representative(
    [('1', case) for case in range(len(FIRST))] + [('1.1', case) for case in range(len(SECOND))],
    ('1', 1), ('1.1', 2)))
def test_tokens_agree_with_the_official_samplers(params, expected, release, case):
  is_first = release == '1'
  levels, shift, scale = (FIRST if is_first else SECOND)[case]
  rng, num = np.random.default_rng((40 if is_first else 50) + case), 3 if is_first else 1
  z = _normal(rng, (2, num, 64))
  noise = _normal(rng, (levels + (not is_first), num, 16))
  schedule = schedule_lib.flow(levels, shift=shift, last_step=0.04 if is_first else None)
  tokens = _sampled(
      params, schedule, scale, z if scale > 1 else z[:1], noise, last_noise=not is_first)
  want = expected[f'sampled_{case}' if is_first else f'sampled_new_{case}']
  largest = np.abs(want).max()
  np.testing.assert_allclose(tokens / largest, want / largest, atol=1e-5, rtol=0)


def _prompts():
  """The recorded prompts, one stream each, and the tokens after them."""
  rng = np.random.default_rng(33)
  ids, tokens = rng.integers(0, 50, (4, 7)), _normal(rng, (4, 64, 16))
  return Prompt(ids[:, None], VISIBLE[:, None]), tokens


def _windows(target, params, prompt, tokens, width):
  """`z` `[B, T + 1, D]` of all tokens, scored in windows on the cache."""
  prefill = jax.jit(target.cached.prefill, static_argnums=2)
  score = jax.jit(target.cached.score)
  first, cache = prefill(params, prompt, tokens.shape[1] + width)
  result = [first[0][:, None]]
  for start in range(0, tokens.shape[1], width):
    starts = jnp.full(len(tokens), start)
    z, cache = score(params, cache, tokens[:, start:start + width], starts)
    result.append(z[0])
  return np.concatenate(result, axis=1)


@pytest.mark.verifies('parity', 'nextstep')
@pytest.mark.parametrize('width', representative([64, 16, 1], 16))
def test_the_transformer_agrees_with_the_official_one(params, expected, width):
  with jax.default_matmul_precision('highest'):
    z = _windows(_TARGETS[False], params, *_prompts(), width)
  np.testing.assert_allclose(z, expected['z'], atol=5e-5, rtol=0)


def test_one_pass_agrees_with_the_official_transformer(params, expected):
  with jax.default_matmul_precision('highest'):
    z = jax.jit(nextstep.forward, static_argnums=1)(params, CONFIG, *_prompts())
  np.testing.assert_allclose(z, expected['z'][:, :-1], atol=5e-5, rtol=0)


def test_rows_of_different_progress_are_scored_together(params, expected):
  prompt, tokens = _prompts()
  target = _TARGETS[False]
  starts = np.array([0, 5, 17, 60])
  with jax.default_matmul_precision('highest'):
    _, cache = target.cached.prefill(params, prompt, 70)
    _, cache = jax.jit(target.cached.score)(params, cache, tokens, jnp.zeros(4, int))
    window = np.stack([tokens[row, start:start + 4] for row, start in enumerate(starts)])
    z, _ = jax.jit(target.cached.score)(params, cache, window, jnp.asarray(starts))
  for row, start in enumerate(starts):
    np.testing.assert_allclose(
        z[0, row], expected['z'][row, start + 1:start + 5], atol=5e-5, rtol=0)


def test_the_transformer_agrees_with_qwen_2_of_transformers(params):
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  qwen = transformers.Qwen2Model(transformers.Qwen2Config(
      vocab_size=50, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
      num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=1e6,
      use_sliding_window=False, attn_implementation='eager')).float().eval()
  from checkpoints_conversion import convert, rules
  tensors = convert.publish(rules.get('nextstep'), CONFIG, params)
  loaded = qwen.load_state_dict(
      {name: torch.tensor(x) for name, x in tensors.items() if not name.startswith('image_')})
  assert not loaded.missing_keys and not loaded.unexpected_keys
  prompt, tokens = _prompts()
  inputs, outputs = ({name: tensors[f'image_{part}_projector.{name}'] for name in (
      'weight', 'bias')} for part in ('in', 'out'))
  project = lambda layer, x: x @ layer['weight'].T + layer['bias']
  ids, visible = prompt.tokens[:, 0], prompt.visible[:, 0]
  embedded = np.concatenate([
      tensors['embed_tokens.weight'][ids],
      project(inputs, np.asarray(nextstep.normalized(CONFIG, jnp.asarray(tokens))))], axis=1)
  mask = np.concatenate([visible, np.ones(tokens.shape[:2], bool)], axis=1)
  with torch.no_grad():
    hidden = qwen(inputs_embeds=torch.tensor(embedded), attention_mask=torch.tensor(mask),
                  use_cache=False).last_hidden_state.numpy()[:, 6:]
  with jax.default_matmul_precision('highest'):
    z = _windows(_TARGETS[False], params, prompt, tokens, 8)
  np.testing.assert_allclose(z, project(outputs, hidden), atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['normed', 'plain'])
def test_whole_images_agree_with_the_official_pipeline(params, expected, monkeypatch, name):
  rng = np.random.default_rng(34)
  ids, noise = rng.integers(0, 50, (4, 7)), _normal(rng, (9, 6, 2, 16))
  streams = lambda x: x.reshape(2, 2, 7).swapaxes(0, 1)
  table = jnp.asarray(np.pad(noise, ((0, 0), (0, 1), (0, 0), (0, 0))))

  def recorded(keys, purpose, level, size, trial=0):
    image = jnp.arange(2).reshape(-1, *(1,) * (keys.position.ndim - 1))
    return table[keys.position, 0 if purpose == noise_lib.START else 6 - level, image]

  monkeypatch.setattr(noise_lib, 'normal', recorded)
  config = dataclasses.replace(CONFIG, height=3, width=3, token_norm=name == 'normed')
  decoder = decoders.mar(nextstep.target(config, guided=True), schedule=6)
  with jax.default_matmul_precision('highest'):
    decoded = jax.jit(decoder)(
        params, Prompt(streams(ids), streams(VISIBLE)), jax.random.key(0), SamplingParams(3.0, 1.0))
  assert decoded.order.tolist() == [list(range(9))] * 2
  tokens = nextstep.normalized(config, decoded.tokens)
  # Every token magnifies the rounding of those before it.
  for count, tolerance in ((4, 1e-4), (9, 2e-3)):
    np.testing.assert_allclose(
        tokens[:, :count], expected[f'decoded_{name}'][:, :count], atol=tolerance, rtol=0)
  if name == 'plain':
    latents = nextstep.unpatchify(config, decoded.tokens).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(latents, expected['unpatchified'], atol=2e-3, rtol=0)


@pytest.mark.slow
def test_the_head_is_float32_in_full_precision_in_a_bfloat16_model(params):
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  target = _TARGETS[True]
  x, z = jnp.ones((2, 16)), jnp.ones((2, 64), jnp.bfloat16)
  with jax.default_matmul_precision('default'):
    # The modulation has a product for each of three bfloat16 parts.
    for platform, expected, extra in (
        ('cpu', products.FLOAT32, 0), ('cuda', products.BFLOAT16, 2)):
      actual = products.lowered(target.denoise, half, x, jnp.zeros(2), z, platform=platform)
      assert actual == [expected] * (6 + 2 * CONFIG.head_layers + extra)
  prompt = Prompt(np.zeros((3, 2, 4), int), np.ones((3, 2, 4), bool))
  first, cache = jax.eval_shape(lambda: target.cached.prefill(half, prompt, 9))
  z, _ = jax.eval_shape(lambda: target.cached.score(
      half, target.cached.prefill(half, prompt, 9)[1], jnp.zeros((3, 2, 16)), jnp.zeros(3, int)))
  assert first.shape == (2, 3, 64) and z.shape == (2, 3, 2, 64)
  assert first.dtype == z.dtype == cache.layers[0][0].dtype == jnp.bfloat16


def test_the_schedule_is_that_of_the_config():
  schedule = base.as_schedule(nextstep.target(CONFIG, guided=True), None)
  assert schedule.num_levels == 50 and abs(schedule.steps[0] - 0.96) < 1e-12
  second = dataclasses.replace(CONFIG, last_step=None, num_levels=28, shift=2.0)
  schedule = base.as_schedule(nextstep.target(second, guided=True), None)
  np.testing.assert_array_equal(schedule.steps, schedule_lib.flow(28, shift=2.0).steps)
