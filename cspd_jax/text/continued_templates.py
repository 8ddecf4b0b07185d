"""Prompt templates of language models with codes added to their vocabulary: SimpleAR and Liquid.

Both models describe images of any size in the same words; `height` and `width` are not used.
"""

from cspd_jax.text.bpe import Text, id_of

# The words of the official example that guidance leads away from.
_NEGATIVE = ('An image of aerial view, overexposed, low quality, deformation, a poor composition, '
             'bad hands, bad teeth, bad eyes, bad limbs, distortion')


def simplear(text: Text, prompt: str, height: int, width: int) -> tuple[list[int], list[int]]:
  """Returns the contexts of SimpleAR (arXiv 2504.11455): the request and the negative prompt.

  Arguments and errors as for `templates.lumina_mgpt`.
  """
  del height, width
  start, image = id_of(text, '<|t2i|>'), id_of(text, '<|soi|>')
  request, negative = ([start, *text.encode(words), image] for words in (
      f'A highly realistic image of {prompt}', _NEGATIVE))
  return request, negative


def liquid(text: Text, prompt: str, height: int, width: int) -> tuple[list[int], list[int]]:
  """Returns the contexts of Liquid (arXiv 2412.04332), with and without a request.

  Arguments and errors as for `templates.lumina_mgpt`.
  """
  del height, width
  start, nothing, image = (id_of(text, name) for name in ('<bos>', '<unconditional>', '<boi>'))
  words = f'{prompt} Generate an image based on this description.'
  return [start, *text.encode(words), image], [start, nothing, image]
