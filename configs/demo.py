"""Images from the shipped model with every decoder, and what each decoder costs.

  python -m experiments.generate --config=configs/demo.py

Runtime: two to three minutes on two CPU cores, half of it compilation.
Result: in runs/demo, a grid of images per decoder, the acceptance maps, bars of step
compression and wall-clock, and report.json. Every decoder draws from the same distribution; vanilla
and seed_exact draw the same images.
"""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class Config:
  """What to generate, with which models and decoders.

  Attributes:
    model: checkpoint of the target: a shipped name or a folder.
    draft_model: checkpoint of the draft model; '' for none, which leaves out
      the decoders that need one.
    eagle: checkpoint of an EAGLE network for the target, likewise.
    medusa: checkpoint of Medusa heads for the target, likewise.
    tokenizer: checkpoint of the image tokenizer.
    decoder: names separated by commas, or 'all'.
    num_images: images per decoder; the classes take turns.
    prompt: names of classes separated by commas; '' for all classes.
    label: numbers of classes separated by commas; '' for all classes.
    seed: image `i` has the key `i` of this seed, with every decoder.
    guidance_scale: of classifier-free guidance; 1 is none.
    temperature: divides the logits; 0 is greedy.
    top_k: keeps the k most probable tokens; 0 keeps all.
    top_p: keeps the most probable tokens up to this mass; 1 keeps all.
    window: tokens per forward pass of the Jacobi decoders; `get_config` chooses it for
      the machine.
    draft_length: tokens drafted per round as a chain: by a draft model, by EAGLE in
      windows below 26, by Medusa.
    repeats: timed runs per image and decoder; the median counts.
    dtype: dtype of the parameters. Floating-point numbers of less than 32 bits
      round differently for other windows, so that seed_exact may leave vanilla.
    workdir: folder of the results.
  """

  model: str = 'demo/target'
  draft_model: str = 'demo/draft'
  eagle: str = 'demo/eagle'
  medusa: str = 'demo/medusa'
  tokenizer: str = 'demo/tokenizer'
  decoder: str = 'all'
  num_images: int = 4
  prompt: str = ''
  label: str = ''
  seed: int = 0
  guidance_scale: float = 2.0
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  window: int = 16
  draft_length: int = 4
  repeats: int = 3
  dtype: str = 'float32'
  workdir: str = 'runs/demo'


def get_config() -> Config:
  """The configuration of `experiments.generate`."""
  # A CPU pays for every token of a window, an accelerator hardly does.
  return Config(window=8 if jax.default_backend() == 'cpu' else 64)
