"""Rounds over continuous tokens: timed parts, calls of the head, and rows of a table."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import specification
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.measure.timing import Timing
from cspd_jax.models import mar, nextstep
from cspd_jax.models.conditions import Prompt
from experiments.costs import forced_rounds, predicted, timed_rounds
from tests.marks import representative

_TEXTS = ('exact_head(kernels_per_call=4)', 'windows(window=2, kernels_per_call=4)')
_CAUSAL = nextstep.NextStepConfig(
    height=4, width=4, vocab_size=5, latent_channels=2, dim=16, num_layers=1, num_heads=2,
    num_kv_heads=1, ffn_dim=8, head_width=8, head_layers=1, num_levels=6)
_MASKED = mar.MARConfig(
    height=4, width=4, token_dim=4, dim=16, num_layers=1, num_heads=2, head_width=8, head_layers=1,
    num_classes=3, buffer_size=2)


def _report(tmp_path, texts=_TEXTS, **fields):
  path = tmp_path / 'accepted.json'
  rows = [dict(model='demo', decoder=text, step_compression=1.5, calls_per_round=4.0, **fields)
          for text in texts]
  path.write_text(json.dumps(dict(rows=rows)))
  return str(path)


def _models():
  prompt = Prompt(jnp.zeros((1, 2, 3), jnp.int32), jnp.ones((1, 2, 3), bool))
  for module, config, condition in (
      (nextstep, _CAUSAL, prompt), (mar, _MASKED, jnp.zeros(1, jnp.int32))):
    shapes = jax.eval_shape(lambda module=module, config=config: module.init(
        config, jax.random.key(0)))
    # Large enough for the context to matter to the head.
    params = jax.tree.map(lambda leaf: 10 * leaf if leaf.ndim > 1 else leaf,
                          timed_rounds.random_like(shapes))
    yield module.target(config, guided=True), params, condition


@pytest.mark.slow
@pytest.mark.parametrize('text', representative(['mar', *_TEXTS], _TEXTS[0]))
def test_parts_of_a_round(text):
  measured = predicted.Measured(1.5, 4.0)
  for target, params, condition in _models():
    decoder = specification.build(text, target)
    prepared = forced_rounds.prepare(
        decoder, measured, params, condition, SamplingParams(guidance_scale=np.float32(2)), 5)
    whole, idle, transformer = (run() for run in prepared.runs.values())
    again = prepared.runs['round']()
    np.testing.assert_array_equal(again.tokens, whole.tokens)
    # Six tokens were complete, of which a round before the timed one drew the last.
    added = lambda decoded: np.asarray(decoded.costs.head_calls)[0, 1]
    assert added(whole) == prepared.calls > 0
    assert added(idle) == added(transformer) == 0
    assert whole.rounds[0] == 2 and np.isfinite(whole.tokens).all()
    assert text != 'mar' or prepared.calls == target.num_levels


@pytest.mark.slow
def test_rows_have_the_calls_of_the_report(tmp_path):
  target, *_ = next(_models())
  decoders = forced_rounds.check(target, _TEXTS, _report(tmp_path), 'demo')
  assert list(decoders) == ['mar', *_TEXTS]
  calls = dict(zip(decoders, (6.0, 3.0, 6.0)))
  prepared = {name: forced_rounds.Rounds(*each, {}, calls[name]) for name, each in decoders.items()}
  seconds = {'round': 1.0, 'without calls': 0.4, 'transformer': 0.1}
  timed = {(name, part): Timing(np.full(3, value)) for name in decoders
           for part, value in seconds.items()}
  official, base, head, windows = forced_rounds.rows(
      prepared, timed, dict(round_ms=1200.0, head_calls=6))
  assert official['round_ms'] == 1200 and base['round_ms'] == 1000 and base['call_ms'] is None
  # Three calls took 600 ms; four are needed.
  np.testing.assert_allclose([head['call_ms'], head['round_ms']], [200, 1200])
  # One of six calls is not in the loop, and one of the four that are needed.
  np.testing.assert_allclose([windows['call_ms'], windows['round_ms']], [120, 760])
  np.testing.assert_allclose(windows['head_ms'], 660)
  np.testing.assert_allclose(windows['token_ms'], 760 / 1.5)
  np.testing.assert_allclose(windows['speedup_over_mar'], 1.5 / 0.76)
  np.testing.assert_allclose(windows['speedup_over_pytorch'], 1.5 * 1200 / 760)


@pytest.mark.slow
def test_decoders_that_the_report_does_not_contain(tmp_path):
  target, *_ = next(_models())
  with pytest.raises(ValueError, match=r"'exact_head', which accepted .* for demo; give a report"):
    forced_rounds.check(target, ['exact_head'], _report(tmp_path), 'demo')
  path = _report(tmp_path)
  with pytest.raises(ValueError, match='does not contain for other'):
    forced_rounds.check(target, _TEXTS, path, 'other')
