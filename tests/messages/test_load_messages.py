"""Messages of `load`, of models and networks that are saved, and of their descriptions."""

import json
import shutil

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax import families, sharding
from cspd_jax.families import folder as folder_lib
from cspd_jax.files import store
from cspd_jax.models import llamagen
from tests.families import tiny
from tests.messages import said
from tests.messages.said import each, slow

CONFIG = llamagen.LlamaGenConfig(
    height=2, width=2, dim=16, num_layers=1, num_heads=2, ffn_dim=24, vocab_size=12, num_classes=3)
PARAMS = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype),
                      store.sketch('llamagen', CONFIG).params)
DEMO = store.ASSETS / 'demo'


def _load(at, options):
  cspd_jax.load(at.beach, **options)


def _palette(at, **sizes):
  """A palette of other sizes, which loads in place of the tokenizer."""
  config = tiny.PaletteConfig(**sizes)
  return store.Loaded('palette', config, tiny.init_palette(config, jax.random.key(1)), {})


def _saved(at, arguments):
  """Saves a network, which writes nothing if it is refused."""
  arguments = dict(kind='llamagen', config=CONFIG, params=PARAMS) | arguments
  try:
    store.save(at.tmp / 'm', **arguments)
  finally:
    assert not (at.tmp / 'm').exists()


def _described(at, change):
  """Loads the demo model after a change of the description of its target."""
  shutil.copytree(DEMO, at.tmp / 'demo')
  path = at.tmp / 'demo' / 'target' / 'model.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  cspd_jax.load(at.tmp / 'demo')


def _with_default(at, model, name, value):
  """The folder of a model that has another default; `families.save` refuses the same."""
  content = json.loads((store.ASSETS / model / 'model.json').read_text())
  content['parts'] = {role: str(store.ASSETS / model / part)
                      for role, part in content['parts'].items()}
  (at.tmp / 'model.json').write_text(json.dumps(content))
  with pytest.raises(ValueError) as caught:
    families.save(at.tmp, content['family'], {}, {name: value})
  content['defaults'][name] = value
  (at.tmp / 'model.json').write_text(json.dumps(content))
  for read in (families.describe, folder_lib.read, cspd_jax.load):
    with pytest.raises(store.CheckpointError) as error:
      read(at.tmp)
    assert str(caught.value).removesuffix('.') in str(error.value)
  raise error.value


def _half(at):
  """A model without its target."""
  families.save(at.tmp / 'half', 'tiny', {'tokenizer': f'{at.beach}/tokenizer'})
  return at.tmp / 'half'


def _large(number):
  return jax.tree.map(lambda x: np.full(x.shape, number, x.dtype), PARAMS)


