"""Loops of Lumina-mGPT, for models like it with an end token per row.

The model is written in the format of transformers, and the network of the clone loads it. What is
changed, in memory only: CUDA events and devices become those of the CPU; attention is the network's
`eager` one, because the other one needs CUDA; the grammar of images, written for one vocabulary, is
replaced by the model's, without top-k; the loop drafts to the last token of an image, unless the
options of its programs are asked for.

PathSpec's loop of two paths cannot generate one token per pass, so its baseline is the other loop
of the same clone.

`transformers` is its `generate`, with its class for Chameleon. Guidance is a second forward pass
per token for the null prompt; a processor of logits keeps the grammar of images. The class, which
is for texts, does not set the logits of image tokens to their smallest value.
"""

import contextlib
import functools
import io
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from checkpoints_conversion import publish
from cspd_jax.core import programs
from cspd_jax.generation.model import Model
from cspd_jax.models import early_fusion
from cspd_jax.models.early_fusion import EarlyFusionConfig
from experiments import released
from experiments.released import Calls, Loops, Method, Work

# What the programs of all clones use: the guidance scale, and how many of the last positions of
# rows with end tokens are not drafted. The programs subtract 10, and count from the three tokens
# before the codes, start, height and width, which are of the prompt here.
_GUIDANCE_SCALE, _LAST = 3.0, 13
_JACOBI = dict(multi_token_init_scheme='random', prefix_token_sampler_scheme='speculative_jacobi')


def check(model: Model) -> None:
  """Raises ValueError for a model that released loops of Lumina-mGPT cannot decode."""
  if not isinstance(model.config, EarlyFusionConfig) or model.config.row_end is None:
    raise ValueError(f'model is {model.name!r}, and released loops decode models like Lumina-mGPT, '
                     'whose rows have an end token; use emoji.')
  released.check_sampling(model, 'emoji')


class Published:
  """A network in the format of transformers with the weights of a model like Lumina-mGPT.

  Attributes:
    net: the network, as `load` returns it for a folder.
    prompts: published ids `[1, L]` of the prompt of every image, and of its null prompt.
    passes: counts the calls of its backbone.
    difference: the largest difference of the first logits of the codes to ours.
  """

  def __init__(self, torch: Any, load: Callable[[str], Any], work: Work):
    self.torch, self.work, self.model = torch, work, work.model
    with tempfile.TemporaryDirectory() as folder:
      publish.publish_model('anole', work.source, f'{folder}/model', dtype='float32')
      self.net = load(f'{folder}/model').eval()
    config = self.model.config
    self.order = np.asarray(early_fusion.order(config))
    self.prompts = [self.prompt(one) for one in work.conditions]
    self.allowed = torch.zeros((2 * self.model.num_tokens, config.vocab_size), dtype=torch.bool)
    codes = slice(config.first_code, config.first_code + config.num_codes)
    self.allowed[:, codes] = True  # Tokens past the end are drafted and dropped.
    for position, token in enumerate(np.asarray(
        early_fusion.forced(config, np.arange(self.model.num_tokens)))):
      if token >= 0:
        self.allowed[position] = False
        self.allowed[position, self.order[token]] = True
    self.difference = self.first_difference()
    self.passes = Calls(self.net.model)

  def prompt(self, condition: Any) -> list[Any]:
    """Returns the published ids of a prompt and of its null prompt."""
    tokens, visible = np.asarray(condition.tokens)[0], np.asarray(condition.visible)[0]
    return [self.torch.tensor(self.order[row[seen]])[None] for row, seen in zip(tokens, visible)]

  def first_difference(self) -> float:
    """Returns the largest difference of the logits of the codes at the first token of an image."""
    config, target = self.model.config, self.model.target(guided=True)
    ours, *_ = programs.jit(lambda params, one: target.prefill(
        params, one, self.model.num_tokens))(self.model.params, self.work.conditions[0])
    codes, largest = slice(config.first_code, config.first_code + config.num_codes), 0.0
    for prompt, expected in zip(self.prompts[0], np.asarray(ours)[:, 0, :config.num_codes]):
      with self.torch.no_grad():
        logits = self.net(
            input_ids=prompt, attention_mask=self.torch.ones_like(prompt)).logits[0, -1, codes]
      largest = max(largest, float(np.abs(logits.numpy() - expected).max()))
    return largest

  def tokens(self, ids: Any) -> np.ndarray:
    """Returns the tokens `[T]` of an image in the order of this library, from published ids."""
    return np.argsort(self.order)[ids[:self.model.num_tokens].numpy()]


