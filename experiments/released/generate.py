"""The loop of transformers, `generate`, for models like Lumina-mGPT with an end token per row.

The model is written in the format of transformers, whose class for Chameleon loads it. Guidance is
that of `generate`, a second forward pass per token for the null prompt; a processor of logits keeps
the grammar of images. What is changed, in memory only: the class, which is for texts, does not set
the logits of image tokens to their smallest value.
"""

import pathlib
import time

import numpy as np

from experiments import released
from experiments.released import Loops, Method, Work, lumina


def _load(clone: pathlib.Path | None, work: Work) -> Loops:
  del clone  # It is a package.
  torch, transformers = released.imported(
      'torch transformers==5.24.0', [], 'torch', 'transformers')

  def load(folder):
    net = transformers.ChameleonForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32)
    net.model.vocabulary_mapping.image_tokens = []
    return net

  published = lumina.Published(torch, load, work)

  def decode(name: str, number: int, seed: int) -> tuple[np.ndarray, int, float]:
    prompt, null = published.prompts[number]
    length = prompt.shape[1]

    def grammar(ids, scores):
      return scores.masked_fill(~published.allowed[ids.shape[1] - length], -float('inf'))

    torch.manual_seed(seed)
    published.passes.count, start = 0, time.perf_counter()
    ids = published.net.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=1.0, top_k=0,
        top_p=1.0, max_new_tokens=work.model.num_tokens, logits_processor=[grammar],
        guidance_scale=float(work.sampling.guidance_scale), negative_prompt_ids=null)
    seconds = time.perf_counter() - start
    return published.tokens(ids[0, length:]), published.passes.count, seconds

  return Loops(published.difference, {'vanilla': 1}, decode)


METHODS = {'transformers': Method(
    'https://github.com/huggingface/transformers', commit=None, file=None, sha256=None, window=None,
    ours=(), check=lumina.check, load=_load)}
