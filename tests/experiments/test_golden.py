"""The comparison with greedy tokens of another program: agreement, and the first disagreement."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.files import store
from cspd_jax.text import bpe, templates
from experiments import golden
from tests.builders import folders
from tests.experiments import calls

pytest.importorskip('tokenizers')

# One with various greedy tokens.
PROMPT = 'x'


@pytest.fixture(scope='module')
def folder():
  return folders.model('janus_pro')


@pytest.fixture(scope='module')
def printed(folder):
  """The tokens of greedy decoding, which is another program than the comparison."""
  model = cspd_jax.load(folder, dtype='float32')
  text = bpe.read(store.load(families.part_folder(folder, 'text')).params, 'janus_pro')
  ids = templates.janus_pro_plain(text, PROMPT, 3, 4)
  out = model.generate(templates.padded([ids]), temperature=0.0, decoder='vanilla')
  return np.asarray(out.decoded.tokens)[0].tolist(), len(ids[0])


def _call(folder, capsys, path, tokens, *words):
  return calls.call(
      golden.main, capsys, path, f'--model={folder}', '--dtype=float32', '--preset=None',
      '--num_prompt_tokens=None', f'--prompt={PROMPT}',
      f'--tokens={",".join(map(str, tokens))}', *words)


@pytest.mark.slow
def test_greedy_tokens_agree(folder, printed, capsys, tmp_path):
  tokens, count = printed
  made = _call(folder, capsys, tmp_path / 'out', tokens, f'--num_prompt_tokens={count}')
  assert made.code == 0, made.err
  assert made.out == 'All 12 tokens agree: greedy decoding writes the tokens that were printed.\n'
  rows = json.loads((made.folder / 'report.json').read_text())['rows']
  assert [row['token'] for row in rows] == tokens
  assert all(row['agrees'] and row['gap'] == 0 for row in rows) and len(set(tokens)) > 3


@pytest.mark.slow
def test_the_first_disagreement_is_named(folder, printed, capsys, tmp_path):
  tokens, _ = printed
  other = [*tokens[:5], (tokens[5] + 1) % 12, *tokens[6:]]
  made = _call(folder, capsys, tmp_path / 'out', other)
  assert made.code == 1 and made.err == ''
  assert (f'First disagreement: position 5, where {tokens[5]} is more probable than {other[5]}.'
          ) in made.out
  report = json.loads((made.folder / 'report.json').read_text())
  rows = [row for row in report['rows'] if not row['agrees']]
  assert rows[0]['position'] == 5 and rows[0]['gap'] > 0 and rows[0]['rounding'] > 0
  assert report['verdict'] in made.out
  assert [row['agrees'] for row in report['rows'][:5]] == [True] * 5


def test_the_gap_of_rounding_bounds_what_rounding_changes():
  """For both logits of a pair, in both streams, at any guidance scale."""
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, 1, 1000)).astype(np.float32) * 20
  scale, rounded = 5.0, np.asarray(jnp.asarray(logits, jnp.bfloat16), np.float32)
  guided, other = (x[1] + scale * (x[0] - x[1]) for x in (logits, rounded))
  bound = golden.rounding(logits, scale)
  assert (np.abs(guided - other) <= bound).all()
  assert np.abs(guided - other).max() > bound.max() / 3
