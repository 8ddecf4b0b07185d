"""Decodes the same prompts with released decoders and with ours, on the same trained weights.

  git clone https://github.com/tyshiwo1/Accelerating-T2I-AR-with-SJD SJD
  pip install torch transformers==4.48.1
  python -m experiments.against_released --repo=SJD --method=sjd

The model, `emoji` or another one like Chameleon with an end token per row, is written in the format
of transformers, and the network of the clone loads it: the difference of its first logits is
printed. Then the unchanged loop of the clone decodes the prompts one by one, with the window that
its own programs use and, as its baseline, with a window of one token. The same prompts are decoded
here with the same sampling options by `vanilla`, by the decoder of the same name, and by `--best`.
For an exact sampler the mean of `NLL - entropy` is 0; see cspd_jax.metrics.likelihood.

The code of other projects is not part of this repository. What is changed, in memory only: CUDA
events and devices become those of the CPU; the grammar of images, written for one vocabulary, is
replaced by the model's; the loop drafts from the first token of an image to its last. Writes
report.json to --workdir.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import io
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

import cspd_jax
from checkpoints_conversion import publish
from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import batches, fields, programs
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.files.run_folder import Report
from cspd_jax.measure.tables import Table
from cspd_jax.metrics import base, likelihood, scenes
from cspd_jax.models import early_fusion
from cspd_jax.models.early_fusion import EarlyFusionConfig
from experiments import against, measured

# The largest accepted difference of the first logits, in float32.
_TOLERANCE = 1e-3
_NEEDS = 'torch transformers==4.48.1'


class Method(NamedTuple):
  """A released decoder of models like Lumina-mGPT.

  Attributes:
    url: its repository.
    commit: the commit that the changes in memory are for.
    sha256: of the file of the loop at that commit.
    root: folder in the clone that holds the folders `scheduler` and `lumina_mgpt`.
    loop: module of the loop in `scheduler`.
    window: tokens that a pass scores, as its programs recommend.
    options: other arguments of the loop, as its programs recommend.
    ours: the decoder here that corresponds to it.
  """

  url: str
  commit: str
  sha256: str
  root: str
  loop: str
  window: int
  options: Mapping[str, Any]
  ours: str


_JACOBI = dict(multi_token_init_scheme='random', prefix_token_sampler_scheme='speculative_jacobi')
METHODS = {
    'sjd': Method(
        'https://github.com/tyshiwo1/Accelerating-T2I-AR-with-SJD', 'b389cfb',
        '133c57bd7e946748c51dc7b7f9f4bee20717effb6725d21a4aa6b12bd6867d29',
        '.', 'jacobi_iteration_lumina_mgpt', 16, _JACOBI, 'sjd'),
    'scd': Method(
        'https://github.com/junhyukso/SCD', '7322379',
        '898e00b45813a54d5c8a686c5563738f02c005a68a75b22797f36d39ee33d513',
        'lumina1', 'jacobi_iteration_lumina_mgpt_SCDMC', 32, _JACOBI, 'mc_sjd'),
    'sjd_pac': Method(
        'https://github.com/KangJialiang/SJD-PAC', '4fbc099',
        'aefde379e207fdfa89dcca96786ebc5ab24da214f1664ded1fb846f02d7b4441',
        '.', 'sjd_pac_iteration_lumina_mgpt', 64, dict(tree_width=3, tree_depth=3), 'sjd_pac'),
    'sjd_pp': Method(
        'https://github.com/Haodong-Lei-Ray/PathSpec', '8a3df48',
        'f8a0dfaaeefc703e20551c65f2f770e0d72869690f8d4787e0891b835c160b33',
        '.', 'old_jacobi_iteration_lumina_mgpt', 16,
        _JACOBI | dict(prefix_token_sampler_scheme='sjd++'), 'sjd_pp')}

_COLUMNS = {
    'decoder': '{decoder}', 'code': '{code}', 'window': '{window}',
    'tokens per pass': '{tokens_per_pass:.2f} +- {tokens_per_pass_error:.2f}',
    'passes': '{passes:.1f}', 's/image': '{seconds_per_image:.2f}',
    'over its vanilla': '{speedup:.2f}x', 'NLL - entropy': '{gap:.3f} +- {gap_error:.3f}',
    'asked': '{asked:.2f}'}


@dataclasses.dataclass(frozen=True)
class Config(measured.ModelImages):
  """The released code, the images and our decoders.

  Attributes:
    repo: folder of a clone of the released code.
    method: the released decoder: sjd, scd, sjd_pac or sjd_pp.
    guidance_scale: the only sampling option of both; the model's if None.
    window: tokens that a pass scores; what the released programs recommend if None.
    best: further decoders of ours.
    asked: scores whether the images show what was asked for, for models of scenes of emoji.
  """

  loading: groups.LoadFlags = groups.LoadFlags(model='emoji', dtype='float32')
  images: groups.Images = groups.Images(num_images=32)
  batch_size: int | None = 1
  repo: str | None = None
  method: str = 'sjd'
  guidance_scale: float | None = None
  window: int | None = None
  best: tuple[str, ...] = ('corrected(iterations=4, window=64)',)
  asked: bool = True
  workdir: str | None = 'runs/against_released'

  def __post_init__(self):
    fields.check(self, window=(2, fields.MOST), batch_size=(1, 1), guidance_scale=fields.FINITE)


class Decodes(NamedTuple):
  """Images of one decoder: tokens `[N, T]`, forward passes `[N]` and seconds `[N]`."""

  tokens: np.ndarray
  passes: np.ndarray
  seconds: np.ndarray


def check(config: Config) -> tuple[cspd_jax.Model, Method, pathlib.Path]:
  """Checks the options; returns the model, the method and the folder of its code."""
  fields.check_choice('method', config.method, METHODS)
  method = METHODS[config.method]
  model = config.model(engine='discrete')
  if not isinstance(model.config, EarlyFusionConfig) or model.config.row_end is None:
    raise ValueError(f'model is {model.name!r}, and released loops decode models like Lumina-mGPT, '
                     'whose rows have an end token; use emoji.')
  usual = SamplingParams()._replace(guidance_scale=None)
  active = model.engine.drop_inactive(model.sampling())._replace(guidance_scale=None)
  if active != model.engine.drop_inactive(usual):
    raise ValueError(f'model is {model.name!r}, whose default sampling options are more than a '
                     'guidance scale, which the released loops do not have here; use emoji.')
  if config.repo is None:
    raise ValueError(f'repo is none; give the folder of a clone of {method.url}.')
  loop = f'{method.root}/scheduler/{method.loop}.py'.removeprefix('./')
  folder = against.clone(config.repo, method.url, loop)
  if hashlib.sha256((folder / loop).read_bytes()).hexdigest() != method.sha256:
    raise ValueError(f'repo is {config.repo!r}, whose {loop} is of another commit than '
                     f'{method.commit}; check that commit out.')
  return model, method, folder / method.root


@contextlib.contextmanager
def on_cpu(torch: Any) -> Any:
  """Replaces what the released code requires of CUDA by the same on a CPU."""

  class Event:
    """A moment."""

    def __init__(self, **_):
      self.time = 0.0

    def record(self):
      self.time = time.perf_counter()

    def elapsed_time(self, other):
      return 1e3 * (other.time - self.time)

  tensor = torch.tensor
  olds = {(torch.cuda, 'Event'): torch.cuda.Event, (torch, 'tensor'): tensor,
          (torch.cuda, 'synchronize'): torch.cuda.synchronize}
  on_host = lambda *args, device=None, **options: tensor(
      *args, device='cpu' if str(device).startswith('cuda') else device, **options)
  torch.cuda.Event, torch.cuda.synchronize, torch.tensor = Event, lambda *_: None, on_host
  try:
    yield
  finally:
    for (owner, name), old in olds.items():
      setattr(owner, name, old)


class Released:
  """The network and the loop of a clone, with a model's weights."""

  def __init__(self, model: cspd_jax.Model, source: str, method: Method, root: pathlib.Path):
    sys.path[:0] = [str(root), str(root / 'lumina_mgpt')]
    try:
      self.torch = importlib.import_module('torch')
      network = importlib.import_module('model.chameleon.modeling_chameleon')
      self.loop = importlib.import_module(f'scheduler.{method.loop}')
      self.transformers = importlib.import_module('transformers')
    except ImportError as error:
      raise ValueError(
          f'the released code cannot be imported ({error}); run pip install {_NEEDS}.') from error
    self.model, self.method, config = model, method, model.config
    with tempfile.TemporaryDirectory() as folder, on_cpu(self.torch):
      publish.publish_model('anole', source, f'{folder}/model', dtype='float32')
      self.net = network.ChameleonForConditionalGeneration.from_pretrained(
          f'{folder}/model', attn_implementation='eager', torch_dtype=self.torch.float32,
          mask_image_logits=False).eval()
    self.order = np.asarray(early_fusion.order(config))
    self.allowed = self.torch.zeros(
        (2 * model.num_tokens, config.vocab_size), dtype=self.torch.bool)
    codes = slice(config.first_code, config.first_code + config.num_codes)
    self.allowed[:, codes] = True  # Tokens past the end are drafted and dropped.
    for position, token in enumerate(np.asarray(
        early_fusion.forced(config, np.arange(model.num_tokens)))):
      if token >= 0:
        self.allowed[position] = False
        self.allowed[position, self.order[token]] = True
    self.passes = 0

  def prompt(self, condition: Any) -> Any:
    """Returns the published ids `[1, L]` of one prompt; the null prompt must be its last token."""
    tokens, visible = np.asarray(condition.tokens)[0], np.asarray(condition.visible)[0]
    ids, null = (self.order[row[seen]] for row, seen in zip(tokens, visible))
    if ids[-1:].tolist() != null.tolist():
      raise ValueError('the released loops guide by the last token of the prompt alone; use emoji.')
    return self.torch.tensor(ids)[None]

  def first_logits(self, prompt: Any) -> np.ndarray:
    """Returns the logits of the codes at the first token of an image."""
    config = self.model.config
    with self.torch.no_grad():
      logits = self.net(input_ids=prompt, attention_mask=self.torch.ones_like(prompt)).logits
    return logits[0, -1, config.first_code:config.first_code + config.num_codes].numpy()

  def prepare(self, window: int, guidance_scale: float) -> None:
    """Gives the network the released loop, which calls its backbone once per forward pass."""
    self.net.__class__ = self.loop.renew_sampler(self.net.__class__)
    self.net._init_new_params(
        jacobi_loop_interval_l=0, jacobi_loop_interval_r=self.model.num_tokens,
        max_num_new_tokens=window, guidance_scale=guidance_scale, do_cfg=True, seed=0,
        use_chameleon_tokenizer=False, **self.method.options)
    config, backbone = self.model.config, self.net.model
    self.net.img_vocab = self.torch.arange(config.first_code, config.first_code + config.num_codes)
    backbone.__class__ = self.loop.renew_backbone(backbone.__class__)
    forward = backbone.forward

    def counted(*args, **options):
      self.passes += 1
      return forward(*args, **options)

    backbone.forward = counted

  def decode(self, prompt: Any, seed: int, window: int) -> tuple[np.ndarray, int, float]:
    """Returns the tokens `[T]` of an image in the order of this library, passes and seconds."""
    length, count = prompt.shape[1], self.model.num_tokens
    generation = self.transformers.generation

    def grammar(ids, scores):
      first, many = ids.shape[1] - length, scores.dim() > 2
      allowed = self.allowed[first:first + scores.shape[-2]] if many else self.allowed[first]
      return self.torch.where(allowed, scores, -float('inf'))

    grammar.w_latent_dim = self.model.config.width  # type: ignore[attr-defined]
    options = self.transformers.GenerationConfig(
        do_sample=True, max_length=length + count, pad_token_id=0)
    options._pad_token_tensor = self.torch.tensor(0)
    self.net.seed, self.net.max_num_new_tokens, self.passes = seed, window, 0
    start = time.perf_counter()
    with self.torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
      ids = self.net._sample(
          prompt, logits_processor=generation.LogitsProcessorList([grammar]),
          stopping_criteria=generation.StoppingCriteriaList(
              [generation.MaxLengthCriteria(length + count)]),
          generation_config=options, synced_gpus=False, streamer=None, logits_warper=None,
          attention_mask=self.torch.ones_like(prompt),
          past_key_values=self.transformers.DynamicCache(), use_cache=True)
    seconds = time.perf_counter() - start
    tokens = np.argsort(self.order)[ids[0, length:length + count].numpy()]
    return tokens, self.passes, seconds


