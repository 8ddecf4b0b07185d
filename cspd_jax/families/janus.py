"""Janus-Pro: words to images of 576 codes, with a head and a vocabulary of their own."""

import functools

from cspd_jax.families import decoder_only, prompt_kinds
from cspd_jax.families.decoder_only import EAGLE, LOCAL, NEIGHBOURS
from cspd_jax.families.family import Family, Parts, Published
from cspd_jax.files.store import Kind
from cspd_jax.generation.model import Model
from cspd_jax.models import eagle, janus, vq
from cspd_jax.text import bpe, templates

# Names of control tokens.
_CONTROL = r'<[|｜].*[|｜]>|<(begin|end)_of_image>|<(image|patch)_placeholder>'


def build(parts: Parts) -> Model:
  """Builds a Janus-Pro model of its networks; raises ValueError unless they belong together."""
  target = parts.loaded['target']
  config = target.config
  decoder_only.pair(parts, 'num_codes', ('height', 'width', 'num_codes', 'text_size'))
  prompt_kind = prompt_kinds.tokens(
      (config.height, config.width), parts.text(FAMILY.text_forms, config.text_size),
      parts.writer(FAMILY.prompt_writers), functools.partial(janus.renumbered, config),
      target.metadata.get('prompts', ()), forms=FAMILY.text_forms)
  return decoder_only.build(
      parts, FAMILY, janus.logits_and_features, prompt_kind,
      decoder_only.image_tokenizer(parts.loaded.get('tokenizer'), config))


_TRANSFORMER = {'janus': decoder_only.kind(janus.JanusConfig, janus.init)}
FAMILY = Family(
    name='janus_pro',
    roles={'target': _TRANSFORMER, 'tokenizer': {'vq': Kind(vq.VQConfig, vq.init)},
           'text': {'text': Kind(bpe.TextConfig, bpe.init)}, 'draft': _TRANSFORMER,
           'eagle': EAGLE, 'neighbours': NEIGHBOURS, 'local': LOCAL, 'corrector': EAGLE},
    build=build,
    published=Published(janus.PRESETS,
                        lambda config: decoder_only.published(config, 'janus_pro'),
                        lambda config, count: prompt_kinds.described(count)),
    text_forms={'janus_pro': functools.partial(bpe.Vocabulary, control=_CONTROL)},
    prompt_writers={'janus_pro': templates.janus_pro, 'janus_pro_plain': templates.janus_pro_plain},
    eagle_layers={'janus_pro': eagle.Layer()})
