"""Blocks that convolutional image tokenizers are built from."""

from checkpoints_conversion.rules import base, family


def residual(source: str, destination: str) -> list[base.Rule]:
  """Rules of a residual block of two convolutions, with or without a shortcut."""
  rules = []
  for number in (1, 2):
    rules += base.norm(f'{source}.norm{number}', f'{destination}/norm_{number}')
    rules += base.layer(f'{source}.conv{number}', f'{destination}/conv_{number}', base.CONVOLUTION)
  return rules + base.layer(f'{source}.nin_shortcut', f'{destination}/shortcut', base.POINTWISE)


def attention(source: str, destination: str) -> list[base.Rule]:
  """Rules of attention over all positions, with one head."""
  rules = base.norm(f'{source}.norm', f'{destination}/norm')
  for theirs, ours in (('q', 'query'), ('k', 'key'), ('v', 'value'), ('proj_out', 'out')):
    rules += base.layer(f'{source}.{theirs}', f'{destination}/{ours}', base.POINTWISE)
  return rules


def refuse_narrow(widths: list[int]) -> None:
  """Refuses tokenizers that the networks here would run differently.

  Args:
    widths: channels of every level.

  Raises:
    ConversionError: if a level is too narrow.
  """
  if min(widths, default=0) < 128:
    # The published architectures normalise in 32 groups whatever the width is.
    raise family.ConversionError(
        f'The levels of the tokenizer are {widths} channels wide; below 128 channels its '
        'normalisation groups differ from those of cspd_jax, and it cannot be converted.')
