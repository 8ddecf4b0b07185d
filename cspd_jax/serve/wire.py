"""The format of requests and answers: OpenAI's images endpoint, with options of our own.

A field that is accepted is honoured; every other one is refused by its name. A lenient server also
answers the defaults of clients that were written for other models, and its answer says how.
"""

import base64
import contextlib
import dataclasses
import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from cspd_jax.core import fields, guesses, naming, progress, sampling
from cspd_jax.decoding import specification
from cspd_jax.files import reading
from cspd_jax.generation import pixels
from cspd_jax.generation.cascade import Cascade, in_turn
from cspd_jax.generation.decode import Partial
from cspd_jax.generation.model import Model
from cspd_jax.generation.results import Generated, encoded
from cspd_jax.models.conditions import Prompt

MOST_BYTES = 2**16
_MOST_DIGITS = 1000  # Of an integer. Python parses few more, and no field accepts as many.
MOST_LETTERS = 4000
MOST_IMAGES = 10
MOST_PARTIAL_IMAGES = 64  # OpenAI's clients ask for up to 3.
MOST_PIXELS = 2048  # Of a side of an image that is resampled; more would be slow to encode.
_SIDE = '([1-9][0-9]{0,2}|1[0-9]{3}|20[0-3][0-9]|204[0-8])'  # Up to `MOST_PIXELS`.
SIZE = f'{_SIDE}x{_SIDE}'  # A pattern.

# The smallest and largest numbers of fields.
RANGES = dict(n=(1, MOST_IMAGES), seed=fields.SEEDS, partial_images=(0, MOST_PARTIAL_IMAGES))
# The fields with values that all models have, and why there are no others.
FIXED = {
    'response_format': (('b64_json',), 'images are in the answer, and no file is stored'),
    'output_format': (('png',), 'images are the bytes that cspd-generate writes'),
    'quality': (('auto',), 'the model has one quality'),
    'background': (('auto', 'opaque'), 'images are opaque'),
}
# The fields that no model has, and why. Null is accepted: some clients name all fields.
REFUSED = {
    'negative_prompt': 'guidance uses the null condition of the model',
    'moderation': 'this server does not filter prompts or images',
    'output_compression': 'images are PNG, which has no such level',
    'style': 'the model has no styles',
}
# Those of the fields above that a lenient server accepts whatever their value: they ask for another
# taste, not for another image.
IGNORED = ('quality', 'style', 'moderation', 'background')
_LENIENT = ', or start the server with --lenient'
CONTROLS = r'\x00-\x08\x0b\x0c\x0e-\x1f\x7f'  # In the brackets of a pattern.


class ApiError(Exception):
  """An answer that is an error, with an HTTP status and the `type` of OpenAI's errors.

  `param` is the field that causes it, `code` a word for programs; the others are headers.
  """

  def __init__(self, status: int, message: str, kind: str = 'invalid_request_error',
               param: str | None = None, code: str | None = None, **headers: str):
    super().__init__(message)
    self.status, self.kind, self.param, self.code = status, kind, param, code
    self.headers = {name.replace('_', '-'): value for name, value in headers.items()}

  def body(self, request_id: str | None = None) -> dict[str, Any]:
    """Returns the answer as JSON values, with the id of the request in the server's log."""
    return dict(error=dict(message=str(self), type=self.kind, param=self.param, code=self.code,
                           request_id=request_id))


@dataclasses.dataclass(frozen=True)
class Served:
  """A model as a server offers it since `created`, in seconds since 1970.

  Requests may name it by any of its `names`. `decoders` are specifications by name; the first one
  is the default, and `samplers` are the sampler of each. The size is width and height of an image
  in pixels, such as 64x32. A `lenient` server may change the form of an answer; see `Form`.
  """

  model: Any
  names: tuple[str, ...]
  decoders: Mapping[str, str]
  samplers: Mapping[str, Any]
  size: str
  created: int
  lenient: bool

  @property
  def options(self) -> tuple[str, ...]:
    """The names of the sampling options."""
    return self.model.table.options

  @property
  def options_of_prior(self) -> tuple[str, ...]:
    """The names of the sampling options of the prior, if there is one."""
    return self.model.prior.table.options if isinstance(self.model, Cascade) else ()

  def description(self, name: str) -> dict[str, Any]:
    """Returns the model in the list of models, by one of its names; `root` is its own."""
    return dict(
        id=name, root=self.model.name, object='model', created=self.created, owned_by='cspd_jax',
        size=self.size, grid=list(self.model.grid), prompts=list(map(str, self.model.prompts)),
        words=None if (words := self.model.prompt_kind.words) is None else list(words),
        decoders=[dict(id=name, specification=spec, guarantee=self.samplers[name].guarantee)
                  for name, spec in self.decoders.items()], options=_usual(self.model))

  def decoder(self, text: str) -> str:
    """Returns the name of a decoder of the server; raises ValueError if it has no such one."""
    if text in self.decoders:
      return text
    with contextlib.suppress(ValueError):
      meant = _in_full(self.model.sampler(text, batch_size=1))
      for name, sampler in self.samplers.items():
        if meant == _in_full(sampler):
          return name
    raise ValueError(f'decoder is {text!r:.80}; this server has {", ".join(self.decoders)}.')


