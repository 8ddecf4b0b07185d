"""Times MAR against the official PyTorch code on the same machine's CPU: a step, and whole images.

  git clone https://github.com/LTH14/mar
  pip install torch 'timm<1' scipy
  python -m experiments.against_mar --repo=mar
  python -m experiments.against_mar --repo=mar --size=mar_l --tokens=4 --images=0

The official modules get random weights, which are converted, so that both compute the same; how far
the vectors for the head differ is printed. Both run on the CPU with as many threads as there are
cores, in turns; medians are shown, without compilation.

A step: one image, three eighths of its tokens visible: the official encoder reads those alone, ours
the least of its lengths that holds them, half of all tokens, which is as many too many as on
average. The official head runs eagerly, 100 calls.

Images, with guidance: as the official sampler makes them, in --steps of many tokens each, by its
`sample_tokens` and by decoders of as many steps.

How many calls `exact_head` needs depends on the weights; the count with these is shown, trained
heads of the same size may need fewer or more. Speed-ups over PyTorch also hold what compilation
gains; the gain of speculation alone is the speed-up of `exact_head` over `mar`, which differ in the
head's sampler only. The same figures, with versions, are in report.json in --workdir.
"""

import dataclasses
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkpoints_conversion import convert, rules
from cspd_jax.continuous import decoders, head as head_lib, schedule as schedule_lib
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.continuous.span import token_batch
from cspd_jax.continuous.speculative_head import speculative
from cspd_jax.core import fields, programs
from cspd_jax.core.random import row_keys
from cspd_jax.generation.report import Report
from cspd_jax.measure import tables, timing
from cspd_jax.models import mar
from experiments import cli
from experiments.costs import official

_URL = 'https://github.com/LTH14/mar'
_SCALE = 2.9
_LABEL = 207
_VISIBLE = 3 / 8  # Of the tokens; an eighth below one of our encoder's static lengths.
# Names of the official constructors.
_OFFICIAL = {'mar_b': 'mar_base', 'mar_l': 'mar_large', 'mar_h': 'mar_huge'}
_STEP = {
    '': '{name}', 'guidance': '{guided}', 'transformer ms': '{transformer_ms:.0f}',
    'head calls': '{head_calls:.0f}', 'head ms': '{head_ms:.0f}', 'step ms': '{step_ms:.0f}',
    'over PyTorch': '{speedup_over_pytorch:.2f}x', 'over mar': '{speedup_over_mar:.2f}x'}
_IMAGE = {
    '': '{name}', 'steps': '{steps}', 'head calls': '{head_calls:.0f}', 's/image': '{seconds:.1f}',
    'over PyTorch': '{speedup_over_pytorch:.2f}x', 'over mar': '{speedup_over_mar:.2f}x'}


@dataclasses.dataclass(frozen=True)
class Flags:
  """What to time.

  Attributes:
    repo: folder of the official code.
    size: of the model: mar_b, mar_l or mar_h.
    tokens: that the step fixes.
    kernels_per_call: of exact_head.
    repeats: timed runs of a step; the median counts.
    images: timed whole images; none if 0.
    steps: of a whole image.
    workdir: folder of report.json.
  """

  repo: str | None = None
  size: str = 'mar_b'
  tokens: int = 1
  kernels_per_call: int = 8
  repeats: int = 5
  images: int = 3
  steps: int = 64
  workdir: str = 'runs/against_mar'

  def __post_init__(self):
    fields.check(self, images=(0, fields.MOST))


def num_visible(config: mar.MARConfig) -> int:
  """Tokens that are visible in the step that is timed."""
  return int(_VISIBLE * config.num_tokens)


