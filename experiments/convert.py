"""Converts published PyTorch or safetensors weights to a checkpoint folder.

    python -m experiments.convert --family=llamagen --model=c2i_b_256 \\
        --source=c2i_B_256.pt --output=checkpoints/c2i_b_256

Without --model the sizes are taken from the shapes in the file, and --image_size
(and --num_heads, for a size that was not published) say what shapes cannot.
A drafter is compared with its target, if --target names its checkpoint.
Anything wrong with the input ends with one message and exit code 2.
"""

import sys

from absl import app
from absl import flags
from absl import logging

from checkpoints_conversion import convert
from cspd_jax.core import checkpoint
from experiments import config_flags

_FAMILY = flags.DEFINE_string(
    'family', None, f'Architecture of the file: {", ".join(sorted(convert.FAMILIES))}.')
_MODEL = flags.DEFINE_string(
    'model', None, 'Published model: ' + '; '.join(
        f'{name}: {", ".join(family.presets)}' for name, family in convert.FAMILIES.items()) +
    '. Default: infer the sizes from the file.')
_SOURCE = flags.DEFINE_string(
    'source', None,
    'The file to convert: .safetensors (or a folder of them), .pt, .pth, .ckpt or .bin.')
_OUTPUT = flags.DEFINE_string('output', None, 'The checkpoint folder to write.')
_IMAGE_SIZE = flags.DEFINE_integer(
    'image_size', None, 'Side of the images in pixels, for llamagen and drafters without --model.')
_NUM_HEADS = flags.DEFINE_integer(
    'num_heads', None, 'Attention heads, for llamagen and mar sizes that were not published.')
_TARGET = flags.DEFINE_string(
    'target', None, 'Checkpoint of the model that a drafter is for: says which of its tables the '
    "drafter's own token embedding equals.")
_KEY = flags.DEFINE_string(
    'key', None, "Part of a .pt file that holds the weights, such as 'ema'. Default: 'model_ema' "
    "for mar; the first of 'model', 'module' and 'state_dict', or the file itself.")
_DTYPE = flags.DEFINE_enum(
    'dtype', None, ['float32', 'bfloat16'], 'What to store. Default: as published.')


def main(argv: list[str]) -> int:
  logging.set_verbosity(logging.WARNING)  # Orbax reports every step of a save.
  try:
    if len(argv) > 1:
      raise ValueError(f'{" ".join(argv[1:])!r} is not a flag; inputs are flags, see --help.')
    needed = {'family': _FAMILY, 'source': _SOURCE, 'output': _OUTPUT}
    if missing := [f'--{name}' for name, flag in needed.items() if not flag.value]:
      raise ValueError(f'{", ".join(missing)} must be given; see --help.')
    if _TARGET.value and not _FAMILY.value.startswith('eagle'):
      raise ValueError(f'--target is for drafters; --family is {_FAMILY.value!r}.')
    target = checkpoint.load(_TARGET.value) if _TARGET.value else None
    config = convert.convert_file(
        _FAMILY.value, _SOURCE.value, _OUTPUT.value, model=_MODEL.value, key=_KEY.value,
        dtype=_DTYPE.value,
        options={'image_size': _IMAGE_SIZE.value, 'num_heads': _NUM_HEADS.value})
    print(f'{_OUTPUT.value}: {config}')
    if target:
      _print_embedding(checkpoint.load(_OUTPUT.value), target)
  except (ValueError, OSError) as error:
    print(f'convert: {error}', file=sys.stderr)
    return 2
  return 0


def _print_embedding(drafter: checkpoint.Loaded, target: checkpoint.Loaded) -> None:
  """Prints how far the drafter's token embedding is from each table of its target."""
  for name, difference in convert.compare_embedding(drafter.params, target.params).items():
    verdict = 'equals' if difference < 0.004 else 'is not'
    print(f"token embedding {verdict} the target's {name} (largest difference {difference:.2g} of "
          'the largest number)')


if __name__ == '__main__':
  app.run(main, flags_parser=config_flags.parse)
