"""Images from the shipped MAR pair with every decoder of continuous tokens.

  python -m experiments.generate --config=configs/mar_demo.py

Result: in runs/mar_demo, a grid of images per decoder, maps of when tokens were fixed and of what
was accepted, bars of head calls and wall-clock, and report.json. `mar` and `exact_head` draw from
one distribution; what the others draw from is printed below the table.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
  """What to generate, with which models and decoders.

  Attributes:
    model: checkpoint of the target: a shipped name or a folder.
    draft_model: checkpoint of the draft model; '' for none, which leaves out
      the decoders that need one.
    tokenizer: checkpoint of the image tokenizer.
    decoder: names separated by commas, or 'all'.
    num_images: images per decoder; the classes take turns.
    prompt: names of classes separated by commas; '' for all classes.
    label: numbers of classes separated by commas; '' for all classes.
    seed: image `i` has the key `i` of this seed, with every decoder.
    guidance_scale: of classifier-free guidance; 1 is none.
    guidance: 'linear', from none to the scale as the image fills up, or 'constant'.
    temperature: multiplies the noise of every denoising kernel.
    num_iter: autoregressive steps; 0 for one per token. Other numbers leave out the decoders
      with a draft model, which draft one token per step.
    num_levels: denoising kernels of the head.
    head_length: kernels per head call of exact_head.
    path_length: drafts per round of exact_path and cspd_paper.
    split: first kernel of the tested path of exact_path, from the end; -1 for its default.
    length: drafts per block of cspd_released and cspd_relaxed.
    prefix_share: share of tokens that the target fixes alone, in all decoders with a draft model.
    aligned: whether the draft model uses the target's noise.
    eta: of the tests of exact_head and exact_path, up to 1; 0 for their defaults.
    max_trials: proposals per residual draw at most; 0 for the decoders' defaults.
    kappa: tolerance of cspd_released and cspd_relaxed, in standard deviations.
    block_context: whether these two verify a block in one pass, which does not see its drafts.
    sigma: the factor of cspd_released: inverted (as released), paper or off.
    zero_fallback: whether cspd_released emits zeros if all proposals fail.
    guidance_of_last: whether it verifies a block with the guidance scale of its last token.
    keep_after_reject: whether it keeps drafts after a replaced one.
    repeats: timed runs per image and decoder; the median counts.
    dtype: dtype of the parameters; the head computes in float32 whatever it is.
    workdir: folder of the results.
  """

  model: str = 'mar_demo/target'
  draft_model: str = 'mar_demo/draft'
  tokenizer: str = 'mar_demo/tokenizer'
  decoder: str = 'all'
  num_images: int = 4
  prompt: str = ''
  label: str = ''
  seed: int = 0
  guidance_scale: float = 2.0
  guidance: str = 'linear'
  temperature: float = 1.0
  num_iter: int = 0
  num_levels: int = 100
  head_length: int = 8
  path_length: int = 2
  split: int = -1
  length: int = 8
  prefix_share: float = 0.15
  aligned: bool = True
  eta: float = 0.0
  max_trials: int = 0
  kappa: float = 42.0
  block_context: bool = True
  sigma: str = 'inverted'
  zero_fallback: bool = True
  guidance_of_last: bool = True
  keep_after_reject: bool = True
  repeats: int = 3
  dtype: str = 'float32'
  workdir: str = 'runs/mar_demo'


def get_config() -> Config:
  """The configuration of `experiments.generate`."""
  return Config()
