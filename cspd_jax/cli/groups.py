"""Groups of fields that configurations share. None leaves an option to the model."""

import dataclasses
from typing import Literal

from cspd_jax.core import fields
from cspd_jax.core.sampling import SamplingFlags as SamplingFlags
from cspd_jax.files import store

MOST_IMAGES = 10**6  # Lists of more need gigabytes before the first image is generated.


@dataclasses.dataclass(frozen=True)
class ModelFlags:
  """A model with its own networks, and how it is loaded.

  Attributes:
    model: a shipped model, or a folder that cspd-convert wrote.
    dtype: dtype of the parameters; None keeps the files' dtype. In less than 32 bits windows of
      other lengths round differently, so that seed-exact decoders may differ from vanilla.
    quantize: int8 stores the matrices of the target's layers as int8.
    cache_dtype: int8 stores the target's keys and values as int8.
    mesh: several devices, such as 2x4: two groups, which each decode images of their own with
      four devices that the model is sharded over. None uses one device.
    allow_nonfinite: loads parameters that are NaN or infinite, too.
  """

  model: str = store.DEFAULT
  dtype: Literal['float32', 'bfloat16'] | None = None
  quantize: Literal['int8'] | None = None
  cache_dtype: Literal['int8'] | None = None
  mesh: str | None = None
  allow_nonfinite: bool = False

  def __post_init__(self):
    fields.check(self)


@dataclasses.dataclass(frozen=True)
class LoadFlags(ModelFlags):
  """The model, and how it is loaded.

  Attributes:
    parts: networks in place of the model's own, by their roles, separated by commas, such as
      eagle=runs/eagle,tokenizer=checkpoints/vq, with the roles of `cspd_jax.load`.
    grid: rows and columns of tokens, such as 48x32, of a model that generates images of several
      sizes; None uses the model's own.
  """

  parts: tuple[str, ...] | None = None
  grid: str | None = None


@dataclasses.dataclass(frozen=True)
class Images:
  """Which images to generate.

  Attributes:
    prompt: a prompt, used as it is, or names or numbers of classes separated by commas; may be
      repeated. None uses the model's own prompts.
    prompts: a file with one prompt per line, or a .jsonl file with an object per line whose
      `prompt` is text, in place of `prompt`.
    num_images: number of images; prompts are repeated in turn. None generates one image per prompt
      or seed.
    seed: one seed, of which image `i` has the key `i` whatever the decoder and the batch size; or
      one seed per image, separated by commas. The same decoder draws the same image from a key.
  """

  prompt: str | tuple[str, ...] | None = None
  prompts: str | None = None
  num_images: int | None = None
  seed: int | tuple[int, ...] = 0

  def __post_init__(self):
    fields.check(self, num_images=(1, MOST_IMAGES), seed=fields.SEEDS)
