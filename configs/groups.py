"""Groups of fields that configurations share. What is None is left to the model."""

import dataclasses

from cspd_jax.core import fields

# What is listed of more images than these takes gigabytes before the first of them.
MOST_IMAGES = 10**6
_WHOLE = (-2**31, 2**31 - 1)


@dataclasses.dataclass(frozen=True)
class Parts:
  """Networks that take the place of the model's own.

  Attributes:
    tokenizer: folder of an image tokenizer.
    draft: folder of a draft model.
    eagle: folder of an EAGLE network.
    medusa: folder of Medusa heads.
    neighbours: folder of a neighbours corrector.
    corrector: folder of a network that is trained to correct.
  """

  tokenizer: str | None = None
  draft: str | None = None
  eagle: str | None = None
  medusa: str | None = None
  neighbours: str | None = None
  corrector: str | None = None

  def __post_init__(self):
    fields.check(self)


@dataclasses.dataclass(frozen=True)
class Images:
  """Which images.

  Attributes:
    prompt: what they show: a prompt, or names or numbers of classes with commas between; all that
      the model knows if none.
    prompts: a file with one prompt per line, in place of `prompt`.
    num_images: how many; the prompts take turns. None makes one per prompt or seed that is given.
    seed: image `i` has the key `i` of this seed, with every decoder and batch size.
    seeds: one seed per image, in place of `seed`.
  """

  prompt: str | None = None
  prompts: str | None = None
  num_images: int | None = None
  seed: int = 0
  seeds: tuple[int, ...] | None = None

  def __post_init__(self):
    fields.check(self, num_images=(1, MOST_IMAGES), seed=fields.SEEDS, seeds=fields.SEEDS)


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How tokens are drawn.

  Attributes:
    guidance_scale: of classifier-free guidance, which others call `cfg_scale`; 1 is none.
    temperature: of discrete tokens divides the logits, and 0 is greedy; of continuous tokens
      multiplies the noise of every denoising kernel.
    top_k: keeps the k most probable tokens; 0 keeps all. Discrete tokens only.
    top_p: keeps the most probable tokens up to this mass; 1 keeps all. Discrete tokens only.
    guidance_interval: LlamaGen's `cfg_interval`: tokens after number `guidance_interval + 1` are
      drawn without guidance; -1 guides all. Discrete tokens only.
  """

  guidance_scale: float | None = None
  temperature: float | None = None
  top_k: int | None = None
  top_p: float | None = None
  guidance_interval: int | None = None

  def __post_init__(self):
    # The model knows more of what they may be.
    fields.check(self, guidance_scale=fields.FINITE, temperature=fields.FINITE,
                 top_p=fields.FINITE, top_k=_WHOLE, guidance_interval=_WHOLE)
