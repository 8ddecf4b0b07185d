"""Released loops of LlamaGen, for models like it that generate images of class labels.

`llamagen` is the official program; nothing of it is changed.

`eagle` and `lantern` are LANTERN's: EAGLE-1's static tree and EAGLE-2's dynamic one, and both
relaxed. Loops, trees and options are those of its programs, `lantern_k` in proportion to the number
of codes (1000 of 16384 there). Base network and drafter load the weights of the model; the table of
neighbours is of its codebook. The programs read captions. What is changed, in memory only: 120
projected embeddings of a caption become the embedding of a label and padding, masked like that of
captions, in place of the text encoder; the drafter masks the padding too, because that of a model
of labels has never seen it. So every pass reads 119 keys more than necessary. A loop ends when it
has one token too many, so an image may take one pass more than necessary.
"""

import contextlib
import functools
import json
import pathlib
import random
import sys
import tempfile
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkpoints_conversion import publish
from cspd_jax import families
from cspd_jax.core import programs
from cspd_jax.decoding.verifiers import lantern
from cspd_jax.generation.model import Model
from cspd_jax.models.llamagen import CAPTION_LENGTH, LlamaGenConfig
from experiments import released
from experiments.released import Calls, Loops, Method, Sizes, Work

_PADDING = CAPTION_LENGTH - 1
_MOST_DRAFTS = 64
_EAGLE_2 = 'eagle2(num_nodes=58, width=10, depth=5)'
# The number of tokens of which the drafter's first outputs are compared.
_NUM_COMPARED = 8
# Names of the base network's tensors by those of the official program, without the layers' own.
_NAMES = {
    'tok_embeddings': 'model.embed_tokens', 'norm': 'model.norm', 'output': 'lm_head',
    'attention_norm': 'input_layernorm', 'ffn_norm': 'post_attention_layernorm',
    'attention.wo': 'self_attn.o_proj', 'feed_forward.w1': 'mlp.gate_proj',
    'feed_forward.w3': 'mlp.up_proj', 'feed_forward.w2': 'mlp.down_proj'}


def check(model: Model) -> None:
  """Raises ValueError for a model that released loops of LlamaGen cannot decode."""
  config = model.config
  if not isinstance(config, LlamaGenConfig) or config.conditioning != 'class':
    raise ValueError(f'model is {model.name!r}, and released loops of LlamaGen decode models like '
                     'it with class labels; use demo.')
  released.check_sampling(model, 'demo')


def check_eagle(model: Model) -> None:
  """As `check`, for loops that also need a drafter and the codebook."""
  check(model)
  if 'eagle' not in model.drafts or model.codebook is None:
    raise ValueError(f'model is {model.name!r}, which has no EAGLE network or no image tokenizer, '
                     'and the released loops use both; use demo.')


def _load_official(clone: pathlib.Path, work: Work) -> Loops:
  torch, network, program = released.imported(
      'torch', [clone], 'torch', 'autoregressive.models.gpt', 'autoregressive.models.generate')
  config, count, scale = work.model.config, work.model.num_tokens, work.sampling.guidance_scale
  if scale < 1:
    raise ValueError(f'guidance_scale is {scale:g}, but the official loop guides by more than 1 '
                     'only; give at least 1.')
  dtype = getattr(torch, str(jax.tree.leaves(work.model.params)[0].dtype))
  place = torch.device('cuda' if programs.on_cuda() else 'cpu')
  with torch.no_grad(), place:
    net = network.Transformer(network.ModelArgs(
        dim=config.dim, n_layer=config.num_layers, n_head=config.num_heads,
        n_kv_head=config.num_kv_heads, multiple_of=config.ffn_dim, norm_eps=config.norm_eps,
        rope_base=config.rope_base, vocab_size=config.vocab_size, num_classes=config.num_classes,
        cls_token_num=1, block_size=count, model_type='c2i')).to(dtype).eval()
    net.load_state_dict(released.tensors(torch, work.target, 'llamagen'))
    net.setup_caches(max_batch_size=2, max_seq_length=count + 1, dtype=dtype)
    logits = net(None, torch.tensor([_label(work, 0), config.num_classes]), torch.arange(1))[0]
  difference = float(np.abs(logits[:, 0].float().cpu().numpy() - _first(work)).max())
  if work.compiled:  # As the official script does it.
    net = torch.compile(net, mode='reduce-overhead', fullgraph=True)
  passes = Calls(net)

  def decode(name: str, number: int, seed: int) -> tuple[np.ndarray, int, float]:
    torch.manual_seed(seed)
    passes.count, start = 0, time.perf_counter()
    tokens = program.generate(
        net, torch.tensor([_label(work, number)], device=place), count, cfg_interval=-1,
        temperature=1.0, cfg_scale=float(scale), top_k=0, top_p=1.0, sample_logits=True)
    return tokens[0].cpu().numpy(), passes.count, time.perf_counter() - start

  return Loops(difference, {'vanilla': 1}, decode)


