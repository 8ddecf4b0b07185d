"""Settings that determine the results of a run: digests of networks, prompts and seeds."""

import hashlib
import json
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.spec import Spec
from cspd_jax.files import atomic, run_folder
from cspd_jax.generation.base import BaseModel
from cspd_jax.generation.engines import Options

# How many numbers of an array are compared to detect other parameters.
_SAMPLED = 1024


def batch_size_of(folder: str | os.PathLike) -> int | None:
  """Returns the batch size of the run in a folder; None without a run."""
  size = run_folder.stored_run(folder).get('batch_size')
  return size if type(size) is int and size >= 1 else None


def settings(model: BaseModel, specification: Spec, condition: Any, seed: Any, batch_size: int,
             sampling: Options, prompts: Any = None) -> dict[str, Any]:
  """Returns the settings that determine the results of a run.

  Args:
    model: the model; if images have a prefix, the one of `Model.with_prefix`.
    specification: of the decoder.
    condition: the condition that `model` returned for the prompts.
    seed: the seed, or one per image.
    batch_size: images decoded at once.
    sampling: the sampling options.
    prompts: the caller's prompts; None if only the condition is available.
  """
  return dict(
      model=model.name, cache_dtype=model.cache_dtype, parameters=fingerprint(model.params),
      grid=list(model.grid), config=_digest(repr(model.config)), decoder=str(specification),
      draft_parameters=fingerprint(model.draft_params(specification)),
      sampling=atomic.plain(sampling._asdict()),
      seed=fingerprint(jax.random.key_data(seed)) if _is_key(seed) else atomic.plain(seed),
      prompts=_fingerprint_of_prompts(prompts, condition), batch_size=batch_size)


def network(config: Any, params: Any) -> str:
  """Returns a short digest of a network: its config and its parameters."""
  return _digest(repr(config) + fingerprint(params))


def weights(model: BaseModel) -> dict[str, str]:
  """Returns short digests of a model's parameters by part, which reports keep."""
  parts = dict(target=model.params) | {name: draft.params for name, draft in model.drafts.items()}
  if model.tokenizer is not None:
    parts['tokenizer'] = model.tokenizer.params
  return {name: fingerprint(parts[name]) for name in sorted(parts)}


def fingerprint(arrays: Any, every: bool = False) -> str:
  """Returns a short digest of the shapes, dtypes and numbers of arrays.

  Args:
    arrays: a tree of arrays.
    every: whether the digest covers every number, or a sample of each array, which is enough for
      parameters.
  """
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
    step = 1 if every else max(1, leaf.size // _SAMPLED)
    digest.update(f'{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}'.encode())
    digest.update(np.asarray(leaf.reshape(-1)[::step]).tobytes())
  return digest.hexdigest()[:16]


def _fingerprint_of_prompts(prompts: Any, condition: Any) -> str:
  has_floats = any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(condition))
  if has_floats and isinstance(prompts, list) and all(
      isinstance(prompt, str) for prompt in prompts):
    # Features of words may differ in their last bits when the network is compiled again.
    return _digest(json.dumps(prompts))
  return fingerprint(condition, every=True)


def _digest(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_key(seed: Any) -> bool:
  return isinstance(seed, jax.Array) and jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key)
