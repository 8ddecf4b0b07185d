"""Messages of `generate`, `stream`, `images`, `sampler`, slots and results."""

import copy
import dataclasses
import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.generation.slots import Runner
from cspd_jax.measure import measurements
from cspd_jax.testing.tabular import tabular
from tests.messages import said
from tests.messages.said import each, slow

T = tabular(jax.random.key(0), 4, 6, guided=True, num_classes=3).target
KEYS = jax.random.split(jax.random.PRNGKey(3), 5)


def _of(name):
  """A call of a function of a model with a prompt and options."""
  return lambda at, options: getattr(at.model, name)(**dict(prompts='sea') | options)


def _traced(at, run):
  ask = lambda **options: at.model.generate('sea', decoder='vanilla', **options).tokens
  return run(ask)


def _of_pair(at, options):
  return at.pair.generate(**dict(prompts='cat', decoder='vanilla') | options)


def _with_params(at, change):
  leaf = jax.tree.leaves(at.model.params)[0]
  at.model.with_params(jax.tree.map(
      lambda other: change(other) if other is leaf else other, at.model.params))


def _other_key(at, key):
  with jax.default_prng_impl('rbg'):
    at.served.images(['cat'] * 4, seed=key(), decoder='vanilla')


CALLS = [
    *each(_of('generate'),
    (dict(prompts=['sea', 3]), 'prompts mixes names and numbers'),
    (dict(prompts=[]), 'prompts is empty'),
    (dict(prompts=['dog']), "prompts holds 'dog'; .*[^?]$"),
    (dict(prompts=['Seaa']), "prompts holds 'Seaa'; it must be a class .*; did you mean sea[?]"),
    (dict(prompts=[3]), 'prompts holds 3; it must be a class from 0 to 2'),
    (dict(prompts=[1.0]), 'holds 1.0, which is a float; it must be a class from 0 to 2'),
    (dict(prompts=pathlib.Path('missing.txt')), "prompts is 'missing.txt', which cannot be read"),
    (dict(prompts='sea', seed=-1), 'seed is -1'),
    (dict(prompts='sea', seed=2**32), 'seed is 4294967296'),
    (dict(prompts='sea', seed=1.0), 'seed is 1.0'),
    (dict(prompts='sea', seed=[1, 2]), 'seed has 2 numbers for 1 images'),
    (dict(prompts='sea', seed=[jax.random.key(0)]), 'seed is .*key.*; it must be a whole number'),
    (dict(prompts='sea', decoder=lambda size: 'vanilla'), 'decoder is <function'),
    (dict(prompts='sea', decoder='mc_sjd(windw=3)'), 'windw'),
    (dict(prompts='sea', decoder='mc_sjd', window=0), 'window'),
    (dict(prompts='sea', decoder='mc_sjd', widow=4), 'widow is neither .* did you mean window?'),
    (dict(prompts='sea', seeds=3), 'seeds is neither .* did you mean seed?'),
    (dict(prompts='sea', raw_logprobs=True), 'raw_logprobs is .* did you mean raw_log_probs?'),
    (dict(prompts='sea', decoder='seedexact'), "'seedexact' is not reg.* did you mean seed_exact?"),
    (dict(prompts='sea', qqqqqq=3), r'qqqqqq is neither .*\)\.$'),
    (dict(prompts='sea', sampling={'top_k': 3}),
     "sampling is {'top_k': 3}; pass sampling options as arg"),
    (dict(prompts='sea', sampling=cspd_jax.SamplingParams()),
     'sampling is SamplingParams.* arguments of their own'),
    (dict(prompts='sea', decoder='speculative'),
     "'speculative', which drafts with a draft model; model 'beach' has none: use a decoder"),
    (dict(prompts='sea', temperature=-1), 'temperature is -1'),
    (dict(prompts='sea', guidance_scale=[1.0, 2.0]), 'guidance_scale has shape'),
    (dict(prompts='sea', batch_size=0), 'batch_size is 0'),
    # Arguments of other packages.
    *[({name: 4}, r"pass the prompt as often: \['a fox on white'\] \* 4")
      for name in ('num_images', 'n', 'num_images_per_prompt', 'num_return_sequences')],
    (dict(do_sample=False), 'pass temperature=0'), (dict(generator=1), 'did you mean seed'),
    (dict(decoder='greedy'), 'pass temperature=0, which is greedy'),
    (dict(decoder='autoregressive'), 'did you mean vanilla'),
    *[({name: 256}, r'grid=\(ROWS, COLUMNS\)') for name in ('width', 'height', 'size')],
    (dict(negative_prompt='dull'), 'leave it out and pass guidance_scale'),
    (dict(device='cuda'), r'JAX_PLATFORMS=cpu .* sharding=jax.devices\(\)\[0\]'),
    (dict(num_inference_steps=9), 'choose another decoder'), (dict(prompt='x'), 'mean prompts'),
    (dict(assistant_model='x'), "draft=FOLDER, and choose decoder='speculative'"),
    (dict(dtype='bfloat16'), 'option of cspd_jax.load'),
    *((dict(progress=progress), 'progress is .*; it must be True for a progress bar, or a')
      for progress in (1, 'bar', [])),
    # Numbers that JAX's arrays cannot hold, and decoders that are no text.
    (dict(guidance_scale=10**400), 'guidance_scale is inf; it must be finite'),
    (dict(temperature=[-10**400]), 'temperature is .*inf.*; it must be from 0'),
    (dict(top_k=10**400), 'top_k is 1000.*; it must be below 2147483648'),
    (dict(top_p=2**64), 'top_p is .*; it must be above 0 and at most 1'),
    (dict(batch_size=True), 'batch_size is True; it must be a whole number'),
    (dict(decoder=cspd_jax.mc_sjd(T, 4)),
     r'decoder is Decoder\(.*; it must be a string .*decoder\(model.params, model.condition'),
    (dict(decoder=cspd_jax.Decoder), 'decoder is <class .* call one that you have'),
    (dict(decoder=cspd_jax.mc_sjd), 'decoder is <function .*: pass the name of a'),
    (dict(key=3), 'key is neither .*; did you mean seed?'),
    (dict(raw_log_probs='yes'), "raw_log_probs is 'yes'; it must be"),
    (dict(decoder='eagle'), "a decoder without it, because 'tiny' models support none")),
    *each(lambda at, name, prompts: getattr(at.model, name)(prompts), *(
        (name, *row) for name in ('generate', 'condition') for row in [
    ({'sea', 'sky'}, 'prompts is a set, which has no order'),
    ({'sea': 1}.keys(), 'prompts is a dict_keys'), (iter(['sea']), 'it must be a prompt, a list'),
    (b'sea', "prompts is b'sea'; it must be"), (1.5, 'prompts is 1.5; it must be')])),
    *each(_traced, *((run, 'inside of a function that JAX traces.*request them out') for run in (
        lambda ask: jax.jit(lambda x: ask() + x)(0),
        lambda ask: jax.vmap(lambda seed: ask(seed=seed))(jnp.arange(2)),
        lambda ask: jax.grad(lambda scale: ask(temperature=scale).sum() * 1.0)(1.0)))),
    *each(_of('stream'), (dict(every=0, decoder='vanilla'), 'every is 0'),
          (dict(batch_size=2), 'batch_size is 2, but all images of a')),
    # Seeds and prompts of rows.
    *each(lambda at, options: at.served.images(**dict(prompts=['cat'] * 5) | options),
          (dict(seed=np.full(5, 2**32 + 7)), 'seed is array'),
          (dict(seed=jax.random.PRNGKey(3), prompts=['cat'] * 2), r'shape \(2,\), as random keys'),
          (dict(seed=KEYS), r'shape \(5, 2\), as random keys')),
    *each(_other_key, *((key, 'as random keys of jax.random.PRNGKey') for key in (
        lambda: jax.random.PRNGKey(3), lambda: jax.random.split(jax.random.PRNGKey(3), 4)))),
    # Samplers.
    *each(lambda at, options: at.model.sampler(**dict(decoder='vanilla') | options),
          *((dict(sampling=sampling), 'it must be model.sampling') for sampling in (
              {'temperature': 1.0}, 1.0, (1.0,))),
          (dict(sampling=cspd_jax.SamplingParams(), top_k=3), 'top_k and sampling are both passed'),
          (dict(temperature=True), 'temperature is True'), (dict(raw_log_probs=1), 'probs is 1')),
    *each(lambda at, call: call(at),
          (lambda at: at.model.sampling(cfg_scale=3), 'cfg_scale is not .* mean guidance_scale'),
          (lambda at: at.model.sampler('vanilla', temperature=[1.0, 0.5])(['sea']),
           r'temperature has shape \(2,\); .* each of 1 images'),
          *((lambda at, words=words: cspd_jax.mc_sjd(at.model.target(), window=4)(
              at.model.params, words, jax.random.key(0)),
             r'condition is .*; .* pass model.condition\(prompts\)') for words in (
                 'sea', ['sea', 'sky'])),
          (lambda at: at.emoji.generate([3]),
           'this model accepts words, or a models.conditions.Prompt'),
          # Models.
          *((lambda at, copied=copied: copied(at.model), (
              TypeError, 'folder, and load it there with cspd_jax.load')) for copied in (
                  pickle.dumps, copy.deepcopy)),
          (lambda at: copy.deepcopy(at.pair), (TypeError, 'cannot be pickled or deep-copied')),
          (lambda at: at.model.with_params({}), 'is None, and that of model'),
          (lambda at: at.model.with_params(dict(at.model.params, more=np.zeros(3))),
           'pass parameters of its structure'),
          (lambda at: dataclasses.replace(at.model, tokenizer=None).generate('sea'),
           'load it with tokenizer='),
          (lambda at: measurements.choose('discrete', ['beauty']),
           "a name in metrics is 'beauty'; .* one of rounds, ")),
    *each(_with_params, (lambda leaf: leaf[:1], r"\['table'\].* its structure, shapes and dtypes")),
    *each(lambda at, name: getattr(at.model, name), *(
        (name, (AttributeError, f"'Model' object has no attribute '{name}'{remedy}"))
        for name, remedy in (
    ('save', '; .* cspd_jax.files.store.save'), ('to', '; .* JAX_PLATFORMS'),
    ('half', '; .*dtype='), ('no_such_thing', '$')))),
    # Two models in turn.
    *each(_of_pair,
    (dict(prior=dict(temprature=1.0)), 'prior.temprature is neither.*, top_k,.*temperature'),
    (dict(prior=dict(guidance_scale=2.0)), '^prior.guidance_scale is 2'),
    (dict(prior=dict(temperature=-1.0)), 'prior.temperature is -1.0'),
    (dict(prior=0.5), 'prior is 0.5; it must be options of the prior by name'),
    (dict(decoder='vanilla | vanilla | vanilla'),
     "vanilla | vanilla | vanilla', 3 decoders, but there are two models; pass one decoder "),
    (dict(decoder='vanilla | eagle'), "decoder is 'eagle.*with an EAGLE network; model 'pair' has"),
    (dict(decoder='eagle | vanilla'), "EAGLE network; model 'pair/prior' has none"),
    (dict(prior=dict(temperature=[1.0, 2.0])), r'prior.temperature has shape \(2,\)'),
    (dict(prompts='fox'), "prompts holds 'fox'")),
    *each(lambda at, options: at.pair.prior.generate('cat', **options),
          (dict(decoder='vanilla', prior=dict(temperature=1.0)), 'prior is '),
          (dict(decoder='vanilla | vanilla'), 'decoder')),
    *each(lambda at, options: at.pair.generate(**dict(
        prompts=np.zeros((1, 2), int), decoder='vanilla') | options),
          *((dict(prior={name: 1}), f'prior.{name} is 1, but prompts are tokens of the prior')
            for name in ('temperature', 'top_k', 'window')),
          (dict(decoder='vanilla | vanilla'), "tokens of the prior, which .*; pass 'vanilla'"),
          (dict(prompts=[[0, 1]]), r'a list of lists; .*: pass np.asarray\(prompts\)')),
]
SLOTS = [
    *each(lambda at, request: Runner(at.served, 2, decoder='vanilla').check(request(at)),
          (lambda at: at.served.images(['cat'], decoder='sjd(window=3)'), 'a record is of'),
          (lambda at: at.served.images(['cat'] * 2, decoder='vanilla'), 'a record is of'),
          (lambda at: at.served.with_params(at.served.params + 1).images(
              ['cat'], decoder='vanilla'), 'a record is of')),
    *each(lambda at, request: Runner(at.served, 2, decoder='vanilla').join([request(at)]),
          (lambda at: at.served.images(['cat'] * 2, decoder='vanilla'),
           r'it must be of 1 image by vanilla with a prefix'),),
    *slow(each(lambda at, call: call(at),
          (lambda at: at.mar.generate(raw_log_probs=True), 'raw_log_probs is True; it must be'),
          (lambda at: at.mar.generate(['cat'], prefix=np.zeros((64, 64, 3), np.uint8)),
           "a 'mar' model has continuous tokens, and its decoders"))),
]

