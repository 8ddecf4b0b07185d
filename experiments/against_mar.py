"""Times MAR against the official PyTorch code on the same CPU: a step, rounds, and whole images.

  git clone https://github.com/LTH14/mar
  pip install torch 'timm<1' scipy
  python -m experiments.against_mar --repo=mar
  python -m experiments.against_mar --repo=mar --size=mar_l --tokens=4 --images=0

Both use the same random weights, converted from the official modules; the largest difference
between their inputs of the head is printed. Both run with one thread per core and alternate; the
reported times are medians without compilation.

Step: one image with three eighths of its tokens visible. The official encoder reads only those,
this library's half of all tokens, one of its static lengths. The official head has 100 calls.

Rounds, with guidance: of decoders, with as many calls of the head and as many tokens as --accepted
measured with `mar_demo` (see `experiments.costs.forced_rounds`), in the same place of an image. The
official code draws one token there.

Images, with guidance: in --steps steps of many tokens each, officially and with decoders.

The number of calls that `exact_head` needs depends on the weights, which are random in steps and
images. Speed-ups over PyTorch include that of compilation. Writes report.json to --workdir.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import cli
from cspd_jax.continuous import decoders, head as head_lib, schedule as schedule_lib
from cspd_jax.continuous.span import token_batch
from cspd_jax.continuous.speculative_head import speculative
from cspd_jax.core import fields, programs
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import timing
from cspd_jax.measure.tables import Table
from cspd_jax.models import mar
from experiments import against
from experiments.costs import forced_rounds

_URL = 'https://github.com/LTH14/mar'
_SCALE = 2.9
_LABEL = 207
_ACCEPTED_MODEL = 'mar_demo'
_KERNELS = 8  # Of a head call of `exact_head`.
_VISIBLE = 3 / 8  # Of the tokens; an eighth below one of our encoder's static lengths.
# The names of the official constructors.
_OFFICIAL = {'mar_b': 'mar_base', 'mar_l': 'mar_large', 'mar_h': 'mar_huge'}
_STEP = {
    '': '{name}', 'guidance': '{guided}', 'transformer ms': '{transformer_ms:.0f}',
    'head calls': '{head_calls:.0f}', 'head ms': '{head_ms:.0f}', 'step ms': '{step_ms:.0f}',
    'over PyTorch': '{speedup_over_pytorch:.2f}x', 'over mar': '{speedup_over_mar:.2f}x'}
_IMAGE = {
    '': '{name}', 'steps': '{steps}', 'head calls': '{head_calls:.0f}', 's/image': '{seconds:.1f}',
    'over PyTorch': '{speedup_over_pytorch:.2f}x', 'over mar': '{speedup_over_mar:.2f}x'}


@dataclasses.dataclass(frozen=True)
class Flags(against.Flags):
  """Command-line flags; without a decoder, no rounds are timed.

  Attributes:
    size: model size: mar_b, mar_l or mar_h.
    tokens: tokens that the timed step generates.
    images: number of timed whole images; may be 0.
    steps: steps of a whole image.
  """

  size: str = 'mar_b'
  tokens: int = 1
  images: int = 3
  steps: int = 64
  workdir: str = 'runs/against_mar'

  def __post_init__(self):
    fields.check(self, images=(0, fields.MOST))


def num_visible(config: mar.MARConfig) -> int:
  """Returns the number of visible tokens in the timed step."""
  return int(_VISIBLE * config.num_tokens)


def official_model(flags: Flags) -> tuple[Any, Any]:
  """Returns the official model with random weights, and PyTorch."""
  torch, module = against.official(flags, _URL, 'models/mar.py', "torch 'timm<1' scipy")
  torch.Tensor.cuda = lambda self, *args, **kwargs: self  # Its sampler moves noise to a GPU.
  config = mar.PRESETS[flags.size]
  model = getattr(module, _OFFICIAL[flags.size])(
      img_size=256, vae_stride=16, patch_size=1, vae_embed_dim=16, class_num=config.num_classes,
      buffer_size=config.buffer_size, diffloss_w=config.head_width,
      diffloss_d=config.head_layers, num_sampling_steps='100').eval()
  against.perturb(torch, model)
  return model, torch


def steps(model: Any, torch: Any, config: mar.MARConfig, params: Any, guided: bool, num: int
          ) -> tuple[dict[str, Callable[[], Any]], dict[str, float], float]:
  """Prepares the parts of a step that generates `num` tokens.

  Returns functions to be timed, by name; head calls by decoder; the largest difference between the
  results of the two transformers.
  """
  target, schedule = mar.target(config, guided=guided), schedule_lib.make()
  rng, size = np.random.default_rng(0), config.num_tokens
  visible = np.zeros((1, size), bool)
  visible[:, rng.permutation(size)[:num_visible(config)]] = True
  tokens = rng.standard_normal((1, size, config.token_dim)).astype(np.float32)
  positions = np.flatnonzero(~visible[0])[None, :num]
  labels = jnp.zeros((1,), jnp.int32)

  transform = programs.jit(lambda params: target.transform(params, labels, tokens, visible))
  z = head_lib.pick(transform(params), positions)
  batch = token_batch(row_keys(jax.random.key(0), 1), z, positions, jnp.full((1, num), _SCALE), 1.0,
                      jnp.ones((1, num), bool))
  heads = {'mar': head_lib.ancestral(target, schedule),
           'exact_head': speculative(target, schedule, _KERNELS)}
  compiled = {name: programs.jit(head.sample) for name, head in heads.items()}

  streams = target.num_streams
  with torch.no_grad():
    classes = torch.cat([model.class_emb(torch.zeros(1, dtype=torch.long)), model.fake_latent])
  repeated = torch.tensor(np.repeat(tokens, streams, 0))
  mask = torch.tensor(np.repeat(~visible, streams, 0).astype(np.float32))

  def official_transform():
    with torch.no_grad():
      return model.forward_mae_decoder(
          model.forward_mae_encoder(repeated, mask, classes[:streams]), mask)

  official_z = official_transform()[:, positions[0]]
  difference = float(np.abs(official_z.numpy() - np.asarray(z[:, 0])).max())
  official_z = official_z.reshape(-1, official_z.shape[-1])

  def official_head():
    with torch.no_grad():
      return model.diffloss.sample(official_z, 1.0, _SCALE if guided else 1.0)

  calls = {name: float(run(params, batch).calls.max()) for name, run in compiled.items()}
  runs = {'transformer': lambda: jax.block_until_ready(transform(params)),
          'PyTorch wakes': official_head, 'PyTorch transformer': official_transform,
          'PyTorch head': official_head}
  runs |= {f'{name} head': lambda run=run: jax.block_until_ready(run(params, batch))
           for name, run in compiled.items()}
  return runs, calls, difference


def compare(model: Any, torch: Any, config: mar.MARConfig, params: Any, guided: bool,
            flags: Flags) -> list[dict[str, Any]]:
  """Times a step with or without guidance; returns rows with times in milliseconds."""
  runs, calls, difference = steps(model, torch, config, params, guided, flags.tokens)
  ms = {name: 1e3 * times.median for name, times in timing.measure(runs, flags.repeats).items()}
  print(f'{"with" if guided else "without"} guidance: the inputs of the head differ by '
        f'{difference:.1e} at most', flush=True)
  rows = []
  for name, kind in (('PyTorch', 'PyTorch '), ('mar', ''), ('exact_head', '')):
    transformer, head = ms[f'{kind}transformer'], ms[f'{name} head']
    rows.append(dict(
        name=name, guided='yes' if guided else 'no', transformer_ms=transformer, head_ms=head,
        head_calls=calls.get(name, 100), step_ms=transformer + head, difference=difference))
  official_ms, mar_ms, _ = (row['step_ms'] for row in rows)
  return [row | dict(speedup_over_pytorch=official_ms / row['step_ms'],
                     speedup_over_mar=mar_ms / row['step_ms']) for row in rows]


def rounds(model: Any, torch: Any, config: mar.MARConfig, params: Any, decoders: dict[str, Any],
           repeats: int) -> list[dict[str, Any]]:
  """Times rounds with guidance and measured acceptance; returns their rows."""
  parts, *_ = steps(model, torch, config, params, True, 1)
  official = {name: parts[name] for name in ('PyTorch transformer', 'PyTorch head')}
  sampling = SamplingParams(guidance_scale=np.float32(_SCALE))
  prepared = {name: forced_rounds.prepare(
      *each, params, jnp.array([_LABEL]), sampling, num_visible(config))
              for name, each in decoders.items()}
  timed = forced_rounds.measure(prepared, official, repeats)
  transformer, head = (1e3 * timed[name].median for name in official)
  return forced_rounds.rows(prepared, timed, dict(
      transformer_ms=transformer, head_ms=head, head_calls=100, round_ms=transformer + head))


def whole_images(model: Any, torch: Any, config: mar.MARConfig, params: Any, flags: Flags
                 ) -> list[dict[str, Any]]:
  """Times whole images with guidance; returns their rows."""
  target, keys = mar.target(config, guided=True), jax.random.split(jax.random.key(0), 1)
  options, labels = SamplingParams(guidance_scale=np.float32(_SCALE)), jnp.array([_LABEL])
  by_name = {'mar': decoders.mar(target, num_iter=flags.steps),
             'exact_head': decoders.exact_head(
                 target, num_iter=flags.steps, kernels_per_call=_KERNELS)}
  compiled = {name: programs.compiled(decoder, params, labels, keys, options, None).run
              for name, decoder in by_name.items()}

  def official_image():
    with torch.no_grad():
      return model.sample_tokens(
          1, num_iter=flags.steps, cfg=_SCALE, cfg_schedule='linear', labels=torch.tensor([_LABEL]))

  runs = {'PyTorch': official_image}
  runs |= {name: lambda run=run: run(params, labels, keys, options, None)
           for name, run in compiled.items()}
  timed = timing.measure(runs, flags.images, warmup=0)
  calls = {name: float(runs[name]().costs.head_calls.sum()) for name in compiled}
  return [dict(
      name=name, steps=flags.steps, head_calls=calls.get(name, 100.0 * flags.steps),
      seconds=times.median, speedup_over_pytorch=timed['PyTorch'].median / times.median,
      speedup_over_mar=timed['mar'].median / times.median) for name, times in timed.items()]


def check(flags: Flags) -> tuple[mar.MARConfig, dict[str, Any]]:
  """Returns the sizes of the model, and the decoders of rounds as `forced_rounds.check` does."""
  fields.check_choice('size', flags.size, mar.PRESETS)
  config = mar.PRESETS[flags.size]
  hidden = config.num_tokens - num_visible(config)
  if flags.tokens > hidden:
    raise ValueError(f'tokens is {flags.tokens}; it must be at most {hidden}, the number of hidden '
                     'tokens.')
  decoders.mar(mar.target(config, guided=False), num_iter=flags.steps)
  if not flags.decoder:
    return config, {}
  return config, forced_rounds.check(
      mar.target(config, guided=True), flags.decoder, flags.accepted, _ACCEPTED_MODEL)


@cli.command(flags=Flags())
def main(flags: Flags) -> None:
  jax.config.update('jax_platforms', 'cpu')
  config, of_rounds = check(flags)
  model, torch = official_model(flags)
  report, params = Report(flags.workdir), against.converted('mar', config, model)
  shown = [Table(f'{flags.size}, {flags.tokens} of {config.num_tokens} tokens per step', _STEP, [
      row for guided in (False, True)
      for row in compare(model, torch, config, params, guided, flags)])]
  if of_rounds:
    shown.append(Table(
        f'{flags.size}, rounds with acceptance as measured with {_ACCEPTED_MODEL}',
        forced_rounds.COLUMNS, rounds(model, torch, config, params, of_rounds, flags.repeats)))
  if flags.images:
    shown.append(Table(f'{flags.size}, images of {flags.steps} steps', _IMAGE,
                       whole_images(model, torch, config, params, flags)))
  against.write(
      report, flags, torch, shown, tokens_per_image=config.num_tokens,
      tokens_visible=num_visible(config), guidance_scale=_SCALE, accepted_model=_ACCEPTED_MODEL)


if __name__ == '__main__':
  sys.exit(main())
