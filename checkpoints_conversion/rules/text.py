"""Tokenizer files of the `tokenizers` library, as Chameleon and its kin have them."""

import functools
from collections.abc import Mapping

from checkpoints_conversion.rules import base, family
from cspd_jax.text import bpe


def rules(config: bpe.TextConfig) -> list[base.Rule]:
  """Returns the rule table: the file is kept, if it can be read."""
  del config
  return [base.Rule('file', ('file',), base.Transform(_checked, lambda x: x))]


def _checked(file):
  bpe.Text({'file': file})
  return (file,)


def infer(form: str, shapes: family.Shapes, options: Mapping[str, int]) -> bpe.TextConfig:
  """The size of a file.

  Raises:
    ConversionError: if it is none.
  """
  del options
  return bpe.TextConfig(form, family.shape(f'a tokenizer file for {form}', shapes, 'file', 1)[0])


LUMINA_MGPT, ANOLE = (
    family.FileFamily(
        name=f'{form}_text', what=f'a tokenizer file for {form}', kind='text', rules=rules,
        infer=functools.partial(infer, form), presets={}, model='unified')
    for form in bpe.FORMS)