def released_images(released: Released, prompts: list[Any], seed: int, window: int,
                    progress: Callable[[str], None]) -> Decodes:
  """Decodes every prompt with the released loop."""
  images = []
  for number, prompt in enumerate(prompts):
    images.append(released.decode(prompt, seed + number, window))
    progress(f'window {window}, image {number}: {images[-1][1]} passes, {images[-1][2]:.1f} s')
  return Decodes(*map(np.stack, zip(*images)))


def our_images(model: cspd_jax.Model, prompts: list[Any], condition: Any, seed: int, sampling: Any,
               decoder: str) -> Decodes:
  """Decodes every prompt with a decoder of ours; compilation is not timed."""
  request = model.request(prompts, seed=seed, decoder=decoder, batch_size=1, pixels=False,
                          condition=condition, sampling=sampling)
  request.compile(1)
  request.bound(np.zeros(1, int))()
  tokens, passes, seconds = [], [], []
  for number in range(len(request)):
    start = time.perf_counter()
    decoded = jax.device_get(request.bound(np.array([number]))())
    seconds.append(time.perf_counter() - start)
    request.pick([number]).check_result(decoded)
    tokens.append(decoded.tokens[0])
    passes.append(int(decoded.rounds[0]))
  return Decodes(np.stack(tokens), np.array(passes), np.array(seconds))


