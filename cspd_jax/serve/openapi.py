"""The description of the service in OpenAPI 3.1, made of what `wire` checks, and a page of it.

  https://spec.openapis.org/oas/v3.1.0

It is that of one server: it names its decoders, its size of images and the defaults of its model.
"""

import dataclasses
import html
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cspd_jax.decoding import warp as warp_lib
from cspd_jax.generation import engines
from cspd_jax.serve import wire
from cspd_jax.serve.wire import ApiError, Order, Served
from cspd_jax.version import __version__

_TYPES = {str: 'string', int: 'integer', float: 'number', bool: 'boolean'}
# What fields mean, where their types and values do not say it.
_MEANINGS = {
    'prompt': 'What the image shows, in words.',
    'decoder': 'How images are decoded; GET /v1/models has specifications and guarantees.',
    'n': 'Images to generate; image i has the number i under the seed.',
    'seed': 'With the same decoder and prompt, it determines the image; by default a new one.',
    'stream': 'Whether the answer is server-sent events.',
    'partial_images': 'Pictures of each image before it is complete, at most; needs stream.',
    'progress': 'Whether events say how far an image is; needs stream.',
    'model': 'A name of the model.', 'size': 'Width and height of an image in pixels.',
    'user': 'Changes no image, and is neither stored nor logged.'}
_IMAGE = {
    'b64_json': 'the file in base64', 'url': 'a data URL, of a lenient server', 'seed': 'its seed',
    'number': 'its number under the seed', 'decoder': 'its decoder',
    'guarantee': "how the image relates to the model's distribution",
    'slots': 'slots of the program that decoded it', 'passes': 'forward passes of the model',
    'prior_passes': 'those of its prior, of a model that has one',
    'tokens_per_pass': 'tokens of the image per forward pass',
    'unknown_words': 'words of the prompt that do not reach the model'}


class Path(NamedTuple):
  """A path of the service: its method, and a sentence about it."""

  path: str
  method: str
  summary: str


def document(served: Served, paths: Sequence[Path]) -> dict[str, Any]:
  """Returns the description of a server with these paths, as JSON values."""
  operations: dict[str, dict[str, Any]] = {}
  for path, method, summary in paths:
    name = path.replace(':path', '')  # Of Starlette.
    operation: dict[str, Any] = dict(summary=summary, responses={
        '200': dict(description='The answer.'), 'default': _json(
            {'$ref': '#/components/schemas/Error'}, 'An error, whose message says what to do.')})
    if '{' in name:
      operation['parameters'] = [{'name': name.partition('{')[2].rstrip('}'), 'in': 'path',
                                  'required': True, 'schema': dict(type='string')}]
    if method == 'post':
      operation['requestBody'] = _json({'$ref': '#/components/schemas/ImageRequest'}) | dict(
          required=True)
      operation['responses']['200'] = _json({'$ref': '#/components/schemas/Images'}, 'The images.')
      operation['responses']['200']['content']['text/event-stream'] = {}
    operations.setdefault(name, {})[method] = operation
  schemas = dict(ImageRequest=request(served), Images=_images(served),
                 Error=_like(ApiError(0, '').body()))
  about = "Images of an autoregressive model, by the API of OpenAI's images endpoint."
  key = dict(type='http', scheme='bearer')
  return dict(
      openapi='3.1.0', info=dict(title='cspd_jax', version=__version__, description=about),
      servers=[dict(url='.')], paths=operations, security=[{}, dict(key=[])],
      components=dict(schemas=schemas, securitySchemes=dict(key=key)))


