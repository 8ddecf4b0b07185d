"""Writes the example that is stored with the server's page, cspd_jax/serve/page/example.json.

    python -m docs.example

It has the images of the embedded model by the decoders that cspd-serve offers for it on a CPU, as a
server sends them. The page shows it on the first visit, and begins with its seed.
"""

import json
import pathlib
from typing import Any

import cspd_jax
from cspd_jax.commands import serve
from cspd_jax.serve import app, wire

PATH = pathlib.Path(app.__file__).parent / 'page' / 'example.json'
_SEED = 4  # As in the README: both of its images show what they should.


def example() -> dict[str, Any]:
  """Returns what the file holds, as JSON values."""
  model = cspd_jax.load('emoji')
  served = wire.serving(model, serve.decoders(None, model, 1))
  prompt = model.prompts[0]
  usage = wire.usage(model.images([prompt]).condition, model.num_tokens)
  images = [wire.completed_event(
      0, model.generate(prompt, seed=_SEED, decoder=spec, batch_size=1), slots=1, served=served,
      form=wire.Form(), created=0, used=usage) for spec in served.decoders.values()]
  return dict(model=model.name, prompt=prompt, seed=_SEED, images=images)


if __name__ == '__main__':
  PATH.write_text(json.dumps(example(), separators=(',', ':')) + '\n', encoding='utf-8')
