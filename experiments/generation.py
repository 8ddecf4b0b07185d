"""Generation with several decoders of one model, and what each of them costs.

`prepare` checks everything that can be wrong before anything is compiled;
`measure` and `draw` do the work.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import cspd_jax
from cspd_jax import checkpoint
from cspd_jax.models import eagle
from cspd_jax.models import llamagen
from cspd_jax.models import medusa
from cspd_jax.models import vq

# The option that names the checkpoint of a source of drafts, its kind, and the sizes it
# shares with the target.
CHECKPOINTS = {
    'model': ('draft_model', 'llamagen', ('vocab_size', 'height', 'width', 'num_classes')),
    'eagle': ('eagle', 'eagle', ('vocab_size', 'num_tokens', 'dim')),
    'medusa': ('medusa', 'medusa', ('vocab_size', 'dim')),
}
_DTYPES = ('float32', 'bfloat16')


class Job(NamedTuple):
  """What `measure` and `draw` need.

  Attributes:
    model: the target's checkpoint.
    draft_params: parameters of the drafting models, by source.
    tokenizer: the image tokenizer's checkpoint.
    decoders: by name.
    left_out: decoders of the registry that cannot run, with the reason.
    labels: `[N]` int32 the class of every image.
    captions: what every image shows, for people.
    warp: the sampling options.
    seed: of the images' keys.
    repeats: timed runs per image and decoder.
  """

  model: checkpoint.Loaded
  draft_params: dict[str, Any]
  tokenizer: checkpoint.Loaded
  decoders: dict[str, cspd_jax.Decoder]
  left_out: dict[str, str]
  labels: np.ndarray
  captions: list[str]
  warp: cspd_jax.Warp
  seed: int
  repeats: int


class Measured(NamedTuple):
  """One decoder's result.

  Attributes:
    decoded: of all images, `B = N`, as NumPy arrays.
    seconds: `[N]` wall-clock of an image at batch 1, median of the timed runs.
    compile_seconds: time to trace and compile.
  """

  decoded: cspd_jax.Decoded
  seconds: np.ndarray
  compile_seconds: float


def prepare(config: Any) -> Job:
  """Loads the models and checks all options.

  Args:
    config: has the fields of `configs/demo.py`.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  _check_numbers(config)
  names, left_out = _decoder_names(config)
  model = _load(config, 'model', 'llamagen')
  tokenizer = _load(config, 'tokenizer', 'vq')
  _check_pair(config, 'tokenizer', 'codebook_size', tokenizer, 'vocab_size', model)
  for name in ('window', 'draft_length'):  # Before a tree of that size is built.
    if getattr(config, name) > model.config.num_tokens:
      raise ValueError(
          f'{name} is {getattr(config, name)}; it may be at most {model.config.num_tokens}, the '
          f'tokens of an image of {config.model!r}.')
  guided = config.guidance_scale != 1
  target = llamagen.target(model.config, guided=guided)
  sources = {cspd_jax.DECODERS[name].drafts for name in names} - {None}
  loaded = {source: drafting(config, source, model, guided) for source in sorted(sources)}
  labels, captions = _labels(config, model)
  with np.errstate(over='ignore'):  # What becomes infinite is refused below.
    warp = cspd_jax.Warp(
        np.float32(config.guidance_scale), np.float32(config.temperature),
        np.int32(config.top_k), np.float32(config.top_p))
  decoders = {
      name: cspd_jax.build(
          name, target, window=config.window, draft_length=config.draft_length,
          drafts={source: drafts for source, (drafts, _) in loaded.items()})
      for name in names}
  for decoder in decoders.values():
    decoder.check(labels, warp)
  return Job(
      model, {source: params for source, (_, params) in loaded.items()}, tokenizer, decoders,
      left_out, labels.astype(np.int32), captions, warp, config.seed, config.repeats)


def measure(job: Job, show: Callable[[str], None] = print) -> dict[str, Measured]:
  """Generates all images with all decoders, one image at a time.

  The decoders take turns on every image, so that a change in the machine's load
  meets all of them; the first turn is not timed.
  """
  keys = [jax.random.fold_in(jax.random.key(job.seed), i) for i in range(len(job.labels))]
  compiled, compile_seconds = {}, {}

  def arguments(name, i):
    draft = job.draft_params.get(cspd_jax.DECODERS[name].drafts)
    return job.model.params, jnp.asarray(job.labels[i:i + 1]), keys[i], job.warp, draft

  for name, decoder in job.decoders.items():
    start = time.perf_counter()
    compiled[name] = jax.jit(decoder).lower(*arguments(name, 0)).compile()
    compile_seconds[name] = time.perf_counter() - start
    show(f'compiled {name} in {compile_seconds[name]:.1f} s')

  results = {name: [] for name in compiled}
  seconds = {name: np.zeros((job.repeats, len(job.labels))) for name in compiled}
  for i, caption in enumerate(job.captions):
    for name, run in compiled.items():
      results[name].append(jax.device_get(run(*arguments(name, i))))
    rounds = ', '.join(f'{name} {int(results[name][i].rounds[0])}' for name in compiled)
    show(f'image {i + 1} of {len(job.labels)}, {caption}: rounds of {rounds}')
  for repeat in range(job.repeats):
    show(f'timing, run {repeat + 1} of {job.repeats}')
    for i in range(len(job.labels)):
      for name, run in compiled.items():
        args = arguments(name, i)
        start = time.perf_counter()
        jax.block_until_ready(run(*args))
        seconds[name][repeat, i] = time.perf_counter() - start
  return {
      name: Measured(jax.tree.map(lambda *parts: np.concatenate(parts), *results[name]),
                     np.median(seconds[name], axis=0), compile_seconds[name])
      for name in compiled}


