"""The description of the service in OpenAPI 3.1, made of what `wire` checks, and a page of it.

  https://spec.openapis.org/oas/v3.1.0

It describes one server: its decoders, its size of images and the defaults of its model.
"""

import contextlib
import dataclasses
import html
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cspd_jax.core import fields as fields_lib
from cspd_jax.core.sampling import DISCRETE
from cspd_jax.generation.cascade import Cascade
from cspd_jax.generation.model import Model
from cspd_jax.serve import wire
from cspd_jax.serve.wire import ApiError, Order, Served
from cspd_jax.version import __version__

_TYPES = {str: 'string', int: 'integer', float: 'number', bool: 'boolean'}
# What fields that `Order` does not have mean, where their values do not say it.
_MEANINGS = {'model': 'A name of the model.', 'size': 'Width and height of an image in pixels.',
             'user': 'Changes no image, and is neither stored nor logged.'}
_IMAGE = {
    'b64_json': 'the file in base64', 'url': 'a data URL, of a lenient server', 'seed': 'its seed',
    'number': 'its number under the seed', 'decoder': 'its decoder',
    'guarantee': "how the image relates to the model's distribution",
    'slots': 'slots of the program that decoded it', 'passes': 'forward passes of the model',
    'prior_passes': 'forward passes of its prior, if the model has one',
    'tokens_per_pass': 'tokens of the image per forward pass',
    'unknown_words': 'words of the prompt that do not reach the model'}


class Path(NamedTuple):
  """A path of the service: its method, and a sentence about it."""

  path: str
  method: str
  summary: str


def document(served: Served, most_images: int, paths: Sequence[Path]) -> dict[str, Any]:
  """Returns the description of a server with these paths, as JSON values.

  It accepts at most `most_images` at once.
  """
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
  schemas = dict(ImageRequest=request(served, most_images), Images=_images(served),
                 Error=_like(ApiError(0, '').body()))
  about = "Generates images with an autoregressive model, by the API of OpenAI's images endpoint."
  key = dict(type='http', scheme='bearer')
  return dict(
      openapi='3.1.0', info=dict(title='cspd_jax', version=__version__, description=about),
      servers=[dict(url='.')], paths=operations, security=[{}, dict(key=[])],
      components=dict(schemas=schemas, securitySchemes=dict(key=key)))


def request(served: Served, most_images: int) -> dict[str, Any]:
  """Returns the JSON schema of the body of a request for images.

  The server accepts what fits it, but for words that the model does not know, texts of decoders
  that mean none of its own, and temperatures above 0 of greedy decoders.
  """
  types, docs = typing.get_type_hints(Order), fields_lib.docs(Order)
  properties: dict[str, dict[str, Any]] = {}
  for field in dataclasses.fields(Order):
    if field.name not in wire.FIELDS:
      continue
    schema: dict[str, Any] = dict(type=_TYPES[types[field.name]], description=docs[field.name])
    if field.default is not dataclasses.MISSING:
      schema['default'] = field.default
    if field.name in wire.RANGES:
      schema['minimum'], schema['maximum'] = wire.RANGES[field.name]
    properties[field.name] = schema
  properties['n']['maximum'] = min(properties['n']['maximum'], most_images)
  properties['prompt'] |= dict(
      minLength=1, maxLength=wire.MOST_LETTERS,
      pattern=rf'^[^{wire.CONTROLS}]*[^\s{wire.CONTROLS}][^{wire.CONTROLS}]*$')
  properties['decoder'] |= _one_of(_decoders(served), r'\W')
  properties['model'] = _choice([*served.names])
  properties['size'] = _choice(['auto', served.size])
  properties['user'] = dict(type='string')
  properties |= {name: _choice([*allowed], reason) for name, (allowed, reason) in
                 wire.FIXED.items()}
  properties |= {name: dict(type='null', description=f'Not supported, because {reason}.')
                 for name, reason in wire.REFUSED.items()}
  if served.lenient:
    properties['size'] = dict(type='string', description='Others are resampled.', **_one_of(
        ['auto', served.size], f'^{wire.SIZE}$'))
    properties['response_format'] = _choice(['b64_json', 'url'])
    properties |= {name: dict(description='Any value; it is ignored.') for name in wire.IGNORED}
  usual = served.description(served.names[0])['options']
  properties |= _options(served.model, served.options, usual)
  if isinstance(served.model, Cascade):
    options = _options(served.model.prior, served.options_of_prior, usual['prior'])
    properties['prior'] = dict(
        type='object', description='Sampling options of the prior.', additionalProperties=False,
        properties={name: _or_null(schema) for name, schema in options.items()})
  for name, meaning in _MEANINGS.items():
    properties[name].setdefault('description', meaning)
  for name in properties.keys() - {'prompt'}:
    properties[name] = _or_null(properties[name])
  return dict(type='object', required=['prompt'], properties=properties,
              additionalProperties=False, allOf=[
                  _needs_stream('partial_images', minimum=1, type='integer'),
                  _needs_stream('progress', const=True)])


