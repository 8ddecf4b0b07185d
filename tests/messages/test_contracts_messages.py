"""Messages at trace time of what a model, a drafter and a verifier of a user return."""

import jax
import jax.numpy as jnp
import pytest

from cspd_jax.decoding import specification, tree as trees
from cspd_jax.decoding.base import Drafter, Verifier
from cspd_jax.decoding.drafters.draft_model import model
from cspd_jax.decoding.drafters.eagle import eagle, eagle2
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing.tabular import heads, network, tabular
from tests.messages import said
from tests.messages.said import each, slow

MODEL = tabular(jax.random.key(0), 4, 6, guided=True)
T, NETWORK, HEADS = MODEL.target, network(MODEL.target), heads(MODEL.target, 2)
TREE = trees.caterpillar(2, 1, 3)


def changed(function, change):
  """A function whose result goes through `change`."""
  return lambda *args: change(function(*args))


def triple(logits=lambda x: x, features=lambda x: x, cache=lambda x: x):
  return lambda result: (logits(result[0]), features(result[1]), cache(result[2]))


def trace(decoder, draft_params=None):
  jax.eval_shape(decoder, MODEL.params, jnp.arange(2), jax.random.key(0),
                 draft_params=draft_params)


def target(**changes):
  return T._replace(**{name: changed(getattr(T, name), change)
                       for name, change in changes.items()})


def stepping(target, state=lambda x: x, logits=lambda x: x, after=lambda states: states):
  """A recurrent target of the same sizes, with changes to what it returns; see `trace`."""
  def prefill(params, labels, num_slots):
    return (jnp.zeros((1, len(labels), 4)), None,
            {'state': state(jnp.zeros((len(labels), num_slots + 1, 5)))})

  def score(params, cache, tokens, start, tree):
    rows = jnp.arange(len(start))
    _, states = jax.lax.scan(lambda carry, token: (carry + token[:, None],) * 2,
                             cache['state'][rows, start], tokens.T)
    slots = start[:, None] + 1 + jnp.arange(tokens.shape[1])
    stored = cache['state'].at[rows[:, None], slots].set(states.swapaxes(0, 1))
    return logits(states[None, ..., :4]), None, {'state': after(stored)}

  return target._replace(prefill=prefill, score=score, num_streams=1, supports_trees=False)


RIGHT = dict(logits=lambda x: x.swapaxes(1, 2))  # The scan returns the tokens before the rows.


def test_a_function_that_fails_is_named():
  def fail(*args):
    raise RuntimeError('failed')

  for name, message in (('prefill', 'prefill of the target was called for 2 rows and 9 slots'),
                        ('score', 'score of the target was called with .* a Tree of 3 drafts'),
                        ('commit', r'commit of the target .* path int32\[2, 1\]')):
    with pytest.raises(RuntimeError, match=f'(?s)failed.*{message}'):
      trace(make_decoder(T._replace(**{name: fail}), jacobi(4, tree=TREE), rejection()))
  with pytest.raises(ValueError, match='check_condition of the target returned supported rows int'):
    trace(make_decoder(T._replace(check_condition=lambda labels: labels), jacobi(4), rejection()))


def proposing(**changes) -> Drafter:
  drafter = jacobi(4, tree=TREE)
  def propose(*args):
    rng, state, draft = drafter.propose(*args)
    return rng, state, draft._replace(
        **{name: change(getattr(draft, name)) for name, change in changes.items()})
  return drafter._replace(propose=propose)


def deciding(**changes) -> Verifier:
  verifier = match()
  return verifier._replace(verify=changed(verifier.verify, lambda verdict: verdict._replace(
      **{name: change(verdict) for name, change in changes.items()})))


def _of_chains(at, build):
  build(T)
  build(T._replace(supports_trees=False))


def _drafting(at, drafter, params=MODEL.params):
  trace(make_decoder(T, drafter, rejection()), params)


