"""Prompt templates of models, in published token ids."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from cspd_jax.models.conditions import Prompt
from cspd_jax.models.tar import SIDES
from cspd_jax.text.bpe import Text, id_of

# Prompts are padded to a multiple of this, so that only a few lengths are compiled.
_BUCKET = 32
# Pixels of a step of the sizes that Lumina-mGPT and 2.0 can announce.
_SIZE_PIXELS = 32
_IMAGE_START = '<racm3:break>'
_END_OF_TURN = '<reserved08706>'
# The suffix of prompts and the negative prompt of the official examples of Emu3 and NextStep-1;
# NextStep-1.1 has no suffix.
_QUALITY = ' masterpiece, film grained, best quality.'
_NEGATIVE = (
    'lowres, bad anatomy, bad hands, {}error, missing fingers, extra digit, fewer digits, '
    'cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, '
    'username, blurry.')
_NEGATIVE_1, _NEGATIVE_1_1 = map(_NEGATIVE.format, ('text, ', 'bad texts, bad layout, '))
# The words of SimpleAR's official example that guidance leads away from.
_SIMPLEAR_NEGATIVE = (
    'An image of aerial view, overexposed, low quality, deformation, a poor composition, bad '
    'hands, bad teeth, bad eyes, bad limbs, distortion')

# The tokens around the grids that GLM-Image's prompts state, and the one that announces an image.
GLM_TOKENS = '<sop>', '<eop>', '<|dit_token_16384|>'
_GLM_SOURCE = '<|image|>'
# The last tokens of MammothModa2's prompts that its null condition keeps.
_MAMMOTH_NULL = 10

# Maps `(text, prompt, height, width)`, with rows and columns of codes, to the ids of both contexts,
# or of one for models without a null condition; writers of models that read the first token from a
# file also accept `first_token`. A tokenizer of another model raises ValueError.
Writer = Callable[..., tuple[list[int], ...]]


def _template(*contexts: Sequence[str | list[str]]) -> Writer:
  """Returns the writer of two contexts: names of tokens and, in lists, texts with the arguments."""
  def write(text: Text, prompt: str, height: int, width: int) -> tuple[list[int], list[int]]:
    encode = lambda words: text.encode(words.format(prompt=prompt, height=height, width=width))
    request, other = (
        [number for piece in context for number in (
            [id_of(text, piece)] if isinstance(piece, str) else encode(*piece))]
        for context in contexts)
    return request, other

  return write


def _lumina(text: Text, prompt: str, height: int, width: int, *, first_token: str, name: str,
            code_pixels: int) -> tuple[list[int], list[int]]:
  """Returns the contexts of Lumina-mGPT, with `code_pixels` of a code along each side.

  Both end with the tokens for the size of the image, so guidance begins with its first code, as in
  the official sampler. A size for which the model has no tokens raises ValueError.
  """
  multiple = _SIZE_PIXELS // code_pixels
  if height % multiple or width % multiple:
    raise ValueError(f'the image has {height}x{width} codes; {name} supports only multiples of '
                     f'{multiple}.')
  height, width = height * code_pixels, width * code_pixels
  image = [id_of(text, _IMAGE_START), *(
      id_of(text, f'<reserved{8800 + pixels // _SIZE_PIXELS:05d}>') for pixels in (height, width))]
  words = f'Generate an image of {width}x{height} according to the following prompt:\n{prompt}'
  return [id_of(text, first_token), *text.encode(words), id_of(text, _END_OF_TURN), *image], image


# Lumina-mGPT (arXiv 2408.02657) and 2.0 (arXiv 2507.17801), with and without a request.
lumina_mgpt = functools.partial(_lumina, first_token='<s>', name='Lumina-mGPT', code_pixels=16)
lumina_mgpt_2 = functools.partial(
    _lumina, first_token='<|endoftext|>', name='Lumina-mGPT 2.0', code_pixels=8)


def lumina_mgpt_sjd(text: Text, prompt: str, height: int, width: int
                    ) -> tuple[list[int], list[int]]:
  """Returns the two contexts of Lumina-mGPT in SJD's official code (arXiv 2410.01699).

  The one without a request still begins with the end of the turn.
  """
  request, image = lumina_mgpt(text, prompt, height, width)
  return request, [id_of(text, _END_OF_TURN), *image]


# Anole (arXiv 2407.06135) with and without a request, as its drafters were trained. The sampler of
# Meta and GAIR uses the bare prompt, and `<s>` before the start of the image in the context that
# guidance leads away from; pass a `conditions.Prompt` to use those.
anole = _template(
    ('<s>', ['Generate an image of {prompt}'], _END_OF_TURN, _IMAGE_START), (_IMAGE_START,))
_SIZE = ['{height}*{width}']
_EMU3_IMAGE = '<|image start|>', _SIZE, '<|image token|>'
# Emu3 (arXiv 2409.18869): the request and the negative prompt.
emu3 = _template(('<|extra_203|>', ['{prompt}' + _QUALITY], *_EMU3_IMAGE),
                 ('<|extra_203|>', [_NEGATIVE_1], *_EMU3_IMAGE))
# Emu3.5 (arXiv 2510.26583): the request and one without words, both with the start and the size of
# the image. In the official program the model itself writes the start, and text that may precede
# it; guidance begins with the image there too.
emu3_5 = _template(
    ('<|extra_203|>', ['You are a helpful assistant for t2i task. USER: {prompt} ASSISTANT: '],
     '<|extra_100|>', *_EMU3_IMAGE),
    ('<|extra_203|>', ['You are a helpful assistant. USER:  ASSISTANT: '], '<|extra_100|>',
     *_EMU3_IMAGE))
# NextStep-1 (arXiv 2508.10711) and 1.1: request and negative prompt of the official examples.
_NEXTSTEP_IMAGE = '<|image_area|>', _SIZE, '<|begin_of_image|>'
nextstep = _template((['{prompt}' + _QUALITY], *_NEXTSTEP_IMAGE), ([_NEGATIVE_1], *_NEXTSTEP_IMAGE))
nextstep_1_1 = _template((['{prompt}'], *_NEXTSTEP_IMAGE), ([_NEGATIVE_1_1], *_NEXTSTEP_IMAGE))
# Small models of the layout of NextStep-1 that were trained without its template.
plain = _template((['{prompt}'], '<|begin_of_image|>'), ('<|begin_of_image|>',))
# SimpleAR (arXiv 2504.11455): the request and the negative prompt.
simplear = _template(('<|t2i|>', ['A highly realistic image of {prompt}'], '<|soi|>'),
                     ('<|t2i|>', [_SIMPLEAR_NEGATIVE], '<|soi|>'))
# Liquid (arXiv 2412.04332), with and without a request.
liquid = _template(('<bos>', ['{prompt} Generate an image based on this description.'], '<boi>'),
                   ('<bos>', '<unconditional>', '<boi>'))


def _janus(text: Text, words: list[int]) -> tuple[list[int], list[int]]:
  """Returns the two contexts of an image, from the published ids of its text.

  The second one is as long as the first, and padding takes the place of the words. It is read like
  any other token, as in the official program and in transformers.
  """
  first, pad, last = (id_of(text, name) for name in (
      '<｜begin▁of▁sentence｜>', '<｜▁pad▁｜>', '<begin_of_image>'))
  return [first, *words, last], [first, *[pad] * len(words), last]


def janus_pro(text: Text, prompt: str, height: int, width: int) -> tuple[list[int], list[int]]:
  """Returns the two contexts of a prompt in the official template of Janus-Pro."""
  turns = [('<|User|>', f': {prompt.strip()}\n\n'), ('<|Assistant|>', ':')]
  ids: list[int] = []
  rest = ''
  for role, words in turns:
    if role in text.ids:  # The official tokenizer splits a text at its tokens for roles.
      ids += [*text.encode(rest), text.ids[role]]
      rest = words
    else:
      rest += role + words
  return _janus(text, ids + text.encode(rest))


def janus_pro_plain(text: Text, prompt: str, height: int, width: int
                    ) -> tuple[list[int], list[int]]:
  """Returns the two contexts of the bare words, as transformers writes them without a template."""
  return _janus(text, text.encode(prompt))


def glm_image(text: Text, prompt: str, height: int, width: int, *, small: tuple[int, int]
              ) -> tuple[list[int]]:
  """Returns the context of GLM-Image, whose template adds nothing to the words of one message.

  It ends with the large grid, the `small` one and the start, as its processor writes them. Raises
  ValueError for prompts that state a grid themselves, or refer to an image.
  """
  if names := [name for name in GLM_TOKENS[:2] if name in prompt]:
    raise ValueError(f'prompts holds {names[0]!r} in {prompt!r:.80}; both grids are written behind '
                     'the words, so leave it out and choose the size with grid=(rows, columns).')
  if _GLM_SOURCE in prompt:
    raise ValueError(
        f'prompts holds {_GLM_SOURCE!r} in {prompt!r:.80}, which stands for an image to edit; '
        'images are not read here, because that takes two more networks, so use words alone.')
  first, last, start = (id_of(text, name) for name in GLM_TOKENS)
  ids = text.encode(prompt)
  for rows, columns in ((height, width), small):
    ids = [*ids, first, *text.encode(f'{rows} {columns}'), last]
  return [*ids, start],


def tar(text: Text, prompt: str, height: int, width: int) -> tuple[list[int]]:
  """Returns the context of Tar: Qwen's template of a conversation, and the scale of the codes."""
  ids = _conversation(text, 'You are a helpful assistant.', prompt)
  return [*ids, *(id_of(text, name) for name in ('<im_start>', f'<S{SIDES.index(height)}>'))],


