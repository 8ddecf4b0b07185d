"""Small sources of emoji: drawn pictures, a font of letters and a list of names."""

import json
import pathlib

from PIL import Image, ImageDraw

from experiments.demo_models import emoji


def write(folder: pathlib.Path) -> dict[str, str]:
  """Writes a source for every thing; returns the arguments of `emoji.load`."""
  matplotlib = __import__('matplotlib')
  font = pathlib.Path(matplotlib.get_data_path()) / 'fonts' / 'ttf' / 'DejaVuSans.ttf'
  pictures, entries = folder / 'fluent', []
  pictures.mkdir()
  for number, name in enumerate(emoji.THINGS.values()):
    code = f'{0x41 + number:04X}' if number < 26 else f'{0x391 + number:04X}'
    entries.append({'label': name, 'hexcode': code})
    picture = Image.new('RGBA', (40, 40))
    draw = ImageDraw.Draw(picture)
    hue = f'hsv({(number * 47) % 360}, {90 if number % 5 else 0}%, 90%)'
    corners = [(20, 2), (38, 20 + number % 17), (20 + number % 13, 38), (2 + number % 7, 20)]
    draw.polygon(corners, fill=hue)
    draw.ellipse((4, 4, 12 + number % 11, 14), fill=(20, 20, 30))
    picture.save(pictures / f'{code.lower()}.webp', lossless=True)
  names = folder / 'data.json'
  names.write_text(json.dumps(entries))
  return dict(fluent=str(pictures), noto=str(font), names=str(names))
