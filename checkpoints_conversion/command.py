"""Converts published PyTorch or safetensors weights to a model folder.

    cspd-convert --family=llamagen --source=c2i_XL_384.pt --model=c2i_xl_384 \\
        --output=checkpoints/c2i_xl_384
    cspd-convert --family=llamagen_vq --source=vq_ds16_c2i.pt --output=checkpoints/c2i_xl_384

The networks of a model are converted into one folder, one after the other: the
target, its image tokenizer, its drafters. `cspd_jax.load` opens the folder. A
published folder, or the id of one on the Hugging Face Hub, is converted with all
networks in it. A command that was stopped continues when it is repeated. Without
--model the sizes are inferred from the shapes in the file, and other options specify
what shapes do not determine; whatever is assumed instead is printed. Invalid input ends with one
message and exit code 2.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from absl import logging

from checkpoints_conversion import folder, rules
from cspd_jax.checkpoints import paths, store
from cspd_jax.cli import fields as flags
from cspd_jax.core import exits, fields, progress, spelling
from cspd_jax.families import folder as folder_lib

# Names of other programs for flags of this one alone; see `spelling`.
_ALIASES = {'input': 'source', 'checkpoint': 'source', 'ckpt': 'source'}
# An example for models of words.
_WORDS = 'a lighthouse at dusk'


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command.

  Args:
    argv: its arguments; None uses those of the process.

  Returns:
    The exit code: 0, 2 after a message about the input, or 130 if the user interrupts it.
  """
  logging.set_verbosity(logging.WARNING)  # JAX logs backends that it does not find.
  words = sys.argv[1:] if argv is None else list(argv)
  return exits.code_of(lambda: _convert(_parser().parse_args(words)), '--debug' in words)


def _convert(arguments: argparse.Namespace) -> None:
  """Converts the files that the command line specifies."""
  required = ('family', 'source', 'output')
  if missing := [f'--{name}' for name in required if not getattr(arguments, name)]:
    raise ValueError(f'{", ".join(missing)} must be specified; see --help.')
  paths.find('source', arguments.source)
  paths.folder('output', arguments.output)
  family = rules.get(arguments.family)
  if arguments.target and family.compare is None:
    raise ValueError(f'--target is for drafters; --family is {family.name!r}.')
  target = store.load(arguments.target, name='target') if arguments.target else None
  sources = (folder.find_model(family.name, arguments.source, arguments.model)
             if arguments.role is None else {})
  requested = folder.Part(
      family.name, arguments.source, arguments.role, arguments.sampling, arguments.dtype,
      dict(model=arguments.model, key=arguments.key,
           options={name: getattr(arguments, name) for name in _options()}))
  # Options are for the target alone.
  parts = [requested._replace(source=source) if name == family.name else folder.Part(name, source)
           for name, source in sources.items()] or [requested]
  converted = folder.convert_parts(
      parts, arguments.output, allow_nonfinite=arguments.allow_nonfinite,
      note=lambda line: print(line, flush=True),
      progress=lambda name: progress.bar(f'converting {name}', 'part'))
  for path, config in converted:
    print(f'{path}: {config}')
  if target and family.compare:
    print('\n'.join(family.compare(store.load(converted[-1][0]).params, target.params)))
  if family.model is not None:
    print('\n'.join(_next_steps(arguments.output)))


def _next_steps(output: str) -> list[str]:
  """Returns the command for every network that a model lacks, or the one that generates images."""
  lines = []
  for part in folder.missing_parts(output):
    title = rules.get(part.families[0]).title if len(part.families) == 1 else 'the target'
    command = flags.command_line('cspd-convert', family=part.families[0], source='FILE',
                                 output=output)
    others = f' (or --family={", ".join(part.families[1:])})' if part.families[1:] else ''
    lines.append(f'Missing: {title}{f" ({part.file})" if part.file else ""}; next: '
                 f'{command}{others}')
  if lines:
    return lines
  # Relative, it may be the name of a shipped network.
  path = pathlib.Path(output).expanduser().absolute()
  parts = folder_lib.read(path)['parts']
  labels = store.describe(path / parts['target']).metadata.get('labels') or ['0']
  prompt = _WORDS if 'text' in parts else labels[0]
  command = flags.command_line('cspd-generate', model=folder_lib.name_of(output), prompt=prompt)
  return [f'Next: {command}']


class _Parser(argparse.ArgumentParser):
  """A parser that raises its errors as ValueErrors of one sentence."""

  def parse_args(self, *arguments: Any) -> argparse.Namespace:  # type: ignore[override]
    """Parses words; the message for an unknown flag names the one that may be meant."""
    result, others = self.parse_known_args(*arguments)
    if not others:
      return result
    if not others[0].startswith('--'):
      raise ValueError(f'{others[0]!r} is not a flag; see --help.')
    name = others[0][2:].partition('=')[0]
    names = [option[2:] for action in self._actions for option in action.option_strings
             if option.startswith('--')]
    near = _ALIASES.get(name) or spelling.nearest(name, names)
    remedy = f'did you mean --{near}?' if near else f'flags are: {", ".join(names)}.'
    raise ValueError(f'--{name} is not a flag; {remedy} See --help.')

  def error(self, message: str) -> NoReturn:
    raise ValueError(f'{message}; see --help.')


def _parser() -> argparse.ArgumentParser:
  families = rules.FAMILIES.values()
  published = '; '.join(
      f'{family.name}: {", ".join(family.presets)}' for family in families if family.presets)
  preferred = ''.join(
      f'{family.prefer!r} for {family.name}; ' for family in families if family.prefer is not None)
  parser = _Parser(
      prog='cspd-convert', description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--family', help=f'Family of the file: {", ".join(rules.FAMILIES)}.')
  parser.add_argument('--model', help=f'Published model. Default: the sizes are inferred. '
                      f'{published}.')
  parser.add_argument('--source', help='The file to convert: .safetensors (or a folder of them), '
                      '.pt, .pth, .ckpt or .bin. Or a published folder, or an id of the Hugging '
                      'Face Hub such as BAAI/Emu3-Gen.')
  parser.add_argument('--output', help='Folder of the model: a new one, or one to add to.')
  parser.add_argument('--role', help="Role of the network in the model, such as 'draft'. Default: "
                      "the first role of its kind: 'target', 'tokenizer', 'eagle'.")
  parser.add_argument('--sampling', help="Official sampling options to store as the model's "
                      "defaults: 'pictures' (default), or 'fid' where they were published.")
  for name, text in _options().items():
    parser.add_argument(f'--{name}', type=fields.int64, help=f'{text} Only without --model.')
  parser.add_argument('--target', help='Folder of the converted target of an EAGLE drafter: '
                      "prints which of its tables the drafter's own token embedding equals.")
  parser.add_argument('--key', help="Part of a .pt file that holds the weights, such as 'ema'. "
                      f"Default: {preferred}the first of 'model', 'module' and 'state_dict', or "
                      'the file itself.')
  parser.add_argument('--dtype', choices=['float32', 'bfloat16'],
                      help='Dtype to store; of a published folder, for the target alone. '
                      'Default: as published.')
  parser.add_argument('--allow_nonfinite', action='store_true',
                      help='Convert weights that are NaN or infinite, too.')
  parser.add_argument('--debug', action='store_true', help='Print the traceback of an error.')
  return parser


def _options() -> dict[str, str]:
  """Returns the options of all families, each with a line of help."""
  texts: dict[str, str] = {}
  for family in rules.FAMILIES.values():
    for name, text in family.options.items():
      texts.setdefault(name, text)
  return texts


if __name__ == '__main__':
  sys.exit(main())