# Images of 16 rows of 16 of 1024 tokens.
PREFIXES = [
    *each(lambda at, options: at.demo.generate(['cat', 'rocket'], decoder='vanilla', **options),
          (dict(rows=2), 'rows is 2, but there is no prefix'),
          (dict(prefix=np.zeros(256, int), rows=16), 'rows is 16; it must be a whole .* 1 to 15'),
          (dict(prefix=np.zeros(16, int), rows=2), 'rows is 2, but prefix has 16 tokens, 16 per'),
          (dict(prefix=np.zeros(256, int)), 'prefix has 256 tokens; it must be whole rows'),
          (dict(prefix=np.zeros((3, 16), int)), 'prefix has 3 images for 2 prompts'),
          (dict(prefix=np.full(16, 1024)), 'row 0, include one that is not allowed'),
          (dict(prefix=np.full(16, 2**32)), 'row 0, include one that is not allowed'),
          (dict(prefix=np.zeros(16)), r'prefix is float64\[16\]; it must be tokens'),
          (dict(prefix=np.zeros((9, 6, 3), np.uint8)), 'of 9x6 pixels; model .* generates 64x64'),
          (dict(prefix=np.full((64, 64, 3), 2.0)), r'not all in \[-1, 1\]'),
          (dict(prefix='nowhere.png'), "'nowhere.png', which cannot be read as an image")),
    *each(lambda at, prefix, options: at.demo.with_prefix(prefix).generate('cat', **options),
          *((np.zeros(count, int), {}, 'must be whole rows of 16 tokens, 1 to 15 of them')
            for count in (0, 1, 17, 256, 272)),
          (np.zeros(16, int), dict(prefix=np.zeros((8, 6, 3), np.uint8)),
           'prefix is set, but model .* has one of 16 tokens'),
          (np.full(16, 2**32), {}, 'row 0, include one that is not allowed')),
    *each(lambda at, count: at.served.with_prefix(np.zeros(count, int)),
          *((count, 'whole rows, and images of this model are one row') for count in (0, 3, 9))),
]


@pytest.mark.parametrize('call, words', CALLS)
def test_what_is_refused_before_anything_is_compiled(at, call, words):
  models = at.model, at.served, at.pair.prior, at.pair.second
  for model in models:
    model.kept.programs.clear()
  said.check(lambda: call(at), words)
  assert not any(model.kept.programs for model in models)


@pytest.mark.parametrize('call, words', SLOTS + PREFIXES)
def test_what_slots_and_prefixes_refuse(at, call, words):
  said.check(lambda: call(at), words)


def test_results_are_sequences_of_images(at):
  out = at.served.generate(['cat'], decoder='vanilla')
  said.check(lambda: out[1], (IndexError, 'index is 1, but there are 1 images'))
  said.check(lambda: out['cat'], (TypeError, "index is 'cat'; it must be a whole number or a sl"))
  assert copy.copy(at.model).params is at.model.params and not hasattr(at.model, 'save')
