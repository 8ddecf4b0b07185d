"""Converts published PyTorch or safetensors weights to a model folder.

    cspd-convert --family=llamagen --source=c2i_XL_384.pt --model=c2i_xl_384 \\
        --output=checkpoints/c2i_xl_384
    cspd-convert --family=llamagen_vq --source=vq_ds16_c2i.pt --output=checkpoints/c2i_xl_384

The networks of a model go into one folder, one after the other: what generates (the
target), its image tokenizer, what drafts for it. `cspd_jax.load` opens the folder. A
published folder, or the id of one on the Hugging Face Hub, is converted with all the
networks that are found in it. A command that was stopped goes on when it is repeated.
Without --model the sizes are taken from the shapes in the file, and other options say
what shapes cannot. Anything wrong with the input ends with one message and exit code 2.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from absl import logging

from checkpoints_conversion import folder, rules
from cspd_jax.checkpoints import paths, store
from cspd_jax.core import exits, fields, progress


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command.

  Args:
    argv: its arguments; None takes those of the process.

  Returns:
    The exit code: 0, 2 after a message about the input, or 130 if it was interrupted.
  """
  logging.set_verbosity(logging.WARNING)  # Orbax reports every step of a save.
  return exits.code_of(lambda: _convert(_parser().parse_args(argv)))


def _convert(arguments: argparse.Namespace) -> None:
  """Converts what the command line asks for."""
  needed = ('family', 'source', 'output')
  if missing := [f'--{name}' for name in needed if not getattr(arguments, name)]:
    raise ValueError(f'{", ".join(missing)} must be given; see --help.')
  paths.find('source', arguments.source)
  paths.folder('output', arguments.output)
  family = rules.get(arguments.family)
  if arguments.target and family.compare is None:
    raise ValueError(f'--target is for drafters; --family is {family.name!r}.')
  target = store.load(arguments.target) if arguments.target else None
  whole = (folder.find_model(family.name, arguments.source, arguments.model)
           if arguments.role is None else folder.Whole({}, {}))
  asked = folder.Part(
      family.name, arguments.source, arguments.role, arguments.sampling, arguments.dtype,
      dict(model=arguments.model, key=arguments.key,
           options={name: getattr(arguments, name) for name in _options()}))
  # Options are for the target alone.
  parts = [asked._replace(source=source) if name == family.name else folder.Part(name, source)
           for name, source in whole.found.items()] or [asked]
  converted = folder.convert_parts(
      parts, arguments.output, allow_nonfinite=arguments.allow_nonfinite,
      progress=lambda name: progress.bar(f'converting {name}', 'part'))
  for place, config in converted:
    print(f'{place}: {config}')
  for name, missed in whole.missing.items():
    print(f'{arguments.source} has no {missed[0]}, {rules.get(name).what}; add it with '
          f'cspd-convert --family={name} --source=FILE --output={arguments.output}')
  if target and family.compare:
    print('\n'.join(family.compare(store.load(converted[-1][0]).params, target.params)))


class _Parser(argparse.ArgumentParser):
  """A parser whose mistakes are one sentence."""

  def error(self, message: str) -> NoReturn:
    raise ValueError(f'{message}; see --help.')


def _parser() -> argparse.ArgumentParser:
  families = rules.FAMILIES.values()
  published = '; '.join(f'{one.name}: {", ".join(one.presets)}' for one in families if one.presets)
  preferred = ''.join(
      f'{one.prefer!r} for {one.name}; ' for one in families if one.prefer is not None)
  parser = _Parser(
      prog='cspd-convert', description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--family', help=f'What the file holds: {", ".join(rules.FAMILIES)}.')
  parser.add_argument('--model', help=f'Published model. Default: the sizes are inferred. '
                      f'{published}.')
  parser.add_argument('--source', help='The file to convert: .safetensors (or a folder of them), '
                      '.pt, .pth, .ckpt or .bin. Or a published folder, or an id of the Hugging '
                      'Face Hub such as BAAI/Emu3-Gen.')
  parser.add_argument('--output', help='Folder of the model: a new one, or one to add to.')
  parser.add_argument('--role', help="What the network is to the model, such as 'draft'. Default: "
                      "the first that suits it: 'target', 'tokenizer', 'eagle'.")
  parser.add_argument('--sampling', help="Official sampling options to store as the model's "
                      "defaults: 'pictures' (default), or 'fid' where they were published.")
  for name, text in _options().items():
    parser.add_argument(f'--{name}', type=fields.int64, help=f'{text} Only without --model.')
  parser.add_argument('--target', help='Folder of the converted target of an EAGLE drafter: says '
                      "which of its tables the drafter's own token embedding equals.")
  parser.add_argument('--key', help="Part of a .pt file that holds the weights, such as 'ema'. "
                      f"Default: {preferred}the first of 'model', 'module' and 'state_dict', or "
                      'the file itself.')
  parser.add_argument('--dtype', choices=['float32', 'bfloat16'],
                      help='What to store; of a published folder, for the target alone. '
                      'Default: as published.')
  parser.add_argument('--allow_nonfinite', action='store_true',
                      help='Convert weights that are NaN or infinite, too.')
  return parser


def _options() -> dict[str, str]:
  """What any family can be told beside the shapes, with a line of help."""
  texts: dict[str, str] = {}
  for family in rules.FAMILIES.values():
    for name, text in family.options.items():
      texts.setdefault(name, text)
  return texts


if __name__ == '__main__':
  sys.exit(main())
