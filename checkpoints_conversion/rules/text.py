"""Tokenizer files of the models of text and images, and of T5; those of Emu3 are for `tiktoken`."""

import functools
from collections.abc import Collection, Mapping
from typing import Any

from checkpoints_conversion.rules import base, family, settings
from cspd_jax.text import bpe

# Where the tokenizer file for `tiktoken` is published, by the form.
_RANKS = {'emu3': 'BAAI/Emu3-Gen', 'emu3_5': 'src/tokenizer_emu3_ibq of the official program'}
# Settings of transformers next to a tokenizer.json, and the default of Qwen's class.
_SETTINGS, _QWEN_END = 'tokenizer_config.json', '<|endoftext|>'


def rules(config: bpe.TextConfig) -> list[base.Rule]:
  """Returns the rule table, which checks the file and leaves it unchanged."""
  def checked(file):
    if config.form in _RANKS and bytes(file[:1]) == b'{':
      raise family.ConversionError(
          "source is a tokenizer.json, as transformers' folders of Emu3 have it; Emu3's tokenizer "
          f'is read from emu3.tiktoken, which {_RANKS[config.form]} has.')
    text = bpe.read({'file': file}, config.form)
    if config.first_token is not None:
      bpe.id_of(text, config.first_token)
    return (file,)

  return [base.Rule('file', ('file',), base.Transform(checked, lambda x: x))]


def infer(form: str, shapes: family.Shapes, options: Mapping[str, Any]) -> bpe.TextConfig:
  """Infers the size of a tokenizer file."""
  return bpe.TextConfig(form, family.shape(f'a tokenizer file for {form}', shapes, 'file', 1)[0],
                        options.get('first_token'))


def of_form(form: str, model: str) -> family.FileFamily:
  """Returns the family of tokenizer files of a form, a key of `bpe.FORMS`, in a model family."""
  return family.FileFamily(
      name=f'{form}_text', title=f'a tokenizer file for {form}', kind='text', rules=rules,
      infer=functools.partial(infer, form), presets={}, model=model)


def _first_token(contents: settings.Contents) -> dict[str, str]:
  """Reads the first token of prompts as Lumina-mGPT 2.0's program does.

  It is the tokenizer's token for the beginning of a text or, without one, that for the end.
  """
  if _SETTINGS not in contents:
    return {}
  names = (contents[_SETTINGS].get(field) for field in ('bos_token', 'eos_token'))
  name: Any = next((name for name in names if name is not None), _QWEN_END)
  name = name.get('content') if isinstance(name, Mapping) else name
  if not isinstance(name, str):
    settings.refuse([f'{_SETTINGS}: bos_token or eos_token is {name!r:.80}; it must be the name of '
                     'a token'])
  return {'first_token': name}


def _assumed(config: bpe.TextConfig, specified: Collection[str]) -> list[str]:
  del config
  if 'first_token' in specified:
    return []
  return [f"assumed prompts that begin with {_QWEN_END}; the model's {_SETTINGS} next to the "
          'tokenizer.json specifies another token']


LUMINA_MGPT, ANOLE, EMU3, EMU3_5, SIMPLEAR, LIQUID = (
    of_form(form, 'early_fusion') for form in (
        'lumina_mgpt', 'anole', 'emu3', 'emu3_5', 'simplear', 'liquid'))
LUMINA_MGPT_2 = of_form('lumina_mgpt_2', 'early_fusion')._replace(
    settings=_first_token, assumed=_assumed)
T5 = of_form('t5', 'llamagen')
NEXTSTEP = of_form('nextstep', 'nextstep')
JANUS_PRO = of_form('janus_pro', 'janus_pro')