def _conversation(text: Text, system: str, prompt: str) -> list[int]:
  """Returns the ids of Qwen's template of a conversation, up to the answer."""
  first, last = id_of(text, '<|im_start|>'), id_of(text, '<|im_end|>')
  turn = lambda words: [first, *text.encode(words), last, *text.encode('\n')]
  return [*turn(f'system\n{system}'), *turn(f'user\n{prompt}'),
          first, *text.encode('assistant\n')]


def mammothmoda2(text: Text, prompt: str, height: int, width: int, *, sides: str | None = None
                 ) -> tuple[list[int], list[int]]:
  """Returns the contexts of MammothModa2, of which the second one has the last ten tokens alone.

  They state the grid: `sides` is '{height}*{width}', or the other way round. Raises ValueError for
  a grid that is not square if it is None, because the order is unknown.
  """
  if sides is None and height != width:
    raise ValueError(
        f'the image has {height}x{width} codes, and whether its prompt states rows or columns '
        'first is in the chat template, which was not beside the tokenizer file when it was '
        'converted; convert mammothu.tiktoken again, beside it, or choose a square grid.')
  grid = (sides or '{height}*{width}').format(height=height, width=width)
  start, image = id_of(text, '<|image start|>'), id_of(text, '<|image token|>')
  ids = [*_conversation(text, 'You are a helpful image generator.', prompt),
         start, *text.encode(grid), image]
  return ids, ids[-_MAMMOTH_NULL:]


