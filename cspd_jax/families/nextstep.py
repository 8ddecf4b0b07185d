"""NextStep-1 and 1.1: text to images of continuous tokens, causal, with a flow head."""

import functools

import numpy as np

from cspd_jax.continuous import specification
from cspd_jax.families import continuous, decoder_only, prompt_kinds
from cspd_jax.families.family import Family, Parts, Published
from cspd_jax.files.store import Kind
from cspd_jax.generation.model import Model
from cspd_jax.models import kl_vae, nextstep
from cspd_jax.models.conditions import renumbered
from cspd_jax.text import bpe, templates


def build(parts: Parts) -> Model:
  """Builds a NextStep-1 model of its networks; raises ValueError unless they belong together."""
  target = parts.loaded['target']
  config = target.config
  prompt_kind = prompt_kinds.tokens(
      (config.height, config.width), parts.text(FAMILY.text_forms, config.vocab_size),
      parts.writer(FAMILY.prompt_writers),
      functools.partial(renumbered, token_of_id=np.arange(config.vocab_size)),
      target.metadata.get('prompts', ()), forms=FAMILY.text_forms)
  return continuous.build(parts, FAMILY, nextstep, prompt_kind)


FAMILY = Family(
    name='nextstep',
    roles={'target': {'nextstep': decoder_only.kind(nextstep.NextStepConfig, nextstep.init)},
           'tokenizer': {'kl_vae': Kind(kl_vae.KLVAEConfig, kl_vae.init)},
           'text': {'text': Kind(bpe.TextConfig, bpe.init)}},
    build=build, resize=decoder_only.resize, table=specification.TABLE,
    published=Published(nextstep.PRESETS,
                        condition=lambda config, count: prompt_kinds.described(count)),
    # Names of control tokens.
    text_forms={'nextstep': functools.partial(bpe.Vocabulary, control=r'<\|.*\|>|\[PAD\]')},
    prompt_writers={name: getattr(templates, name) for name in (
        'nextstep', 'nextstep_1_1', 'plain')})
