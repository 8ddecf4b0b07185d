"""Released loops of MAR and of CSpD, for models of the family `mar`.

The classes of the clone, made with the sizes of target and draft model, load their weights. The
loops have one token per step, and MAR's also the quarter of the steps that its instructions
recommend for speed; CSpD's has the defaults of its runner. The guidance schedule is 'linear', as in
both. What is changed, in memory only: CUDA devices become the CPU; the class embedding of CSpD,
which always has 1000 rows, has those of the model; calls of the transformer and of the head are
counted.
"""

import functools
import math
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from cspd_jax import families
from cspd_jax.core import programs
from cspd_jax.files import store
from cspd_jax.generation.model import Model
from cspd_jax.models.mar import PRESETS, MARConfig
from experiments import released
from experiments.costs import forced_rounds
from experiments.released import Calls, Loops, Method, Sizes, Work

_NEEDS = "torch torchvision 'timm<1' scipy tqdm"
_TOGETHER = 4  # Tokens of a step, of a quarter of as many steps as tokens.
_DRAFTS = 8  # Of a block of CSpD's loop.


def check(model: Model, drafts: bool = False) -> None:
  """Raises ValueError for a model that the loops cannot decode, with or without a draft model."""
  if not isinstance(model.config, MARConfig):
    raise ValueError(f'model is {model.name!r}, and the released loop decodes models of the family '
                     'mar; use mar_demo.')
  if drafts and 'model' not in model.drafts:
    raise ValueError(f'model is {model.name!r}, which has no draft model, and the released loop '
                     'drafts with one; use mar_demo.')


