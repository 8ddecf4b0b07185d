"""Every drafter with every verifier, and what the relaxed ones cost in fidelity.

  python -m experiments.benchmark

Runtime: 25 minutes on two busy CPU cores, a third of it compilation; less on idle ones.
Result: in runs/benchmark, a table of all pairs (benchmark.csv), the points of the trade-off
curves (curves.csv) with their picture (curves.png, curves.svg), and all of it with the
conclusions (report.json).
"""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class Config:
  """What to measure, with which models.

  Attributes:
    suite: 'pairs', 'curves' or 'all', both.
    drafter: drafters of the pairs, separated by commas, or 'all'.
    verifier: verifiers of the pairs, likewise.
    curve_drafter: drafters of the curves, separated by commas; 'all' is EAGLE's chain and tree.
    model: checkpoint of the target: a shipped name or a folder.
    draft_model: checkpoint of the draft model; '' for none, which leaves out its drafter.
    eagle: checkpoint of an EAGLE network for the target, likewise.
    medusa: checkpoint of Medusa heads for the target, likewise.
    tokenizer: checkpoint of the image tokenizer: pixels for the Frechet distance, and
      the neighbours of a token for LANTERN.
    num_images: images per decoder; the classes take turns.
    reference_sets: vanilla images of each of two further seeds, in sets of `num_images`.
    batch_size: images decoded at once, except for the times.
    timed_images: images decoded one by one for the times.
    label: numbers of classes separated by commas; '' for all classes.
    seed: of all images.
    guidance_scale: of classifier-free guidance; 1 is none.
    temperature: divides the logits; above 0.
    window: tokens per forward pass of the Jacobi windows; `get_config` chooses it for the
      machine.
    draft_length: tokens drafted per round as a chain.
    dtype: dtype of the parameters.
    workdir: folder of the results.
  """

  suite: str = 'all'
  drafter: str = 'all'
  verifier: str = 'all'
  curve_drafter: str = 'all'
  model: str = 'demo/target'
  draft_model: str = 'demo/draft'
  eagle: str = 'demo/eagle'
  medusa: str = 'demo/medusa'
  tokenizer: str = 'demo/tokenizer'
  num_images: int = 16
  reference_sets: int = 8
  batch_size: int = 16
  timed_images: int = 2
  label: str = ''
  seed: int = 0
  guidance_scale: float = 2.0
  temperature: float = 1.0
  window: int = 16
  draft_length: int = 5
  dtype: str = 'float32'
  workdir: str = 'runs/benchmark'


def get_config() -> Config:
  """The configuration of `experiments.benchmark`."""
  # A CPU pays for every token of a window, an accelerator hardly does.
  return Config(window=8 if jax.default_backend() == 'cpu' else 64)