def request(served: Served) -> dict[str, Any]:
  """Returns the JSON schema of the body of a request for images."""
  types = typing.get_type_hints(Order)
  properties: dict[str, dict[str, Any]] = {}
  for field in dataclasses.fields(Order):
    if field.name not in wire.FIELDS:
      continue
    schema: dict[str, Any] = dict(type=_TYPES[types[field.name]])
    if field.default is not dataclasses.MISSING:
      schema['default'] = field.default
    if field.name in wire.RANGES:
      schema['minimum'], schema['maximum'] = wire.RANGES[field.name]
    properties[field.name] = schema
  properties['prompt'] |= dict(minLength=1, maxLength=wire.MOST_LETTERS)
  properties['decoder'] |= _choice([*served.decoders])
  properties['model'] = _choice([*served.names])
  properties['size'] = _choice(['auto', served.size])
  properties['user'] = dict(type='string')
  properties |= {name: _choice([*allowed], reason) for name, (allowed, reason) in
                 wire.FIXED.items()}
  if served.lenient:
    properties['size'] = dict(type='string', default='auto', description='Others are resampled.')
    properties['response_format'] = _choice(['b64_json', 'url'])
    properties |= dict.fromkeys(wire.IGNORED, dict(description='Any value; it is ignored.'))
  usual = served.description(served.names[0])['options']
  for name in served.options:
    properties[name] = dict(
        type=_TYPES[type(wire.default_of(name))], default=usual[name], description=_about(name))
  for name, meaning in _MEANINGS.items():
    properties[name].setdefault('description', meaning)
  return dict(type='object', required=['prompt'], properties=properties,
              additionalProperties=False)


def _about(option: str) -> str:
  """Returns a sentence about a sampling option."""
  of, name = '', option
  while name.startswith(engines.PRIOR):
    of, name = ' of the prior', name.removeprefix(engines.PRIOR)
  return f'A sampling option{of}, {warp_lib.LIMITS[name][1]}.'


def _choice(values: list[str], reason: str | None = None) -> dict[str, Any]:
  """Returns the schema of a text that is one of some, by default the first."""
  about = {} if reason is None else dict(description=f'It has no others, because {reason}.')
  return dict(type='string', enum=values, default=values[0], **about)


def _images(served: Served) -> dict[str, Any]:
  left_out = ('prior_passes',) if served.model.prior is None else ()
  image = dict(type='object', properties={
      name: dict(description=meaning) for name, meaning in _IMAGE.items()
      if name not in left_out})
  return dict(type='object', required=['created', 'data', 'usage'], properties=dict(
      created=dict(type='integer'), data=dict(type='array', items=image),
      usage=dict(type='object')))


def _like(value: Any) -> dict[str, Any]:
  """Returns the schema of the objects that have the texts of an example."""
  if isinstance(value, Mapping):
    return dict(type='object', required=[*value], properties={
        name: _like(inner) for name, inner in value.items()})
  return dict(type='string' if isinstance(value, str) else ['string', 'null'])


def _json(schema: Mapping[str, Any], description: str | None = None) -> dict[str, Any]:
  about = {} if description is None else dict(description=description)
  return {**about, 'content': {'application/json': dict(schema=schema)}}


def page(described: Mapping[str, Any]) -> str:
  """Returns the page of a description, in HTML without scripts."""
  paths = [(f'{method.upper()} {path}', operation['summary'])
           for path, operations in described['paths'].items()
           for method, operation in operations.items()]
  fields = [(name, _values(schema), schema.get('description', ''))
            for name, schema in described['components']['schemas']['ImageRequest'][
                'properties'].items()]
  return ('<!doctype html><html lang="en"><meta charset="utf-8"><title>API of cspd_jax</title>'
          '<link rel="stylesheet" href="page.css"><main><h1>API of cspd_jax</h1>'
          f'<p>{html.escape(described["info"]["description"])} As OpenAPI 3.1: '
          '<a href="openapi.json">openapi.json</a>. <a href="./">Generate images</a>.</p>'
          f'<h2>Paths</h2>{_table(paths)}<h2>Fields of a request for images</h2>{_table(fields)}'
          '</main></html>')


def _values(schema: Mapping[str, Any]) -> str:
  """Returns the values of a field in words."""
  if 'enum' in schema:
    return ' or '.join(schema['enum'])
  text = schema.get('type', 'anything')
  if 'minimum' in schema:
    text += f', {schema["minimum"]} to {schema["maximum"]}'
  return text + (f', by default {schema["default"]}'.lower() if 'default' in schema else '')


def _table(rows: Sequence[Sequence[str]]) -> str:
  cells = lambda row: ''.join(f'<td>{html.escape(cell)}</td>' for cell in row)
  return f'<table>{"".join(f"<tr>{cells(row)}</tr>" for row in rows)}</table>'