def _label(work: Work, number: int) -> int:
  return int(work.conditions[number][0])


def _first(work: Work) -> np.ndarray:
  """Returns our logits `[S, V]` of the first token of the first image."""
  target = work.model.target(guided=True)
  logits, *_ = programs.jit(lambda params, one: target.prefill(
      params, one, work.model.num_tokens))(work.model.params, work.conditions[0])
  return np.asarray(logits[:, 0], np.float32)


class _Captions:
  """In place of the text encoder: labels as captions of one token, whose embedding is the label's.
  """

  def __init__(self, **_: Any):
    self.table: Any = None  # `[labels, width]`.

  def get_text_embeddings(self, labels: list[int]) -> tuple[Any, Any]:
    """Returns embeddings `[N, 120, width]`, padded at the end, and their mask."""
    embeddings = self.table.new_zeros(len(labels), CAPTION_LENGTH, self.table.shape[1])
    embeddings[:, 0] = self.table[labels]
    mask = embeddings.new_zeros(len(labels), CAPTION_LENGTH).long()
    mask[:, 0] = 1
    return embeddings, mask


class _Lantern:
  """The networks and the loops of LANTERN's clone, with a model's weights."""

  def __init__(self, clone: pathlib.Path, work: Work):
    self.work, self.model = work, work.model
    encoder: Any = types.ModuleType('models.base_models.llamagen.t5')
    encoder.T5Embedder = _Captions
    sys.modules[encoder.__name__] = encoder
    self.torch, self.safetensors, network, program = released.imported(
        'torch transformers==4.48.1', [clone], 'torch', 'safetensors.torch',
        'models.kv_variants.modeling_llamagen_kv', 'models.ea_model_llamagen')
    network.CaptionEmbedder = _embedder(self.torch)
    program.Model = _drafter(program.Model)
    with tempfile.TemporaryDirectory() as folder:
      table = self.write(pathlib.Path(folder))
      with contextlib.chdir(folder):  # The program looks for the table of neighbours there.
        self.net = program.EaModel.from_pretrained(
            base_model_path='base', ea_model_path='drafter', attn_implementation='eager').eval()
    self.base = self.net.base_model
    self.base.t5_model.table = table
    self.difference = self.first_difference()
    self.passes = Calls(self.base.model)

  def write(self, folder: pathlib.Path) -> Any:
    """Writes the files that the program reads into a folder; returns the table of labels."""
    config = self.model.config
    tensors = released.tensors(self.torch, self.work.target, 'llamagen')
    table = tensors.pop('cls_embedding.embedding_table.weight')
    state = {'model.cls_embedding.uncond_embedding': table[-1:].repeat(CAPTION_LENGTH, 1)}
    for name, tensor in tensors.items():
      name = name.removesuffix('.weight')
      *layer, name = name.split('.', 2) if name.startswith('layers.') else [name]
      prefix = '.'.join(['model', *layer, '']) if layer else ''
      if name == 'attention.wqkv':
        keys = (len(tensor) - config.dim) // 2
        parts = zip('qkv', tensor.split([config.dim, keys, keys]))
        state |= {f'{prefix}self_attn.{part}_proj.weight': values for part, values in parts}
      else:
        state[f'{prefix}{_NAMES[name]}.weight'] = tensor
    (folder / 'base').mkdir()
    self.torch.save(state, folder / 'base/pytorch_model.bin')
    (folder / 'base/config.json').write_text(json.dumps(dict(
        architectures=['LlamaForCausalLM'], model_type='llama', hidden_size=config.dim,
        num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads, intermediate_size=config.ffn_dim,
        vocab_size=config.vocab_size, rms_norm_eps=config.norm_eps, rope_base=config.rope_base,
        input_type='t2i', caption_dim=config.dim, cls_token_num=CAPTION_LENGTH,
        block_size=config.num_tokens, num_classes=config.num_classes, token_dropout_p=0.0,
        resid_dropout_p=0.0, ffn_dropout_p=0.0, class_dropout_p=0.1,
        # Of the cache, with the drafts of a pass.
        max_position_embeddings=CAPTION_LENGTH + config.num_tokens + _MOST_DRAFTS)),
        encoding='utf-8')
    drafter = folder / 'drafter'
    publish.publish_model('eagle_llamagen', self.work.source, drafter, dtype='float32')
    # The program looks for this file on the hub if it is not there.
    self.torch.save(self.safetensors.load_file(drafter / 'model.safetensors'),
                    drafter / 'pytorch_model.bin')
    neighbours = folder / 'ckpts/llamagen/vq_distances/top_16383_indices.npy'
    neighbours.parent.mkdir(parents=True)
    codebook = self.model.codebook
    assert codebook is not None  # See `check_eagle`.
    np.save(neighbours, lantern.neighbour_table(codebook, len(codebook) - 1).astype(np.uint16))
    return table

  def first_difference(self) -> float:
    """Returns the largest difference of the first logits of both networks, for the first image."""
    torch, count = self.torch, _NUM_COMPARED
    tokens = torch.arange(count)[None]
    embeddings, mask = self.base.t5_model.get_text_embeddings([
        _label(self.work, 0), self.model.config.num_classes])
    with torch.no_grad():
      _, logits, features = self.net(
          cond_idx=embeddings.flip(1), input_ids=tokens.repeat(2, 1), output_orig=True,
          attention_mask=torch.cat([mask.flip(1), mask.new_ones(2, count)], dim=1))
      self.net.ea_layer.reset()
      read = torch.cat([tokens.new_zeros(1, _PADDING), tokens], dim=1).repeat(2, 1)
      drafted = self.base.lm_head(self.net.ea_layer(features[:, :-1], read))[:, _PADDING:]
    network, params = self.model.drafts['eagle'].build(True), self.model.drafts['eagle'].params
    features = jnp.asarray(features[:, None, _PADDING:-1].numpy())

    def draft(params, condition, features):
      cache = network.prefill(params, condition, features[:, :, :1], count)
      return network.logits(params, network.step(
          params, cache, jnp.arange(count)[None], features, jnp.zeros(1, jnp.int32),
          np.arange(count), np.tri(count, dtype=bool))[0])

    expected = programs.jit(draft)(params, self.work.conditions[0], features)
    return max(float(np.abs(logits[:, _PADDING].numpy() - _first(self.work)).max()),
               float(np.abs(drafted.numpy() - np.asarray(expected)[:, 0]).max()))

  def decode(self, name: str, number: int, seed: int) -> tuple[np.ndarray, int, float]:
    """Returns the tokens `[T]` of an image, passes and seconds."""
    options = dict(
        prompt=[_label(self.work, number)], max_length=self.model.num_tokens, temperature=1.0,
        top_k=0, top_p=1.0, cfg=float(self.work.sampling.guidance_scale))
    self.torch.manual_seed(seed)
    random.seed(seed)
    self.net.reset_tree_mode()
    self.passes.count, start = 0, time.perf_counter()
    if name == 'vanilla':
      tokens = self.base.generate(**options)[0]
    else:
      tokens = self.net.generate(**options, **_loops(self.model.config.vocab_size)[name])[0]
    return tokens[0].numpy(), self.passes.count, time.perf_counter() - start


