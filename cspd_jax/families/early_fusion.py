"""Early-fusion models, one vocabulary for text and images.

These are Lumina-mGPT and its version 2.0, Anole, Emu3, Emu3.5, SimpleAR and Liquid.
"""

import functools

import jax.numpy as jnp
import numpy as np

from cspd_jax.families import decoder_only, prompt_kinds
from cspd_jax.families.family import Family, Parts, Published, is_described
from cspd_jax.files.store import Kind, Loaded
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import ImageTokenizer
from cspd_jax.models import cosmos, eagle, early_fusion, vq
from cspd_jax.text import bpe, templates

# A coordinate far from all vectors of a codebook.
_FAR = 1e4
# Formats of tokenizer files that map image tokens to codes.
_CODE_MAPS = ('lumina_mgpt', 'anole')
# Formats of tokenizer files of models whose codes follow the tokens of text.
_CODES_FOLLOW = ('simplear', 'liquid')


def build(parts: Parts) -> Model:
  """Builds an early-fusion model of its networks; raises ValueError unless they belong together."""
  target = parts.loaded['target']
  config = target.config
  decoder_only.pair(parts, 'num_codes', (
      'height', 'width', 'num_codes', 'row_end', 'ends_last_row', 'image_ends', 'vocab_size'))
  text = _text(parts)
  write = None if text is None else parts.writer(FAMILY.prompt_writers)
  prompt_kind = prompt_kinds.tokens(
      (config.height, config.width), text, write,
      functools.partial(early_fusion.renumbered, config), target.metadata.get('prompts', ()),
      set(early_fusion.order(config)[:config.num_image_tokens].tolist()), _text_forms(target))
  return decoder_only.build(
      parts, FAMILY, early_fusion.logits_and_features, prompt_kind, _tokenizer(parts, text))


def _text(parts: Parts) -> bpe.Text | None:
  """Returns the text tokenizer; raises ValueError if it is not the target's."""
  config = parts.loaded['target'].config
  form = parts.loaded['text'].config.form if 'text' in parts.loaded else None
  # The first code of some models is the number of its tokens; others name the tokens of images.
  follow = form in _CODES_FOLLOW
  text = parts.text(_text_forms(parts.loaded['target']),
                    config.first_code if follow else config.vocab_size, codes_follow=follow)
  if text is not None and form in _CODE_MAPS:
    templates.code_map(text, config.first_code, config.num_codes)
  return text


def _text_forms(target: Loaded) -> tuple[str, ...]:
  """Returns the formats of tokenizer files that a target may have."""
  # A converted target has its own file's: templates and ids of others differ.
  forms, family = tuple(FAMILY.text_forms), target.metadata.get('family')
  return (family,) if family in forms else forms


def _tokenizer(parts: Parts, text: bpe.Text | None) -> ImageTokenizer | None:
  """Returns the image tokenizer; models with `named_codes` need the text, and else ValueError."""
  loaded, config = parts.loaded.get('tokenizer'), parts.loaded['target'].config
  if loaded is None or is_described(loaded):
    return None
  code = np.arange(config.num_codes)
  if loaded.kind == 'vq' and config.named_codes and not (
      loaded.config.spatial_norm or loaded.config.by_product):
    if text is None:
      forms = [form for form in _text_forms(parts.loaded['target']) if form in _CODE_MAPS]
      options = ' or '.join(f'--family={form}_text' for form in forms or _CODE_MAPS)
      raise ValueError(f'model {parts.name!r} has an image tokenizer but no text part, whose file '
                       'maps image tokens to codes; convert it into the same folder with '
                       f'cspd-convert {options}, pass text=FOLDER, or load with tokenizer=None.')
    code = templates.code_map(text, config.first_code, config.num_codes)
  token = np.argsort(code)
  return decoder_only.image_tokenizer(
      loaded, config,
      to_codes=lambda tokens: jnp.asarray(code)[early_fusion.codes(config, tokens)],
      to_tokens=lambda codes: early_fusion.with_grammar(config, jnp.asarray(token)[codes]),
      # Grammar tokens must be far from all others.
      of_tokens=lambda vectors: jnp.pad(
          vectors[code], ((0, len(config.ends)), (0, 0)), constant_values=_FAR))


# Names of control tokens, by the form of the tokenizer file.
_CHAMELEON = (r'</?s>|<pad>|<unk>|<image>|<eoss>|<racm3:break>|<reserved\d+>|IMGIMG[A-J]+Z|'
              r'<\|.*\|>')
_CONTROL = {'lumina_mgpt': _CHAMELEON, 'lumina_mgpt_2': _CHAMELEON, 'anole': _CHAMELEON,
            'simplear': r'<\|.*\|>',
            'liquid': r'<(pad|eos|bos|unk|mask|boi|eoi|unconditional|unused\d+|\w+_of_turn)>'}
_TRANSFORMER = {'early_fusion': decoder_only.kind(
    early_fusion.EarlyFusionConfig, early_fusion.init)}
FAMILY = Family(
    name='early_fusion',
    roles={'target': _TRANSFORMER,
           'tokenizer': {'vq': Kind(vq.VQConfig, vq.init),
                         'cosmos': Kind(cosmos.CosmosConfig, vq.init)},
           'text': {'text': Kind(bpe.TextConfig, bpe.init)}, 'draft': _TRANSFORMER,
           **decoder_only.DRAFTS},
    build=build, resize=decoder_only.resize,
    published=Published(early_fusion.PRESETS,
                        lambda config: decoder_only.with_medusa(config, 'chameleon'),
                        lambda config, count: prompt_kinds.described(count)),
    text_forms={'emu3': bpe.emu3_ranks, 'emu3_5': bpe.emu3_ranks,
                **{name: functools.partial(bpe.Vocabulary, control=names)
                   for name, names in _CONTROL.items()}},
    prompt_writers={name: getattr(templates, name) for name in (
        'lumina_mgpt', 'lumina_mgpt_sjd', 'lumina_mgpt_2', 'anole', 'emu3', 'emu3_5', 'simplear',
        'liquid')},
    # As LANTERN publishes them for Anole and Lumina-mGPT (arXiv 2410.03355).
    eagle_layers={'chameleon': eagle.Layer(attention_norm=True, qk_norm=True)})
