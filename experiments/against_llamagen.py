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
from cspd_jax.files import store
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import timing
from cspd_jax.measure.tables import Table
from experiments import against
from experiments.costs import predicted, timed_rounds
from experiments.measured import check_lists

_URL = 'https://github.com/FoundationVision/LlamaGen'
_SCALE = 2.0
_LABEL = 207
# The names of the official constructors.
_OFFICIAL = {'c2i_b_256': 'GPT-B', 'c2i_l_256': 'GPT-L', 'c2i_xl_256': 'GPT-XL'}
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
      'corrected(by=neighbours, passes=2, window=4)',
      'corrected(by=neighbours, passes=2, window=8)', 'corrected(passes=1, window=4)',
      'corrected(passes=2, window=8)', 'corrected(passes=2, window=16)')
  accepted: str = 'docs/reports/corrected_short.json'
  workdir: str = 'runs/against_llamagen'


def check(flags: Flags) -> tuple[families.Model, dict[str, float]]:
  """Returns the model with shapes for parameters, and the tokens per round of every decoder."""
  check_lists(flags, 'decoder')
  fields.check_choice('size', flags.size, _OFFICIAL)
  model = families.describe(flags.size, dtype='float32')
  return model, timed_rounds.committed(model, flags.decoder, flags)


def official_runs(flags: Flags, config: Any) -> tuple[Any, Callable[[], Any], np.ndarray, Any]:
  """Prepares the official code of a model of sizes `config`, with random weights.

  Returns the model; a function that generates an image; the logits `[2, V]` of the first token,
  with and without its class; PyTorch.
  """
  gpt, generate = 'autoregressive/models/gpt.py', 'autoregressive/models/generate.py'
  torch, module = against.official(flags, _URL, gpt, 'torch')
  _, sampling = against.official(flags, _URL, generate, 'torch')
  torch.manual_seed(0)
  length = config.num_tokens
  model = module.GPT_models[_OFFICIAL[flags.size]](
      vocab_size=config.vocab_size, block_size=length, num_classes=config.num_classes,
      cls_token_num=1, model_type='c2i').eval()
  against.perturb(torch, model)

  def image():
    return sampling.generate(
        model, torch.tensor([_LABEL]), length, cfg_scale=_SCALE, cfg_interval=-1, temperature=1.0,
        top_k=0, top_p=1.0, sample_logits=True)

  with torch.no_grad():
    model.setup_caches(max_batch_size=2, max_seq_length=length + 1, dtype=torch.float32)
    both = torch.tensor([_LABEL, config.num_classes])
    logits = model(None, both, torch.arange(1))[0][:, 0].numpy()
  return model, image, logits, torch


def decoder_runs(model: families.Model, committed: dict[str, float]
                 ) -> tuple[dict[str, Callable[[], Any]], np.ndarray]:
  """Returns functions that generate an image, by decoder; and the logits of `official_runs`."""
  condition, key = jnp.array([_LABEL]), jax.random.split(jax.random.key(0), 1)
  sampling, runs = model.engine.settled(model.sampling(guidance_scale=_SCALE)), {}
  for text, tokens in committed.items():
    decoder = model.decoder(text, guided=True)
    decoder = decoder if text == 'vanilla' else timed_rounds.with_acceptance(decoder, tokens)
    arguments = (model.params, condition, key, sampling,
                 store.for_decoding('eagle', timed_rounds.random_like(model.draft_params(text))))
    run = programs.compiled(decoder, *arguments).run
    runs[text] = lambda run=run, arguments=arguments: run(*arguments)
    print(f'{text} is compiled', file=sys.stderr, flush=True)
  target = model.target(guided=True)
  logits, *_ = programs.jit(lambda params: target.prefill(params, condition, target.num_tokens))(
      model.params)
  return runs, np.asarray(logits[:, 0])


@cli.command(flags=Flags())
def main(flags: Flags) -> None:
  jax.config.update('jax_platforms', 'cpu')
  model, committed = check(flags)
  official_model, image, expected, torch = official_runs(flags, model.config)
  report = Report(flags.workdir)
  model = dataclasses.replace(model, params=store.for_decoding('llamagen', against.converted(
      'llamagen', model.config, official_model, ('kv_cache', 'freqs_cis', 'causal_mask'))))
  runs, logits = decoder_runs(model, committed)
  difference = float(np.abs(logits - expected).max())
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