class _Released(Published):
  """The network and the loop of a clone, with a model's weights."""

  def __init__(self, root: pathlib.Path, module: str, options: dict[str, Any], window: int,
               work: Work):
    torch, self.transformers, network, self.loop = released.imported(
        'torch transformers==4.48.1', [root, root / 'lumina_mgpt'], 'torch', 'transformers',
        'model.chameleon.modeling_chameleon', module)
    with released.on_cpu(torch):
      super().__init__(torch, lambda folder: (
          network.ChameleonForConditionalGeneration.from_pretrained(
              folder, attn_implementation='eager', torch_dtype=torch.float32,
              mask_image_logits=False)), work)
    for prompt, null in self.prompts:
      if prompt[0, -1:].tolist() != null[0].tolist():
        raise ValueError(
            'the released loops guide by the last token of the prompt alone; use emoji.')
    self.prepare(options, window)

  def prepare(self, options: dict[str, Any], window: int) -> None:
    """Gives the network the released loop, which calls its backbone once per forward pass."""
    self.net.__class__ = self.loop.renew_sampler(self.net.__class__)
    config, backbone = self.model.config, self.net.model
    end = (config.height * (config.width + 1) - _LAST if self.work.official
           else self.model.num_tokens)
    self.net._init_new_params(
        jacobi_loop_interval_l=0, jacobi_loop_interval_r=end,
        max_num_new_tokens=window, seed=0, do_cfg=True,
        guidance_scale=float(self.work.sampling.guidance_scale),
        use_chameleon_tokenizer=False, **options)
    self.net.img_vocab = self.torch.arange(config.first_code, config.first_code + config.num_codes)
    backbone.__class__ = self.loop.renew_backbone(backbone.__class__)

  def generation_options(self, window: int) -> dict[str, Any]:
    """Returns the options that only this loop reads."""
    del window
    return {}

  def decode(self, window: int, number: int, seed: int) -> tuple[np.ndarray, int, float]:
    """Returns the tokens `[T]` of an image in the order of this library, passes and seconds."""
    prompt = self.prompts[number][0]
    length, count = prompt.shape[1], self.model.num_tokens
    generation = self.transformers.generation

    def grammar(ids, scores):
      first, many = ids.shape[1] - length, scores.dim() > 2
      if (at := grammar.cache_position) is not None:  # Of the nodes of a tree.
        allowed = self.allowed[at + 1 - length]
      else:
        allowed = self.allowed[first:first + scores.shape[-2]] if many else self.allowed[first]
      return self.torch.where(allowed, scores, -float('inf'))

    grammar.cache_position = None  # type: ignore[attr-defined]
    grammar.w_latent_dim = self.model.config.width  # type: ignore[attr-defined]
    options = self.transformers.GenerationConfig(
        do_sample=True, max_length=length + count, pad_token_id=0,
        **self.generation_options(window))
    options._pad_token_tensor = self.torch.tensor(0)
    self.net.seed, self.net.max_num_new_tokens, self.passes.count = seed, window, 0
    start = time.perf_counter()
    with (self.torch.no_grad(), contextlib.redirect_stdout(io.StringIO()),
          released.on_cpu(self.torch)):
      ids = self.net._sample(
          prompt, logits_processor=generation.LogitsProcessorList([grammar]),
          stopping_criteria=generation.StoppingCriteriaList(
              [generation.MaxLengthCriteria(length + count)]),
          generation_config=options, synced_gpus=False, streamer=None, logits_warper=None,
          attention_mask=self.torch.ones_like(prompt),
          past_key_values=self.transformers.DynamicCache(), use_cache=True)
    seconds = time.perf_counter() - start
    return self.tokens(ids[0, length:]), self.passes.count, seconds


