"""Generation with several decoders of one model, and what each of them costs.

`prepare` checks everything that can be wrong before anything is compiled.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import cspd_jax
from cspd_jax.core import checkpoint
from cspd_jax.models import eagle
from cspd_jax.models import llamagen
from cspd_jax.models import medusa
from cspd_jax.models import vq
from experiments import inputs
from experiments.turns import Job, Measured

# The option that names the checkpoint of a source of drafts, its kind, and the sizes it
# shares with the target.
CHECKPOINTS = {
    'model': ('draft_model', 'llamagen', ('vocab_size', 'height', 'width', 'num_classes')),
    'eagle': ('eagle', 'eagle', ('vocab_size', 'num_tokens', 'dim')),
    'medusa': ('medusa', 'medusa', ('vocab_size', 'dim')),
}


def prepare(config: Any) -> Job:
  """Loads the models and checks all options.

  Args:
    config: has the fields of `configs/demo.py`.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  inputs.check_numbers(config, ('num_images', 'window', 'draft_length', 'repeats'),
                       {'seed': 2**32, 'top_k': 2**31})
  needs = {name: (CHECKPOINTS[entry.drafts][0], cspd_jax.SOURCES[entry.drafts])
           for name, entry in cspd_jax.DECODERS.items() if entry.drafts}
  names, left_out = inputs.decoder_names(config, list(cspd_jax.DECODERS), needs)
  model = _load(config, 'model', 'llamagen')
  tokenizer = _load(config, 'tokenizer', 'vq')
  inputs.check_pair(config, 'tokenizer', 'codebook_size', tokenizer, 'vocab_size', model)
  for name in ('window', 'draft_length'):  # Before a tree of that size is built.
    if getattr(config, name) > model.config.num_tokens:
      raise ValueError(
          f'{name} is {getattr(config, name)}; it may be at most {model.config.num_tokens}, the '
          f'tokens of an image of {config.model!r}.')
  guided = config.guidance_scale != 1
  target = llamagen.target(model.config, guided=guided)
  sources = {name: cspd_jax.DECODERS[name].drafts for name in names}
  loaded = {source: drafting(config, source, model, guided)
            for source in sorted(set(sources.values()) - {None})}
  labels, captions = inputs.labels(config, model)
  with np.errstate(over='ignore'):  # What becomes infinite is refused below.
    warp = cspd_jax.Warp(
        np.float32(config.guidance_scale), np.float32(config.temperature),
        np.int32(config.top_k), np.float32(config.top_p))
  decoders = {
      name: cspd_jax.build(
          name, target, window=config.window, draft_length=config.draft_length,
          drafts={source: drafts for source, (drafts, _) in loaded.items()})
      for name in names}
  draft_params = {name: loaded[source][1] if source else None for name, source in sources.items()}
  for decoder in decoders.values():
    decoder.check(labels, warp)
  return Job(model, draft_params, tokenizer, decoders, left_out, labels, captions, warp,
             config.seed, config.repeats)


def headline(config: Any, job: Job) -> str:
  """What is about to be done, in a line."""
  return (f'{len(job.labels)} images of {job.model.config.num_tokens} tokens with '
          f'{len(job.decoders)} decoders; model {config.model}, window {config.window}, guidance '
          f'scale {config.guidance_scale}, temperature {config.temperature}')


def draw(job: Job, measured: Mapping[str, Measured]) -> dict[str, np.ndarray]:
  """The images `[N, H, W, 3]` in [-1, 1] of every decoder's tokens."""
  decode = jax.jit(lambda params, tokens: vq.decode(params, job.tokenizer.config, tokens))
  grids = {name: job.grid(one.decoded.tokens) for name, one in measured.items()}
  return {
      name: np.concatenate([
          np.asarray(decode(job.tokenizer.params, tokens[None])) for tokens in grid])
      for name, grid in grids.items()}


def _load(config, role: str, kind: str) -> checkpoint.Loaded:
  """The checkpoint that the option `role` names."""
  loaded = inputs.load(config, role, kind)
  if kind == 'llamagen' and loaded.config.conditioning != 'class':
    raise ValueError(f'{role} is {getattr(config, role)!r}, a text-conditional model; it must be '
                     'a class model.')
  return loaded


def drafting(config, source: str, model: checkpoint.Loaded, guided: bool) -> tuple[Any, Any]:
  """What drafts for `model`, and its parameters."""
  role, kind, sizes = CHECKPOINTS[source]
  loaded = _load(config, role, kind)
  for size in sizes:
    inputs.check_pair(config, role, size, loaded, size, model)
  if source == 'model':
    return llamagen.target(loaded.config, guided=guided), loaded.params
  if source == 'eagle':
    return eagle.network(loaded.config), eagle.attach(model.params, loaded.params)
  return medusa.drafting_heads(loaded.config), loaded.params
