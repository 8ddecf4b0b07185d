"""Times images of LlamaGen against the official PyTorch code on the same machine's CPU.

  git clone https://github.com/FoundationVision/LlamaGen
  pip install torch
  python -m experiments.against_llamagen --repo=LlamaGen
  python -m experiments.against_llamagen --repo=LlamaGen --decoder=mc_sjd --tokens_per_round=2.5

Both use the same random weights, converted from the official model; the largest difference between
their first logits is printed. Then one image with guidance is timed: with the official
`generate()`, with `vanilla`, and with decoders, which commit as many tokens per round as measured
with the embedded model (`--accepted`), while they compute everything else, including their drafts.
Both run with one thread per core and alternate; the reported times are medians without compilation.
Writes report.json with these figures and versions to --workdir.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import cli, families
from cspd_jax.core import fields, programs
from cspd_jax.decoding import warp
from cspd_jax.files import store
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import timing
from cspd_jax.measure.tables import Table
from experiments import against
from experiments.costs import predicted, timed_rounds

URL = 'https://github.com/FoundationVision/LlamaGen'
GPT = 'autoregressive/models/gpt.py'
_SCALE = 2.0
_LABEL = 207
# Buffers of the official model that are no parameters.
LEFT_OUT = ('kv_cache', 'freqs_cis', 'causal_mask')
_SIZES = ('c2i_b_256', 'c2i_l_256', 'c2i_xl_256')
_COLUMNS = {
    '': '{decoder}', 'tokens': '{tokens:.2f}', 'rounds': '{rounds}', 'ms/round': '{ms:.1f}',
    'of one token': '{ratio:.2f}x', 's/image': '{seconds_per_image:.2f}',
    'over vanilla': '{speedup:.2f}x', 'over PyTorch': '{speedup_over_pytorch:.2f}x'}


@dataclasses.dataclass(frozen=True)
class Flags(against.Flags, predicted.Accepted):
  """Command-line flags.

  Attributes:
    size: model size: c2i_b_256, c2i_l_256 or c2i_xl_256.
    accepted: report.json of a program that measured step compression.
  """

  size: str = 'c2i_b_256'
  decoder: tuple[str, ...] = (
      'mc_sjd(window=4)', 'mc_sjd(window=8)', 'mc_sjd(window=16)',
      'corrected(corrector=neighbours, iterations=2, window=4)',
      'corrected(corrector=neighbours, iterations=2, window=8)',
      'corrected(iterations=1, window=4)',
      'corrected(iterations=2, window=8)', 'corrected(iterations=2, window=16)')
  accepted: str = 'docs/reports/corrected_short.json'
  workdir: str = 'runs/against_llamagen'


def check(flags: Flags) -> tuple[families.Model, dict[str, float]]:
  """Returns the model with shapes for parameters, and the tokens per round of every decoder."""
  fields.check_lists(flags, 'decoder')
  fields.check_choice('size', flags.size, _SIZES)
  model = families.describe(flags.size, dtype='float32')
  return model, timed_rounds.committed(model, flags.decoder, flags)


def official_runs(flags: Flags, config: Any, device: str = 'cpu', dtype: str = 'float32'
                  ) -> tuple[Any, Callable[..., Any], np.ndarray, Any]:
  """Prepares the official code of a model of sizes `config`, with random weights.

  Returns the model; `model -> ` an image by it, or by what `torch.compile` makes of it; the logits
  `[2, V]` of the first token, with and without its class; PyTorch.
  """
  generate = 'autoregressive/models/generate.py'
  torch, module = against.official(flags, URL, GPT, 'torch')
  _, sampling = against.official(flags, URL, generate, 'torch')
  torch.manual_seed(0)
  length = config.num_tokens
  with torch.device(device):
    model = module.Transformer(module.ModelArgs(
        n_layer=config.num_layers, n_head=config.num_heads, dim=config.dim,
        vocab_size=config.vocab_size, block_size=length, num_classes=config.num_classes,
        cls_token_num=1, model_type='c2i')).to(getattr(torch, dtype)).eval()
    against.perturb(torch, model)

  def image(model=model):
    tokens = sampling.generate(
        model, torch.tensor([_LABEL], device=device), length, cfg_scale=_SCALE, cfg_interval=-1,
        temperature=1.0, top_k=0, top_p=1.0, sample_logits=True)
    return tokens.cpu()  # Waits for a GPU.

  with torch.no_grad(), torch.device(device):
    model.setup_caches(max_batch_size=2, max_seq_length=length + 1, dtype=getattr(torch, dtype))
    both = torch.tensor([_LABEL, config.num_classes])
    logits = model(None, both, torch.arange(1))[0][:, 0].float().cpu().numpy()
  return model, image, logits, torch


def decoder_run(model: families.Model, text: str, tokens: float) -> Callable[[], Any]:
  """Compiles a decoder that commits `tokens` tokens per round; returns what generates an image."""
  decoder = model.decoder(text, guided=True)
  decoder = decoder if text == 'vanilla' else timed_rounds.with_acceptance(decoder, tokens)
  arguments = (model.params, jnp.array([_LABEL]), jax.random.split(jax.random.key(0), 1),
               warp.drop_inactive(model.sampling(guidance_scale=_SCALE)),
               store.for_decoding('eagle', timed_rounds.random_like(model.draft_params(text))))
  run = programs.compiled(decoder, *arguments).run
  print(f'{text} is compiled', file=sys.stderr, flush=True)
  return lambda: run(*arguments)


def first_logits(model: families.Model) -> np.ndarray:
  """Returns the logits of `official_runs`."""
  target = model.target(guided=True)
  logits, *_ = programs.jit(lambda params: target.prefill(
      params, jnp.array([_LABEL]), target.num_tokens))(model.params)
  return np.asarray(logits[:, 0], np.float32)


@cli.command(flags=Flags())
def main(flags: Flags) -> None:
  jax.config.update('jax_platforms', 'cpu')
  model, committed = check(flags)
  official_model, image, expected, torch = official_runs(flags, model.config)
  report = Report(flags.workdir)
  model = dataclasses.replace(model, params=store.for_decoding('llamagen', against.converted(
      'llamagen', model.config, official_model, LEFT_OUT)))
  runs = {text: decoder_run(model, text, tokens) for text, tokens in committed.items()}
  difference = float(np.abs(first_logits(model) - expected).max())
  print(f'the first logits differ by {difference:.1e} at most', flush=True)
  timed = timing.measure({'PyTorch': image} | runs, flags.repeats)
  rows, first = [], timed['vanilla'].median
  for name, times in timed.items():
    rounds = int(runs[name]().rounds[0]) if name in runs else model.num_tokens
    rows.append(dict(
        decoder=name, tokens=model.num_tokens / rounds, rounds=rounds,
        ms=1e3 * times.median / rounds, ratio=times.median / rounds * model.num_tokens / first,
        seconds_per_image=times.median, quartiles=times.quartiles,
        speedup=first / times.median, speedup_over_pytorch=timed['PyTorch'].median / times.median))
  title = f'{flags.size}, one image with guidance'
  against.write(report, flags, torch, [Table(title, _COLUMNS, rows)], difference=difference,
                guidance_scale=_SCALE)


if __name__ == '__main__':
  sys.exit(main())