def theirs(flags: Flags):
  """The official model with random weights, and PyTorch.

  Raises:
    ValueError: if the code or what it needs is not there.
  """
  torch, module = official.imported(flags.repo, _URL, 'models/mar.py', "torch 'timm<1' scipy")
  torch.Tensor.cuda = lambda self, *args, **kwargs: self  # Its sampler moves noise to a GPU.
  config = mar.PRESETS[flags.size]
  model = getattr(module, _OFFICIAL[flags.size])(
      img_size=256, vae_stride=16, patch_size=1, vae_embed_dim=16, class_num=config.num_classes,
      buffer_size=config.buffer_size, diffloss_w=config.head_width,
      diffloss_d=config.head_layers, num_sampling_steps='100').eval()
  official.perturb(torch, model)  # A head of zeros would accept every draft.
  return model, torch


def steps(model, torch, config: mar.MARConfig, params, guided: bool, num: int, length: int):
  """What is to be compared.

  Returns:
    Functions to be timed, by name; head calls by decoder; the greatest difference between the two
    transformers' results.
  """
  target, schedule = mar.target(config, guided=guided), schedule_lib.make()
  rng, size = np.random.default_rng(0), config.num_tokens
  visible = np.zeros((1, size), bool)
  visible[:, rng.permutation(size)[:num_visible(config)]] = True
  tokens = rng.standard_normal((1, size, config.token_dim)).astype(np.float32)
  positions = np.flatnonzero(~visible[0])[None, :num]
  labels = jnp.zeros((1,), jnp.int32)

  transform = jax.jit(lambda params: target.transform(params, labels, tokens, visible))
  z = head_lib.pick(transform(params), positions)
  batch = token_batch(row_keys(jax.random.key(0), 1), z, positions, jnp.full((1, num), _SCALE), 1.0,
                      jnp.ones((1, num), bool))
  heads = {'mar': head_lib.ancestral(target, schedule),
           'exact_head': speculative(target, schedule, length)}
  compiled = {name: jax.jit(head.sample) for name, head in heads.items()}

  streams = target.num_streams
  with torch.no_grad():
    classes = torch.cat([model.class_emb(torch.zeros(1, dtype=torch.long)), model.fake_latent])
  given = torch.tensor(np.repeat(tokens, streams, 0))
  mask = torch.tensor(np.repeat(~visible, streams, 0).astype(np.float32))

  def their_transform():
    with torch.no_grad():
      return model.forward_mae_decoder(
          model.forward_mae_encoder(given, mask, classes[:streams]), mask)

  theirs = their_transform()[:, positions[0]]
  difference = float(np.abs(theirs.numpy() - np.asarray(z[:, 0])).max())
  theirs = theirs.reshape(-1, theirs.shape[-1])

  def their_head():
    with torch.no_grad():
      return model.diffloss.sample(theirs, 1.0, _SCALE if guided else 1.0)

  calls = {name: float(run(params, batch).calls.max()) for name, run in compiled.items()}
  runs = {'transformer': lambda: jax.block_until_ready(transform(params)),
          'PyTorch transformer': their_transform, 'PyTorch head': their_head}
  runs |= {f'{name} head': lambda run=run: jax.block_until_ready(run(params, batch))
           for name, run in compiled.items()}
  return runs, calls, difference


def compare(model, torch, config: mar.MARConfig, params, guided: bool,
            flags: Flags) -> list[dict[str, Any]]:
  """Rows of the table, with or without guidance; times are in milliseconds."""
  runs, calls, difference = steps(
      model, torch, config, params, guided, flags.tokens, flags.kernels_per_call)
  found = {name: 1e3 * one.median for name, one in timing.measure(runs, flags.repeats).items()}
  print(f'{"with" if guided else "without"} guidance: the vectors for the head differ by '
        f'{difference:.1e} at most', flush=True)
  rows = []
  for name, kind in (('PyTorch', 'PyTorch '), ('mar', ''), ('exact_head', '')):
    transformer, head = found[f'{kind}transformer'], found[f'{name} head']
    rows.append(dict(
        name=name, guided='yes' if guided else 'no', transformer_ms=transformer, head_ms=head,
        head_calls=calls.get(name, 100), step_ms=transformer + head, difference=difference))
  theirs, ours, _ = (row['step_ms'] for row in rows)
  return [row | dict(speedup_over_pytorch=theirs / row['step_ms'],
                     speedup_over_mar=ours / row['step_ms']) for row in rows]