def check_codes(text: Text, name: str, file: str, first_code: int, num_codes: int) -> None:
  """Raises ValueError unless a tokenizer names the codes of an image in order.

  `name` is that of a code, with braces for its number, and `file` the usual one of the tokenizer.
  """
  code = next((code for code in range(num_codes)
               if text.ids.get(name.format(code)) != first_code + code), None)
  if code is not None:
    wrong = name.format(code)
    has = f'has it as token {text.ids[wrong]}' if wrong in text.ids else 'has no such token'
    raise ValueError(f'text must have {wrong} as token {first_code + code}, because '
                     f'the {num_codes} codes of its model begin at {first_code}, but {has}; use '
                     f'the {file} that belongs to the model.')


def padded(contexts: Sequence[Sequence[Sequence[int]]]) -> Prompt:
  """Joins the contexts of images `[B][S]` into one prompt, padded on the left with id 0."""
  longest = max(len(ids) for streams in contexts for ids in streams)
  size = -(-longest // _BUCKET) * _BUCKET
  tokens = np.zeros((len(contexts), len(contexts[0]), size), np.int32)
  visible = np.zeros(tokens.shape, bool)
  for row, streams in enumerate(contexts):
    for stream, ids in enumerate(streams):
      tokens[row, stream, size - len(ids):] = ids
      visible[row, stream, size - len(ids):] = True
  return Prompt(tokens, visible)


def code_map(text: Text, first_code: int, num_codes: int) -> np.ndarray:
  """Returns the image tokenizer's code of every image token of Chameleon, `[num_codes]`.

  The code is read from the token's name: `IMGIMG`, the digits of the code as letters from A for 0
  to J for 9, and `Z`. Entry `i` is for the id `first_code + i`; the result is a permutation. Raises
  ValueError if the names do not name `num_codes` codes.
  """
  codes = np.full(num_codes, -1)
  for name, token_id in text.ids.items():
    letters = name.removeprefix('IMGIMG').removesuffix('Z')
    index = token_id - first_code
    if (name.startswith('IMGIMG') and letters and not letters.strip('ABCDEFGHIJ')
        and 0 <= index < num_codes):
      codes[index] = int(''.join(str(ord(letter) - ord('A')) for letter in letters))
  if not np.array_equal(np.sort(codes), np.arange(num_codes)):
    raise ValueError(f'the tokenizer file does not name the {num_codes} image tokens from id '
                     f'{first_code} on; supply the text_tokenizer.json that belongs to the model.')
  return codes
