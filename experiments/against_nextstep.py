"""Times tokens of a small NextStep-1 against the official PyTorch code on the same CPU.

  git clone https://github.com/stepfun-ai/NextStep-1
  pip install torch torchvision transformers==4.49.0 diffusers==0.32.2 loguru pendulum tabulate \\
      megfile webdataset
  python -m experiments.against_nextstep --repo=NextStep-1
  python -m experiments.against_nextstep --repo=NextStep-1 --decoder='windows(window=8)'

The published model has 14 billion parameters; this one has random weights, the widths and half of
the layers of Qwen2.5-0.5B, and a head of about the published share of the parameters. Both programs
use the same weights, converted from the official modules; the largest difference between their
inputs of the head is printed. Both run in float32 with one thread per core and alternate, in the
middle of one image with guidance; the reported times are medians without compilation.

PyTorch: a token of the official `NextStepPipeline.decoding`, with its static cache; its
`torch.compile` is off. Decoders: a round, with as many calls of the head and as many tokens as
`--accepted` measured with `emoji_continuous`; see `experiments.costs.forced_rounds`. Writes
report.json with these figures and versions to --workdir.
"""

import dataclasses
import os
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import cli
from cspd_jax.core import fields, programs
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.files.run_folder import Report
from cspd_jax.measure.tables import Table
from cspd_jax.models import nextstep
from cspd_jax.models.conditions import Prompt
from experiments import against
from experiments.costs import forced_rounds

_URL = 'https://github.com/stepfun-ai/NextStep-1'
_NEEDS = ('torch torchvision transformers==4.49.0 diffusers==0.32.2 loguru pendulum tabulate '
          'megfile webdataset')
_SCALE = 7.5
_PROMPT = 32  # Tokens.
_ACCEPTED_MODEL = 'emoji_continuous'
_EAGER = {'ENABLE_TORCH_COMPILE': 'false'}
CONFIG = nextstep.NextStepConfig(
    height=16, width=16, vocab_size=2048, dim=896, num_layers=12, num_heads=14, num_kv_heads=2,
    ffn_dim=4864, head_width=256, head_layers=6)
_MIDDLE = CONFIG.num_tokens // 2  # Complete tokens when the timed ones begin.