def whole_images(model, torch, config: mar.MARConfig, params, flags: Flags) -> list[dict[str, Any]]:
  """Rows of whole images with guidance."""
  target, keys = mar.target(config, guided=True), jax.random.split(jax.random.key(0), 1)
  options, labels = Sampling(guidance_scale=np.float32(_SCALE)), jnp.array([_LABEL])
  made = {'mar': decoders.mar(target, num_iter=flags.steps),
          'exact_head': decoders.exact_head(
              target, num_iter=flags.steps, kernels_per_call=flags.kernels_per_call)}
  compiled = {name: programs.compiled(one, params, labels, keys, options, None).run
              for name, one in made.items()}

  def their_image():
    with torch.no_grad():
      return model.sample_tokens(
          1, num_iter=flags.steps, cfg=_SCALE, cfg_schedule='linear',
          labels=torch.tensor([_LABEL]))

  runs = {'PyTorch': their_image}
  runs |= {name: lambda run=run: run(params, labels, keys, options, None)
           for name, run in compiled.items()}
  found = timing.measure(runs, flags.images, warmup=0)
  calls = {name: float(runs[name]().costs.head_calls.sum()) for name in compiled}
  return [dict(
      name=name, steps=flags.steps, head_calls=calls.get(name, 100.0 * flags.steps),
      seconds=times.median, speedup_over_pytorch=found['PyTorch'].median / times.median,
      speedup_over_mar=found['mar'].median / times.median) for name, times in found.items()]


def check(flags: Flags) -> mar.MARConfig:
  """The sizes of the model.

  Raises:
    ValueError: for flags that cannot work.
  """
  if flags.repo is None:
    raise ValueError(f'repo is none; give a clone of {_URL}.')
  if flags.size not in mar.PRESETS:
    raise ValueError(f'size is {flags.size!r}; it must be one of {", ".join(mar.PRESETS)}.')
  config = mar.PRESETS[flags.size]
  hidden = config.num_tokens - num_visible(config)
  if flags.tokens > hidden:
    raise ValueError(f'tokens is {flags.tokens}; it may be at most the hidden ones, {hidden}.')
  target = mar.target(config, guided=False)
  speculative(target, schedule_lib.make(), flags.kernels_per_call)
  decoders.mar(target, num_iter=flags.steps)
  return config


@cli.program(flags=Flags())
def main(flags: Any) -> None:
  jax.config.update('jax_platforms', 'cpu')
  config = check(flags)
  model, torch = theirs(flags)
  report = Report(flags.workdir)
  params = jax.tree.map(jnp.asarray, convert.convert(
      rules.get('mar'), config,
      {name: tensor.numpy() for name, tensor in model.state_dict().items()}))
  rows = [row for guided in (False, True)
          for row in compare(model, torch, config, params, guided, flags)]
  parts = {f'{flags.size}, {flags.tokens} of {config.num_tokens} tokens per step': (_STEP, rows)}
  if flags.images:
    parts[f'{flags.size}, images of {flags.steps} steps'] = (
        _IMAGE, whole_images(model, torch, config, params, flags))
  tables_of, rows = [], []
  for title, (columns, found) in parts.items():
    print(f'\n{title}\n\n{tables.text(columns, found, left=1)}')
    first = len(rows)
    rows += found
    tables_of.append(dict(title=title, columns=columns, rows=list(range(first, len(rows)))))
  report.write(
      settings=dataclasses.asdict(flags), rows=rows, tokens_per_image=config.num_tokens,
      tokens_visible=num_visible(config), guidance_scale=_SCALE, batch=1, dtype='float32',
      torch_version=str(torch.__version__), tables=tables_of)
  print(f'\nreport.json is in {flags.workdir}.')


if __name__ == '__main__':
  sys.exit(main())
