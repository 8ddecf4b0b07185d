"""Released loops of MAR and of CSpD, for models of the family `mar`.

Target and draft model are written in MAR's published format, and the classes of the clone load
them, made with the sizes of the networks. The loops have one token per step, and MAR's also the
quarter of the steps that its instructions recommend for speed; CSpD's has the defaults of its
runner. The guidance schedule is 'linear', as in both. What is changed, in memory only: CUDA devices
become the CPU; the class embedding of CSpD, which always has 1000 rows, has those of the model;
calls of the transformer and of the head are counted.
"""

import functools
import math
import pathlib
import tempfile
import time
from typing import Any

import jax
import numpy as np

from checkpoints_conversion import publish
from cspd_jax.core import programs
from cspd_jax.families import folder as folder_lib, model_file
from cspd_jax.files import store
from cspd_jax.generation.model import Model
from cspd_jax.models.mar import MARConfig
from experiments import released
from experiments.released import Calls, Loops, Method, Work

_NEEDS = "torch torchvision 'timm<1' scipy tqdm"


def check(model: Model, drafts: bool = False) -> None:
  """Raises ValueError for a model that the loops cannot decode, with or without a draft model."""
  if not isinstance(model.config, MARConfig):
    raise ValueError(f'model is {model.name!r}, and the released loop decodes models of the family '
                     'mar; use mar_demo.')
  if drafts and 'model' not in model.drafts:
    raise ValueError(f'model is {model.name!r}, which has no draft model, and the released loop '
                     'drafts with one; use mar_demo.')


class _Network:
  """A network of the clone with the weights of a part of a model, which counts its calls."""

  def __init__(self, torch: Any, module: Any, source: str, role: str):
    folder = folder_lib.find(source)
    self.config = c = store.describe(folder / model_file.read(folder)['parts'][role]).config
    sizes = {f'{part}_{name}': size for part in ('encoder', 'decoder') for name, size in (
        ('embed_dim', c.dim), ('depth', c.num_layers), ('num_heads', c.num_heads))}
    self.net = module.MAR(
        img_size=c.height * c.patch_size, vae_stride=1, patch_size=c.patch_size,
        vae_embed_dim=c.latent_channels, class_num=c.num_classes, buffer_size=c.buffer_size,
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6), diffloss_d=c.head_layers,
        diffloss_w=c.head_width, **sizes).eval()
    # CSpD's has 1000 rows, whatever `class_num` is.
    self.net.class_emb = torch.nn.Embedding(c.num_classes, c.dim)
    with tempfile.TemporaryDirectory() as output:
      (path, _), *_ = publish.publish_model('mar', source, f'{output}/model', role=role,
                                            dtype='float32')
      self.net.load_state_dict(torch.load(path)['model_ema'])
    self.passes, self.head_calls = Calls(self.net, 'forward_mae_encoder'), Calls(
        self.net.diffloss.net)

  def difference(self, torch: Any, target: Any, params: Any, labels: Any) -> float:
    """Returns the largest difference of the guided transformers with half of the tokens visible,
    and of the heads at a middle step."""
    rng, shape = np.random.default_rng(0), (self.config.num_tokens, self.config.token_dim)
    tokens, states = (rng.standard_normal((1, *shape)).astype(np.float32) for _ in range(2))
    visible = rng.permutation(shape[0])[None] < shape[0] // 2
    steps = np.full(shape[0], 500)
    ours = programs.jit(target.transform)(params, labels, tokens, visible)[:, 0]
    outputs = programs.jit(target.denoise)(params, states[0], steps, ours[0])
    twice = lambda array: torch.tensor(np.repeat(array, 2, 0))
    mask = twice(~visible).float()
    with torch.no_grad():
      classes = torch.cat([self.net.class_emb(torch.tensor(np.asarray(labels))),
                           self.net.fake_latent])
      z = self.net.forward_mae_decoder(
          self.net.forward_mae_encoder(twice(tokens), mask, classes), mask)
      theirs = self.net.diffloss.net(
          torch.tensor(states[0]), torch.tensor(steps), torch.tensor(np.asarray(ours[0])))
    return max(float(np.abs(one - np.concatenate(other, axis=1)).max()) for one, other in (
        (z.numpy()[:, ~visible[0]], [np.asarray(ours)[:, ~visible[0]]]),
        (theirs.numpy(), jax.device_get(outputs))))


class _Released:
  """The loops of a clone, with the networks of a model."""

  def __init__(self, clone: pathlib.Path, work: Work):
    self.torch, module = released.imported(_NEEDS, [clone], 'torch', 'models.mar')
    self.work, model = work, work.model
    self.target = _Network(self.torch, module, work.source, 'target')
    self.difference = self.target.difference(
        self.torch, model.target(guided=True), model.params, work.conditions[0])

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
                 lambda name, number, seed: self.decode(by_name[name][1], number, seed))


def _load_mar(clone: pathlib.Path, work: Work) -> Loops:
  assert work.window is not None  # Both methods here have one.
  loops, steps = _Released(clone, work), math.ceil(work.model.num_tokens / work.window)
  return loops.named({f'mar(num_iter={steps})': (work.window, loops.steps(steps))})


def _load_cspd(clone: pathlib.Path, work: Work) -> Loops:
  assert work.window is not None
  loops, draft = _Released(clone, work), work.model.drafts['model']
  module, runner = released.imported(
      _NEEDS, [], 'models.mar', 'spec_decode.spec_decode_runner')
  network = _Network(loops.torch, module, work.source, 'draft')
  run = functools.partial(runner.SpecDecodeRunner(network.net, loops.target.net).run,
                          num_iter=work.model.num_tokens, num_draft=work.window)
  result = loops.named({'cspd': (work.window, run)})
  return result._replace(difference=max(result.difference, network.difference(
      loops.torch, draft.build(True), draft.params, work.conditions[0])))


_BEST = ('exact_head', 'windows(window=8)')
METHODS = {
    'mar': Method(
        'https://github.com/LTH14/mar', 'fe470ac', 'models/mar.py',
        '92bfe30018ce453f8f505c44c5fa8c44ddee15dbdf2e4fa5b834d811d80adbee', 4,
        ('mar(num_iter={steps})',), check, _load_mar, _BEST),
    'cspd': Method(
        'https://github.com/MarkXCloud/CSpD', 'd91f721', 'spec_decode/spec_decode_runner.py',
        'dc4a83a6628e432d4a35c2e8bfad24032ef3b3ea415d7575370ba055f78bc8e5', 8,
        ('cspd_released(block_length={window})', 'parallel(block_length={window})'),
        functools.partial(check, drafts=True), _load_cspd, _BEST)}
