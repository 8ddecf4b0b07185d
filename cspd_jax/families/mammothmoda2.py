"""MammothModa2: words to the tokens of an image, from which its diffusion program draws pixels."""

import dataclasses
import functools

import numpy as np

from cspd_jax.families import decoder_only, prompt_kinds
from cspd_jax.families.family import Family, Parts, Published
from cspd_jax.files.store import Kind
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Handover
from cspd_jax.models import eagle, early_fusion, mammothmoda2
from cspd_jax.text import bpe, templates

_ADVICE = ('the program of bytedance/mammothmoda draws them from image_ids, as '
           'docs/families/mammothmoda2.md shows')


def build(parts: Parts) -> Model:
  """Builds a model of its networks; raises ValueError unless they belong together."""
  target = parts.loaded['target']
  config = target.config
  decoder_only.pair(parts, 'num_codes', (
      'height', 'width', 'num_codes', 'first_code', 'row_end', 'text_size', 'vocab_size'))
  text = parts.text(FAMILY.text_forms, config.vocab_size)
  if text is not None:
    templates.check_codes(text, '<|visual token {:06d}|>', 'mammothu.tiktoken', config.first_code,
                          config.num_codes)
  prompt_kind = prompt_kinds.tokens(
      (config.height, config.width), text, parts.writer(FAMILY.prompt_writers),
      functools.partial(early_fusion.renumbered, config), target.metadata.get('prompts', ()),
      range(config.text_size, config.vocab_size), FORMS[:1])
  model = decoder_only.build(parts, FAMILY, early_fusion.logits_and_features, prompt_kind, None)
  # The published ids of images `[B, T]`, which follow the ids of the prompt.
  return dataclasses.replace(model, handover=Handover(
      lambda tokens: {'image_ids': early_fusion.order(config)[tokens].astype(np.int64)},
      mammothmoda2.CODE_PIXELS, _ADVICE))


# Formats of the tokenizer file, by what is known of the sides of a grid in prompts.
FORMS = 'mammothmoda2', 'mammothmoda2_columns_first', 'mammothmoda2_rows_first'
_SIDES = None, '{width}*{height}', '{height}*{width}'
_TRANSFORMER = {'mammothmoda2': decoder_only.kind(mammothmoda2.MammothConfig, early_fusion.init)}
FAMILY = Family(
    name='mammothmoda2',
    roles={'target': _TRANSFORMER, 'text': {'text': Kind(bpe.TextConfig, bpe.init)},
           'draft': _TRANSFORMER, **decoder_only.DRAFTS},
    build=build, resize=decoder_only.resize,
    published=Published(mammothmoda2.PRESETS,
                        lambda config: decoder_only.with_medusa(config, 'mammothmoda2'),
                        lambda config, count: prompt_kinds.described(count)),
    text_forms=dict.fromkeys(FORMS, bpe.mammoth_ranks),
    prompt_writers={form: functools.partial(templates.mammothmoda2, sides=sides)
                    for form, sides in zip(FORMS, _SIDES, strict=True)},
    eagle_layers={'mammothmoda2': eagle.Layer()})
