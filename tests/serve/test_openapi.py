"""The description of the service: what it allows is what the server accepts."""

import dataclasses
import json

import pytest

pytest.importorskip('jsonschema', reason='jsonschema is not installed')
pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

import jsonschema

from cspd_jax.serve import openapi, wire
from tests.serve import tiny
from tests.serve.test_app import CAT, WRONG

# What a schema cannot say: words, control characters, and values that depend on others.
_UNSAID = ("prompt is ' ", 'prompt holds the control', 'which needs stream=true',
           'at most 6 images', 'guidance_scale is ', 'temper', 'top_k is 1000')


def _request(**options):
  served = wire.serving(tiny.model(), (tiny.SEED_EXACT, 'vanilla'), **options)
  checker = jsonschema.Draft202012Validator
  schema = openapi.request(served)
  checker.check_schema(schema)
  return served, checker(schema)


@pytest.mark.parametrize('body, message', [
    (body, message) for body, message in WRONG
    if isinstance(body, dict) and not any(unsaid in message for unsaid in _UNSAID)])
def test_wrong_requests_do_not_fit_the_schema(body, message):
  assert not _request()[1].is_valid(body), message


@pytest.mark.parametrize('lenient', [False, True])
def test_what_fits_the_schema_is_accepted(lenient):
  served, schema = _request(lenient=lenient)
  usual = {name: value['default'] for name, value in schema.schema['properties'].items()
           if 'default' in value}
  assert {'n', 'decoder', 'temperature', 'size', 'model'} <= usual.keys()
  bodies = [CAT, CAT | usual, CAT | dict(n=10, seed=2**32 - 1, stream=True, partial_images=64)]
  bodies += [CAT | dict(size='512x512', quality='hd', style='vivid',
                        response_format='url')] * lenient
  for body in bodies:
    assert schema.is_valid(body), body
    assert wire.order(json.dumps(body).encode(), served).prompt == 'cat'


def test_names_of_models_are_text():
  with pytest.raises(ValueError, match='served_model_name holds .*, which is not Unicode text'):
    wire.serving(tiny.model(), ('vanilla',), ['caf\udce9'])
  odd = dataclasses.replace(tiny.model(), name='caf\udce9')
  described = wire.serving(odd, ('vanilla',)).description(odd.name)
  assert described['root'] == described['id'] == 'caf\\udce9'