class _Paths(_Released):
  """PathSpec's loop of two paths, and one token per pass by the loop that its module extends."""

  def prepare(self, options: dict[str, Any], window: int) -> None:
    network, backbone = self.net.__class__, self.net.model.__class__
    super().prepare(options, window)
    # The loop needs a second pass of one token, as its programs have it.
    self.net.jacobi_loop_interval_l = 1
    self.one_token = self.net.__class__, self.net.model.__class__
    self.paths = (self.loop.renew_static_tree_sampler(network),
                  self.loop.renew_static_tree_backbone(backbone))

  def generation_options(self, window: int) -> dict[str, Any]:
    """Returns the paths, each node as the number of its path and zeros, for windows above 1."""
    return {} if window == 1 else dict(tree_choices=[
        [path, *[0] * depth] for depth in range((window - 1) // 2) for path in range(2)])

  def decode(self, window: int, number: int, seed: int) -> tuple[np.ndarray, int, float]:
    self.net.__class__, self.net.model.__class__ = self.one_token if window == 1 else self.paths
    return super().decode(window, number, seed)


def _load(loops: type[_Released], name: str, options: dict[str, Any], file: str, window: int,
          clone: pathlib.Path, work: Work) -> Loops:
  root, module = file.split('scheduler/')
  loop = loops(clone / root, f'scheduler.{module.removesuffix(".py")}', options, window, work)
  windows = {'vanilla': 1, name: window}
  return Loops(loop.difference, windows,
               lambda name, number, seed: loop.decode(windows[name], number, seed))


def _method(name: str, url: str, commit: str, sha256: str, file: str, window: int, ours: str,
            options: dict[str, Any], loops: type[_Released] = _Released) -> Method:
  return Method(url, commit, file, sha256, lambda model: (ours.format(window=window),), check,
                functools.partial(_load, loops, name, options, file, window),
                guidance_scale=_GUIDANCE_SCALE)


def _load_generate(clone: pathlib.Path | None, work: Work) -> Loops:
  del clone  # It is a package.
  torch, transformers = released.imported(
      'torch transformers==5.24.0', [], 'torch', 'transformers')

  def load(folder):
    net = transformers.ChameleonForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32)
    net.model.vocabulary_mapping.image_tokens = []
    return net

  published = Published(torch, load, work)

  def decode(name: str, number: int, seed: int) -> tuple[np.ndarray, int, float]:
    prompt, null = published.prompts[number]
    length = prompt.shape[1]

    def grammar(ids, scores):
      return scores.masked_fill(~published.allowed[ids.shape[1] - length], -float('inf'))

    torch.manual_seed(seed)
    published.passes.count, start = 0, time.perf_counter()
    ids = published.net.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=1.0, top_k=0,
        top_p=1.0, max_new_tokens=work.model.num_tokens, logits_processor=[grammar],
        guidance_scale=float(work.sampling.guidance_scale), negative_prompt_ids=null)
    seconds = time.perf_counter() - start
    return published.tokens(ids[0, length:]), published.passes.count, seconds

  return Loops(published.difference, {'vanilla': 1}, decode)


METHODS = {
    'sjd': _method(
        'sjd', 'https://github.com/tyshiwo1/Accelerating-T2I-AR-with-SJD', 'b389cfb',
        '133c57bd7e946748c51dc7b7f9f4bee20717effb6725d21a4aa6b12bd6867d29',
        'scheduler/jacobi_iteration_lumina_mgpt.py', 16, 'sjd(window={window})', _JACOBI),
    'scd': _method(
        'scd', 'https://github.com/junhyukso/SCD', '7322379',
        '898e00b45813a54d5c8a686c5563738f02c005a68a75b22797f36d39ee33d513',
        'lumina1/scheduler/jacobi_iteration_lumina_mgpt_SCDMC.py', 32, 'mc_sjd(window={window})',
        _JACOBI),
    'scd_gumbel': _method(
        'scd_gumbel', 'https://github.com/junhyukso/SCD', '7322379',
        'ac1828978239fb0259f285fce7075d35f71f92ddb51b579938d969178d676310',
        'lumina1/scheduler/jacobi_iteration_lumina_mgpt_GS.py', 32,
        'jacobi(coupling=gumbel, window={window})+rejection', _JACOBI),
    'sjd_pac': _method(
        'sjd_pac', 'https://github.com/KangJialiang/SJD-PAC', '4fbc099',
        'aefde379e207fdfa89dcca96786ebc5ab24da214f1664ded1fb846f02d7b4441',
        'scheduler/sjd_pac_iteration_lumina_mgpt.py', 64, 'sjd_pac(window={window})',
        dict(tree_width=3, tree_depth=3)),
    'sjd_pp': _method(
        'sjd_pp', 'https://github.com/Haodong-Lei-Ray/PathSpec', '8a3df48',
        'f8a0dfaaeefc703e20551c65f2f770e0d72869690f8d4787e0891b835c160b33',
        'scheduler/old_jacobi_iteration_lumina_mgpt.py', 16, 'sjd_pp(window={window})',
        _JACOBI | dict(prefix_token_sampler_scheme='sjd++')),
    'paths': _method(
        'paths', 'https://github.com/Haodong-Lei-Ray/PathSpec', '8a3df48',
        '8fc76284a97063103036e0fffaa90930dc35be4408c75939571a88eae1b6173b',
        'scheduler/jacobi_iteration_lumina_mgpt.py', 25,
        'sjd(tree=paths(2, 12), window={window})', _JACOBI, _Paths),
    'transformers': Method(
        'https://github.com/huggingface/transformers', commit=None, file=None, sha256=None,
        ours=lambda model: (), check=check, load=_load_generate)}