@dataclasses.dataclass(frozen=True)
class Flags(against.Flags):
  """Command-line flags."""

  workdir: str = 'runs/against_nextstep'

  def __post_init__(self):
    fields.check(self, repeats=(1, CONFIG.num_tokens // 4))


def official_model(flags: Flags, config: nextstep.NextStepConfig) -> tuple[Any, Any, Any]:
  """Returns the official model with random weights, its pipeline's class, and PyTorch."""
  os.environ.update(_EAGER)
  torch, module = against.official(flags, _URL, 'nextstep/models/pipeline_nextstep.py', _NEEDS)
  settings = sys.modules['nextstep.models.configuration_nextstep'].NextStepConfig(
      vocab_size=config.vocab_size, hidden_size=config.dim, intermediate_size=config.ffn_dim,
      num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
      num_key_value_heads=config.num_kv_heads, rms_norm_eps=config.norm_eps,
      rope_theta=config.rope_base, attention_bias=True, o_attention_bias=False, pad_token_id=0,
      max_position_embeddings=_PROMPT + config.num_tokens, latent_channels=config.latent_channels,
      latent_patch_size=config.patch_size, fm_head_dim=config.head_width,
      fm_head_layers=config.head_layers, attn_implementation='sdpa')
  model = module.NextStep(settings).eval()
  against.perturb(torch, model)
  return model, module.NextStepPipeline, torch


class Official:
  """The official loop, in the middle of an image with guidance."""

  def __init__(self, model: Any, pipeline: Any, torch: Any, config: nextstep.NextStepConfig,
               prompt: Prompt, tokens: np.ndarray):
    """Runs the prompt, `[1, 2, P]` visible tokens, and the complete tokens `[1, n, C]`."""
    self._model, self._pipeline, self._torch, self._config = model, pipeline, torch, config
    cache = sys.modules[pipeline.__module__].StaticCache
    self._cache = cache(
        config=model.config, max_batch_size=2, max_cache_len=_PROMPT + config.num_tokens,
        device='cpu', dtype=torch.float32)
    with torch.no_grad():
      text = model.embed_tokens(torch.tensor(np.asarray(prompt.tokens[0])))
      image = model.image_in_projector(torch.tensor(tokens))
      inputs = torch.cat([text, image.expand(2, -1, -1)], dim=1)
      self._length = inputs.shape[1]
      self._hidden = self._forward(inputs)[:, -1:]

  def z(self) -> np.ndarray:
    """Returns the input `[2, D]` of the head for the next token."""
    with self._torch.no_grad():
      return self._model.image_out_projector(self._hidden)[:, 0].numpy()

  def token(self) -> None:
    """Draws a token by the official loop, which then runs the transformer for it."""
    self._pipeline.decoding(
        types.SimpleNamespace(model=self._model), c=self._hidden, attention_mask=self._mask(),
        past_key_values=self._cache, max_new_len=1, num_images_per_caption=1,
        use_norm=self._config.token_norm, cfg=_SCALE,
        num_sampling_steps=self._config.num_levels, progress=False)
    self._length += 1

  def _mask(self) -> Any:
    return self._torch.ones(2, self._length, dtype=self._torch.long)

  def _forward(self, inputs: Any) -> Any:
    return self._model.forward_model(
        inputs_embeds=inputs, attention_mask=self._mask(), past_key_values=self._cache,
        use_cache=True).last_hidden_state


def compare(official: Official, decoders: dict[str, Any], params: Any, prompt: Prompt,
            repeats: int) -> list[dict[str, Any]]:
  """Times the official loop and rounds of decoders; returns the rows of the table."""
  sampling = SamplingParams(guidance_scale=np.float32(_SCALE))
  prepared = {name: forced_rounds.prepare(*each, params, prompt, sampling, _MIDDLE)
              for name, each in decoders.items()}
  timed = forced_rounds.measure(prepared, {'PyTorch': official.token}, repeats)
  return forced_rounds.rows(
      prepared, timed, dict(round_ms=1e3 * timed['PyTorch'].median, head_calls=CONFIG.num_levels))


@cli.command(flags=Flags())
def main(flags: Flags) -> None:
  jax.config.update('jax_platforms', 'cpu')
  fields.check_lists(flags, 'decoder')
  decoders = forced_rounds.check(
      nextstep.target(CONFIG, guided=True), flags.decoder, flags.accepted, _ACCEPTED_MODEL)
  model, pipeline, torch = official_model(flags, CONFIG)
  report, params = Report(flags.workdir), against.converted('nextstep', CONFIG, model)
  rng = np.random.default_rng(0)
  prompt = Prompt(rng.integers(0, CONFIG.vocab_size, (1, 2, _PROMPT)),
                  np.ones((1, 2, _PROMPT), bool))
  tokens = rng.standard_normal((1, _MIDDLE, CONFIG.token_dim)).astype(np.float32)
  tokens = np.asarray(nextstep.normalized(CONFIG, jnp.asarray(tokens)))
  official = Official(model, pipeline, torch, CONFIG, prompt, tokens)
  difference = first_difference(official, params, prompt, tokens)
  print(f'the inputs of the head differ by {difference:.1e} at most', flush=True)
  rows = compare(official, decoders, params, prompt, flags.repeats)
  head = sum(map(np.size, jax.tree.leaves(params['head'])))
  total = sum(map(np.size, jax.tree.leaves(params)))
  title = f'{total / 1e6:.0f} million parameters, one image of {CONFIG.num_tokens} tokens'
  against.write(
      report, flags, torch, [Table(title, forced_rounds.COLUMNS, rows)], difference=difference,
      guidance_scale=_SCALE, config=dataclasses.asdict(CONFIG), parameters=total,
      head_parameters=head, accepted_model=_ACCEPTED_MODEL)


def first_difference(official: Official, params: Any, prompt: Prompt, tokens: np.ndarray) -> float:
  """Returns the largest difference between the inputs of the two heads for the next token."""
  # Every stream as a prompt of its own; the last token of `forward` is not read.
  streams = Prompt(*(np.swapaxes(part, 0, 1) for part in prompt))
  padded = np.pad(np.repeat(tokens, 2, axis=0), ((0, 0), (0, 1), (0, 0)))
  z = programs.jit(lambda params: nextstep.forward(params, CONFIG, streams, padded))(params)
  return float(np.abs(np.asarray(z)[:, -1] - official.z()).max())


if __name__ == '__main__':
  sys.exit(main())
