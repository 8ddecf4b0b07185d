"""Prompts as the models know them, in published token ids."""

from collections.abc import Callable, Sequence

import numpy as np

from cspd_jax.models.causal import Prompt
from cspd_jax.text.bpe import Text, id_of

# Prompts are padded to a multiple of this, so that few lengths are compiled.
_BUCKET = 32
_CODE_PIXELS = 16
_IMAGE_START = '<racm3:break>'
_END_OF_TURN = '<reserved08706>'
# What Emu3's official program adds to a prompt, and what it leads away from.
_EMU3_QUALITY = ' masterpiece, film grained, best quality.'
_EMU3_AWAY = (
    'lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, '
    'cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, '
    'username, blurry.')


def lumina_mgpt(text: Text, prompt: str, height: int, width: int) -> tuple[list[int], list[int]]:
  """The two contexts of Lumina-mGPT (arXiv 2408.02657): the request, and an image without one.

  Both end with the tokens that say how large the image is, so guidance begins with its first code,
  as in the official sampler.

  Args:
    text: the tokenizer.
    prompt: what the image shows.
    height: rows of codes, an even number.
    width: codes of a row, an even number.

  Raises:
    ValueError: for a size that the model has no tokens for.
  """
  if height % 2 or width % 2:
    raise ValueError(f'the image has {height}x{width} codes; Lumina-mGPT knows even numbers only.')
  image = [id_of(text, _IMAGE_START), *(
      id_of(text, f'<reserved{8800 + count // 2:05d}>') for count in (height, width))]
  words = (f'Generate an image of {width * _CODE_PIXELS}x{height * _CODE_PIXELS} according to the '
           f'following prompt:\n{prompt}')
  return [id_of(text, '<s>'), *text.encode(words), id_of(text, _END_OF_TURN), *image], image


def lumina_mgpt_sjd(text: Text, prompt: str, height: int, width: int
                    ) -> tuple[list[int], list[int]]:
  """The two contexts of Lumina-mGPT as SJD's program has them (arXiv 2410.01699).

  The one without a request still begins with the end of the turn. Arguments and errors as for
  `lumina_mgpt`.
  """
  request, image = lumina_mgpt(text, prompt, height, width)
  return request, [id_of(text, _END_OF_TURN), *image]


def anole(text: Text, prompt: str, height: int, width: int) -> tuple[list[int], list[int]]:
  """The two contexts of Anole (arXiv 2407.06135) as its published drafters know them.

  The sampler of Meta and GAIR has the bare prompt, and `<s>` before the start of the image that
  guidance leads away from; for those contexts give a `causal.Prompt`. Arguments as for
  `lumina_mgpt`.
  """
  del height, width
  image = [id_of(text, _IMAGE_START)]
  words = f'Generate an image of {prompt}'
  return [id_of(text, '<s>'), *text.encode(words), id_of(text, _END_OF_TURN), *image], image


def emu3(text: Text, prompt: str, height: int, width: int) -> tuple[list[int], list[int]]:
  """The two contexts of Emu3 (arXiv 2409.18869): the request, and words to lead away from.

  Arguments as for `lumina_mgpt`.
  """
  start, size, image = (id_of(text, f'<|{name}|>') for name in (
      'extra_203', 'image start', 'image token'))
  announced = [size, *text.encode(f'{height}*{width}'), image]
  request, away = ([start, *text.encode(words), *announced]
                   for words in (prompt + _EMU3_QUALITY, _EMU3_AWAY))
  return request, away


# `(text, prompt, height, width) -> ` the ids of both contexts.
Writer = Callable[[Text, str, int, int], tuple[list[int], list[int]]]


def padded(contexts: Sequence[Sequence[Sequence[int]]]) -> Prompt:
  """Contexts of some images `[B][S]` as one prompt, padded on the left with id 0."""
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
  """The image tokenizer's code of every image token of Chameleon, `[num_codes]`, by its name.

  Names are `IMGIMG`, the digits of the code as letters from A for 0 to J for 9, and `Z`. Entry `i`
  is for the id `first_code + i`; it is a permutation.

  Raises:
    ValueError: if the names are not those of so many codes.
  """
  codes = np.full(num_codes, -1)
  for name, number in text.ids.items():
    letters = name.removeprefix('IMGIMG').removesuffix('Z')
    place = number - first_code
    if (name.startswith('IMGIMG') and letters and not letters.strip('ABCDEFGHIJ')
        and 0 <= place < num_codes):
      codes[place] = int(''.join(str(ord(letter) - ord('A')) for letter in letters))
  if not np.array_equal(np.sort(codes), np.arange(num_codes)):
    raise ValueError(
        f'the tokenizer file does not name the {num_codes} image tokens from id {first_code} on; '
        'give the text_tokenizer.json that belongs to the model.')
  return codes
