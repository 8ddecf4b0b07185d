"""Captions of scenes of emoji: the words, the grammar and the names of colours.

A caption names one or two things, some with a colour or the word 'small', and perhaps a style and
the colour of the ground: `a blue octopus and a red tomato flat on yellow`. What it does not say is
free.
"""

import re
from typing import NamedTuple

import numpy as np

STYLES = ('3d', 'flat')
# The colours of plain grounds, RGB.
GROUNDS = {
    'white': (255, 255, 255), 'black': (24, 24, 28), 'grey': (150, 150, 155),
    'red': (200, 45, 50), 'orange': (245, 150, 60), 'yellow': (250, 218, 95),
    'green': (110, 185, 100), 'blue': (75, 130, 215), 'purple': (130, 85, 175),
    'pink': (245, 170, 195)}
# The colours of things.
COLOURS = ('red', 'orange', 'yellow', 'green', 'blue', 'purple', 'pink', 'brown')
# All words of captions but the names of things.
WORDS = tuple(sorted({'a', 'an', 'and', 'small', 'on', *STYLES, *GROUNDS, *COLOURS}))

# Upper bounds of the hues in degrees; hues above the last bound are red.
_HUES = ((16, 'red'), (36, 'orange'), (68, 'yellow'), (172, 'green'), (255, 'blue'),
         (292, 'purple'), (336, 'pink'))
# Below this chroma a pixel, and below this share of coloured pixels a thing, has no colour.
_CHROMA, _COLOURED = 0.2, 0.4

# Of a thing: not the words around names, so that 'an orange flat' is an orange.
_NAME = rf'(?!(?:{"|".join(("small", "and", "on", *STYLES))})\b)\w+'
_THING = rf'an? (?P<small>small )?(?:(?P<colour>{"|".join(COLOURS)}) )?(?P<name>{_NAME})'
_REST = rf'(?: (?P<style>{"|".join(STYLES)}))?(?: on (?P<ground>{"|".join(GROUNDS)}))?'


class Thing(NamedTuple):
  """A thing that a caption asks for; its colour is None where it is free."""

  name: str
  colour: str | None = None


class SceneRequest(NamedTuple):
  """The request of a caption."""

  items: tuple[Thing, ...]  # One thing, or two from left to right.
  small: bool = False  # Whether the one thing is small.
  style: str | None = None  # One of `STYLES`, or None where it is free.
  ground: str | None = None  # One of `GROUNDS`, or None where it is free.


def caption(request: SceneRequest) -> str:
  """Writes the caption of a request.

  >>> caption(SceneRequest((Thing('octopus', 'blue'), Thing('owl')), style='flat', ground='yellow'))
  'a blue octopus and an owl flat on yellow'
  """
  items = [' '.join(filter(None, ('small' * request.small, thing.colour, thing.name)))
            for thing in request.items]
  text = ' and '.join(f'{"an" if thing[0] in "aeiou" else "a"} {thing}' for thing in items)
  return text + f' {request.style}' * bool(request.style) + (
      f' on {request.ground}' * bool(request.ground))


def parse(text: str) -> SceneRequest | None:
  """Reads a caption; None if it has another form. One thing alone may be small.

  >>> parse('a small red fox on white')
  SceneRequest(items=(Thing(name='fox', colour='red'),), small=True, style=None, ground='white')
  """
  first, *second = text.strip().lower().split(' and ', 1)
  forms = [_THING, _THING + _REST] if second else [_THING + _REST]
  matches = [re.fullmatch(form, part) for form, part in zip(forms, (first, *second), strict=True)]
  parts = [match.groupdict() for match in matches if match]
  if len(parts) < len(matches) or second and any(part['small'] for part in parts):
    return None
  return SceneRequest(tuple(Thing(part['name'], part['colour']) for part in parts),
                 any(part['small'] for part in parts), parts[-1]['style'], parts[-1]['ground'])


def shares(pixels: np.ndarray) -> np.ndarray:
  """Returns the share of every colour of `COLOURS` among pixels `[N, 3]` from 0 to 255.

  They sum to at most 1; pale, grey and black pixels have no colour.
  """
  red, green, blue = np.moveaxis(np.asarray(pixels, np.float32) / 255, -1, 0)
  most, least = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
  chroma = np.maximum(most - least, 1e-6)
  sector = np.select([most == red, most == green], [
      (green - blue) / chroma % 6, (blue - red) / chroma + 2], (red - green) / chroma + 4)
  names = np.array([*(name for _, name in _HUES), 'red'])[
      np.digitize(sector * 60, [bound for bound, _ in _HUES])]
  names = np.where((names == 'red') & (most > 0.75) & (least > 0.42), 'pink', names)
  names = np.where(np.isin(names, ('red', 'orange')) & (sector * 60 < 45) & (sector * 60 > 5) &
                   (most < 0.68), 'brown', names)
  return np.array([np.mean((names == colour) & (chroma > _CHROMA)) if names.size else 0.0
                   for colour in COLOURS])


def colour(pixels: np.ndarray) -> str | None:
  """Returns the colour of `COLOURS` that most pixels `[N, 3]` have; None for a colourless thing."""
  values = shares(pixels)
  return COLOURS[int(np.argmax(values))] if values.sum() >= _COLOURED else None
