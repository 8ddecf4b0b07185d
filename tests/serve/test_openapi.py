"""The description of the service: what it allows is what the server accepts."""

import dataclasses
import json

import pytest

pytest.importorskip('jsonschema', reason='jsonschema is not installed')
pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

import jax
import jsonschema

from cspd_jax.cli import fields, groups, inputs
from cspd_jax.continuous import sampling as continuous_sampling
from cspd_jax.core import sampling
from cspd_jax.serve import openapi, server, wire
from cspd_jax.testing import tabular
from tests.serve import running, tiny
from tests.serve.test_app import CAT, WRONG

# Values of fields, of which each is accepted for some.
_VALUES = (
    None, True, False, -1, 0, 1, 2, 2.0, -2.0, 0.5, 1.5, 7, 10, 64.0, 65, 1e9, -1e31,
    2**32 - 1, 2**32, 10**30, '', 'auto', '6x6', '512x512', '0512x9', '2049x1', '2048x2048',
    'tiny', 'vanilla', 'seed_exact', 'mc_sjd', 'url', 'b64_json', 'png', 'hd', 'opaque',
    [], {}, ['auto'])
# Bodies of which several fields must agree, and prompts.
_BODIES = [
    CAT, {}, CAT | dict(stream=True, partial_images=64, progress=True),
    CAT | dict(partial_images=1), CAT | dict(partial_images=0, progress=False),
    CAT | dict(stream=False, progress=True),
    CAT | dict(stream=None, partial_images=1.0), CAT | dict(stream=True, partial_images=None),
    CAT | dict(decoder='vanilla()'), CAT | dict(decoder='vanilla(window=1)'),
    CAT | dict(decoder='ancestral+match'), CAT | dict(decoder=f' {tiny.SEED_EXACT}'),
    *(dict(prompt=prompt) for prompt in (
        'dog', None, '', ' ', '\n\t', '\u2003', 'c\x00', '\x1f', 'cat\x7f', 'c' * 4001, 3, [])),
    CAT | dict(unknown=None), CAT | dict(temprature=1), CAT | dict(Seed=1)]


@pytest.fixture(scope='module', params=[False, True], ids=['strict', 'lenient'])
def described(model, request):
  """A server, and what checks bodies by its schema."""
  with running.without_signals():
    instance = running.Running(model, lenient=request.param)
    described = instance.call('GET', '/openapi.json')[2]
    schema = described['components']['schemas']['ImageRequest']
    jsonschema.Draft202012Validator.check_schema(schema)
    yield instance, jsonschema.Draft202012Validator(schema)
    assert instance.end() == 0


def test_what_fits_the_schema_is_what_the_server_accepts(described):
  """A null was refused by the one, and a top_p of 7 by the other."""
  instance, schema = described
  fields = schema.schema['properties']
  usual = {name: value['default'] for name, value in fields.items() if 'default' in value}
  assert {'n', 'decoder', 'temperature', 'size', 'model'} <= usual.keys()
  bodies = [*_BODIES, CAT | usual, *(body for body, _ in WRONG if isinstance(body, dict)),
            *(CAT | {name: value} for name in fields if name != 'prompt' for value in _VALUES)]
  wrong, accepted = [], 0
  for body in bodies:
    status, _, answer = instance.generate(**body)
    assert status in (200, 400, 404), (body, answer)
    accepted += status == 200
    if schema.is_valid(body) != (status == 200) and body.get('prompt') != 'a bird':
      wrong.append((body, answer if status != 200 else next(schema.iter_errors(body)).message))
  assert not wrong, '\n'.join(map(str, wrong))
  assert 100 < accepted < len(bodies) / 2


def test_whole_numbers_may_have_a_point(described):
  images = [described[0].generate(prompt='cat', seed=seed, n=n, top_k=k)[2]['data']
            for seed, n, k in ((3, 2, 2), (3.0, 2.0, 2.0))]
  assert images[0] == images[1] and images[1][0]['seed'] == 3


# Numbers at the bounds of the options, and what is no number, as in JSON.
_NUMBERS = (None, True, 'x', [], [1], {}, '', float('inf'), float('-inf'), -2, -1, -0.5, 0, 0.5, 1,
            1.5, 2, 3, 1000, 2**31 - 1, 2**31, 10**30, 10**400, -1.001e30, -0.999e30, 0.999e30,
            1.001e30, 1e39, 2.0**126, 1.001 * 2.0**126, 1e37)


