"""`check_target` refuses targets whose guidance streams are swapped, and says where they are."""

import jax
import jax.numpy as jnp
import pytest

from cspd_jax.decoding import prefix
from cspd_jax.decoding.tree import Tree
from cspd_jax.testing.tabular import tabular
from cspd_jax.testing.target_checks import CHECKS, check_target
from tests.marks import representative
from tests.testing.problems import report_of
from tests.testing.test_check_target import LABELS, MODEL, T, guided, prefilling, scoring

SWAPPED = 'the guidance streams are swapped: '


def with_streams(prefill=0, after=0, window=0, tree=0, long=0, commit=0, mixed=False):
  """A target in rows of 3 tokens that caches which stream is which; parts swap them if 1.

  These are the cache of `prefill`, that of `score`, the logits of windows, of trees and of more
  than 5 tokens, and `commit`. If `mixed`, `prefill` caches the condition for both streams.
  """
  target = guided(row_width=3).target

  def swapped(stream, swap):
    return stream.reshape(2, -1)[::-1].reshape(-1) if swap else stream

  def of_condition(params, condition, num_slots):
    logits, features, cache = target.prefill(params, condition, num_slots)
    stream = jnp.repeat(jnp.arange(2) * (not mixed), len(condition))
    return logits, features, (cache, swapped(stream, prefill))

  def score(params, cache, tokens, start, tree_):
    logits, features, before = target.score(params, cache[0], tokens, start, tree_)
    rows = jnp.arange(len(start))
    is_chain = isinstance(tree_, Tree) and tree_.is_chain
    swap = (window and is_chain and tree_.num_nodes or tree and not is_chain
            or long and is_chain and tree_.num_nodes == 2)
    logits = logits[swapped(cache[1], swap).reshape(2, -1), rows]
    return logits, features, (before, swapped(cache[1], after))

  return target._replace(
      prefill=of_condition, score=score, commit=lambda cache, start, path: (
          target.commit(cache[0], start, path), swapped(cache[1], commit)))


# name: the target, the check that finds it, and the beginning of the sentence.
STREAMS = {
    'prefill': (
        prefilling(lambda logits, *rest: (logits[::-1], *rest)), 'streams',
        f'prefill: {SWAPPED}the second stream depends on the condition and the first does not; '),
    'score': (
        scoring(lambda logits, *_: logits[::-1]), 'streams',
        f'score, or the cache of prefill: {SWAPPED}the second'),
    'both': (
        scoring(lambda logits, *_: logits[::-1])._replace(
            prefill=lambda *args: (T.prefill(*args)[0][::-1], *T.prefill(*args)[1:])),
        'streams', f'prefill: {SWAPPED}'),
    'the cache of prefill': (
        with_streams(prefill=1), 'streams', f'score, or the cache of prefill: {SWAPPED}'),
    'the cache of score': (with_streams(after=1), 'streams', f'the cache of score: {SWAPPED}'),
    'windows': (with_streams(window=1), 'streams', f'score of 5 tokens in one pass: {SWAPPED}'),
    'a prefix': (
        with_streams(long=1), 'streams', f'score with a prefix of 3 tokens: {SWAPPED}'),
    'trees': (
        with_streams(tree=1), 'tree', 'score: with a Tree node 0 has a distribution'),
    'commit': (with_streams(commit=1), 'commit', 'commit: after paths to nodes'),
    'one stream for both': (
        with_streams(mixed=True), 'streams',
        'score, or the cache of prefill: the guidance streams are mixed: the second stream depends '
        'on the condition, which it did not do before; '),
}


@pytest.mark.parametrize('name', representative(STREAMS, 'score', 'commit'))
def test_swapped_streams(name):
  target, check, message = STREAMS[name]
  problems = report_of(check_target, target, MODEL.params, LABELS).problems
  assert next(iter(problems)) == check and problems[check].startswith(message), problems
  assert problems[check].endswith('.')


def test_streams_in_their_order():
  report = check_target(with_streams(), MODEL.params, LABELS)
  assert report.passed == ['shapes', *(check.name for check in CHECKS)]
  assert 'guidance streams' not in str(report)


@pytest.mark.slow
def test_streams_with_a_prefix_of_their_own():
  """Prefixes differ from image to image, so that the null condition sees different ones, too."""
  condition = prefix.Prefixed(LABELS, jnp.asarray([[0, 1, 2], [3, 2, 1], [1, 1, 0]]))
  report = check_target(prefix.target(with_streams(), 3), MODEL.params, condition)
  assert 'guidance streams' not in str(report)
  report = report_of(check_target, prefix.target(with_streams(after=1), 3), MODEL.params, condition)
  assert report.problems['streams'].startswith(f'score, or the cache of prefill: {SWAPPED}')


def test_streams_that_the_condition_does_not_tell_apart():
  same = report_of(check_target, STREAMS['score'][0], MODEL.params, LABELS[:1])
  assert 'streams is unchecked: neither depends on the condition' in same.notes[0]
  model = tabular(jax.random.key(0), 4, 9, guided=True, num_classes=3)
  both = check_target(model.target, model.params, LABELS)
  assert 'streams is unchecked: both depend on the condition; pass logits' in both.notes[0]