def _decoders(served: Served) -> list[str]:
  """The names of the decoders, the default first, and those that mean one of them."""
  names = [*served.decoders]
  for name in served.model.table.decoders:
    with contextlib.suppress(ValueError):
      served.decoder(name)
      names.append(name)
  return list(dict.fromkeys(names))


def _needs_stream(name: str, **values: Any) -> dict[str, Any]:
  """Returns the condition that a field with some values needs a stream."""
  return {'if': dict(required=[name], properties={name: values}),
          'then': dict(required=['stream'], properties=dict(stream=dict(const=True)))}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the schema of a field that may be null, which is as if it were left out."""
  result = dict(schema)
  if 'type' in schema and schema['type'] != 'null':
    result['type'] = [schema['type'], 'null']
  if 'enum' in schema:
    result['enum'] = [*schema['enum'], None]
  if 'anyOf' in schema:
    result['anyOf'] = [*schema['anyOf'], dict(type='null')]
  return result


def _options(model: Model, names: Sequence[str], usual: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the schemas of sampling options of a model, by name."""
  return {name: dict(type='integer' if wire.is_whole(name) else 'number', default=usual[name],
                     **_option(name, model)) for name in names}


def _option(name: str, model: Model) -> dict[str, Any]:
  """Returns the description and the bounds of a sampling option."""
  if name == 'guidance_scale' and model.target(True).num_streams == 1:
    return dict(description='A sampling option: 1, because there is no guidance.',
                minimum=1, maximum=1)
  return dict(description=f'A sampling option: {DISCRETE[name].words}.', **bounds(name))


def bounds(name: str) -> dict[str, float]:
  """Returns the smallest and the largest value of a sampling option."""
  option = DISCRETE[name]
  least = 'exclusiveMinimum' if option.above else 'minimum'
  return {least: option.least, 'maximum': option.most}


def _choice(values: list[str], reason: str | None = None) -> dict[str, Any]:
  """Returns the schema of a text that is one of some, by default the first."""
  about = {} if reason is None else dict(description=f'There is no other value, because {reason}.')
  return dict(type='string', enum=values, default=values[0], **about)


def _one_of(values: list[str], pattern: str) -> dict[str, Any]:
  """Returns what the schema of a text has that is one of some, by default the first, or another."""
  return dict(anyOf=[dict(enum=values), dict(pattern=pattern)], default=values[0])


def _images(served: Served) -> dict[str, Any]:
  left_out = () if isinstance(served.model, Cascade) else ('prior_passes',)
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
                'properties'].items() if schema.get('type') != 'null']
  return ('<!doctype html><html lang="en"><meta charset="utf-8"><title>API of cspd_jax</title>'
          '<link rel="stylesheet" href="page.css"><main><h1>API of cspd_jax</h1>'
          f'<p>{html.escape(described["info"]["description"])} As OpenAPI 3.1: '
          '<a href="openapi.json">openapi.json</a>. <a href="./">Generate images</a>.</p>'
          f'<h2>Paths</h2>{_table(paths)}<h2>Fields of a request for images</h2>{_table(fields)}'
          '</main></html>')


def _values(schema: Mapping[str, Any]) -> str:
  """Returns the values of a field in words."""
  first = schema['anyOf'][0] if 'anyOf' in schema else schema
  if 'enum' in first:
    return ' or '.join(filter(None, first['enum']))
  kinds = schema.get('type', 'anything')
  text = kinds if isinstance(kinds, str) else kinds[0]
  least, most = schema.get('minimum'), schema.get('maximum')
  if least is not None and most is not None:
    text += f', {least:.2g} to {most:.2g}' if text == 'number' else f', {least} to {most}'
  return text + (f', by default {schema["default"]}'.lower() if 'default' in schema else '')


def _table(rows: Sequence[Sequence[str]]) -> str:
  cells = lambda row: ''.join(f'<td>{html.escape(cell)}</td>' for cell in row)
  return f'<table>{"".join(f"<tr>{cells(row)}</tr>" for row in rows)}</table>'