def _accepts(call, name=''):
  """Whether nothing is refused; what is refused is so by its name."""
  try:
    call()
  except (ValueError, wire.ApiError) as error:
    assert name in str(error), error
    return False
  return True


@pytest.mark.parametrize('guided', [False, True])
@pytest.mark.parametrize('name', sampling.DISCRETE)
def test_an_option_is_accepted_alike_at_all_doors(name, guided):
  """Python's arguments, flags, bodies of requests and their description, all by one table."""
  table = tabular.tabular(jax.random.key(0), vocab_size=4, length=9, guided=guided)
  model = dataclasses.replace(tiny.model(), build_target=lambda guided: table.target)
  served, option = wire.serving(model, ('vanilla',)), sampling.DISCRETE[name]
  schema = jsonschema.Draft202012Validator(openapi.request(served, 9))

  def python(**options):
    model.sampler('vanilla', batch_size=1, **options)

  def flags(value):
    config = fields.override(groups.SamplingFlags(), {name: fields.show(value)})
    python(**inputs.overrides(config))

  def body(value):
    text = json.dumps(dict(prompt='cat') | {name: value})
    python(**wire.order(text.encode(), served).options)

  for value in _NUMBERS:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    expected = value is None or is_number and (
        value == 1 if name == 'guidance_scale' and not guided else
        bool(option.limit[0](value)) and value <= option.most)
    doors = dict(flags=_accepts(lambda: flags(value), name), body=_accepts(lambda: body(value)),
                 schema=schema.is_valid(dict(prompt='cat') | {name: value}))
    if not isinstance(value, list):  # Python takes one number per image, which is checked later.
      doors['python'] = _accepts(lambda: python(**{name: value}), name)
    assert doors == dict.fromkeys(doors, expected), value
  for door in (flags, lambda value: python(**{name: value})):  # Which JSON does not have.
    assert not _accepts(lambda: door(float('nan')), name)


@pytest.mark.parametrize('name', sampling.SamplingParams._fields)
def test_the_same_of_continuous_tokens(name):
  option = sampling.CONTINUOUS.get(name)
  default = sampling.SamplingParams._field_defaults[name]
  for value in (number for number in _NUMBERS if isinstance(number, (int, float))):
    inside = value == default if option is None else bool(option.limit[0](value))
    params = sampling.SamplingParams()._replace(**{name: value})
    assert inside == _accepts(lambda: continuous_sampling.check(params, 2)) or value is True, value


def test_a_decoder_has_all_names_that_mean_it(model):
  """A server that had `vanilla` refused `vanilla(window=1)`."""
  served = wire.serving(model, ('vanilla(window=1)', tiny.SEED_EXACT))
  decoder = openapi.request(served, 9)['properties']['decoder']
  assert decoder['anyOf'][0]['enum'] == ['vanilla(window=1)', tiny.SEED_EXACT, 'vanilla']
  for text in ('vanilla', 'vanilla()', ' vanilla( window = 1 ) ', 'ancestral+match'):
    assert served.decoder(text) == 'vanilla(window=1)'
  for text in ('vanilla(window=2)', 'seed_exact', 'mc_sjd(window=3)', 'vanilla(x=1)', '', '('):
    with pytest.raises(ValueError, match='this server has vanilla.window=1., seed_exact.window=3'):
      served.decoder(text)


def test_the_most_images_are_those_of_the_queue(model):
  instance = server.make_scheduler(wire.serving(model, ('vanilla',)), slots=1, queue=20)
  assert instance.most('vanilla') == 21
  served = wire.serving(model, ('vanilla',))
  assert openapi.request(served, 21)['properties']['n']['maximum'] == 10
  assert openapi.request(served, 3)['properties']['n']['maximum'] == 3


def test_names_of_models_are_text():
  with pytest.raises(ValueError, match='served_model_name holds .*, which is not Unicode text'):
    wire.serving(tiny.model(), ('vanilla',), ['caf\udce9'])
  odd = dataclasses.replace(tiny.model(), name='caf\udce9')
  described = wire.serving(odd, ('vanilla',)).description(odd.name)
  assert described['root'] == described['id'] == 'caf\\udce9'
