"""The named decoders of both kinds of tokens as functions: their help, and what one types first."""

import functools
import inspect
import re
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax import SamplingParams, continuous
from cspd_jax.continuous import schedule as schedule_lib, specification
from cspd_jax.core.random import row_keys
from cspd_jax.decoding import specification as discrete
from cspd_jax.decoding.drafters import from_model
from cspd_jax.decoding.tree import chain
from cspd_jax.testing.proofs import analytic
from cspd_jax.testing.tabular import heads, network, tabular

MODEL = tabular(jax.random.key(0), 4, 6, guided=True, num_classes=3, row_width=3)
T, LABELS = MODEL.target, jnp.arange(2)
BIG = T._replace(num_tokens=80)  # For the windows of the examples, whose shapes are traced.
CHAIN = analytic.gaussian_chain(8, 0.9, schedule=schedule_lib.make(6))
TABLES = {'discrete': discrete.TABLE, 'continuous': specification.TABLE}
DISCRETE, CONTINUOUS = (f'cspd_jax.{room}.base.Target' for room in ('decoding', 'continuous'))
NAMES = [(tokens, name) for tokens in TABLES for name in TABLES[tokens].decoders]


def _names(tokens, name):
  """Returns the names that examples in docstrings use; the decoder they build is not compiled."""
  common = dict(jax=jax, cspd_jax=cspd_jax, SamplingParams=SamplingParams)
  if tokens == 'continuous':
    return common | dict(target=CHAIN.target, draft=CHAIN.target, params=CHAIN.params,
                         draft_params=CHAIN.params, condition=np.zeros(2, int))
  return common | dict(
      target=BIG, draft_target=BIG, network=network(BIG), heads=heads(BIG, 3),
      corrector=from_model(BIG),
      params=MODEL.params, condition=LABELS, chain=chain,
      draft_params=jnp.stack([MODEL.params] * 3) if name == 'medusa' else MODEL.params)


@pytest.mark.parametrize('tokens,name', NAMES)
def test_help(tokens, name, monkeypatch):
  """It explains every argument and states the guarantee, and the example runs."""
  function = TABLES[tokens].decoders[name].build
  text = inspect.getdoc(function)
  about, _, rest = text.partition('\nArgs:\n')
  arguments, _, example = rest.partition('\nExample:\n')
  explained = re.findall(r'^  (\w+): ', arguments, re.MULTILINE)
  assert list(inspect.signature(function).parameters) == explained
  monkeypatch.setattr(
      cspd_jax, 'jit', lambda function: functools.partial(jax.eval_shape, function))
  result = _names(tokens, name)
  exec(textwrap.dedent(example), result)  # pylint: disable=exec-used
  guarantee = result['decode'].args[0].guarantee
  assert re.search(rf'(?<!seed-)\b{guarantee}\b', about, re.IGNORECASE)
  assert result['decoded'].tokens.shape[:2] == (2, result['target'].num_tokens)


@pytest.fixture(scope='module')
def loaded():
  return cspd_jax.load('demo')


@pytest.mark.parametrize('decoder,params,condition', [
    (cspd_jax.mc_sjd(T, 4), MODEL.params, LABELS),
    (continuous.mar(CHAIN.target), CHAIN.params, np.zeros(2, int))], ids=TABLES)
def test_a_decode_starts_from_a_key(decoder, params, condition):
  """One key, a key per row, or the rows' random state: the same rounds."""
  key = jax.random.key(3)
  start = jax.jit(lambda key: decoder.start(params, condition, key))
  keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(2))
  states = [start(each) for each in (key, keys, row_keys(key, 2), jax.random.key_data(key))]
  for state in states[1:]:
    jax.tree.map(np.testing.assert_array_equal, state, states[0])
  for wrong in (3, None, keys[:1], [key, key]):
    with pytest.raises(ValueError, match='^key (is|has shape)'):
      decoder.start(params, condition, wrong)


def test_parts_are_printed_by_their_sizes(loaded):
  assert repr(T) == 'Target(vocab_size=4, num_tokens=6, row_width=3, num_streams=2)'
  assert repr(cspd_jax.mc_sjd(T, 4)) == f'Decoder({T}, a chain of 3 drafts per round, exact)'
  assert repr(continuous.mar(CHAIN.target)) == (
      f'Decoder({CHAIN.target}, masked generation in 8 steps, last kernel without noise, exact)')
  assert re.match(r'Target\(masked, num_tokens=8, token_dim=\d+, num_streams=', repr(CHAIN.target))
  assert re.fullmatch(
      r'DraftNetwork\(\d+ arrays, [\d,]+ parameters\)', repr(loaded.drafts['eagle']))
  assert len(str(loaded.drafts)) < 500


@pytest.mark.parametrize('tokens,name', NAMES)
def test_a_decoder_is_a_name_of_its_package(tokens, name):
  package = cspd_jax if tokens == 'discrete' else continuous
  assert getattr(package, name) is TABLES[tokens].decoders[name].build and name in package.__all__