CALLS = [
    *slow(each(lambda at, broken: trace(make_decoder(broken, jacobi(4, tree=TREE), rejection())),
    (target(prefill=lambda result: result[:2]),
     r'prefill of the target returned a tuple of 2; it must return \(logits, features or None'),
    (target(prefill=triple(logits=lambda x: x[0])),
     r'prefill of the target returned logits float32\[2, 4\]; it must return floating-point '
     r'numbers of shape \(2, 2, 4\): num_streams, rows, vocab_size'),
    (target(prefill=triple(logits=lambda x: x.astype(int))), r'logits int32\[2, 2, 4\]'),
    (target(prefill=triple(logits=lambda x: None)), 'returned logits None'),
    (target(prefill=triple(features=lambda x: x[:, :, 0])),
     r'features float32\[2, 2, 1\]; it must .* shape \(2, 2, any, any\)'),
    (target(score=lambda result: result[0]), r'score of the target returned float32\[2, 2, 4, 4\]'),
    (target(score=triple(logits=lambda x: x[..., :3])),
     r'score of the target returned logits float32\[2, 2, 4, 3\]; it must return floating-point '
     r'numbers of shape \(2, 2, 4, 4\): num_streams, rows, tokens, vocab_size'),
    (target(score=triple(cache=lambda x: x[1])), 'score of the target returned a cache of struct'),
    (target(score=triple(cache=lambda x: (x[0], x[1][:, 1:]))),
     r'score of the target returned a cache whose leaf cache\[1\] is int32\[2, 8\]; it must '
     r'be int32\[2, 9\], as in its argument'),
    (target(commit=lambda cache: cache[1]), 'commit of the target returned a cache of structure'),
    (T._replace(forced=lambda positions: positions * 1.0),
     'forced of the target returned tokens f'),
    (T._replace(forced=lambda positions: positions[0]), 'forced of the target returned toke'))),
    *each(lambda at, changes: trace(make_decoder(stepping(T, **changes), jacobi(4), rejection())),
    ({}, r'score of the target returned logits float32\[1, 4, 2, 4\]; .* shape \(1, 2, 4, 4\)'),
    ({**RIGHT, 'after': lambda x: x[:, -1]},
     r"whose leaf cache\['state'\] is float32\[2, 5\]; it must be float32\[2, 10, 5\], as in"),
    ({**RIGHT, 'after': lambda x: x.astype(jnp.float16)},
     r"cache\['state'\] is float16\[2, 10, 5\]; it must be float32")),
    *each(_of_chains,
    (lambda target: make_decoder(target, jacobi(4, tree=TREE), rejection()),
     r'the drafter proposes the tree \(-1, 0, 1, .*\), but the target has supports_trees=False'),
    (lambda target: make_decoder(target, eagle2(NETWORK, num_nodes=3, width=2, depth=2), match()),
     'proposes trees of 3 nodes whose topology depends on the drafts'),
    (lambda target: specification.build('sjd_pac(window=4, tree=caterpillar(2, 1, 3))', target),
     r'pass tree=chain\(LENGTH\) to the drafter')),
    *each(_drafting,
    (model(target(prefill=triple(logits=lambda x: x[:1])), 2),
     r'prefill of the draft model returned logits float32\[1, 2, 4\]'),
    (model(target(score=triple(logits=lambda x: x[:, :, 0])), 2),
     r'score of the draft model returned logits float32\[2, 2, 4\]'),
    (eagle(NETWORK._replace(step=changed(NETWORK.step, lambda result: result[0])), TREE),
     r'step of the drafting network returned float32\[2, 2, 3, 1\]; it must return \(features, ca'),
    (eagle(NETWORK._replace(logits=changed(NETWORK.logits, lambda x: x[0])), TREE),
     r'logits of the drafting network returned logits float32\[2, 1, 4\]'),
    (eagle(NETWORK._replace(step=changed(NETWORK.step, lambda result: (
        jnp.concatenate([result[0]] * 2, -1), result[1]))), TREE),
     r'step of the drafting network returned features float32\[2, 2, 3, 2\]'),
    (medusa(HEADS._replace(logits=changed(HEADS.logits, lambda x: x[:, :, 0]))),
     jnp.stack([MODEL.params] * 2),
     r'logits of the drafting heads returned logits float32\[2, 2, 4\]; it must .*\(2, 2, 2, 4\)')),
    *each(lambda at, drafter: trace(make_decoder(T, drafter, rejection())),
    (proposing(tokens=lambda x: x[:, 1:]),
     r'propose of the drafter returned tokens int32\[2, 2\]; it must return integers of shape '
     r'\(2, 3\): rows, draft nodes'),
    (proposing(tokens=lambda x: x * 1.0), r'returned tokens float32\[2, 3\]'),
    (proposing(probs=lambda x: None), 'propose of the drafter returned probs None'),
    (proposing(probs=lambda x: x[:, :1]), r'returned probs float32\[2, 1, 4\]')),
    *each(lambda at, verifier: trace(make_decoder(T, jacobi(4, tree=TREE), verifier)),
    (deciding(node=lambda v: v.node[None]),
     r'verify of the verifier returned node int32\[2, 1\]; it must return integers of shape'),
    (deciding(token=lambda v: v.token * 1.0), r'returned token float32\[2\]'),
    (deciding(samples=lambda v: v.token), r'returned samples int32\[2\]'),
    (deciding(tv_bound=lambda v: v.samples), r'returned tv_bound int32\[2, 1\]')),
]


@pytest.mark.parametrize('call, words', CALLS)
def test_what_is_refused(at, call, words):
  said.check(lambda: call(at), words)


def test_what_the_calls_are_made_from_is_right():
  trace(make_decoder(T, jacobi(4, tree=TREE), rejection()))
  trace(make_decoder(stepping(T, **RIGHT), jacobi(4), rejection()))


def test_an_error_of_a_scan_names_the_function_and_its_arguments():
  with pytest.raises(TypeError, match=(
      r'(?s)carry.*score of the target was called with tokens int32\[2, 4\], start int32\[2\] and '
      r'a chain of 3 drafts; it must return \(logits \[1, 2, 4, 4\], features or None, cache\)')):
    trace(make_decoder(
        stepping(T, **RIGHT, state=lambda x: x.astype(jnp.int8)), jacobi(4), rejection()))