def _in_full(sampler: Any) -> list[Any]:
  """The decoders of a sampler, with all their parameters."""
  return [specification.in_full(one.specification) for one in in_turn(sampler)]


@dataclasses.dataclass(frozen=True)
class Form:
  """The form of an answer, which only a lenient server changes.

  Images are resampled to `size`, width and height in pixels, unless it is None, and they are data
  URLs if `as_url`. `ignored` are the fields of the request that have no effect.
  """

  size: tuple[int, int] | None = None
  as_url: bool = False
  ignored: tuple[str, ...] = ()

  def resampled(self, image: np.ndarray) -> np.ndarray:
    """Returns an image `[H, W, 3]` uint8 in the size of the answer."""
    if self.size is None:
      return image
    return np.asarray(Image.fromarray(image).resize(self.size, Image.Resampling.LANCZOS))

  def described(self, served: Served) -> dict[str, Any]:
    """Returns the fields of an answer that say how its images are stored."""
    result: dict[str, Any] = dict(
        size=served.size, quality='auto', background='opaque', output_format='png')
    if self.size is not None:
      result |= dict(size='{}x{}'.format(*self.size), native_size=served.size)
    if self.ignored:
      result['ignored'] = list(self.ignored)
    return result


@dataclasses.dataclass(frozen=True)
class Order:
  """A checked request for images, whose answer has a `form`.

  Attributes:
    prompt: What the image shows, in words.
    decoder: How images are decoded; GET /v1/models lists what each decoder guarantees.
    options: Sampling options by name.
    n: How many images to generate; image i has number i under the seed.
    seed: The same seed, prompt and decoder give the same image; by default a new seed.
    stream: Whether to answer with a stream of server-sent events.
    partial_images: At most how many previews of each image the stream has; needs stream.
    progress: Whether the stream also reports how far each image is; needs stream.
  """

  prompt: str
  decoder: str
  options: dict
  n: int = 1
  seed: int = dataclasses.field(default_factory=lambda: secrets.randbelow(2**32))
  stream: bool = False
  partial_images: int = 0
  progress: bool = False
  form: Form = Form()

  def __post_init__(self):
    fields.check(self, **RANGES)
    for name in ('partial_images', 'progress'):
      value = getattr(self, name)
      fields.require(not value or self.stream, name, value, 'left out, or stream true')
    fields.require(self.prompt.strip() != '', 'prompt', self.prompt, 'what the image shows')
    fields.require(len(self.prompt) <= MOST_LETTERS, 'prompt', self.prompt,
                   f'at most {MOST_LETTERS} letters')
    control = re.search(f'[{CONTROLS}]', self.prompt)
    fields.require(control is None, 'prompt', self.prompt,
                   f'without the control character {control and control[0]!r}')


def _usual(model: Any) -> dict[str, Any]:
  """Returns the default sampling options of a model by name, a prior's as a group."""
  own = {name: round(np.asarray(value).item(), 6)
         for name, value in model.sampling()._asdict().items()}
  return own | dict(prior=_usual(model.prior)) if isinstance(model, Cascade) else own


FIELDS = [field.name for field in dataclasses.fields(Order)
           if field.name not in ('options', 'form')]
_OWN = ('model', 'size', 'user', *FIELDS)


def serving(model: Model, decoders: Sequence[str], names: Sequence[str] | None = None,
            lenient: bool = False) -> Served:
  """Returns what a server offers: the model with these decoders; the first is the default.

  Its tokens are discrete; `names` replace its own. Raises ValueError for decoders that it does not
  support, and without a tokenizer.
  """
  names = (model.name,) if names is None else tuple(dict.fromkeys(names))
  if wrong := [name for name in names if name != progress.unicode(name)]:
    raise ValueError(f'served_model_name holds {wrong[0]!r:.80}, which is not Unicode text; no '
                     'request can name it, so leave it out.')
  samplers = {text: model.sampler(text, batch_size=1) for text in decoders}
  specs = {text: sampler.text for text, sampler in samplers.items()}
  height, width = pixels.size(model)
  return Served(model, names, specs, samplers, f'{width}x{height}', int(time.time()), lenient)


def order(body: bytes, served: Served) -> Order:
  """Reads the body of a request for images; raises ApiError for what the server cannot do."""
  try:
    return _order(_object(body), served)
  except ValueError as error:
    raise invalid(error, served) from error


