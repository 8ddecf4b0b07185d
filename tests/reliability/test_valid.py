"""What cannot be is visible: a flag per row under `jit`, an error from the high-level call."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax import families
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import decoders, warp as warp_lib
from cspd_jax.decoding.base import Verdict, Verifier
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.lantern import lantern_pp
from cspd_jax.generation.stored_run import decode
from cspd_jax.models import causal, conditions, llamagen
from cspd_jax.testing.tabular import tabular
from tests.families import tiny

INF, NAN = float('inf'), float('nan')
MODEL = tabular(jax.random.key(0), 4, 5, guided=True, num_classes=3)
ALONE = tabular(jax.random.key(0), 4, 5, num_classes=3)
LABELS = jnp.asarray([0, 1, 2, 1])


def decoder(model=MODEL):
  return jax.jit(decoders.mc_sjd(model.target, 3))


RUN, RUN_ALONE = decoder(), decoder(ALONE)


def decoded(labels=LABELS, sampling=SamplingParams(guidance_scale=2.0), params=MODEL.params,
            run=RUN):
  # Options of one type, and traced, so that all cases share a program.
  sampling = SamplingParams(*(jnp.broadcast_to(jnp.float32(value), (4,)) for value in sampling))
  return jax.device_get(run(params, labels, jax.random.key(0), sampling))


class TestGuidance:
  """A token that one of the streams excludes."""

  @pytest.mark.parametrize('scale', [0.0, 0.5, 1.0, 2.0, -1.0])
  def test_infinite_logits(self, scale):
    conditional = jnp.asarray([0.0, 1.0, -INF, -INF, 0.5])
    null = jnp.asarray([0.5, -INF, 0.3, -INF, 0.1])
    logits = jnp.stack([conditional, null])[:, None, None]
    p = warp_lib.probabilities(logits, SamplingParams(guidance_scale=scale), jnp.zeros((1, 1),
                                                                                       int))[0, 0]
    guided = [0.5 + scale * (0.0 - 0.5), 1.0, -INF, -INF, 0.1 + scale * (0.5 - 0.1)]
    np.testing.assert_allclose(p, jax.nn.softmax(jnp.asarray(guided)), atol=1e-6)
    assert p[2] == p[3] == 0

  @pytest.mark.parametrize('value', [NAN, -NAN, INF])
  @pytest.mark.parametrize('sampling', [
      SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(top_k=2),
      SamplingParams(top_p=0.5), SamplingParams(guidance_scale=3.0)])
  def test_no_cut_hides_what_is_no_number(self, value, sampling):
    logits = jnp.asarray([0.1, value, 0.3, 2.0]) * jnp.ones((2, 1, 1, 1))
    p = warp_lib.probabilities(logits, sampling, jnp.zeros((1, 1), int))
    assert not warp_lib.is_distribution(p)

  def test_no_mass(self):
    p = warp_lib.probabilities(jnp.full((1, 1, 1, 4), -INF), SamplingParams(), jnp.zeros((1, 1),
                                                                                         int))
    assert not warp_lib.is_distribution(p)


class TestFlag:
  """`Decoded.valid`, of rows that do not know of each other."""

  def test_healthy(self):
    assert decoded().valid.all()

  @pytest.mark.parametrize('value', [NAN, INF])
  def test_logits_of_one_class(self, value):
    result = decoded(params=MODEL.params.at[2, :, :, 1].set(value))
    np.testing.assert_array_equal(result.valid, [True, True, False, True])
    np.testing.assert_array_equal(result.tokens[[0, 1, 3]], decoded().tokens[[0, 1, 3]])

  def test_a_late_token(self):
    """Only rows that come by the one prefix that has no distribution."""
    whole = decoded().tokens
    prefix = 1 + 4 + whole[0, 0] * 4 + whole[0, 1]
    result = decoded(params=MODEL.params.at[0, :, prefix].set(-INF))
    np.testing.assert_array_equal(result.valid, [False, True, True, True])

  def test_a_draft_that_is_refused_does_not_count(self):
    """Every prefix but those that the rows come by has no distribution."""
    whole = decoded(jnp.zeros(4, int)).tokens
    kept = sorted({(4**k - 1) // 3 + int(row[:k] @ 4 ** np.arange(k - 1, -1, -1))
                   for row in whole for k in range(5)})
    params = jnp.full_like(MODEL.params, NAN).at[:, :, jnp.asarray(kept)].set(
        MODEL.params[:, :, jnp.asarray(kept)])
    result = decoded(jnp.zeros(4, int), params=params)
    # A row may leave the paths, because other numbers are drawn; then it is marked.
    same = (result.tokens == whole).all(axis=1)
    assert result.valid[same].all() and same.any()

  @pytest.mark.parametrize('labels', [[0, 5000, 1, -1]])
  def test_labels(self, labels):
    np.testing.assert_array_equal(decoded(jnp.asarray(labels)).valid, [True, False, True, False])

  @pytest.mark.parametrize('name,value', [
      ('temperature', -1.0), ('temperature', NAN), ('temperature', INF), ('top_k', -1),
      ('top_k', 1.5), ('top_p', 0.0), ('top_p', 1.5), ('guidance_scale', NAN),
      ('guidance_scale', INF), ('guidance_interval', -2), ('guidance_interval', 0.5)])
  def test_options(self, name, value):
    one = jnp.full(4, jnp.float32(getattr(SamplingParams(), name))).at[1].set(value)
    np.testing.assert_array_equal(
        decoded(sampling=SamplingParams()._replace(**{name: one})).valid, [True, False, True, True])

  def test_guidance_without_a_null_condition(self):
    run = lambda scale: decoded(
        sampling=SamplingParams(guidance_scale=scale), params=ALONE.params, run=RUN_ALONE).valid
    assert run(1.0).all() and not run(2.0).any()

  def test_greedy_variants(self):
    table = np.asarray([[1], [2], [3], [0]])
    run = jax.jit(make_decoder(MODEL.target, jacobi(3), lantern_pp(table, 2.0, greedy=True)))
    assert decoded(sampling=SamplingParams(temperature=0.0), run=run).valid.all()
    assert not decoded(run=run).valid.any()

  def test_captions(self):
    config = llamagen.LlamaGenConfig(
        conditioning='text', height=2, width=2, dim=16, num_layers=1, num_heads=2, vocab_size=8,
        caption_dim=4, ffn_dim=16)
    embeddings, mask = np.zeros((4, 120, 4), np.float32), np.ones((4, 120), bool)
    embeddings[1, 7, 2], mask[2, -1] = NAN, False
    embeddings[3, 0], mask[3, 0] = NAN, False  # Where nobody reads.
    check = llamagen.target(config, guided=True).check_condition
    np.testing.assert_array_equal(
        jax.jit(check)(llamagen.Caption(embeddings, mask)), [True, False, False, True])

  def test_prompts(self):
    tokens, visible = np.zeros((3, 1, 2), np.int32), np.ones((3, 1, 2), bool)
    tokens[1, 0, 0], visible[2, 0] = 9, [True, False]
    check = jax.jit(lambda prompt: conditions.check_prompt(prompt, 1, 9))
    np.testing.assert_array_equal(check(causal.Prompt(tokens, visible)), [True, False, False])


class TestBound:
  """An unknown bound on total variation is NaN."""

  def test_a_relaxed_verifier_that_tells_none(self):
    def verify(rng, layout, tokens, probs, target_probs, positions):
      node = jnp.int32(layout.tree.num_nodes)  # Whatever was drafted.
      return Verdict(node, rng.draw(target_probs[node][None])[0])

    made = lambda exact: make_decoder(
        MODEL.target, jacobi(2), Verifier(verify, exact, needs_probs=False))
    np.testing.assert_array_equal(decoded(run=jax.jit(made(False))).tv_bound, NAN)
    assert made(False).guarantee == 'biased'
    assert made(True).guarantee == 'exact'


@pytest.fixture(scope='module')
def broken(tmp_path_factory):
  """A model whose class 'sea' has no distributions."""
  model = families.load(tiny.saved(tmp_path_factory.mktemp('model')))
  table = model.params['table'].at[1].set(NAN)
  return dataclasses.replace(model, params={'table': table})


def test_generate_says_which_images(broken):
  assert len(broken.generate(['sand', 'sky'], decoder='vanilla')) == 2
  with pytest.raises(ValueError, match=r"for 1 of 2 images \('sea' with seed 3, number 1\)"):
    broken.generate(['sand', 'sea'], seed=3, decoder='vanilla')
  with pytest.raises(ValueError, match=r"images \('sea' with seed 3, number 1\)"):
    broken.generate(['sand', 'sea', 'sky'], seed=3, decoder='vanilla', batch_size=2)
  with pytest.raises(ValueError, match="for 1 of 1 images .'sea'"):
    list(broken.stream(['sea'], decoder='vanilla'))
  with pytest.raises(ValueError, match="for 1 of 2 images .'sea' number 1."):
    decode(broken.images(['sand', 'sea'], decoder='vanilla', seed=jax.random.key(0),
                          pixels=False))
