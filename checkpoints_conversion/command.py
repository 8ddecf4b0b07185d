"""Converts published PyTorch or safetensors weights to a model folder, or back.

  cspd-convert --family=llamagen --source=c2i_XL_384.pt --model=c2i_xl_384 \\
      --output=checkpoints/c2i_xl_384
  cspd-convert --family=llamagen_vq --source=vq_ds16_c2i.pt --output=checkpoints/c2i_xl_384
  cspd-convert --to=llamagen --source=checkpoints/c2i_xl_384 --output=pretrained_models

The networks of a model are converted into one folder, one after the other: the target, its image
tokenizer, its drafters. `cspd_jax.load` opens the folder. A published folder, or the id of one on
the Hugging Face Hub, is converted with all networks in it. A stopped command resumes when it is
repeated. Without --model the sizes are inferred from the shapes in the file, and other options
specify what shapes do not determine; whatever is assumed instead is printed.

With --to, the networks of a model folder are written as published files, in one call. Whatever
these cannot hold is printed.
"""

import dataclasses
import pathlib
import sys
from typing import Literal

from checkpoints_conversion import folder, publish, rules
from cspd_jax import cli
from cspd_jax.cli import fields as flags, inputs
from cspd_jax.core import fields, progress
from cspd_jax.families import folder as folder_lib
from cspd_jax.files import paths, store


def _families() -> str:
  """A line for each family of files: its name, what it holds, and its published models."""
  width = max(map(len, rules.FAMILIES))
  return ''.join(f'\n{family.name:{width}}  {family.title}' + (
      f': {", ".join(family.presets)}' if family.presets else '')
      for family in rules.FAMILIES.values())


def _parts() -> str:
  preferred = ''.join(f'{family.prefer!r} for {family.name}; '
                      for family in rules.FAMILIES.values() if family.prefer is not None)
  return f" {preferred}the first of 'model', 'module' and 'state_dict', or the file itself."


def _sizes() -> object:
  """The options of all registered families, a dataclass with a field for each."""
  texts: dict[str, str] = {}
  for family in rules.FAMILIES.values():
    for name, text in family.options.items():
      texts.setdefault(name, text)
  return dataclasses.make_dataclass('Sizes', [
      (name, int | None, dataclasses.field(default=None, metadata={
          'more': lambda text=text: f'{text} Only without model.'}))
      for name, text in texts.items()], frozen=True)()


# The flags that `to` can be combined with.
_WITH_TO = ('to', 'source', 'output', 'role', 'dtype', 'allow_nonfinite')


@dataclasses.dataclass(frozen=True)
class Config:
  """The file to convert.

  Attributes:
    family: family of the file. They are, with their published models:
    to: instead of `family`, the family of the files to write: those of a target, with the model's
      other networks, or of one other network.
    model: published model of the family; None infers the sizes from the file.
    source: the file: .safetensors (or a folder of them), .pt, .pth, .ckpt or .bin. Or a published
      folder, or an id of the Hugging Face Hub such as BAAI/Emu3-Gen. With `to`, a model folder or
      the name of a shipped model.
    output: folder of the model: a new one, or one to add to. With `to`, the new folder of the
      files.
    role: role of the network in the model, such as draft; of a published folder, only this network
      is converted. None is the first role of its kind (target, tokenizer, eagle), and converts all
      networks of a folder.
    sampling: official sampling options to store as the model's defaults: pictures, or fid where
      they were published. None is pictures, or keeps the defaults of a model with the same target.
    sizes: options of the families.
    key: part of a .pt file that holds the weights, such as ema. None is
    dtype: dtype to store; of a published folder, for the target alone. None stores the published
      one.
    allow_nonfinite: converts weights that are NaN or infinite, too.
  """

  family: str | None = dataclasses.field(default=None, metadata={'more': _families})
  to: str | None = None
  model: str | None = None
  source: str | None = None
  output: str | None = None
  role: str | None = None
  sampling: str | None = None
  sizes: object = dataclasses.field(default_factory=_sizes)
  key: str | None = dataclasses.field(default=None, metadata={'more': _parts})
  dtype: Literal['float32', 'bfloat16'] | None = None
  allow_nonfinite: bool = False

  def __post_init__(self):
    fields.check(self)


@cli.command(Config, kept='converted parts are kept')
def main(config: Config) -> None:
  if config.to is not None:
    _publish(config, config.to)
    return
  if missing := [f'--{name}' for name in ('family', 'source', 'output')
                 if not getattr(config, name)]:
    raise ValueError(f'{", ".join(missing)} must be specified; see --help.')
  source, output = str(config.source), str(config.output)
  paths.find('source', source)
  family = rules.get(str(config.family))
  sources = folder.find_model(
      family.name, source, config.model, alone=config.role is not None,
      note=lambda line: print(line, flush=True))
  requested = folder.Part(
      family.name, source, config.role, config.sampling, config.dtype,
      dict(model=config.model, key=config.key, options=inputs.overrides(config.sizes)))
  # Options are for the target alone.
  parts = [requested._replace(source=path) if name == family.name else folder.Part(name, path)
           for name, path in sources.items()] or [requested]
  converted = folder.convert_parts(
      parts, output, allow_nonfinite=config.allow_nonfinite,
      note=lambda line: print(line, flush=True),
      progress=lambda name: progress.bar(f'converting {name}', 'tensor'))
  for path, sizes in converted:
    print(f'{path}: {sizes}')
  if family.model is not None:
    print('\n'.join(_next_steps(output, config.allow_nonfinite)))


def _publish(config: Config, to: str) -> None:
  """Writes the published files of a model folder."""
  of_reading = {**inputs.overrides(config), **inputs.overrides(config.sizes)}
  if wrong := [f'--{name}' for name in of_reading if name not in (*_WITH_TO, 'sizes')]:
    raise ValueError(f'to is {to!r}, so files are written; leave out what only reading needs: '
                     f'{", ".join(wrong)}.')
  if missing := [f'--{name}' for name in ('source', 'output') if not getattr(config, name)]:
    raise ValueError(f'{", ".join(missing)} must be specified; see --help.')
  for path, title in publish.publish_model(
      to, str(config.source), str(config.output), role=config.role, dtype=config.dtype,
      allow_nonfinite=config.allow_nonfinite, note=lambda line: print(line, flush=True),
      progress=lambda name: progress.bar(f'writing {name}', 'tensor')):
    print(f'{path}: {title}')


def _next_steps(output: str, allow_nonfinite: bool) -> list[str]:
  """Returns the command for every network that a model lacks, or the one that generates images."""
  lines = []
  for (family, *others), file in folder.missing_parts(output):
    title = 'the target' if others else rules.get(family).title
    command = flags.command_line('cspd-convert', family=family, source='FILE', output=output)
    remark = f' (or --family={", ".join(others)})' if others else ''
    lines.append(f'Missing: {title}{f" ({file})" if file else ""}; next: {command}{remark}')
  if lines:
    return lines
  # Relative, it may be the name of a shipped network.
  path = pathlib.Path(output).expanduser().absolute()
  parts = folder_lib.read(path)['parts']
  labels = store.describe(path / parts['target']).metadata.get('labels') or ['0']
  prompt = 'a lighthouse at dusk' if 'text' in parts else labels[0]
  command = flags.command_line('cspd-generate', model=folder_lib.name_of(output), prompt=prompt,
                               allow_nonfinite=allow_nonfinite)
  verify = flags.command_line('cspd-verify', model=folder_lib.name_of(output))
  return [f'Is it right? {verify}', f'Next: {command}']


if __name__ == '__main__':
  sys.exit(main())
