"""Whether the network of a model computes what other people's code does with the same weights."""

import importlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import families
from cspd_jax.core import programs
from cspd_jax.files import store
from cspd_jax.testing import probe
from cspd_jax.text import bpe, templates
from cspd_jax.verify.network import Passes
from cspd_jax.verify.result import Result, judged, skipped

# Greedy tokens of published models that their programs printed.
PRINTED = pathlib.Path(__file__).parents[1] / 'assets' / 'printed' / 'tokens.json'
# The names of the checks.
_NAME, _PRINTED = 'other code', 'printed tokens'
# Numbers of bfloat16 are at most this fraction away from those that they round.
_ROUNDING = 2.0**-8


def check(model: Any, condition: Any, tokens: np.ndarray, ours: Passes | np.ndarray | None,
          source: str, repo: str | None, published: str | None) -> Iterator[Result]:
  """Yields whether another network has our logits at the same ids, in its class's own pass.

  Args:
    model: the model.
    condition: of one image.
    tokens: of the image, `[1, T]`; continuous ones `[1, T, C]`.
    ours: `network.passes` or `network.vectors` of these.
    source: the name or the folder of the model.
    repo: the folder of a clone of the official repository.
    published: files or a folder that the class reads; None writes them from the model.

  Raises:
    ValueError: if `repo` is not a clone of the repository.
  """
  from checkpoints_conversion import torch_classes

  other = None if ours is None else torch_classes.of_model(model)
  if other is None:
    yield skipped(_NAME, f'no other code is known here that runs models of {model.family}')
    return
  if model.cache_dtype == 'int8' or any(
      leaf.dtype == jnp.int8 for leaf in jax.tree.leaves(model.params)):
    yield skipped(_NAME, 'int8 rounds what other code does not; load the model without it')
    return
  if other.url:
    if repo is None:
      yield skipped(_NAME, f'clone {other.url}, pip install {other.needs}, and give the folder of '
                    'the clone as --repo')
      return
    other.use(repo)
  allowed = probe.tolerance(model.params)
  # Other people's code may fail in any way, which tells nothing of the model.
  try:
    module = importlib.import_module(other.module)
    torch = importlib.import_module('torch')
  except Exception as error:
    yield skipped(_NAME, f'{other.name} cannot be imported ({error}); pip install {other.needs}')
    return
  count = ours.windows.shape[2] if isinstance(ours, Passes) else model.num_tokens
  try:
    with torch.no_grad():
      network = other.load(model, source, published, 'float32' if allowed < 0.1 else 'bfloat16')
      theirs = [other.logits(network, model, condition, stream, tokens[0, :count]).float().numpy()
                for stream in range(model.target(True).num_streams)]
  except Exception as error:
    yield skipped(_NAME, f'{other.name} did not run on files of the model '
                  f'({" ".join(str(error).split()):.200}); give --published=FOLDER, files of '
                  f'{torch_classes.family_of(model)} that it reads')
    return
  apart = _apart(ours, theirs)
  parts = ', '.join(f'{part} {value:.2g}' for part, value in apart.items())
  what = 'distributions' if isinstance(ours, Passes) else 'inputs of the head'
  is_right = max(apart.values()) < allowed
  yield judged(
      _NAME, is_right, f'the {what} of {other.name} of '
      f'{other.url or f"transformers {module.__version__}"} are at most so far apart: {parts}' + (
          '' if is_right or allowed < 0.1 else
          '; --dtype=float32 tells rounding from another network'), **apart)


def _apart(ours: Any, theirs: list[np.ndarray]) -> dict[str, float]:
  """Returns the largest distances to their results by stream, by what was compared."""
  if not isinstance(ours, Passes):
    return {'of the largest': float(np.abs(np.stack(theirs) - ours[:, 0])[:, 1::2].max()
                                    / np.abs(ours).max())}
  assert ours.trained is not None and ours.prompts is not None
  apart: dict[str, float] = {}
  for stream, logits in enumerate(theirs):
    # The last ones are of the image, those before of the last tokens of the prompt but one.
    before = len(logits) - ours.trained.shape[2]
    prompts = ours.prompts[stream, 0, :-1]
    for part, own, other in (
        ('prompt', prompts[len(prompts) - before:], logits[:before]),
        ('image', ours.trained[stream, 0], logits[before:]),
        ('windows', ours.windows[stream, 0], logits[before + 1:])):
      if len(own):
        apart[part] = max(apart.get(part, 0), float(probe.distance(
            own[None, :, :logits.shape[1]], other[None]).max()))
  return apart


def check_printed(model: Any, source: str) -> Iterator[Result]:
  """Yields whether a model's most probable tokens are those that another program printed, if any.

  One pass reads prompt and tokens with both streams of guidance. Where another token is more
  probable, the gap between the two guided logits must be one that rounding to bfloat16 can make,
  in which that program computed. `source` is the folder of the model.
  """
  printed = next((each for each in json.loads(PRINTED.read_text(encoding='utf-8'))
                  if each['family'] == model.family
                  and families.describe(each['model']).config == model.config), None)
  if printed is None:
    return
  part = store.load(families.part_folder(source, 'text'))
  write = families.family.get(model.family).prompt_writers[printed['contexts']]
  ids = write(bpe.read(part.params, part.config.form), printed['prompt'], *model.grid)
  if len(ids[0]) != printed['num_prompt_tokens']:
    yield judged(_PRINTED, False, f'the text writes the prompt in {len(ids[0])} tokens, the other '
                 f'program in {printed["num_prompt_tokens"]}')
    return
  condition = jax.tree.map(
      lambda leaf: jnp.concatenate([leaf, leaf]), model.condition(templates.padded([ids])))
  logits = np.asarray(programs.jit(model.teacher.forward)(
      model.params, condition, jnp.tile(jnp.asarray(printed['tokens'], jnp.int32), (2, 1)),
      jnp.array([False, True]))[0], np.float32)
  scale, places = printed['guidance_scale'], np.arange(len(printed['tokens']))
  guided, change = logits[1] + scale * (logits[0] - logits[1]), rounding(logits, scale)
  best, tokens = guided.argmax(axis=1), np.array(printed['tokens'])
  gaps = guided[places, best] - guided[places, tokens]
  excess = gaps - change[places, best] - change[places, tokens]
  others, wrong = int(np.sum(best != tokens)), np.flatnonzero((excess > 0) & (best != tokens))
  words = (f'{len(tokens) - others} of {len(tokens)} tokens that another program printed are the '
           f'most probable ones, and {others - len(wrong)} others are as close as rounding to '
           'bfloat16 makes them')
  if len(wrong):
    at = int(wrong[0])
    words += (f'; token {best[at]} is more probable than {tokens[at]} at position {at} by '
              f'{gaps[at]:.2g}, of which rounding explains {gaps[at] - excess[at]:.2g}')
  yield judged(_PRINTED, not len(wrong), words, agree=len(tokens) - others,
               explained=others - len(wrong), first_wrong=int(wrong[0]) if len(wrong) else None)


def rounding(logits: np.ndarray, scale: float) -> np.ndarray:
  """Returns what rounding logits `[2, ..., V]` of both streams can change in guided ones."""
  return _ROUNDING * (abs(scale) * np.abs(logits[0]) + abs(scale - 1) * np.abs(logits[1]))
