"""Tokenizer files of Chameleon's relatives, T5, NextStep-1, Janus-Pro, SimpleAR and Liquid; Emu3's
for `tiktoken`."""

import functools
from collections.abc import Mapping

from checkpoints_conversion.rules import base, family
from cspd_jax.text import bpe


def rules(config: bpe.TextConfig) -> list[base.Rule]:
  """Returns the rule table, which checks the file and leaves it unchanged."""
  def checked(file):
    if config.form == 'emu3' and bytes(file[:1]) == b'{':
      raise family.ConversionError(
          "source is a tokenizer.json, as transformers' folders of Emu3 have it; Emu3's tokenizer "
          'is read from emu3.tiktoken, which BAAI/Emu3-Gen has.')
    bpe.read({'file': file}, config.form)
    return (file,)

  return [base.Rule('file', ('file',), base.Transform(checked, lambda x: x))]


def infer(form: str, shapes: family.Shapes, options: Mapping[str, int]) -> bpe.TextConfig:
  """Infers the size of a file.

  Raises:
    ConversionError: if the source is not a tokenizer file.
  """
  del options
  return bpe.TextConfig(form, family.shape(f'a tokenizer file for {form}', shapes, 'file', 1)[0])


def of_form(form: str, model: str) -> family.FileFamily:
  """Returns the family of tokenizer files of a form, a key of `bpe.FORMS`, in a model family."""
  return family.FileFamily(
      name=f'{form}_text', title=f'a tokenizer file for {form}', kind='text', rules=rules,
      infer=functools.partial(infer, form), presets={}, model=model)


LUMINA_MGPT, ANOLE, EMU3, SIMPLEAR, LIQUID = (
    of_form(form, 'early_fusion') for form in (
        'lumina_mgpt', 'anole', 'emu3', 'simplear', 'liquid'))
T5 = of_form('t5', 'llamagen')
NEXTSTEP = of_form('nextstep', 'nextstep')
JANUS_PRO = of_form('janus_pro', 'janus_pro')