CALLS = [
    *each(_load,
          (dict(drft='folder'), 'drft is not a part .* a .tiny. model'),
          (dict(draft='demo/tokenizer'), "draft is not a part of a 'tiny' model"),
          (dict(tokenizer='demo/target'), 'tokenizer is a .llamagen. network'),
          (dict(target=None), 'target is None'), (dict(sharding='1x2'), "sharding is '1x2'; it mu"),
          (dict(quantize='int4'), "quantize is 'int4'; it must be 'int8', or None"),
          (dict(cache_dtype='int4'), "cache_dtype is 'int4'; it must be 'int8', or None"),
          (dict(quantize='int8', target=store.Loaded('tiny', tiny.TinyConfig(), {}, {})),
           "quantize is 'int8', but target is loaded already; pass its folder"),
          (dict(dtype='float64'), "'float64', which JAX's .*jax_enable_x64.*or use float32"),
          (dict(dtype='int8'), "dtype is 'int8'; it must be a floating"),
          (dict(dtype='float8_e4m3fn'), "dtype is 'float8_e4m3fn'; it must be a floating"),
          (dict(dtype='float17'), "dtype is 'float17'")),
    *each(lambda at, call: call(at),
          (lambda at: cspd_jax.load('demo', drft='folder'), 'drft is not .* did you mean draft?'),
          (lambda at: cspd_jax.load(at.beach, tokenizer=_palette(at, vocab_size=7)),
           'tokenizer has vocab_size 7, but the target'),
          # Places that hold no model.
          *((lambda at, name=name: cspd_jax.load(name), remedy) for name, remedy in (
              ('emojis', 'did you mean emoji?'), ('Emoji', 'did you mean emoji?'),
              ('org/name', 'cspd-convert --family=FAMILY --source=org/name --output='))),
          *((lambda at, path=path: cspd_jax.load(path(at)), 'shipped models .*demo, .*mar_demo')
            for path in (lambda at: at.tmp, lambda at: at.tmp / 'missing')),
          (lambda at: cspd_jax.load(DEMO / 'tokenizer'), 'not a target, which a model requires'),
          (lambda at: store.load('no-such-model'), 'no such folder.*shipped models: .*demo/target'),
          (lambda at: store.load(at.tmp), 'no model.json.*cspd-convert'),
          (lambda at: store.load(DEMO / 'model.json'), 'not a checkpoint folder'),
          (lambda at: cspd_jax.load(_half(at)), 'has no target yet.*--output=.*half'),
          (lambda at: cspd_jax.load(_half(at), target=None), 'target is None'),
          (lambda at: families.describe('c2i_b_256', layers=13), 'layers is 13.*1 to 12'),
          (lambda at: families.describe('nothing of this name'),
           'published sizes are: .*c2i_b_256')),
    *each(lambda at, load, place: load(place), *(
        (load, place, '(model|path_or_name) is .*; it must be a path')
        for load in (cspd_jax.load, store.load, store.describe, families.describe)
        for place in (None, 5, 1.5, b'demo', ['demo'], object()))),
    # Descriptions.
    *each(_described,
          ({'kind': 'mar2'}, "kind is 'mar2'; it must be one of: .*llamagen"),
          ({'config': {'dims': 3, 'depth': 4}}, 'that LlamaGenConfig does not have: depth, dims'),
          ({'config': {'dim': 3}}, 'its config is not valid: dim is 3'),
          ({'format': 9}, 'has format 9; .* convert the model again'),
          ({'config': json.loads((DEMO / 'target' / 'model.json').read_text())['config'] | {
              'vocab_size': 13}}, r'(?s)output is .*, the config .*, 13.*token_embedding')),
    *each(_with_default,
          ('demo', 'temprature', 0.0, "'temprature' is among the defaults, which may be: guidance_"
           'scale, temperature, .*dtype, decoder, serve, seconds; .*; did you mean temperature'),
          ('demo', 'contexts', 0.0, "'contexts' is among the defaults, which may be"),
          ('mar_demo', 'top_k', 0.0,
           "'top_k' is among the defaults, which may be: guidance_scale, temper"),
          ('emoji_continuous', 'context', 0.0,
           'seconds, contexts; correct or remove it; did you mean contexts'),
          *(('demo', 'decoder', *row) for row in [
    (3, 'decoder is 3; it must be a text'),
    (['sjd'], 'it must be a text'),
    ({'cpu': 3}, "decoder for 'cpu' is 3"),
    ({'cpu': None}, "decoder for 'cpu' is None"),
    ({'cpu': {'1': {}}}, "decoder for 'cpu' is {}"),
    ({'cpu': {'0': 'sjd'}}, "decoder for 'cpu' is set for '0' images"),
    ({'cpu': {'few': 'sjd'}}, "for 'few' images")])),
    # What is saved.
    *each(_saved,
          (dict(kind='gpt'), "kind is 'gpt'"), (dict(kind='vq'), 'config is a LlamaGenConfig'),
          (dict(extra={'a': object()}), 'extra must hold JSON values only'),
          (dict(dtype='int8'), "dtype is 'int8'; it must be a floating-point dtype"),
          (dict(params=_large(1e5), dtype='float16'), "dtype is 'float16', whose largest number is "
           '65504, and .* holds 100000; it must be one of: float64, float32, bfloat16'),
          (dict(params=_large(3.4e38), dtype='bfloat16'),
           "'bfloat16', .* holds 3.4e.38; .* float32[.]"),
          *((dict(params=_large(number)), f'label_embedding of shape .4, 16. holds .* not '
             f'finite, such as {number}') for number in (np.nan, np.inf, -np.inf)),
          (dict(params={**PARAMS, 'extra': np.zeros(3), 'label_embedding': np.zeros((2, 16)),
                        'transformer': {name: leaf for name, leaf in PARAMS['transformer'].items()
                                        if name != 'norm'}}),
           r'(?s)\n  missing: transformer/norm/scale \(16,\).*unexpected: extra \(3,\).*'
           r'mis-shaped: label_embedding is \(2, 16\), the config requires \(4, 16\)')),
    *each(lambda at, call: call(at),
          (lambda at: families.save(at.tmp, 'x', {}), "family is 'x'"),
          (lambda at: store.save(at.beach, 'llamagen', CONFIG, PARAMS),
           'not a checkpoint; choose another'),
          (lambda at: families.register(tiny.FAMILY._replace(roles={})), 'another family has'),
          *((lambda at, role=role: families.save(
              f'{at.beach}/{role}', 'tiny', {'tokenizer': f'{at.beach}/tokenizer'}),
             'is the folder of a network; use') for role in ('target', 'tokenizer'))),
    # Where decoders of a device are stored.
    *each(lambda at, call: folder_lib.place(*call(at)),
          (lambda at: ['demo'], "'demo', which is part of the package .* store=FOLDER"),
          (lambda at: [f'{at.beach}/target'], 'the folder of a network alone; pass store=FOLDER'),
          (lambda at: ['demo', at.beach], 'holds other networks than model'),
          (lambda at: [f'{at.beach}/target'] * 2, 'holds other networks than model'),
          (lambda at: [at.beach, DEMO / 'model.json'], 'files cannot be written'),
          (lambda at: [at.tmp / 'missing'], 'is not a folder')),
    *slow(each(lambda at, options: cspd_jax.load('mar_demo', **options),
               (dict(quantize='int8'), "a 'mar' network has no int8 matrices"),
               (dict(cache_dtype='int8'), "a 'mar' model has no cache; leave it out"))),
    # Meshes.
    *each(lambda at, call: call(),
          (lambda: sharding.make_mesh(2, 3), 'data is 2 and model is 3, which requires 6 devices'),
          (lambda: sharding.make_mesh(0), 'data is 0; it must be a whole number, at least 1')),
]


@pytest.mark.parametrize('call, words', CALLS)
def test_what_is_refused(at, call, words):
  said.check(lambda: call(at), words)


def test_what_the_calls_are_made_from_is_right(at):
  assert cspd_jax.load(_half(at), target=f'{at.beach}/target').family == 'tiny'
  assert cspd_jax.load(at.beach, tokenizer=_palette(at, side=2)).tokenizer.config.side == 2
  assert not folder_lib.place('demo', at.tmp / 'demo').folder.exists()
  assert sharding.make_mesh().shape == {'data': 1, 'model': len(jax.devices())}
  store.save(at.tmp / 'm', 'llamagen', CONFIG, PARAMS)
  wrong = _large(np.inf)
  store.save(at.tmp / 'm', 'llamagen', CONFIG, wrong, allow_nonfinite=True)
  said.check(lambda: store.load(at.tmp / 'm'), 'not finite, such as inf')
  loaded = store.load(at.tmp / 'm', allow_nonfinite=True)
  jax.tree.map(np.testing.assert_array_equal, loaded.params, wrong)