def row_of(name: str, code: str, window: int, decodes: Decodes, vanilla: Decodes, model: Any,
           condition: Any, sampling: Any, captions: list[str] | None) -> dict[str, Any]:
  """Returns the figures of a decoder; `vanilla` is of the same code."""
  sample = base.Sample(decodes, condition, sampling, captions=captions)
  of = likelihood.of_sample(sample, model)
  count = decodes.tokens.shape[1]
  per_pass = base.ratio(np.full(len(decodes.passes), count), decodes.passes)
  gap = base.mean(np.asarray(of.nll, np.float64) - np.asarray(of.entropy, np.float64))
  asked = {} if captions is None else scenes.of_sample(sample, model)
  return dict(
      decoder=name, code=code, window=window, tokens_per_pass=per_pass.mean,
      tokens_per_pass_error=per_pass.standard_error, passes=float(decodes.passes.mean()),
      seconds_per_image=float(np.median(decodes.seconds)),
      speedup=float(vanilla.seconds.mean() / decodes.seconds.mean()),
      gap=gap.mean, gap_error=gap.standard_error,
      asked=float(asked['asked'].mean) if 'asked' in asked else None)


@cli.command(Config)
def main(config: Config) -> None:
  jax.config.update('jax_platforms', 'cpu')
  model, method, root = check(config)
  report = Report(config.workdir)
  prompts, seed = inputs.images(config.images, model, default=32)
  sampling = model.sampling(**(
      {} if config.guidance_scale is None else dict(guidance_scale=config.guidance_scale)))
  condition, window = model.condition(prompts), config.window or method.window
  captions = scenes.captions(model, prompts) if config.asked else None
  ours = ('vanilla', f'{method.ours}(window={window})', *config.best)
  for name in ours:
    model.decoder(name)  # Refuses what the model cannot run.
  released = Released(model, str(config.loading.model), method, root)
  conditions = [batches.select(condition, np.array([i])) for i in range(len(prompts))]
  of_image = [released.prompt(one) for one in conditions]
  target = model.target(guided=True)
  expected, *_ = programs.jit(lambda params, one: target.prefill(
      params, one, model.num_tokens))(model.params, conditions[0])
  difference = float(np.abs(released.first_logits(of_image[0]) -
                            np.asarray(expected)[0, 0, :model.config.num_codes]).max())
  print(f'the first logits differ by {difference:.1e} at most', flush=True)
  if difference > _TOLERANCE:
    raise ValueError(f'the first logits differ by {difference:.1e}; they must agree within '
                     f'{_TOLERANCE:.0e}, so use another clone or a model in float32.')
  show = lambda line: print(f'{config.method}: {line}', file=sys.stderr, flush=True)
  with on_cpu(released.torch):
    released.prepare(window, float(sampling.guidance_scale))
    theirs = {name: released_images(released, of_image, seed, size, show)
              for name, size in (('vanilla', 1), (config.method, window))}
  mine = {name: our_images(model, prompts, condition, seed, sampling, name) for name in ours}
  rows = []
  for code, decodes in (('released', theirs), ('cspd_jax', mine)):
    for name, images in decodes.items():
      size = {'vanilla': 1}.get(name, window) if code == 'released' else (
          model.decoder(name).drafter.tree.num_nodes + 1 if name != 'vanilla' else 1)
      rows.append(row_of(name, code, size, images, decodes['vanilla'], model, condition, sampling,
                         captions))
  measured.write(report, config, [Table('released code and ours', _COLUMNS, rows)],
                 method=config.method, url=method.url, commit=method.commit, model=model.name,
                 num_images=len(prompts), logits_differ=difference,
                 torch_version=str(released.torch.__version__))


if __name__ == '__main__':
  sys.exit(main())
