"""Janus-Pro: words to images of 576 codes, with a head and a vocabulary of their own."""

import functools

from cspd_jax.checkpoints.kinds import Kind
from cspd_jax.families import decoder_only, drafts, token_prompts
from cspd_jax.families.family import Family, Parts, Published
from cspd_jax.generation.model import Model
from cspd_jax.models import eagle, janus, transformer, vq
from cspd_jax.text import bpe

_BEGIN, _PAD = '<｜begin▁of▁sentence｜>', '<｜▁pad▁｜>'
_IMAGE = '<begin_of_image>'
# Names of control tokens.
_CONTROL = r'<[|｜].*[|｜]>|<(begin|end)_of_image>|<(image|patch)_placeholder>'


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
  decoder_only.pair_prompted(parts, ('height', 'width', 'num_codes', 'text_size'))
  conditions = token_prompts.conditions(
      (config.height, config.width), parts.text(FAMILY.text_forms, config.text_size),
      parts.writer(FAMILY.prompt_writers), functools.partial(janus.renumbered, config),
      target.metadata.get('prompts', ()))
  return decoder_only.build(
      parts, FAMILY, janus.logits_and_features, conditions,
      decoder_only.vq_tokenizer(parts.loaded.get('tokenizer'), config))


_TRANSFORMER = {'janus': Kind(
    janus.JanusConfig, janus.init, transformer.SPLIT, transformer.MATRICES, transformer.ORDERS)}
FAMILY = Family(
    name='janus_pro',
    roles={'target': _TRANSFORMER, 'tokenizer': {'vq': Kind(vq.VQConfig, vq.init)},
           'text': {'text': Kind(bpe.TextConfig, bpe.init)}, 'draft': _TRANSFORMER,
           'eagle': drafts.EAGLE, 'neighbours': drafts.NEIGHBOURS, 'corrector': drafts.EAGLE},
    build=build,
    published=Published(janus.PRESETS,
                        lambda config: decoder_only.published_prompted(config, 'janus_pro'),
                        lambda config, count: token_prompts.described(count)),
    text_forms={'janus_pro': functools.partial(bpe.Vocabulary, control=_CONTROL)},
    prompt_writers={'janus_pro': write, 'janus_pro_plain': plain},
    eagle_layers={'janus_pro': eagle.Layer()})
