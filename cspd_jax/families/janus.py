"""Janus-Pro: words to images of 576 codes, with a head and a vocabulary of their own."""

import functools
from typing import Any

from cspd_jax.checkpoints.kinds import Kind
from cspd_jax.families import drafts, token_prompts
from cspd_jax.families.family import Family, Parts, Published, is_described
from cspd_jax.generation import engines
from cspd_jax.generation.model import Model, Tokenizer
from cspd_jax.metrics import frechet
from cspd_jax.models import eagle, janus, transformer, vq
from cspd_jax.text import bpe

_BEGIN, _PAD = '<｜begin▁of▁sentence｜>', '<｜▁pad▁｜>'
_IMAGE = '<begin_of_image>'


def _contexts(text: bpe.Text, words: list[int]) -> tuple[list[int], list[int]]:
  """Returns the two contexts of an image, from the published ids of its text.

  The second one is as long as the first, and padding takes the place of the words. It is read like
  any other token, as in the official program and in that of transformers.

  Args:
    text: the tokenizer.
    words: ids of everything between the first token and the last.

  Raises:
    ValueError: if the tokenizer is that of another model.
  """
  first, pad, last = (bpe.id_of(text, name) for name in (_BEGIN, _PAD, _IMAGE))
  return [first, *words, last], [first, *[pad] * len(words), last]


def write(text: bpe.Text, prompt: str, height: int, width: int) -> tuple[list[int], list[int]]:
  """Returns the two contexts of a prompt in the official template; see `_contexts`.

  Args:
    text: the tokenizer.
    prompt: description of the image.
    height: rows of codes, which the prompt does not mention.
    width: codes of a row, likewise.

  Raises:
    ValueError: see `_contexts`.
  """
  del height, width
  turns = [('<|User|>', f': {prompt.strip()}\n\n'), ('<|Assistant|>', ':')]
  ids: list[int] = []
  rest = ''
  for role, words in turns:
    if role in text.ids:  # The official tokenizer splits a text at its tokens for roles.
      ids += [*text.encode(rest), text.ids[role]]
      rest = words
    else:
      rest += role + words
  return _contexts(text, ids + text.encode(rest))


def plain(text: bpe.Text, prompt: str, height: int, width: int) -> tuple[list[int], list[int]]:
  """Returns the two contexts of the bare words, as transformers writes them without a template.

  Arguments and errors as for `write`.
  """
  del height, width
  return _contexts(text, text.encode(prompt))


def build(parts: Parts) -> Model:
  """Builds a Janus-Pro model from its networks.

  Raises:
    ValueError: if they do not belong together.
  """
  target = parts.loaded['target']
  config = target.config
  parts.pair('tokenizer', 'codebook_size', 'num_codes')
  for role in ('eagle', 'corrector'):
    for size in ('vocab_size', 'num_tokens', 'dim'):
      parts.pair(role, size)
    parts.pair(role, 'num_outputs', 'num_codes')
  parts.pair('neighbours', 'num_tokens')
  parts.pair('neighbours', 'row_width', 'width')
  parts.pair('neighbours', 'vocab_size', 'num_codes')
  for size in ('height', 'width', 'num_codes', 'text_size'):
    parts.pair('draft', size)
  layers = janus.first_layers(target.params, config, max(1, config.num_layers // 8))
  ends = janus.ends(config)
  text = parts.text(FAMILY.text_forms)
  return Model(
      name=parts.name, family=FAMILY.name, config=config, params=target.params,
      grid=(config.height, config.width), engine=engines.DISCRETE,
      target=lambda *, guided: janus.target(config, guided=guided),
      conditions=token_prompts.conditions(
          (config.height, config.width), text, parts.writer(FAMILY.prompt_writers),
          functools.partial(janus.renumbered, config), target.metadata.get('prompts', ())),
      tokenizer=_tokenizer(parts),
      drafts=drafts.discrete(
          parts, lambda config, guided: janus.target(config, guided=guided), layers, ends),
      forward=lambda params, condition, tokens, drop: janus.logits_and_features(
          params, config, condition, tokens, drop),
      ends=ends, eagle_layer=FAMILY.name, defaults=parts.defaults, metadata=target.metadata)


def _tokenizer(parts: Parts) -> Tokenizer | None:
  """Returns the image tokenizer, whose codes are the model's tokens."""
  loaded, config = parts.loaded.get('tokenizer'), parts.loaded['target'].config
  if loaded is None or is_described(loaded):
    return None
  sizes, grid = loaded.config, (-1, config.height, config.width)
  return Tokenizer(
      sizes, loaded.params,
      decode=lambda params, tokens: vq.decode(params, sizes, tokens.reshape(grid)),
      encode=lambda params, images: vq.encode(params, sizes, images).reshape(len(images), -1),
      codebook=lambda params: vq.codebook(params, sizes),
      features=lambda params, images: frechet.features(params, sizes, images))


def _networks(config: janus.JanusConfig) -> dict[str, tuple[str, Any]]:
  return drafts.published(eagle.EagleConfig(
      family='janus_pro', num_tokens=config.num_tokens, row_width=config.width, dim=config.dim,
      num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, ffn_dim=config.ffn_dim,
      vocab_size=config.vocab_size, rope_base=config.rope_base, norm_eps=config.norm_eps,
      num_outputs=config.num_codes))


_TRANSFORMER = {'janus': Kind(
    janus.JanusConfig, janus.init, transformer.SPLIT, transformer.MATRICES, transformer.ORDERS)}
FAMILY = Family(
    name='janus_pro',
    roles={'target': _TRANSFORMER, 'tokenizer': {'vq': Kind(vq.VQConfig, vq.init)},
           'text': {'text': Kind(bpe.TextConfig, bpe.init)}, 'draft': _TRANSFORMER,
           'eagle': drafts.EAGLE, 'neighbours': drafts.NEIGHBOURS, 'corrector': drafts.EAGLE},
    build=build,
    published=Published(janus.PRESETS, _networks,
                        lambda config, count: token_prompts.described(count)),
    text_forms={'janus_pro': bpe.Vocabulary},
    prompt_writers={'janus_pro': write, 'janus_pro_plain': plain},
    eagle_layers={'janus_pro': eagle.Layer()})
