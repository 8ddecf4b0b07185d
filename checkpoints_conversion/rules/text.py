"""Readers of prompts: tokenizer files of the models of text and images and of T5; T5 encoders.

Tokenizer files of Emu3 are for `tiktoken`; encoders (arXiv 1910.10683) have the format of
transformers.
"""

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

from checkpoints_conversion.rules import base, family, settings
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule
from checkpoints_conversion.rules.settings import Free, Must, Size
from cspd_jax.models import t5
from cspd_jax.models.t5 import T5Config
from cspd_jax.text import bpe, templates

# Where the tokenizer file for `tiktoken` is published, by the form.
_RANKS = {'emu3': 'BAAI/Emu3-Gen', 'emu3_5': 'src/tokenizer_emu3_ibq of the official program'}
# Settings of transformers next to a tokenizer.json, and the default of Qwen's class.
_SETTINGS, _QWEN_END = 'tokenizer_config.json', '<|endoftext|>'


def _rules(config: bpe.TextConfig) -> list[Rule]:
  """Returns the rule table, which checks the file and leaves it unchanged."""
  def checked(file):
    if config.form in _RANKS and bytes(file[:1]) == b'{':
      raise family.ConversionError(
          "source is a tokenizer.json, as transformers' folders of Emu3 have it; Emu3's tokenizer "
          f'is read from emu3.tiktoken, which {_RANKS[config.form]} has.')
    text = bpe.read({'file': file}, config.form)
    if config.first_token is not None:
      bpe.id_of(text, config.first_token)
    return (file,)

  return [Rule('file', ('file',), base.Transform(checked, lambda x: x))]


def infer(form: str, shapes: family.Shapes, options: Mapping[str, Any]) -> bpe.TextConfig:
  """Returns the config of a tokenizer file of a form, a key of `bpe.FORMS`."""
  return bpe.TextConfig(form, family.shape(f'a tokenizer file for {form}', shapes, 'file', 1)[0],
                        options.get('first_token'))


def of_form(form: str, model: str) -> family.FileFamily:
  """Returns the family of tokenizer files of a form, a key of `bpe.FORMS`, in a model family."""
  return family.FileFamily(
      name=f'{form}_text', title=f'a tokenizer file for {form}', kind='text', rules=_rules,
      infer=functools.partial(infer, form), presets={}, model=model)


def _first_token(contents: settings.Contents) -> dict[str, str]:
  """Reads the first token of prompts as Lumina-mGPT 2.0's program does."""
  if _SETTINGS not in contents:
    return {}
  names = (contents[_SETTINGS].get(field) for field in ('bos_token', 'eos_token'))
  name: Any = next((name for name in names if name is not None), _QWEN_END)
  name = name.get('content') if isinstance(name, Mapping) else name
  if not isinstance(name, str):
    settings.refuse([f'{_SETTINGS}: bos_token or eos_token is {name!r:.80}; it must be the name of '
                     'a token'])
  return {'first_token': name}


def _assumed(config: bpe.TextConfig, specified: Collection[str]) -> list[str]:
  if 'first_token' in specified:
    return []
  return [f"assumed prompts that begin with {_QWEN_END}; the model's {_SETTINGS} next to the "
          'tokenizer.json specifies another token']


def _grid_tokens(contents: settings.Contents) -> dict[str, str]:
  """Checks the tokens that the processor of GLM-Image writes around its grids; returns no field."""
  content = contents.get(_SETTINGS, {})
  more = content.get('extra_special_tokens')
  named = {**(more if isinstance(more, Mapping) else {}), **content}
  problems = []
  for field, want in zip(('grid_bos_token', 'grid_eos_token', 'bos_token'), templates.GLM_TOKENS):
    value: Any = named.get(field)
    value = value.get('content') if isinstance(value, Mapping) else value
    if value not in (None, want):
      problems.append(f'{_SETTINGS}: {field} is {value!r:.80}; it must be {want!r}, as in the '
                      'prompts here')
  if problems:
    settings.refuse(problems)
  return {}


LUMINA_MGPT, ANOLE, EMU3, EMU3_5, SIMPLEAR, LIQUID = (
    of_form(form, 'early_fusion') for form in (
        'lumina_mgpt', 'anole', 'emu3', 'emu3_5', 'simplear', 'liquid'))
LUMINA_MGPT_2 = of_form('lumina_mgpt_2', 'early_fusion')._replace(
    settings=_first_token, assumed=_assumed, written=family.Written(
        files=lambda config, others: {} if config.first_token is None else {
            _SETTINGS: {'bos_token': config.first_token}}))
T5_TEXT = of_form('t5', 'llamagen')
GLM_IMAGE = of_form('glm_image', 'glm_image')._replace(settings=_grid_tokens)
NEXTSTEP = of_form('nextstep', 'nextstep')
JANUS_PRO = of_form('janus_pro', 'janus_pro')


