"""Times an autoregressive step of MAR against the official PyTorch code on the same machine.

  git clone https://github.com/LTH14/mar
  pip install torch 'timm<1' scipy
  python -m experiments.against_pytorch --repo=mar
  python -m experiments.against_pytorch --repo=mar --size=mar_l --tokens=4

The official modules get random weights, which are converted, so that both compute the same; how far
the vectors for the head differ is printed. One image, three eighths of its tokens visible: the
official encoder reads those alone, ours the least of its lengths that holds them, half of all
tokens, which is as many too many as on average. Both run on the CPU with as many threads as there
are cores, in turns; medians are shown, without compilation. The official head runs eagerly, 100
calls. How many calls `exact_head` needs depends on the weights; the count with these is shown,
trained heads of the same size may need fewer or more.

Speed-ups over PyTorch also hold what compilation gains; the gain of speculation alone is the
speed-up of `exact_head` over `mar`, which differ in the head's sampler only. The same figures, with
versions, are in report.json in --workdir.
"""

import dataclasses
import importlib
import os
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkpoints_conversion import convert, rules
from cspd_jax.continuous import head as head_lib, schedule as schedule_lib
from cspd_jax.continuous.speculative_head import speculative
from cspd_jax.core import fields
from cspd_jax.core.random import row_keys
from cspd_jax.evaluation import tables, timing
from cspd_jax.evaluation.report import Report
from cspd_jax.models import mar
from experiments import cli

_SCALE = 2.9
_VISIBLE = 3 / 8  # Of the tokens; an eighth below one of our encoder's static lengths.
# Names of the official constructors.
_OFFICIAL = {'mar_b': 'mar_base', 'mar_l': 'mar_large', 'mar_h': 'mar_huge'}
_COLUMNS = {
    '': '{name}', 'guidance': '{guided}', 'transformer ms': '{transformer_ms:.0f}',
    'head calls': '{head_calls:.0f}', 'head ms': '{head_ms:.0f}', 'step ms': '{step_ms:.0f}',
    'over PyTorch': '{speedup_over_pytorch:.2f}x', 'over mar': '{speedup_over_mar:.2f}x'}


@dataclasses.dataclass(frozen=True)
class Flags:
  """What to time.

  Attributes:
    repo: folder of the official code.
    size: of the model: mar_b, mar_l or mar_h.
    tokens: that the step fixes.
    kernels_per_call: of exact_head.
    repeats: timed runs of each; the median counts.
    workdir: folder of report.json.
  """

  repo: str | None = None
  size: str = 'mar_b'
  tokens: int = 1
  kernels_per_call: int = 8
  repeats: int = 5
  workdir: str = 'runs/against_pytorch'

  def __post_init__(self):
    fields.check(self)


def num_visible(config: mar.MARConfig) -> int:
  """Tokens that are visible in the step that is timed."""
  return int(_VISIBLE * config.num_tokens)


def official(repo: str, name: str):
  """The official model with random weights, and PyTorch.

  Raises:
    ValueError: if the code or what it needs is not there.
  """
  if not (pathlib.Path(repo) / 'models' / 'mar.py').exists():
    raise ValueError(f'repo is {repo!r}, where there is no models/mar.py; give a clone of '
                     'https://github.com/LTH14/mar.')
  sys.path.insert(0, repo)
  try:
    torch, module = importlib.import_module('torch'), importlib.import_module('models.mar')
  except ImportError as error:
    raise ValueError(f'the official code cannot be imported ({error}); it needs '
                     "pip install torch 'timm<1' scipy.") from error
  torch.set_num_threads(os.cpu_count())
  torch.Tensor.cuda = lambda self, *args, **kwargs: self  # Its sampler moves noise to a GPU.
  config = mar.PRESETS[name]
  model = getattr(module, _OFFICIAL[name])(
      img_size=256, vae_stride=16, patch_size=1, vae_embed_dim=16, class_num=config.num_classes,
      buffer_size=config.buffer_size, diffloss_w=config.head_width,
      diffloss_d=config.head_layers, num_sampling_steps='100').eval()
  for parameter in model.parameters():
    if not parameter.abs().max():
      torch.nn.init.normal_(parameter, std=0.02)  # A head of zeros would accept every draft.
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
  batch = head_lib.batch(row_keys(jax.random.key(0), 1), z, positions,
                         jnp.full((1, num), _SCALE), 1.0, jnp.ones((1, num), bool))
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


def check(flags: Flags) -> mar.MARConfig:
  """The sizes of the model.

  Raises:
    ValueError: for flags that cannot work.
  """
  if flags.repo is None:
    raise ValueError('repo is none; give a clone of https://github.com/LTH14/mar.')
  if flags.size not in mar.PRESETS:
    raise ValueError(f'size is {flags.size!r}; it must be one of {", ".join(mar.PRESETS)}.')
  config = mar.PRESETS[flags.size]
  hidden = config.num_tokens - num_visible(config)
  if flags.tokens > hidden:
    raise ValueError(f'tokens is {flags.tokens}; it may be at most the hidden ones, {hidden}.')
  speculative(mar.target(config, guided=False), schedule_lib.make(), flags.kernels_per_call)
  return config


@cli.program(flags=Flags())
def main(flags: Any) -> None:
  jax.config.update('jax_platforms', 'cpu')
  config = check(flags)
  model, torch = official(flags.repo, flags.size)
  report = Report(flags.workdir)
  params = jax.tree.map(jnp.asarray, convert.convert(
      rules.get('mar'), config,
      {name: tensor.numpy() for name, tensor in model.state_dict().items()}))
  rows = [row for guided in (False, True)
          for row in compare(model, torch, config, params, guided, flags)]
  title = f'{flags.size}, {flags.tokens} of {config.num_tokens} tokens per step'
  print(f'\n{title}\n\n{tables.text(_COLUMNS, rows)}')
  report.write(
      settings=dataclasses.asdict(flags), rows=rows, tokens_per_image=config.num_tokens,
      tokens_visible=num_visible(config), guidance_scale=_SCALE, batch=1, dtype='float32',
      torch_version=str(torch.__version__),
      tables=[dict(title=title, columns=_COLUMNS, rows=list(range(len(rows))))])
  print(f'\nreport.json is in {flags.workdir}.')


if __name__ == '__main__':
  sys.exit(main())