def invalid(error: ValueError, served: Served) -> ApiError:
  """Returns the answer to a request that the library refuses with an error."""
  name = str(error).partition(' ')[0].replace('prompts', 'prompt')
  known_fields = {*_OWN, *FIXED, *REFUSED, *served.options, 'prior',
                  *(f'prior.{name}' for name in served.options_of_prior)}
  return ApiError(400, str(error), param=name if name in known_fields else None)


def _order(values: Mapping[str, Any], served: Served) -> Order:
  supported = [*_OWN, *FIXED, *served.options, *(['prior'] if served.options_of_prior else [])]
  for name in values:
    if name not in (*supported, *REFUSED):
      raise ApiError(
          400, f'{name[:80]!r} is not a field of a request for images, which may have '
          f'{", ".join(supported)}' + naming.suggestion(name[:80], supported, guesses.ALIASES),
          param=name[:80], code='unknown_parameter')
  # A field that is null is as one that is left out.
  values, form = {name: value for name, value in values.items() if value is not None}, Form()
  if served.lenient:
    form, values = _form(values, served)
  for name, value in values.items():
    more = _LENIENT if name in (*IGNORED, 'response_format') and not served.lenient else ''
    if name in REFUSED:
      raise ValueError(f'{name} is {value!r:.80}, but {REFUSED[name]}; leave it out{more}.')
    if name in FIXED:
      allowed, reason = FIXED[name]
      fields.require(value in allowed, name, value, f'{" or ".join(map(repr, allowed))}, because '
                     f'{reason}; leave it out{more}')
  values = _numbers(values, served.options)
  if 'prior' in values:
    values['prior'] = _of_prior(values['prior'], served)
  check_name(values.get('model', served.names[0]), served)
  size, user = values.get('size', 'auto'), values.get('user', '')
  fields.require(size in ('auto', served.size), 'size', size, f"{served.size!r} or 'auto', because "
                 f'the model has one size; leave it out{_LENIENT}')
  fields.require(isinstance(user, str), 'user', user, 'a string')
  if 'prompt' not in values:
    raise ValueError('prompt is missing; describe the image in words.')
  asked: dict[str, Any] = {'decoder': next(iter(served.decoders))}
  asked |= {name: values[name] for name in FIELDS if name in values}
  result = Order(options={name: values[name] for name in (*served.options, 'prior')
                          if name in values},
                 form=form, **asked)
  return dataclasses.replace(result, decoder=served.decoder(result.decoder))


def _numbers(values: Mapping[str, Any], options: Sequence[str], of: str = '') -> dict[str, Any]:
  """Returns fields, whole numbers as such; raises ValueError for options that are no numbers."""
  for name, value in values.items():
    if name in options:
      is_number = isinstance(value, int | float) and not isinstance(value, bool)
      fields.require(is_number, f'{of}{name}', value,
                     'a whole number' if is_whole(name) else 'a number')
  return {name: int(value) if is_whole(name) and isinstance(value, float) and value.is_integer()
          else value for name, value in values.items()}  # JSON has one kind of numbers.


def _of_prior(values: Any, served: Served) -> dict[str, Any]:
  """Returns the sampling options of the prior."""
  supported = served.options_of_prior
  fields.require(isinstance(values, Mapping) and set(values) <= set(supported), 'prior', values,
                 f'an object with sampling options of the prior: {", ".join(supported)}')
  return _numbers({name: value for name, value in values.items() if value is not None},
                  supported, 'prior.')


def is_whole(name: str) -> bool:
  """Returns whether a field is a whole number, such as a sampling option."""
  option = sampling.DISCRETE.get(name)
  return name in RANGES or option is not None and option.is_whole


def check_name(name: Any, served: Served) -> None:
  """Raises ApiError unless a model of this name is served."""
  if name not in served.names:
    raise ApiError(404, f'model is {name!r:.80}; this server has '
                   f'{", ".join(map(repr, served.names))}, and those of --served_model_name if it '
                   'is started with it.', param='model', code='model_not_found')


def _form(values: Mapping[str, Any], served: Served) -> tuple[Form, dict[str, Any]]:
  """Returns the form of a lenient answer, and the fields that it honours as a strict one does."""
  rest, url, size = dict(values), False, None
  ignored = [name for name in IGNORED
             if name in rest and rest[name] not in FIXED.get(name, ((), ''))[0]]
  if rest.get('response_format') == 'url':
    url = rest.get('stream') is not True  # An event has no field for it.
    ignored += [] if url else ['response_format']
    del rest['response_format']
  if rest.get('size', 'auto') not in ('auto', served.size):
    size = _fitting(rest.pop('size'), served)
  return Form(size, url, tuple(ignored)), {
      name: value for name, value in rest.items() if name not in ignored}