class _Network:
  """A network of the clone with the weights of a stored one, which counts its calls."""

  def __init__(self, torch: Any, module: Any, network: store.Loaded):
    self.torch, self.config = torch, network.config
    c = self.config
    sizes = {f'{part}_{name}': size for part in ('encoder', 'decoder') for name, size in (
        ('embed_dim', c.dim), ('depth', c.num_layers), ('num_heads', c.num_heads))}
    self.net = module.MAR(
        img_size=c.height * c.patch_size, vae_stride=1, patch_size=c.patch_size,
        vae_embed_dim=c.latent_channels, class_num=c.num_classes, buffer_size=c.buffer_size,
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6), diffloss_d=c.head_layers,
        diffloss_w=c.head_width, **sizes).eval()
    # CSpD's has 1000 rows, whatever `class_num` is.
    self.net.class_emb = torch.nn.Embedding(c.num_classes, c.dim)
    self.net.load_state_dict(released.tensors(torch, network, 'mar'))
    self.passes, self.head_calls = Calls(self.net, 'forward_mae_encoder'), Calls(
        self.net.diffloss.net)

  def transformer(self, labels: Any, count: int
                  ) -> tuple[np.ndarray, np.ndarray, Callable[[], Any]]:
    """Returns random tokens `[1, T, C]`, of which `count` are visible, and the guided pass."""
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((1, self.config.num_tokens, self.config.token_dim), np.float32)
    visible = rng.permutation(self.config.num_tokens)[None] < count
    twice = lambda array: self.torch.tensor(np.repeat(array, 2, 0))
    both, mask = twice(tokens), twice(~visible).float()
    with self.torch.no_grad():
      classes = self.torch.cat([
          self.net.class_emb(self.torch.tensor(np.asarray(labels), dtype=self.torch.long)),
          self.net.fake_latent])

    def run():
      with self.torch.no_grad():
        return self.net.forward_mae_decoder(
            self.net.forward_mae_encoder(both, mask, classes), mask)

    return tokens, visible, run

  def difference(self, target: Any, params: Any, labels: Any) -> float:
    """Returns the largest difference of the guided transformers with half of the tokens visible,
    and of the heads at a middle step."""
    tokens, visible, run = self.transformer(labels, self.config.num_tokens // 2)
    states, steps = np.random.default_rng(1).standard_normal(
        tokens.shape[1:], np.float32), np.full(self.config.num_tokens, 500)
    ours = programs.jit(target.transform)(params, labels, tokens, visible)[:, 0]
    outputs = programs.jit(target.denoise)(params, states, steps, ours[0])
    with self.torch.no_grad():
      theirs = self.net.diffloss.net(*map(self.torch.tensor, (states, steps, np.asarray(ours[0]))))
    return max(float(np.abs(one - np.concatenate(other, axis=1)).max()) for one, other in (
        (run().numpy()[:, ~visible[0]], [np.asarray(ours)[:, ~visible[0]]]),
        (theirs.numpy(), jax.device_get(outputs))))

  def parts(self, labels: Any, scale: float, count: int) -> dict[str, Callable[[], Any]]:
    """Returns the two parts of a guided step of one token, with `count` visible ones."""
    _, visible, run = self.transformer(labels, count)
    z = run()[:, np.flatnonzero(~visible[0])[0]]

    def head():
      with self.torch.no_grad(), released.on_cpu(self.torch):
        return self.net.diffloss.sample(z, 1.0, scale)

    return {'transformer': run, 'head': head}


class _Released:
  """The loops of a clone, with the networks of a model."""

  def __init__(self, clone: pathlib.Path, work: Work):
    self.torch, module = released.imported(_NEEDS, [clone], 'torch', 'models.mar')
    self.work, model = work, work.model
    self.target = _Network(self.torch, module, work.target)
    self.difference = self.target.difference(
        model.target(guided=True), model.params, work.conditions[0])

  def decode(self, loop: Any, number: int, seed: int) -> tuple[np.ndarray, int, float, int]:
    """Returns the tokens `[T, C]` of an image, passes, seconds and head calls of the target."""
    self.torch.manual_seed(seed)
    np.random.seed(seed)
    passes, head_calls = self.target.passes, self.target.head_calls
    passes.count = head_calls.count = 0
    sampling = self.work.sampling
    labels = self.torch.tensor(np.asarray(self.work.conditions[number]), dtype=self.torch.long)
    start = time.perf_counter()
    with self.torch.no_grad(), released.on_cpu(self.torch):
      image = loop(1, cfg=float(sampling.guidance_scale), cfg_schedule='linear', labels=labels,
                   temperature=float(sampling.temperature))
    seconds = time.perf_counter() - start
    return (self.target.net.patchify(image)[0].numpy(), passes.count, seconds,
            head_calls.count)

  def steps(self, number: int) -> Any:
    """Returns MAR's own loop with this number of steps."""
    return functools.partial(self.target.net.sample_tokens, num_iter=number)

  def named(self, loops: dict[str, tuple[int, Any]]) -> Loops:
    """Returns loops, by name with the tokens of a pass, after the loop of one token per step."""
    by_name = {'mar': (1, self.steps(self.work.model.num_tokens))} | loops
    return Loops(self.difference, {name: window for name, (window, _) in by_name.items()},
                 lambda name, number, seed: self.decode(by_name[name][1], number, seed),
                 functools.partial(self.target.parts, self.work.conditions[0],
                                   float(self.work.sampling.guidance_scale)))


def _quarter(model: Model) -> int:
  """Returns the quarter of the steps of an image."""
  return math.ceil(model.num_tokens / _TOGETHER)


def _load_mar(clone: pathlib.Path, work: Work) -> Loops:
  loops, steps = _Released(clone, work), _quarter(work.model)
  return loops.named({f'mar(num_iter={steps})': (_TOGETHER, loops.steps(steps))})


def _load_cspd(clone: pathlib.Path, work: Work) -> Loops:
  loops, draft = _Released(clone, work), work.model.drafts['model']
  module, runner = released.imported(
      _NEEDS, [], 'models.mar', 'spec_decode.spec_decode_runner')
  network = _Network(loops.torch, module, store.load(families.part_folder(work.source, 'draft')))
  run = functools.partial(runner.SpecDecodeRunner(network.net, loops.target.net).run,
                          num_iter=work.model.num_tokens, num_draft=_DRAFTS)
  result = loops.named({'cspd': (_DRAFTS, run)})
  return result._replace(difference=max(result.difference, network.difference(
      draft.build(True), draft.params, work.conditions[0])))


_BEST = ('exact_head', 'windows(window=8)')
METHODS = {
    'mar': Method(
        'https://github.com/LTH14/mar', 'fe470ac', 'models/mar.py',
        '92bfe30018ce453f8f505c44c5fa8c44ddee15dbdf2e4fa5b834d811d80adbee',
        lambda model: (f'mar(num_iter={_quarter(model)})',), check, _load_mar, _BEST,
        sizes=Sizes({name: functools.partial(families.describe, name) for name in PRESETS},
                    forced_rounds.DECODERS, released.OF_ROUNDS, 'mar_demo')),
    'cspd': Method(
        'https://github.com/MarkXCloud/CSpD', 'd91f721', 'spec_decode/spec_decode_runner.py',
        'dc4a83a6628e432d4a35c2e8bfad24032ef3b3ea415d7575370ba055f78bc8e5',
        lambda model: (f'cspd_released(block_length={_DRAFTS})',
                       f'parallel(block_length={_DRAFTS})'),
        functools.partial(check, drafts=True), _load_cspd, _BEST)}