def _embedder(torch: Any) -> Any:
  """Returns the class in place of that which embeds captions."""

  class Embedder(torch.nn.Module):
    """Returns embeddings as they are, because those of labels have the width of the network."""

    def __init__(self, width: int, *_: Any):
      super().__init__()
      self.register_buffer('uncond_embedding', torch.zeros(CAPTION_LENGTH, width))

    def forward(self, embeddings: Any, **_: Any) -> Any:
      return embeddings

  return Embedder


def _drafter(model: Any) -> Any:
  """Returns a class of drafters that do not see the padding before the label."""

  class Drafter(model):
    """As the released class, but with a mask of the padding."""

    def _prepare_decoder_attention_mask(self, attention_mask, *args):
      attention_mask[:, :_PADDING] = False
      return super()._prepare_decoder_attention_mask(attention_mask, *args)

  return Drafter


def _loops(vocab_size: int) -> dict[str, dict[str, Any]]:
  """Returns the options of the released loops, by name."""
  return {
      'eagle': dict(static_tree=True), 'eagle2': dict(static_tree=False),
      'lantern': dict(static_tree=False, lantern=True, lantern_k=min(1000, vocab_size // 16),
                      lantern_delta=0.1),
      'lantern_pp': dict(static_tree=True, lantern=True, lantern_k=10, lantern_delta=2.0)}


def _load_lantern(windows: dict[str, int], clone: pathlib.Path, work: Work) -> Loops:
  released_loops = _Lantern(clone, work)
  return Loops(released_loops.difference, {'vanilla': 1, **windows}, released_loops.decode)


def _method(ours: tuple[str, ...], windows: dict[str, int]) -> Method:
  return Method(
      'https://github.com/jadohu/LANTERN', '3a56e45', 'models/ea_model_llamagen.py',
      'db126d5549c5214054a5b80d6802c739bcf6d161316281782ed4c40b0c59231d', lambda model: ours,
      check_eagle, functools.partial(_load_lantern, windows))


_NEIGHBOURS = 'corrected(corrector=neighbours, iterations=2, window={})'
METHODS = {
    'llamagen': Method(
        'https://github.com/FoundationVision/LlamaGen', 'ce98ec4',
        'autoregressive/models/generate.py',
        '512bd8bf9b10977d7276d79c0679f52bf4a578ad3ce20a2137b374067176fb2d', lambda model: (), check,
        _load_official, sizes=Sizes(
            {name: functools.partial(families.describe, name)
             for name in ('c2i_b_256', 'c2i_l_256', 'c2i_xl_256')},
            (*(f'mc_sjd(window={window})' for window in (4, 8, 16)),
             *map(_NEIGHBOURS.format, (4, 8)), 'corrected(iterations=1, window=4)',
             *(f'corrected(iterations=2, window={window})' for window in (8, 16))),
            'docs/reports/corrected_short.json')),
    # Tokens per pass of its programs: those of the static tree, and 59 of the dynamic one.
    'eagle': _method(('eagle(tree=LANTERN)', _EAGLE_2), {'eagle': 58, 'eagle2': 59}),
    'lantern': _method(
        (f'{_EAGLE_2}+lantern(delta=0.1)', f'{_EAGLE_2}+lantern(delta=0.1, residual='
         'released_dynamic)', 'eagle(tree=LANTERN)+lantern_pp(lam=2)',
         'eagle(tree=LANTERN)+lantern_pp(lam=2, residual=released_llamagen)'),
        {'lantern': 59, 'lantern_pp': 58})}
