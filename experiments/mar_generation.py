"""Generation with several decoders of one MAR model, and what each of them costs.

The counterpart of `generation` for continuous tokens.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from cspd_jax.continuous import registry
from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.blend import stored_rho
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.models import kl_vae
from cspd_jax.models import mar
from experiments import inputs
from experiments.turns import Job, Measured

# Which length a decoder drafts with.
_LENGTHS = dict(parallel='length', exact_head='head_length', exact_path='path_length',
                cspd_paper='path_length', cspd_released='length', cspd_relaxed='length')
# Fields of the configuration that are parameters of the decoders as they are.
_SAME = ('guidance', 'prefix_share', 'aligned', 'kappa', 'block_context', 'sigma', 'zero_fallback',
         'guidance_of_last', 'keep_after_reject')


def prepare(config: Any) -> Job:
  """Loads the models and checks all options.

  Args:
    config: has the fields of `configs/mar_demo.py`.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  inputs.check_numbers(
      config, ('num_images', 'head_length', 'path_length', 'length', 'repeats'),
      {'seed': 2**32, 'num_iter': 2**31, 'max_trials': 2**31})
  known = registry.DECODERS
  names, left_out = inputs.decoder_names(config, list(known), {
      name: ('draft_model', 'a draft model') for name, entry in known.items() if entry.needs})
  model = inputs.load(config, 'model', 'mar')
  tokenizer = inputs.load(config, 'tokenizer', 'kl_vae')
  inputs.check_pair(config, 'tokenizer', 'z_channels', tokenizer, 'latent_channels', model)
  guided = config.guidance_scale != 1
  draft, draft_params = None, None
  if any(known[name].needs for name in names):
    loaded = inputs.load(config, 'draft_model', 'mar')
    inputs.check_mar_pair(config, loaded, model)
    draft, draft_params = mar.target(loaded.config, guided=guided), loaded.params
  num_tokens = model.config.num_tokens
  if config.num_iter not in (0, num_tokens):
    names, more = inputs.able(config, names, {
        name: f'it drafts one token per step; num_iter is {config.num_iter}, not {num_tokens}'
        for name, entry in known.items() if entry.needs})
    left_out |= more
  schedule_lib.make(config.num_levels)  # Raises for a bad number.
  # Decoders check this as well, but do not know the names of the fields.
  for name in names:
    field, most, what = _LENGTHS.get(name), num_tokens, 'tokens'
    if field == 'head_length':
      most, what = config.num_levels, 'kernels'
    if field and getattr(config, field) > most:
      raise ValueError(f'{field} is {getattr(config, field)}; for {name} it must be at most '
                       f'{most}, the number of {what}.')
  labels, captions = inputs.labels(config, model)
  parameters = dict(
      num_iter=config.num_iter or None, schedule=config.num_levels,
      kernels_per_call=config.head_length, draft_length=config.path_length,
      block_length=config.length, split=None if config.split == -1 else config.split,
      eta=config.eta or None, max_trials=config.max_trials or None,
      **{name: getattr(config, name) for name in _SAME})
  resources = registry.Resources(draft, functools.partial(
      stored_rho, metadata=model.metadata, guided=guided))
  with np.errstate(over='ignore'):  # What becomes infinite is refused below.
    sampling = Sampling(np.float32(config.guidance_scale), np.float32(config.temperature))
  target = mar.target(model.config, guided=guided)
  decoders = {name: registry.build(registry.complete(name, **parameters), target, resources)
              for name in names}
  for decoder in decoders.values():
    decoder.check(labels, sampling)
  return Job(
      model, {name: draft_params if known[name].needs else None for name in names}, tokenizer,
      decoders, left_out, labels, captions, sampling, config.seed, config.repeats)


def headline(config: Any, job: Job) -> str:
  """What is about to be done, in a line."""
  return (f'{len(job.labels)} images of {job.model.config.num_tokens} continuous tokens with '
          f'{len(job.decoders)} decoders; model {config.model}, guidance scale '
          f'{config.guidance_scale}, temperature {config.temperature}')


def draw(job: Job, measured: Mapping[str, Measured]) -> dict[str, np.ndarray]:
  """The images `[N, H, W, 3]` in [-1, 1] of every decoder's tokens."""
  @jax.jit
  def decode(params, tokens):
    return kl_vae.decode(params, job.tokenizer.config, mar.unpatchify(job.model.config, tokens))

  return {name: np.concatenate([
      np.asarray(decode(job.tokenizer.params, tokens[None])) for tokens in one.decoded.tokens])
          for name, one in measured.items()}
