"""A family with an embedding of image tokens and a head of its own, after Janus-Pro, in one file.

An image token is a vector of a codebook that goes through a small network; a head with a hidden
layer predicts it. Text has a table of its own. Prompts are those of a chat, and guidance leads away
from a prompt whose words are padding, which is read. The network, its family and the rules of its
files are all here; the library does not refer to it.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from checkpoints_conversion.rules import (
  base,
  family as file_family,
  text as text_rules,
  vq as vq_rules,
)
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule
from cspd_jax import families
from cspd_jax.families import decoder_only, prompt_kinds
from cspd_jax.families.decoder_only import EAGLE, MEDUSA, NEIGHBOURS
from cspd_jax.files.store import Kind
from cspd_jax.generation import engines
from cspd_jax.models import causal, conditions, eagle, ends as ends_lib, neighbours, transformer, vq
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import bpe

BEGIN, PAD, IMAGE = '<begin>', '<pad>', '<image>'


@dataclasses.dataclass(frozen=True)
class JanusConfig:
  """Sizes; tokens are the codes first, and then the published ids of text."""

  height: int = 3
  width: int = 4
  num_codes: int = 12
  code_dim: int = 4
  text_size: int = 20
  dim: int = 16
  num_layers: int = 2
  num_heads: int = 2
  ffn_dim: int = 24
  head_dim: int = 20

  @property
  def num_tokens(self):
    return self.height * self.width

  @property
  def vocab_size(self):
    return self.num_codes + self.text_size

  @property
  def transformer(self):
    """The table is that of text, and there is no output matrix."""
    return transformer.TransformerConfig(
        vocab_size=self.text_size, num_outputs=0, dim=self.dim, num_layers=self.num_layers,
        num_heads=self.num_heads, num_kv_heads=self.num_heads,
        head_dim=self.dim // self.num_heads, ffn_dim=self.ffn_dim, norm_eps=1e-6)


class JanusLike(nn.Module):
  """The transformer with both of its ends."""

  config: JanusConfig

  def setup(self):
    config = self.config
    self.transformer = transformer.Transformer(config.transformer)
    self.codebook = self.param(
        'codebook', nn.initializers.normal(1.0), (config.num_codes, config.code_dim))
    self.aligner_in, self.aligner_out = nn.Dense(config.dim), nn.Dense(config.dim)
    self.head_in, self.head_out = nn.Dense(config.head_dim), nn.Dense(config.num_codes)

  def embed(self, tokens):
    codes = self.config.num_codes
    image = jnp.take(self.codebook, jnp.minimum(tokens, codes - 1), axis=0)
    image = self.aligner_out(jax.nn.gelu(self.aligner_in(image), approximate=False))
    text = self.transformer.embed(jnp.maximum(tokens - codes, 0))
    return jnp.where((tokens < codes)[..., None], image, text)

  def logits(self, features):
    hidden = jax.nn.gelu(self.head_in(features), approximate=False)
    return self.head_out(hidden).astype(jnp.float32)

  def __call__(self, tokens):
    """Runs everything that has parameters."""
    positions, mask = jnp.arange(tokens.shape[1])[None], transformer.causal_mask(tokens.shape[1])
    features, _ = self.transformer.features(self.embed(tokens), _rope(self.config)(positions), mask)
    return self.logits(features)


def init(config, key):
  return JanusLike(config).init(key, jnp.zeros((1, 1), jnp.int32))['params']


def _rope(config):
  return transformer.sequence_rope(config.dim // config.num_heads, 1e4)


def model_of(config, num_streams):
  """The parts specific to the model; masks, caches, streams and commit are those of `causal`."""
  network = JanusLike(config)
  embed, logits = (
      lambda params, x, method=method: network.apply({'params': params}, x, method=method)
      for method in ('embed', 'logits'))

  def embed_condition(params, prompt, count):
    tokens, visible = prompt.first(count).rows()
    return causal.EmbeddedCondition(embed(params, tokens), causal.prompt_positions(visible))

  def check_condition(prompt):
    prompt = prompt.first(num_streams) if isinstance(prompt, Prompt) else prompt
    return conditions.check_prompt(prompt, num_streams, config.vocab_size)

  return causal.Causal(
      transformer=config.transformer, embed_condition=embed_condition, rope=_rope(config),
      num_tokens=config.num_tokens, row_width=config.width, check_condition=check_condition,
      embed=embed, logits=logits, num_outputs=config.num_codes)


def target(config, *, guided):
  streams = 2 if guided else 1
  return causal.target(model_of(config, streams), streams)


def write(text, prompt, height, width):
  """The two contexts of a prompt: the request, and one of its length with its words as padding."""
  del height, width
  ids = [bpe.id_of(text, BEGIN), *text.encode(f'user : {prompt} assistant :'),
         bpe.id_of(text, IMAGE)]
  return ids, [ids[0], *[bpe.id_of(text, PAD)] * (len(ids) - 2), ids[-1]]


def renumbered(config, prompt):
  """A prompt of published ids in the tokens of the model, which has the codes first."""
  tokens = np.asarray(prompt.tokens)
  if tokens.size and not 0 <= tokens.min() <= tokens.max() < config.text_size:
    raise ValueError(f'prompts holds ids from {tokens.min()} to {tokens.max()}; this model knows '
                     f'0 to {config.text_size - 1}.')
  return Prompt((tokens + config.num_codes).astype(np.int32), np.asarray(prompt.visible, bool))


def forward(params, config, prompt, tokens, drop):
  """Logits and features of whole images; see `families.Teacher`."""
  model = model_of(config, 1)
  prefix = model.embed_condition(params, prompt.dropped(drop), 1)
  return causal.forward(params, model, prefix, tokens[:, :-1])[:2]


def eagle_config(config):
  return eagle.EagleConfig(
      family='janus_like', num_tokens=config.num_tokens, row_width=config.width, dim=config.dim,
      num_heads=config.num_heads, ffn_dim=config.ffn_dim, vocab_size=config.vocab_size,
      num_outputs=config.num_codes)


def build(parts):
  loaded, config = parts.loaded, parts.loaded['target'].config
  parts.pair('tokenizer', codebook_size='num_codes')
  for role in ('eagle', 'corrector'):
    parts.pair(role, 'vocab_size', 'num_tokens', 'dim')
  params = loaded['target'].params
  small = dataclasses.replace(config, num_layers=1)
  network = lambda streams: causal.network(model_of(small, streams), streams)
  layers = ends_lib.first_layers(params, 1), lambda guided: network(1 + guided)
  ends = causal.ends(model_of(config, 1))
  text = parts.text(FAMILY.prompt_writers)
  tokenizer = None
  if 'tokenizer' in loaded:
    sizes = loaded['tokenizer'].config
    tokenizer = families.Tokenizer(
        sizes, loaded['tokenizer'].params, lambda params, tokens: vq.decode(
            params, sizes, tokens.reshape(-1, config.height, config.width)),
        codebook=lambda params: vq.codebook(params, sizes))
  return families.Model(
      name=parts.name, family='janus_like', config=config, params=params,
      grid=(config.height, config.width), engine=engines.DISCRETE,
      build_target=lambda guided: target(config, guided=guided),
      conditions=prompt_kinds.tokens(
          (config.height, config.width), text, parts.writer(FAMILY.prompt_writers),
          functools.partial(renumbered, config), ('a cat', 'a dog')),
      tokenizer=tokenizer, defaults=parts.defaults, metadata=loaded['target'].metadata,
      drafts=decoder_only.discrete(
          parts, lambda config, guided: target(config, guided=guided), layers, ends),
      teacher=families.Teacher(
          lambda params, prompt, tokens, drop: forward(params, config, prompt, tokens, drop), ends,
          'janus_like'))


KIND = {'janus_like': Kind(
    JanusConfig, init, transformer.SPLIT, transformer.MATRICES, transformer.ORDERS,
    transformer.PRODUCTS)}
FAMILY = families.Family(
    name='janus_like',
    roles={'target': KIND, 'tokenizer': {'vq': Kind(vq.VQConfig, vq.init)},
           'text': {'text': Kind(bpe.TextConfig, bpe.init)}, 'draft': KIND, 'eagle': EAGLE,
           'medusa': MEDUSA, 'neighbours': NEIGHBOURS, 'corrector': EAGLE},
    build=build,
    published=families.Published(
        {'janus_like_small': JanusConfig()},
        lambda config: {'eagle': ('eagle', eagle_config(config)), 'neighbours': (
            'neighbours', neighbours.NeighboursConfig(
                config.num_codes, config.num_tokens, config.width))},
        lambda config, count: prompt_kinds.described(count)),
    text_forms={'janus_like': bpe.Vocabulary}, prompt_writers={'janus_like': write},
    eagle_layers={'janus_like': eagle.Layer()})


def rules(config):
  """The published names, those of Janus-Pro, and the rules for their tensors."""
  heads = config.transformer.num_heads
  ours, theirs = 'transformer/layers_{i}/', 'language_model.model.layers.{i}.'
  halves = lambda turned: base.separate_heads(heads, turned)
  return [
      Rule('language_model.model.embed_tokens.weight', ('transformer/token_embedding',), KEEP),
      Rule(theirs + 'self_attn.q_proj.weight', (ours + 'query',), halves(True)),
      Rule(theirs + 'self_attn.k_proj.weight', (ours + 'key',), halves(True)),
      Rule(theirs + 'self_attn.v_proj.weight', (ours + 'value',), halves(False)),
      Rule(theirs + 'self_attn.o_proj.weight', (ours + 'out',), base.join_heads(heads)),
      Rule(theirs + 'input_layernorm.weight', (ours + 'attention_norm/scale',), KEEP),
      Rule(theirs + 'post_attention_layernorm.weight', (ours + 'ffn_norm/scale',), KEEP),
      Rule(theirs + 'mlp.gate_proj.weight', (ours + 'gate',), MATRIX),
      Rule(theirs + 'mlp.up_proj.weight', (ours + 'up',), MATRIX),
      Rule(theirs + 'mlp.down_proj.weight', (ours + 'down',), MATRIX),
      Rule('language_model.model.norm.weight', ('transformer/norm/scale',), KEEP),
      Rule('gen_embed.weight', ('codebook',), KEEP),
      *base.layer('gen_aligner.layers.0', 'aligner_in', MATRIX),
      *base.layer('gen_aligner.layers.2', 'aligner_out', MATRIX),
      *base.layer('gen_head.output_mlp_projector', 'head_in', MATRIX),
      *base.layer('gen_head.vision_head', 'head_out', MATRIX)]


def infer(shapes, options):
  """Sizes, from the shapes of the tensors."""
  shape = functools.partial(file_family.shape, 'a transformer like Janus', shapes)
  num_codes, code_dim = shape('gen_embed.weight', 2)
  text_size, dim = shape('language_model.model.embed_tokens.weight', 2)
  return JanusConfig(
      num_codes=num_codes, code_dim=code_dim, text_size=text_size, dim=dim,
      num_layers=file_family.count(
          shapes, r'language_model\.model\.layers\.(\d+)\.mlp\.up_proj\.weight'),
      num_heads=file_family.num_heads(options, (), dim),
      ffn_dim=shape('language_model.model.layers.0.mlp.up_proj.weight', 2)[0],
      head_dim=shape('gen_head.vision_head.weight', 2)[1])


FILES = (
    file_family.FileFamily(
        name='janus_like', title='a transformer like Janus', kind='janus_like', rules=rules,
        infer=infer, presets={'janus_like_small': JanusConfig()}, options=file_family.NUM_HEADS,
        # The head of the text is not read here.
        leftovers=r'language_model\.lm_head\.weight', model='janus_like',
        sampling=lambda config: {'pictures': {'guidance_scale': 5.0}}),
    vq_rules.LLAMAGEN._replace(name='janus_like_vq', presets={}, model='janus_like'),
    text_rules.of_form('janus_like', 'janus_like'))
