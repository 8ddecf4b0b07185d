"""GLM-Image: words to the tokens of a small and a large grid, from which diffusers draws pixels."""

import dataclasses
import functools

import numpy as np

from cspd_jax.families import decoder_only, prompt_kinds
from cspd_jax.families.family import Family, Parts, Published
from cspd_jax.files.store import Kind
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Handover
from cspd_jax.models import eagle, glm_image
from cspd_jax.text import bpe, templates

_ADVICE = ('python examples/decode_with_diffusers.py FILE.safetensors draws them with diffusers, '
           'where that and torch are installed')
# Names of control tokens.
_CONTROL = r'<\|.*\|>|<[se]op>|\[[gs]?MASK\]'


def build(parts: Parts) -> Model:
  """Builds a model of its networks; raises ValueError unless they belong together."""
  target = parts.loaded['target']
  config = target.config
  decoder_only.pair(parts, 'num_codes', (
      'height', 'width', 'small_side', 'num_codes', 'image_end', 'vocab_size'))
  text = parts.text(FAMILY.text_forms, config.vocab_size)
  write = parts.writer(FAMILY.prompt_writers)
  if text is not None and (start := bpe.id_of(text, templates.GLM_TOKENS[-1])) != config.num_codes:
    raise ValueError(f'text has {templates.GLM_TOKENS[-1]} as token {start}, but the target of '
                     f'{parts.name!r} has {config.num_codes} codes before it; use the tokenizer '
                     'file that belongs to it.')
  prompt_kind = prompt_kinds.tokens(
      (config.height, config.width), text,
      write and functools.partial(write, small=config.small),
      functools.partial(glm_image.renumbered, config), target.metadata.get('prompts', ()),
      range(config.num_codes), FAMILY.text_forms, num_streams=1)
  model = decoder_only.build(parts, FAMILY, glm_image.logits_and_features, prompt_kind, None)
  return dataclasses.replace(
      model, handover=Handover(functools.partial(_arrays, config), glm_image.CODE_PIXELS, _ADVICE,
                               first_cell=config.num_small))


def _arrays(config: glm_image.GlmImageConfig, tokens: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the tokens of images `[B, T]` by the names and shapes of diffusers' pipeline.

  `prior_token_ids` `[B, 4 H W]` are its argument, the large grid with every code in a square of two
  by two; both grids are there as they were drawn.
  """
  small, large = glm_image.grids(config, tokens.astype(np.int64))
  prior = large.repeat(2, axis=1).repeat(2, axis=2)
  return {'prior_token_ids': prior.reshape(len(tokens), -1), 'large_tokens': large,
          'small_tokens': small}


_TRANSFORMER = {'glm_image': decoder_only.kind(glm_image.GlmImageConfig, glm_image.init)}
FAMILY = Family(
    name='glm_image',
    roles={'target': _TRANSFORMER, 'text': {'text': Kind(bpe.TextConfig, bpe.init)},
           'draft': _TRANSFORMER, **decoder_only.DRAFTS},
    build=build, resize=decoder_only.resize,
    published=Published(glm_image.PRESETS,
                        lambda config: decoder_only.with_medusa(config, 'glm_image'),
                        lambda config, count: prompt_kinds.described(count)),
    text_forms={'glm_image': functools.partial(bpe.Vocabulary, control=_CONTROL)},
    prompt_writers={'glm_image': templates.glm_image},
    eagle_layers={'glm_image': eagle.Layer()})
