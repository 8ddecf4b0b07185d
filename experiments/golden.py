"""Compares a converted model with greedy tokens that another program printed for the same weights.

  python -m experiments.golden --model=checkpoints/janus_pro_1b
  python -m experiments.golden --model=checkpoints/janus_pro_1b --dtype=float32

One forward pass reads the prompt and the printed tokens with both guidance streams. The model
agrees if its most probable token is the printed one at every position. For every other position the
gap between the two guided logits is compared with what rounding these logits to bfloat16 can
change, which distinguishes a close decision from a wrong network. Prints the first disagreement,
writes report.json to --workdir, and exits with 1 unless all tokens agree.
"""

import dataclasses
import sys
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import cspd_jax
from cspd_jax import cli, families
from cspd_jax.core import fields, programs
from cspd_jax.files import store
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import tables
from cspd_jax.text import bpe, templates


@dataclasses.dataclass(frozen=True)
class Config:
  """The comparison.

  Attributes:
    model: the folder of the converted model.
    dtype: of its parameters.
    preset: the published model whose sizes it must have; None for any.
    prompt: the description of the image.
    contexts: the prompt writer of the model's family.
    num_prompt_tokens: tokens of the prompt in the other program; None for any number.
    tokens: the first tokens of the image in the other program.
    guidance_scale: its guidance scale.
    workdir: folder of the results.
  """

  model: str = 'checkpoints/janus_pro_1b'
  dtype: Literal['float32', 'bfloat16'] | None = 'bfloat16'
  preset: str | None = 'janus_pro_1b'
  prompt: str = 'A portrait of young girl. masterpiece, film grained, best quality.'
  contexts: str = 'janus_pro_plain'
  num_prompt_tokens: int | None = 17
  tokens: tuple[int, ...] = (
      4484, 4015, 15750, 506, 3758, 11651, 8597, 5739, 4861, 971, 14985, 14834, 15438, 7548, 1820,
      1465, 13529, 12761, 10503, 12761, 14303, 6155, 4015, 11766, 705, 15736, 14146, 10417, 1951,
      7713, 14305, 15617, 6169, 2706, 8006, 14893, 3855, 10188, 15652, 6297, 1097, 12108, 15038,
      311, 14998, 15165, 897, 4044, 1762, 4676)
  guidance_scale: float = 5.0
  workdir: str = 'runs/golden'

  def __post_init__(self):
    fields.check(self, tokens=(0, fields.MOST), guidance_scale=fields.NOT_NEGATIVE)


# Numbers of bfloat16 are at most this fraction away from those that they round.
_ROUNDING = 2.0**-8
_COLUMNS = {
    'position': '{position}', 'printed': '{printed}', 'most probable': '{token}',
    'gap': '{gap:.3f}', 'gap of rounding': '{rounding:.3f}'}


def condition(config: Config, model: cspd_jax.Model) -> Any:
  """Returns the condition of the prompt, after a check of its writer and number of tokens."""
  writers = families.family.get(model.family).prompt_writers
  if config.contexts not in writers:
    raise ValueError(f'contexts is {config.contexts!r}; for a model of {model.family} it must be '
                     f'one of: {", ".join(writers) or "none"}.')
  part = store.load(families.part_folder(config.model, 'text'))
  ids = writers[config.contexts](bpe.read(part.params, part.config.form), config.prompt,
                                 *model.grid)
  if config.num_prompt_tokens not in (None, len(ids[0])):
    raise ValueError(
        f'text of {config.model} writes the prompt in {len(ids[0])} tokens, the other program in '
        f'{config.num_prompt_tokens}; convert the tokenizer file that belongs to the weights.')
  return model.condition(templates.padded([ids]))


def prepare(config: Config) -> tuple[cspd_jax.Model, Any]:
  """Loads the model and checks all options; returns it with the condition of the prompt."""
  model = cspd_jax.load(config.model, dtype=config.dtype)
  if config.preset and (published := families.describe(config.preset).config) != model.config:
    raise ValueError(f'model is {config.model}, whose sizes are not those of {config.preset}: '
                     f'{model.config} instead of {published}; convert the published weights.')
  if model.teacher is None:
    raise ValueError(f'model is {config.model!r}, which does not compute the logits of whole '
                     'images; give one of discrete tokens.')
  if not 1 <= len(config.tokens) <= model.num_tokens:
    raise ValueError(f'tokens has {len(config.tokens)} entries; it must have 1 to '
                     f'{model.num_tokens}, the number of tokens of an image.')
  if (largest := max(config.tokens)) >= (size := model.target(guided=True).vocab_size):
    raise ValueError(f'tokens holds {largest}; this model supports 0 to {size - 1}.')
  return model, condition(config, model)


def compared(config: Config, model: cspd_jax.Model, prompt: Any) -> list[dict[str, Any]]:
  """Returns a row for every printed token: the most probable one, and the gap between the two."""
  assert model.teacher is not None  # See `prepare`.
  both = jax.tree.map(lambda x: jnp.concatenate([x, x]), prompt)
  tokens = jnp.tile(jnp.asarray(config.tokens, jnp.int32), (2, 1))
  logits = np.asarray(programs.jit(model.teacher.forward)(
      model.params, both, tokens, jnp.array([False, True]))[0], np.float32)
  scale = config.guidance_scale
  guided = logits[1] + scale * (logits[0] - logits[1])
  change, rows = rounding(logits, scale), []
  for position, printed in enumerate(config.tokens):
    token, pair = int(np.argmax(guided[position])), guided[position]
    rows.append(dict(
        position=position, printed=printed, token=token, agrees=token == printed,
        gap=float(pair[token] - pair[printed]),
        rounding=float(change[position, token] + change[position, printed])))
  return rows


def rounding(logits: np.ndarray, scale: float) -> np.ndarray:
  """Returns what rounding logits `[2, ..., V]` of both streams can change in guided ones."""
  return _ROUNDING * (abs(scale) * np.abs(logits[0]) + abs(scale - 1) * np.abs(logits[1]))


def verdict(rows: list[dict[str, Any]]) -> str:
  """Returns the result in a sentence or two."""
  others = [row for row in rows if not row['agrees']]
  if not others:
    return (f'All {len(rows)} tokens agree: greedy decoding writes the tokens that were printed.')
  close = sum(row['gap'] <= row['rounding'] for row in others)
  first = others[0]
  return (
      f'{len(rows) - len(others)} of {len(rows)} tokens agree. First disagreement: position '
      f'{first["position"]}, where {first["token"]} is more probable than {first["printed"]}. '
      f'{close} of {len(others)} disagreements are within what rounding the logits to bfloat16 can '
      'change; programs that compute in bfloat16 in another order differ in such tokens, and '
      '--dtype=float32 shows the gaps without it. Larger gaps mean another network or another '
      'prompt.')


@cli.command(Config)
def main(config: Config) -> int:
  model, prompt = prepare(config)
  rows = compared(config, model, prompt)
  others = [row for row in rows if not row['agrees']]
  Report(config.workdir).write(
      settings=dataclasses.asdict(config), rows=rows, verdict=verdict(rows),
      tables=[dict(title=f'{config.model}, {config.dtype}', columns=_COLUMNS,
                   rows=[row['position'] for row in others])])
  if others:
    print(tables.text(_COLUMNS, others))
  print(verdict(rows))
  return int(bool(others))


if __name__ == '__main__':
  sys.exit(main())