_T5_TITLE = 'a T5 encoder'
_FIRST = 'encoder.block.0.layer.'
# The token embedding of all parts, and that of the encoder, which is another one if it differs.
_TOKENS, _OWN_TOKENS = 'shared.weight', 'encoder.embed_tokens.weight'
# The names of the decoder, which image models do not use.
_DECODER = r'decoder\..*|lm_head\.weight'
_OF_THE_DECODER = Free('only the decoder, which image models do not use, depends on it')

T5_FIELDS: settings.Table = {
    **settings.COMMON,
    'model_type': Must(('t5',)), 'vocab_size': Size('vocab_size'),
    'd_model': Size('dim'), 'hidden_size': Size('dim'),
    'd_kv': Size('head_dim'), 'head_dim': Size('head_dim'), 'd_ff': Size('ffn_dim'),
    'num_layers': Size('num_layers'), 'num_hidden_layers': Size('num_layers'),
    'num_heads': Size('num_heads'), 'num_attention_heads': Size('num_heads'),
    'relative_attention_num_buckets': Size('num_distances', int, 32),
    'relative_attention_max_distance': Size('max_distance', int, 128),
    'layer_norm_epsilon': Size('norm_eps', float, 1e-6),
    'feed_forward_proj': Must(('gated-gelu',), ', as in Flan-T5', default='relu'),
    'dense_act_fn': Must(('gelu_new',)), 'is_gated_act': Must((True,)),
    'num_decoder_layers': _OF_THE_DECODER, 'tie_word_embeddings': _OF_THE_DECODER,
    'scale_decoder_outputs': _OF_THE_DECODER, 'output_past': _OF_THE_DECODER,
    'n_positions': Free('the network depends on distances of positions, which have no bound')}


def _t5_rules(config: T5Config, tokens: str = _TOKENS) -> list[Rule]:
  ours, published = 'layers_{i}/', 'encoder.block.{i}.layer.'
  separate = base.separate_heads(config.num_heads)
  return [
      Rule(tokens, ('token_embedding',), KEEP),
      Rule(_FIRST + '0.SelfAttention.relative_attention_bias.weight', ('distance_bias',), KEEP),
      *(Rule(f'{published}0.SelfAttention.{name[0]}.weight', (ours + name,), separate)
        for name in ('query', 'key', 'value')),
      Rule(published + '0.SelfAttention.o.weight', (ours + 'out',),
           base.join_heads(config.num_heads)),
      Rule(published + '0.layer_norm.weight', (ours + 'attention_norm/scale',), KEEP),
      *(Rule(f'{published}1.DenseReluDense.{name}.weight', (ours + parameter,), MATRIX)
        for name, parameter in (('wi_0', 'gate'), ('wi_1', 'up'))),
      Rule(published + '1.DenseReluDense.wo.weight', (ours + 'down',), MATRIX),
      Rule(published + '1.layer_norm.weight', (ours + 'ffn_norm/scale',), KEEP),
      Rule('encoder.final_layer_norm.weight', ('norm/scale',), KEEP)]


def _t5_variant(shapes: family.Shapes) -> Mapping[str, Any]:
  """Returns the rules for a file with these tensors, and what of them is not used."""
  if _OWN_TOKENS not in shapes:
    return {}
  return {'rules': functools.partial(_t5_rules, tokens=_OWN_TOKENS),
          'leftovers': rf'{re.escape(_TOKENS)}|{_DECODER}'}


def _infer_t5(shapes: family.Shapes, options: Mapping[str, Any]) -> T5Config:
  """Infers the sizes of an encoder; what only settings files specify is that of Flan-T5."""
  overrides = {name: options[name] for name in ('max_distance', 'norm_eps') if name in options}
  shape = functools.partial(family.shape, _T5_TITLE, shapes)
  vocab_size, dim = shape(_OWN_TOKENS if _OWN_TOKENS in shapes else _TOKENS, 2)
  num_distances, num_heads = shape(_FIRST + '0.SelfAttention.relative_attention_bias.weight', 2)
  return T5Config(
      vocab_size=vocab_size, dim=dim,
      num_layers=family.count(
          shapes, r'encoder\.block\.(\d+)\.layer\.0\.SelfAttention\.q\.weight'),
      num_heads=num_heads, head_dim=shape(_FIRST + '0.SelfAttention.q.weight', 2)[0] // num_heads,
      ffn_dim=shape(_FIRST + '1.DenseReluDense.wi_0.weight', 2)[0], num_distances=num_distances,
      **overrides)


T5 = family.FileFamily(
    name='t5', title=_T5_TITLE, kind='t5', rules=_t5_rules, infer=_infer_t5, presets=t5.PRESETS,
    settings=functools.partial(settings.read, {'config.json': T5_FIELDS}), needed={
        'norm_eps': '"layer_norm_epsilon": 1e-06',
        'max_distance': '"relative_attention_max_distance": 128'},
    variant=_t5_variant, leftovers=_DECODER, model='llamagen',
    written=family.Written(files=settings.files(
        T5_FIELDS, architectures=['T5EncoderModel'], tie_word_embeddings=False)),
    hub={'flan_t5_xl': 'google/flan-t5-xl'})