def draw(job: Job, measured: Mapping[str, Measured]) -> dict[str, np.ndarray]:
  """The images `[N, H, W, 3]` in [-1, 1] of every decoder's tokens."""
  decode = jax.jit(lambda params, tokens: vq.decode(params, job.tokenizer.config, tokens))
  grids = {name: token_grid(job, one.decoded.tokens) for name, one in measured.items()}
  return {
      name: np.concatenate([
          np.asarray(decode(job.tokenizer.params, tokens[None])) for tokens in grid])
      for name, grid in grids.items()}


def token_grid(job: Job, values: np.ndarray) -> np.ndarray:
  """`[N, T]` values of tokens in their places, `[N, height, width]`."""
  return values.reshape(-1, job.model.config.height, job.model.config.width)


def _check_numbers(config) -> None:
  for name in ('num_images', 'window', 'draft_length', 'repeats'):
    if getattr(config, name) < 1:
      raise ValueError(f'{name} is {getattr(config, name)}; it must be at least 1.')
  for name, limit in (('seed', 2**32), ('top_k', 2**31)):
    if not 0 <= getattr(config, name) < limit:
      raise ValueError(f'{name} is {getattr(config, name)}; it must be 0 to {limit - 1}.')
  if config.dtype not in _DTYPES:
    raise ValueError(f'dtype is {config.dtype!r}; it must be one of {", ".join(_DTYPES)}.')


def _split(text: str) -> list[str]:
  """The parts of a list in commas."""
  return [part.strip() for part in text.split(',') if part.strip()]


def _decoder_names(config) -> tuple[list[str], dict[str, str]]:
  """Names of the decoders to run, and why others of 'all' are left out."""
  known = cspd_jax.DECODERS
  everything = config.decoder.strip() == 'all'
  names = list(known) if everything else list(dict.fromkeys(_split(config.decoder)))
  unknown = [name for name in names if name not in known]
  if unknown or not names:
    raise ValueError(
        f'decoder is {config.decoder!r}; it must be all or, separated by commas, any of '
        f'{", ".join(known)}.')
  lacking = {name: known[name].drafts for name in names
             if known[name].drafts and not getattr(config, CHECKPOINTS[known[name].drafts][0])}
  reasons = {name: f'it needs {cspd_jax.SOURCES[source]}; give {CHECKPOINTS[source][0]}'
             for name, source in lacking.items()}
  if lacking and not everything:
    name = next(iter(lacking))
    raise ValueError(f'decoder {name} cannot run: {reasons[name]}.')
  return [name for name in names if name not in lacking], reasons


def _load(config, role: str, kind: str) -> checkpoint.Loaded:
  """The checkpoint that the option `role` names."""
  name = getattr(config, role)
  if not name:
    raise ValueError(f'{role} is empty; give the name or the folder of a checkpoint.')
  try:
    loaded = checkpoint.load(name, dtype=config.dtype)
  except checkpoint.CheckpointError as error:
    raise ValueError(f'{role}: {error}') from error
  if loaded.kind != kind:
    raise ValueError(f'{role} is {name!r}, a {loaded.kind!r} checkpoint; it must be {kind!r}.')
  if kind == 'llamagen' and loaded.config.conditioning != 'class':
    raise ValueError(f'{role} is {name!r}, a text-conditional model; it must be a class model.')
  return loaded


def drafting(config, source: str, model: checkpoint.Loaded, guided: bool) -> tuple[Any, Any]:
  """What drafts for `model`, and its parameters."""
  role, kind, sizes = CHECKPOINTS[source]
  loaded = _load(config, role, kind)
  for size in sizes:
    _check_pair(config, role, size, loaded, size, model)
  if source == 'model':
    return llamagen.target(loaded.config, guided=guided), loaded.params
  if source == 'eagle':
    return eagle.network(loaded.config), eagle.attach(model.params, loaded.params)
  return medusa.drafting_heads(loaded.config), loaded.params


def _check_pair(config, role, size, loaded, model_size, model) -> None:
  """Raises ValueError unless two sizes that belong together are equal."""
  ours, theirs = getattr(loaded.config, size), getattr(model.config, model_size)
  if ours != theirs:
    raise ValueError(
        f'{size} of the {role} {getattr(config, role)!r} is {ours}, but {model_size} of the model '
        f'{config.model!r} is {theirs}; they must be equal. Give the {role} that belongs to the '
        'model.')


def _labels(config, model: checkpoint.Loaded) -> tuple[np.ndarray, list[str]]:
  """The class of every image `[N]`, and what it is called."""
  names, count = model.metadata.get('labels', []), model.config.num_classes
  if config.prompt and config.label:
    raise ValueError(
        f'prompt is {config.prompt!r} and label is {config.label!r}; give only one of them.')
  if config.prompt and not names:
    raise ValueError(
        f'prompt is {config.prompt!r}, but the classes of {config.model!r} have no names; give '
        f'label, 0 to {count - 1}.')
  chosen = list(range(count))
  if text := config.prompt or config.label:
    option = 'prompt' if config.prompt else 'label'
    known = {name: i for i, name in enumerate(names if config.prompt else map(str, chosen))}
    parts = _split(text)
    if not parts or any(part not in known for part in parts):
      allowed = ', '.join(names) if config.prompt else f'0 to {count - 1}'
      raise ValueError(
          f'{option} is {text!r}; it must be classes of {config.model!r} separated by commas: '
          f'{allowed}.')
    if len(parts) > config.num_images:
      raise ValueError(
          f'num_images is {config.num_images}, but {option} has {len(parts)} classes; it must be '
          'at least as many.')
    chosen = [known[part] for part in parts]
  labels = np.resize(chosen, config.num_images)
  return labels, [names[label] if names else f'class {label}' for label in labels]
