"""The kinds of prompts that models support: classes, captions for T5, and tokens."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields, naming, programs, progress
from cspd_jax.files.store import Loaded
from cspd_jax.generation.parts import PromptKind
from cspd_jax.models import llamagen, t5
from cspd_jax.models.conditions import Prompt
from cspd_jax.models.llamagen import Caption
from cspd_jax.text import bpe, captions as captions_lib, templates
from cspd_jax.text.bpe import Text


def classes(num_classes: int, names: Sequence[str] = ()) -> PromptKind:
  """Returns the prompts of a class-conditional model: numbers, and names if there are some.

  Raises ValueError unless there are `num_classes` different names or none.
  """
  names = names or ()
  fields.require(not names or _is_list_of(str, names) and len(names) == num_classes,
                 'labels of the target', names, f'a list of {num_classes} names, or empty')
  names = [progress.unicode(name) for name in names]  # Files, pictures and answers hold them.
  number: dict[str, int] = {}
  for label, name in enumerate(names):
    if (first := number.setdefault(name.lower(), label)) != label:
      raise ValueError(f'labels of the target holds {names[first]!r} and {name!r}, for the classes '
                       f'{first} and {label}; names must differ by more than capital letters.')

  def label_of(prompt):
    if isinstance(prompt, (float, np.floating)):
      raise ValueError(f'prompts holds {prompt}, which is a float; it must be '
                       f'{_allowed(num_classes, names)}: convert floats with int.')
    label = prompt
    if isinstance(prompt, str):
      text = prompt.strip()
      label = number.get(text.lower(), int(text) if text.isdecimal() else None)
    if isinstance(label, bool) or not isinstance(label, (int, np.integer)) or not (
        0 <= label < num_classes):
      shown = prompt if isinstance(prompt, np.integer) else repr(prompt)
      near = naming.suggestion(str(prompt).lower(), number) if isinstance(prompt, str) else '.'
      raise ValueError(f'prompts holds {shown}; it must be {_allowed(num_classes, names)}{near}')
    return int(label)

  def encode(prompts):
    return jnp.asarray([label_of(prompt) for prompt in prompts], jnp.int32)

  def titles(prompts):
    labels = map(label_of, prompts)
    return [names[label] if names else f'class {label}' for label in labels]

  return PromptKind(encode, titles, tuple(names) or range(num_classes))


def _allowed(num_classes: int, names: Sequence[str]) -> str:
  numbers = f'a class from 0 to {num_classes - 1}'
  if not names:
    return numbers
  shown = ', '.join(names) if len(names) <= 20 else f'{", ".join(names[:5])} and others'
  return f'{numbers}, or one of {shown}'


def captions(caption_dim: int, encoder: Loaded | None, text: Text | None) -> PromptKind:
  """Returns the prompts of a text-conditional model: features `caption_dim` wide, or words.

  Words need a `t5` network and its tokenizer; one with tokens that the network does not have raises
  ValueError.
  """
  reader = None
  if encoder is not None and text is not None:
    bpe.check_vocabulary(text, encoder.config.vocab_size, 't5')
    reader = _reader(encoder, text)

  def encode(prompts):
    if isinstance(prompts, Caption):
      return prompts
    if getattr(prompts, 'ndim', None) == 3 or _is_list_of((np.ndarray, jax.Array), prompts):
      return llamagen.left_padded(prompts)
    if reader is None or not _is_list_of(str, prompts):
      raise ValueError(f'prompts is {str(prompts)[:80]!r}; {_words(encoder, text)}T5 features: an '
                       f'array [B, L, {caption_dim}], a list of arrays [L, {caption_dim}] with L '
                       f'up to {llamagen.CAPTION_LENGTH}, or a llamagen.Caption.')
    encoded = {prompt: reader(prompt) for prompt in dict.fromkeys(prompts)}
    return Caption(*map(np.stack, zip(*(encoded[prompt] for prompt in prompts))))

  def titles(prompts):
    if _is_list_of(str, prompts):
      return list(prompts)
    count = len(prompts.mask if isinstance(prompts, Caption) else prompts)
    return [f'caption {i}' for i in range(count)]

  def unknown_words(prompt):
    if text is None:
      return []
    return captions_lib.unknown_words(text, prompt, llamagen.CAPTION_LENGTH)

  return PromptKind(encode, titles, (), unknown_words)


def _reader(encoder: Loaded, text: Text) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
  """Returns a function that maps a prompt to features `[120, D]` and mask `[120]`, host arrays.

  Prompts are encoded one by one: one shape is compiled, and the features of a prompt do not depend
  on the other prompts of a batch.
  """
  length, sizes = llamagen.CAPTION_LENGTH, encoder.config

  @programs.jit
  def read(params, ids, count):
    visible = jnp.arange(length) < count
    features = t5.encode(params, sizes, ids[None], visible[None])[0]
    # The encoder pads on the right, the image model on the left.
    move = lambda x: jnp.roll(x, length - count, axis=0)
    return move(jnp.where(visible[:, None], features, 0)), move(visible)

  def encode(prompt):
    captions_lib.check(prompt)
    ids = captions_lib.tokens(text, prompt, length)
    row = np.zeros(length, np.int32)
    row[:len(ids)] = ids
    return jax.device_get(read(encoder.params, row, len(ids)))

  return encode


def _is_list_of(kind: Any, prompts: Any) -> bool:
  return isinstance(prompts, (list, tuple)) and all(isinstance(prompt, kind) for prompt in prompts)


def _words(encoder: Loaded | None, text: Text | None) -> str:
  """Returns whether the model accepts words, and how to load it so that it does."""
  missing = {role: command for role, command, part in (
      ('t5', '--family=t5', encoder), ('text', '--family=t5_text', text)) if part is None}
  if not missing:
    return 'this model accepts a list of prompts in words, or '
  parts = f'part{"s" * (len(missing) > 1)} {" and ".join(missing)}'
  return (f'this model does not accept words because it lacks the {parts}: convert Flan-T5-XL into '
          f'its folder with cspd-convert {" and ".join(missing.values())}, or load it with '
          f'{" and ".join(f"{role}=FOLDER" for role in missing)}. It accepts ')


def tokens(grid: tuple[int, int], text: Text | None, write: templates.Writer | None,
           renumbered: Callable[[Prompt], Prompt], examples: Sequence[str] = (),
           image_ids: Collection[int] = (), forms: Collection[str] = (), num_streams: int = 2
           ) -> PromptKind:
  """Returns the prompts that a model supports: words, if it has a text part, or a `Prompt`.

  In words the names of the template's own tokens and of image tokens are plain text.

  Args:
    grid: rows and columns of tokens.
    text: the tokenizer, or None.
    write: converts a prompt in words to the contexts of both streams; None without a tokenizer.
    renumbered: converts published token ids to the model's; raises ValueError for other ids.
    examples: prompts in words, from a file; ValueError if they are no list of texts.
    image_ids: published ids of the tokens of images.
    forms: the forms of tokenizer files that the model may have, for messages.
    num_streams: guidance streams of a prompt: with 2, the second one is the null condition.
  """
  fields.require(
      _is_list_of(str, examples), 'prompts of the target', examples, 'a list of texts')

  @functools.cache
  def words() -> Text:
    assert text is not None and write is not None
    own = bpe.looked_up(text, lambda text: write(text, 'words', *grid))
    return bpe.with_control(
        text, own.union(name for name, number in text.ids.items() if number in image_ids))

  def written(prompts):
    if text is None or write is None or not _is_list_of(str, prompts):
      streams = '(ids,)' if num_streams == 1 else '(ids, null_ids)'
      kinds = 'words, or ' if text else _no_words(forms)
      raise ValueError(f'prompts is {str(prompts)[:80]!r}; this model accepts {kinds}a '
                       'models.conditions.Prompt of published token ids, as '
                       f'text.templates.padded([{streams}, ...]) makes it of lists.')
    return templates.padded([write(words(), prompt, *grid) for prompt in prompts])

  def encode(prompts):
    prompts = prompts if isinstance(prompts, Prompt) else written(prompts)
    return jax.tree.map(jnp.asarray, renumbered(prompts))

  def titles(prompts):
    if isinstance(prompts, Prompt):
      return [f'prompt {i}' for i in range(np.shape(prompts.tokens)[0])]
    return [str(prompt) for prompt in prompts]

  def unknown_words(prompt):
    return [] if text is None else bpe.unknown_words(words(), prompt)

  return PromptKind(encode, titles, () if text is None else tuple(examples), unknown_words,
                    words=bpe.known_words(text) and bpe.known_words(words()))


def _no_words(forms: Collection[str]) -> str:
  """Says why a model without a text part accepts no words, and how it gets the part."""
  if not forms:
    return 'no words because it has no text part, only '
  files = ' or '.join(dict.fromkeys(map(bpe.file_name, forms)))
  families = ' or '.join(f'--family={form}_text' for form in forms)
  return (f'no words because it lacks the part text, a tokenizer file ({files}): add it with '
          f'cspd-convert {families} --source=FILE --output=FOLDER, where FOLDER is the model, or '
          'load it with text=FOLDER of such a part; without it, the model accepts only ')


def described(count: int) -> Any:
  """Returns shapes and dtypes of the condition of `count` images, sentences with 64 tokens each."""
  size = (count, 2, 64)
  return Prompt(jax.ShapeDtypeStruct(size, np.int32), jax.ShapeDtypeStruct(size, bool))