def _fitting(text: Any, served: Served) -> tuple[int, int] | None:
  """Returns the largest size that fits into another one, with the proportions of the model's.

  None if it is the model's.
  """
  fields.require(isinstance(text, str) and re.fullmatch(SIZE, text) is not None, 'size', text,
                 f"'auto', or width and height of 1 to {MOST_PIXELS} pixels, such as "
                 f'{served.size!r}')
  width, height = map(int, text.split('x'))
  own = [int(part) for part in served.size.split('x')]
  scale = min(width / own[0], height / own[1])
  size = max(1, round(own[0] * scale)), max(1, round(own[1] * scale))
  return None if size == tuple(own) else size


def _object(body: bytes) -> dict[str, Any]:
  def whole(text):
    return int(text) if len(text) < _MOST_DIGITS else float(text)

  def constant(name):
    raise ValueError(f'{name} is not a number of JSON')

  try:
    value = json.loads(body.decode(), object_pairs_hook=reading.unique, parse_int=whole,
                       parse_constant=constant)
  except (ValueError, RecursionError) as error:
    raise ApiError(400, f'the body is no JSON ({str(error):.200}).') from error
  if not isinstance(value, dict):
    raise ApiError(400, f'the body is {str(value)!r:.80}; it must be a JSON object.')
  return value


def usage(condition: Any, num_tokens: int) -> dict[str, Any]:
  """Returns the numbers of tokens that were read, 1 for a class, and generated."""
  visible = condition.visible[0, 0] if isinstance(condition, Prompt) else (
      condition.mask[0] if getattr(condition, 'mask', None) is not None else 1)
  words = int(np.sum(np.asarray(visible)))
  return dict(input_tokens=words, input_tokens_details=dict(text_tokens=words, image_tokens=0),
              output_tokens=num_tokens, total_tokens=words + num_tokens)


def image(generated: Generated, slots: int, form: Form) -> dict[str, Any]:
  """Returns an image of an answer: the file, and its origin, a program of as many slots."""
  (seed, number), passes = generated.seeds[0], int(generated.decoded.rounds[0])
  data = _base64(dataclasses.replace(
      generated, images=form.resampled(generated.images[0])[None]).png(0))
  file = dict(url=f'data:image/png;base64,{data}') if form.as_url else dict(b64_json=data)
  before = {} if generated.prior is None else dict(
      prior_passes=int(generated.prior.decoded.rounds[0]))
  return dict(
      **file, seed=seed, number=number, decoder=generated.decoder,
      guarantee=generated.guarantee, slots=slots, passes=passes, **before,
      tokens_per_pass=round(generated.tokens.shape[1] / passes, 2),
      unknown_words=list(generated.unknown_words[0]))


def progress_event(index: int, look: Partial | None, before: Partial | None, num_tokens: int
                   ) -> dict[str, Any]:
  """Returns an event of ours: how far an image is; `look` is None while it waits for a slot.

  It has the tokens of the grid that are committed since the event `before`; none of a prior, whose
  number of tokens is the total then.
  """
  start = dict(type='image_generation.progress', image_index=index, total=num_tokens)
  if look is None:
    return start | dict(stage='waiting', tokens=0, passes=0)
  if look.is_prior:
    return start | dict(stage='prior', tokens=int(look.count[0]), total=look.num_tokens,
                        passes=int(look.decoded.rounds[0]), new_cells=[])
  before = None if before is None or before.is_prior else before
  rounds = look.round_of_cell[0]
  is_new = rounds >= 0 if before is None else rounds != before.round_of_cell[0]
  return start | dict(stage='decoding', tokens=int(look.count[0]),
                      passes=int(look.decoded.rounds[0]),
                      new_cells=[[*map(int, cell), int(rounds[*cell])]
                                 for cell in np.argwhere(is_new)])


def partial_event(index: int, number: int, look: Partial, served: Served, form: Form, created: int
                  ) -> dict[str, Any]:
  """Returns the event of a picture of an image that is being decoded."""
  return dict(type='image_generation.partial_image',
              b64_json=_base64(encoded(form.resampled(look.images[0]))),
              partial_image_index=number, image_index=index, created_at=created,
              tokens=int(look.count[0]), passes=int(look.decoded.rounds[0]),
              **form.described(served))


def completed_event(index: int, generated: Generated, slots: int, served: Served, form: Form,
                    created: int, used: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the event of a complete image."""
  return dict(type='image_generation.completed', image_index=index, created_at=created, usage=used,
              round_of_cell=generated.round_of_cell[0].tolist(), **image(generated, slots, form),
              **form.described(served))


def event(values: Mapping[str, Any]) -> bytes:
  """Encodes an event of a stream."""
  kind = f'event: {values["type"]}\n' if 'type' in values else ''
  return f'{kind}data: {json.dumps(values, separators=(",", ":"))}\n\n'.encode()


def _base64(data: bytes) -> str:
  return base64.b64encode(data).decode()
