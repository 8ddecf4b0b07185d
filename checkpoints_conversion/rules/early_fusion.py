"""Transformers over one vocabulary of text and images in the formats of transformers and Meta:
Lumina-mGPT (arXiv 2408.02657) and 2.0 (arXiv 2507.17801), Anole (arXiv 2407.06135), Emu3 (arXiv
2409.18869) and Emu3.5 (arXiv 2510.26583), which has two norms more in every layer."""

import dataclasses
import functools
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from checkpoints_conversion.rules import base, family, settings
from checkpoints_conversion.rules.base import KEEP, Rule
from checkpoints_conversion.rules.settings import Free, Must, Part, Size, Sizes, Table
from cspd_jax.core import fields
from cspd_jax.models import early_fusion
from cspd_jax.models.early_fusion import EarlyFusionConfig
from cspd_jax.text import bpe

Config = TypeVar('Config', bound=EarlyFusionConfig)
# Names of transformers, with those of Meta (https://github.com/facebookresearch/chameleon).
_META = {
    'model.embed_tokens': 'tok_embeddings', 'model.layers': 'layers', 'model.norm': 'norm',
    'lm_head': 'output', 'self_attn.q_proj': 'attention.wq', 'self_attn.k_proj': 'attention.wk',
    'self_attn.v_proj': 'attention.wv', 'self_attn.o_proj': 'attention.wo',
    'self_attn.q_norm': 'attention.q_normalization',
    'self_attn.k_norm': 'attention.k_normalization', 'mlp.gate_proj': 'feed_forward.w1',
    'mlp.down_proj': 'feed_forward.w2', 'mlp.up_proj': 'feed_forward.w3',
    'input_layernorm': 'attention_norm', 'post_attention_layernorm': 'ffn_norm'}
_QUERY_NORM = 'model.layers.0.self_attn.q_norm.weight'
# Prefix of transformers for names in a file that also holds an image tokenizer.
_WITH_TOKENIZER = 'text_model.'
# What each of several of Meta's files holds of a tensor; see `tensors.join`.
_SHARES = {
    r'.*\.(wq|wk|wv|w1|w3)\.weight|output\.weight': 'rows',
    r'.*\.(wo|w2)\.weight|tok_embeddings\.weight': 'columns',
    r'.*\.[qk]_normalization\.(weight|bias)': 'row',
    r'(.*\.)?(attention_norm|ffn_norm|norm)\.weight|rope\.freqs': 'all'}


class Format(NamedTuple):
  """The format of a transformer in a file.

  Attributes:
    is_meta: whether names are those of Meta, else those of transformers.
    halves: whether component `i` of an attention head rotates with `i + E / 2`, else adjacent
      components with each other.
    norm_rows: rows of the norms of queries and keys; 0 is one vector for all heads, None means one
      for every head.
    prefix: prefix of all names, in a file that also holds an image tokenizer.
  """

  is_meta: bool = False
  halves: bool = True
  norm_rows: int | None = None
  prefix: str = ''

  def name(self, name: str) -> str:
    """Returns the name of a tensor in the file, by its name in transformers."""
    if self.is_meta:
      name = re.sub('|'.join(map(re.escape, _META)), lambda match: _META[match[0]], name)
    return self.prefix + name


def format_of(shapes: family.Shapes, is_chameleon: bool) -> Format:
  """Returns the format of a file with these tensors.

  All releases of transformers store attention heads as halves and repeat norms in rows. The version
  that Anole was trained with uses Meta's order and its one vector, under names of transformers.
  The kin of Chameleon, of which there are files of Meta, has norms of queries and keys with biases.
  """
  is_meta = is_chameleon and 'tok_embeddings.weight' in shapes
  prefix = _WITH_TOKENIZER if f'{_WITH_TOKENIZER}model.embed_tokens.weight' in shapes else ''
  result = Format(is_meta, not is_meta, prefix=prefix)
  norm = shapes.get(result.name(_QUERY_NORM)) if is_chameleon else None
  if norm is None:
    return result
  return result._replace(halves=result.halves and len(norm) == 2,
                         norm_rows=norm[0] if len(norm) == 2 else 0)


def variant(preset: str, shapes: family.Shapes) -> Mapping[str, Any]:
  """Returns the rules for a file of a family with these tensors, with an output matrix."""
  file_format = format_of(shapes, early_fusion.PRESETS[preset].qk_norm)
  embedding = file_format.name('model.embed_tokens.weight')
  output = file_format.name('lm_head.weight')
  if embedding in shapes and output not in shapes:
    raise family.ConversionError(
        f'The file has no {output}. If its weights are tied (tie_word_embeddings), so that '
        f'{embedding} is the output matrix too, save that a second time as {output}; otherwise '
        'download all of its parts.')
  return {'rules': functools.partial(rules, file_format=file_format)}


def rules(config: EarlyFusionConfig, file_format: Format) -> list[Rule]:
  """Returns the rule table of a transformer in a file of a format."""
  sizes, halves = config.transformer, file_format.halves
  heads = sizes.num_heads, sizes.num_kv_heads
  ours, published = 'transformer/layers_{i}/', 'model.layers.{i}.'
  table = [
      Rule('model.embed_tokens.weight', ('transformer/token_embedding',),
           base.reorder(early_fusion.order(config))),
      *base.llama_layer(published, ours, *heads, halves),
      *base.head_norms(published, ours, *heads, file_format.norm_rows, halves),
      *(Rule(f'{published}self_attn.{name[0]}_norm.weight', (f'{ours}{name}_rms/scale',),
             base.separate_shared_norm(halves)) for name in ('query', 'key')),
      Rule('model.norm.weight', ('transformer/norm/scale',), KEEP),
      Rule('lm_head.weight', ('transformer/output',),
           base.only_rows(config.first_code, config.num_codes, config.vocab_size))]
  return base.renamed(table, file_format.name)


def infer(preset: str, shapes: family.Shapes, options: Mapping[str, Any], *,
          any_vocabulary: bool = False) -> EarlyFusionConfig:
  """Infers the sizes of a transformer with vocabulary and grammar of a published model.

  Options are `height` and `width` of its images in codes, `num_heads`; and `swin_norm`, `rope_base`
  and `norm_eps`, which settings files specify. Their defaults are the published values. With
  `any_vocabulary` its size may be another one, if it has all codes.
  """
  published = early_fusion.PRESETS[preset]
  name = format_of(shapes, published.qk_norm).name
  vocab_size, _ = family.shape(_title(preset), shapes, name('model.embed_tokens.weight'), 2)
  least = published.first_code + published.num_codes
  if vocab_size < least if any_vocabulary else vocab_size != published.vocab_size:
    required = f'at least {least}' if any_vocabulary else published.vocab_size
    raise family.ConversionError(
        f'The file has {vocab_size} tokens; {_title(preset)} has {required}.')
  return infer_like(dataclasses.replace(published, vocab_size=vocab_size), preset, shapes, options)


def infer_like(published: Config, preset: str, shapes: family.Shapes,
               options: Mapping[str, Any]) -> Config:
  """Infers the sizes of a transformer, except those of its vocabulary, which `published` has.

  Biases, norms and the activation are those of the family: a file without these tensors, or with
  others, does not fit the rules. Options as for `infer`; messages name the `preset`.
  """
  name = format_of(shapes, published.qk_norm).name
  shape = lambda tensor, rank: family.shape(_title(preset), shapes, name(tensor), rank)
  _, dim = shape('model.embed_tokens.weight', 2)
  attention = shape('model.layers.0.self_attn.q_proj.weight', 2)[0]
  if (published.qk_norm or published.qk_rms_norm) and (norm := shapes.get(name(_QUERY_NORM))):
    options = {'num_heads': attention // max(norm[-1], 1), **options}
  num_heads = family.num_heads(options, [published], dim, width=attention)
  width = attention // num_heads
  specified = ('height', 'width', 'swin_norm', 'rope_base', 'norm_eps')
  return dataclasses.replace(
      published, dim=dim, num_layers=family.count(
          shapes, name('model.layers.{i}.self_attn.q_proj.weight').replace('{i}', r'(\d+)')),
      num_heads=num_heads,
      num_kv_heads=shape('model.layers.0.self_attn.k_proj.weight', 2)[0] // width,
      attention_dim=None if attention == dim else attention,
      ffn_dim=shape('model.layers.0.mlp.gate_proj.weight', 2)[0],
      **{field: options[field] for field in specified if field in options})


def means(like: EarlyFusionConfig, preset: str, fields: Mapping[str, settings.Table],
          config: EarlyFusionConfig, shapes: family.Shapes, contents: settings.Contents,
          options: Mapping[str, Any]) -> EarlyFusionConfig:
  """Returns the config of a file with these tensors, with any vocabulary and grammar of images.

  Settings are read with the tables `fields`.
  """
  any_names = {name: {**table, 'vocabulary_map': settings.OF_SHAPES}
               for name, table in fields.items()}
  options = {**settings.read(any_names, contents), **options}
  grammar = ('vocab_size', 'num_codes', 'first_code', 'row_end', 'ends_last_row', 'image_ends')
  published = dataclasses.replace(like, **{
      name: getattr(config, name) for name in grammar})
  return infer_like(published, preset, shapes, options)


def assumed(token_side: int, config: EarlyFusionConfig, specified: Collection[str]) -> list[str]:
  """Returns the assumptions, for tokens of `token_side` pixels along each side."""
  # The norms of queries and keys have the width of a head.
  has_norms = config.qk_norm or config.qk_rms_norm
  return [*([] if has_norms else family.assumed_heads(config, specified)),
          *family.assumed_grid(config, specified, token_side)]


def _title(preset: str) -> str:
  return f'a transformer like {preset}'


def _chameleon(name: str) -> tuple[str, ...]:
  """Returns the paths of Chameleon's tokenizers in Meta's download and for official programs."""
  return tuple(f'{folder}{name}' for folder in (
      '', 'tokenizer/', 'original_tokenizers/', 'chameleon/tokenizer/', '../tokenizer/',
      '../original_tokenizers/', '../chameleon/tokenizer/', '../../tokenizer/'))


def named(*presets: str) -> dict[str, EarlyFusionConfig]:
  """Returns published models by their names."""
  return {preset: early_fusion.PRESETS[preset] for preset in presets}


def family_of(
    name: str, presets: Mapping[str, EarlyFusionConfig], sampling: Mapping[str, Any],
    others: Mapping[str, tuple[str, ...]], *, fields: Mapping[str, settings.Table],
    needed: Mapping[str, str], token_side: int = 16, norm_rows: int | None = None,
    any_vocabulary: bool = False, written: family.Written | None = None) -> family.FileFamily:
  """Returns the family of published models, with sampling options and places of other networks."""
  first = next(iter(presets))
  return family.FileFamily(
      name=name, title=_title(first), kind='early_fusion',
      rules=functools.partial(rules, file_format=Format(norm_rows=norm_rows)),
      infer=functools.partial(infer, first, any_vocabulary=any_vocabulary),
      presets=presets,
      options={'height': 'Rows of codes of an image.', 'width': 'Codes of a row of an image.',
               **family.NUM_HEADS},
      variant=functools.partial(variant, first),
      settings=functools.partial(settings.read, fields), needed=needed,
      written=(written or family.Written())._replace(
          means=functools.partial(means, presets[first], first, fields)),
      assumed=functools.partial(assumed, token_side), shares=_SHARES,
      # The image tokenizer is another network; rotary tables are not weights.
      leftovers=r'(model\.)?vqmodel\..*|.*rotary_emb\.inv_freq|rope\.freqs',
      model='early_fusion',
      sampling=lambda config: {'pictures': {'temperature': 1.0, 'top_p': 1.0, **sampling}},
      layout=lambda model: {name: ('models/7b', '.'), **others})


def _image_tokens(preset: str, prefix: str, *, ordered: bool) -> Sizes:
  """Returns a check that tokens with a prefix have the ids of codes, if `ordered` by name."""
  config = early_fusion.PRESETS[preset]
  first, count = config.first_code, config.num_codes

  def checked(value):
    if not isinstance(value, Mapping) or not all(type(id_) is int for id_ in value.values()):
      return f'{value!r:.80}; it must contain ids of tokens by name'
    ids = [id_ for name, id_ in sorted(value.items()) if name.startswith(prefix)]
    if not ids or (ids if ordered else sorted(ids)) == list(range(first, first + count)):
      return {}
    return (f'a vocabulary with {len(ids)} image tokens from {min(ids)} to {max(ids)}; they must '
            f'be {first} to {first + count - 1}' + (' in their order' if ordered else ''))

  return Sizes(checked)


# The fields that both families have, in addition to those of Llama.
_SHARED: Table = {
    **settings.NO_BIASES, 'tie_word_embeddings': settings.OWN_OUTPUT,
    'vq_config': Free('the image tokenizer is another network')}
_CHAMELEON: Table = {
    **settings.llama(1e-5), **_SHARED,
    'model_type': Must(('chameleon',)),
    'swin_norm': Size('swin_norm', bool, False),
    'qk_layernorm': Size('qk_norm', bool),
    'model_parallel_size': settings.OF_SHAPES,  # Rows of the norms of queries and keys.
    'vocabulary_map': _image_tokens('anole_7b', 'IMGIMG', ordered=False),
    'boi_token_id': Must((8197,)), 'eoi_token_id': Must((8196,)),
    'mask_image_logits': Free('images are sampled without the mask, as in the official programs')}

_ARGUMENTS: Table = {
    'dim': Size('dim'), 'n_layers': Size('num_layers'), 'n_heads': Size('num_heads'),
    'n_kv_heads': Size('num_kv_heads'), 'vocab_size': Size('vocab_size'),
    'norm_eps': Size('norm_eps', float, 1e-5), **settings.rope(10000.0),
    'swin_norm': Size('swin_norm', bool, False),
    'qk_normalization': Size('qk_norm', bool, False),
    'use_scaled_rope': Must((False,)), 'multiple_of': settings.OF_SHAPES,
    'ffn_dim_multiplier': settings.OF_SHAPES,
    'model_parallel_size': Free('the files are counted and joined'),
    '*': Free("Meta's program reads the arguments of its network and ignores all others")}

CHAMELEON_SETTINGS: Mapping[str, Table] = {
    'config.json': _CHAMELEON,
    'params.json': {**_ARGUMENTS, 'model': Part(_ARGUMENTS)},
    # Its arguments replace some of those in params.json.
    'consolidate_params.json': {**_ARGUMENTS, 'qk_normalization': Size('qk_norm', bool)}}

_FIXED = Free('the official program has fixed ids, and reads those of no file')

# Tokens of Chameleon by the names of transformers for them.
_TOKENS = {'bos_token': '<s>', 'eos_token': '</s>', 'pad_token': '<pad>', 'unk_token': '<unk>'}


def _chameleon_files(config: EarlyFusionConfig, others: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the files next to the weights from which transformers builds a Chameleon.

  Raises ConversionError for a model that does not have the names of its tokens, or sizes that the
  class does not have.
  """
  if 'text' not in others:
    raise family.MissingPart('text', (
        'config.json of Chameleon holds the names of all tokens, and the model has no text part; '
        'add its tokenizer file with cspd-convert first.'))
  if config.attention_dim not in (None, config.dim):
    raise family.ConversionError(
        f'attention_dim is {config.attention_dim}; in Chameleon all heads together have the width '
        f'of the model, {config.dim}.')
  form, file = others['text'].config.form, others['text'].params['file'].read()
  ids = dict(bpe.read({'file': file}, form).ids)
  names = {field: name for field, name in _TOKENS.items() if name in ids}
  token_ids = {f'{field}_id': ids[name] for field, name in names.items() if field != 'unk_token'}
  content = settings.write(
      {**settings.llama(1e-5), 'swin_norm': Size('swin_norm', bool)}, config, head_dim=None,
      architectures=['ChameleonForConditionalGeneration'], model_type='chameleon',
      attention_bias=False, mlp_bias=False, tie_word_embeddings=False,
      # Each head has its own norm.
      model_parallel_size=config.num_heads,
      max_position_embeddings=max(4096, 2 * config.num_tokens), vocabulary_map=ids, **token_ids)
  if (tokenizer := others.get('tokenizer')) is not None and tokenizer.kind == 'vq':
    content['vq_config'] = {
        'model_type': 'chameleon_vqgan', 'embed_dim': tokenizer.config.codebook_dim,
        'num_embeddings': tokenizer.config.codebook_size, 'double_latent': False,
        'latent_channels': tokenizer.config.z_channels, 'resolution': 512,
        'in_channels': tokenizer.config.in_channels, 'base_channels': tokenizer.config.ch,
        'channel_multiplier': list(tokenizer.config.ch_mult),
        'num_res_blocks': tokenizer.config.num_res_blocks, 'attn_resolutions': None,
        'attn_type': 'vanilla'}
  return {'config.json': content, 'generation_config.json': token_ids,
          'tokenizer.json': file.tobytes(),
          'tokenizer_config.json': {'tokenizer_class': 'PreTrainedTokenizerFast', **names}}


def _is_of_encoder(name: str) -> bool:
  """Whether transformers' Chameleon has a tensor of the image tokenizer, of which it only reads."""
  return not name.startswith('decoder.')


_WRITTEN_CHAMELEON = family.Written(
    # In the rows of transformers, which the program of Lumina-mGPT reads, too.
    forms=({'rules': functools.partial(rules, file_format=Format())},), files=_chameleon_files,
    inside={'chameleon_vqgan': ('model.vqmodel.', _is_of_encoder)})

LUMINA_MGPT_2_SETTINGS: Mapping[str, Table] = {'config.json': {
    **_CHAMELEON, 'vocabulary_map': _FIXED, 'boi_token_id': _FIXED, 'eoi_token_id': _FIXED}}

# Pixels of a token of Emu3 along each side, and the most tokens.
_TOKEN_SIDE, _MOST_TOKENS = 8, fields.MOST_SIDE


def _square(area: Any) -> Mapping[str, int] | str:
  """Returns rows and columns of square images as `Emu3Processor.calculate_generate_size` does."""
  is_area = type(area) is int and 0 < area <= (_TOKEN_SIDE * _MOST_TOKENS)**2
  if is_area and (side := round(area**0.5 / _TOKEN_SIDE)):
    return {'height': side, 'width': side}
  return (f'{area!r:.80}; it must be the number of pixels of an image, with 1 to {_MOST_TOKENS} '
          f'tokens of {_TOKEN_SIDE} pixels along each side')


_EMU3: Table = {
    **settings.llama(1e-5, 1e6), **_SHARED,
    'model_type': Must(('Emu3', 'emu3', 'emu3_text_model')),
    'vocabulary_map': _image_tokens('emu3_gen_8b', '<|visual token ', ordered=True),
    'img_token_id': Must((151851,)), 'boi_token_id': Must((151852,)),
    'eoi_token_id': Must((151853,)), 'eol_token_id': Must((151846,)),
    'eof_token_id': Must((151847,)),
    'image_area': Sizes(_square)}

EMU3_SETTINGS: Mapping[str, Table] = {'config.json': {**_EMU3, 'text_config': Part(_EMU3)}}

# Fields that only settings determine, with their published values in config.json.
NEEDED = {'norm_eps': '"rms_norm_eps": 1e-05', 'rope_base': '"rope_theta": 10000.0',
          'swin_norm': '"swin_norm": false'}
NEEDED_EMU3 = {'norm_eps': '"rms_norm_eps": 1e-05', 'rope_base': '"rope_theta": 1000000.0',
               'num_heads': '"num_attention_heads": 32'}

_CHAMELEON_LICENCE = 'Chameleon Research License'
# With guidance and top-k of the official samplers.
LUMINA_MGPT = family_of(
    'lumina_mgpt', named(*(f'lumina_mgpt_7b_{size}' for size in (768, 512, 1024))),
    {'guidance_scale': 4.0, 'top_k': 2000}, norm_rows=1,
    others={'chameleon_vqgan': (*_chameleon('vqgan.ckpt'), '.'),
            'lumina_mgpt_text': _chameleon('text_tokenizer.json')},
    fields=CHAMELEON_SETTINGS,
    # Models for three image sizes have the same shapes.
    needed={**NEEDED, 'height': '', 'width': ''}, written=_WRITTEN_CHAMELEON)._replace(
        licence=_CHAMELEON_LICENCE, hub={
            f'lumina_mgpt_7b_{size}': f'Alpha-VLLM/Lumina-mGPT-7B-{size}'
            for size in (768, 512, 1024)})
LUMINA_MGPT_2 = family_of(
    'lumina_mgpt_2', named('lumina_mgpt_2_7b'), {'guidance_scale': 4.0, 'top_k': 4096}, norm_rows=1,
    others={'movqgan': tuple(f'{folder}movqgan_270M.ckpt' for folder in (
                '', 'movqgan/270M/', '../movqgan/270M/', '../')),
            'lumina_mgpt_2_text': ('tokenizer.json',)},
    fields=LUMINA_MGPT_2_SETTINGS, needed=NEEDED,
    token_side=8, any_vocabulary=True, written=_WRITTEN_CHAMELEON)._replace(
        licence='Apache-2.0', hub={'lumina_mgpt_2_7b': 'Alpha-VLLM/Lumina-mGPT-2.0'})
ANOLE = family_of(
    'anole', named('anole_7b'), {'guidance_scale': 3.0, 'top_k': 2000},
    others={'chameleon_vqgan': (*_chameleon('vqgan.ckpt'), '.'),
            'anole_text': _chameleon('text_tokenizer.json')},
    fields=CHAMELEON_SETTINGS, needed=NEEDED, written=_WRITTEN_CHAMELEON)._replace(
        licence=_CHAMELEON_LICENCE, hub={'anole_7b': 'leloy/Anole-7b-v0.1-hf'})
EMU3 = family_of(
    'emu3', named('emu3_gen_8b'), {'guidance_scale': 3.0, 'top_k': 2048},
    others={'emu3_vq': ('Emu3-VisionTokenizer', '../Emu3-VisionTokenizer', '.'),
            'emu3_text': ('emu3.tiktoken',)},
    fields=EMU3_SETTINGS, needed=NEEDED_EMU3, token_side=8, written=family.Written(
        files=settings.files(_EMU3, architectures=['Emu3ForCausalLM'], tie_word_embeddings=False))
    )._replace(
        licence='Apache-2.0', hub={'emu3_gen_8b': 'BAAI/Emu3-Gen'})

_EMU3_5 = 'emu3_5_34b'
EMU3_5_FIELDS: Table = {
    **{name: entry for name, entry in _EMU3.items() if name not in ('vocabulary_map', 'vq_config')},
    'model_type': Must(('Emu3',)),
    'image_area': Free('the official program has rows and columns in its own configuration'),
    # The class of the official program for vLLM has these fields too.
    **settings.WINDOWS}
# The official text-to-image configuration, for both releases.
_OPTIONS = {'temperature': 1.0, 'top_p': 1.0, 'top_k': 5120}


def _near(*files: str) -> tuple[str, ...]:
  """Returns the paths of files in the folder of a transformer and in the one above."""
  return tuple(f'{folder}{file}' for folder in ('', '../') for file in files)


EMU3_5 = EMU3._replace(
    name='emu3_5', title=_title(_EMU3_5), infer=functools.partial(infer, _EMU3_5),
    presets=named(_EMU3_5),
    settings=functools.partial(settings.read, {'config.json': EMU3_5_FIELDS}),
    # Their published values have not been seen.
    needed={'norm_eps': '"rms_norm_eps": ...', 'rope_base': '"rope_theta": ...'},
    variant=functools.partial(variant, _EMU3_5), written=family.Written(
        files=settings.files(
            EMU3_5_FIELDS, architectures=['Emu3ForCausalLM'], tie_word_embeddings=False),
        means=functools.partial(
            means, early_fusion.PRESETS[_EMU3_5], _EMU3_5, {'config.json': EMU3_5_FIELDS})),
    assumed=functools.partial(assumed, 16),
    sampling=lambda config: {'pictures': {**_OPTIONS, 'guidance_scale': 5.0},  # Emu3.5-Image.
                             'emu3_5': {**_OPTIONS, 'guidance_scale': 2.0}},
    licence='Apache-2.0 (code)', hub={_EMU3_5: 'BAAI/Emu3.5-Image'}, layout=lambda name: {
        'emu3_5': ('.',),
        'emu3_5_vq': _near('Emu3.5-VisionTokenizer/model.safetensors',
                           'Emu3.5-VisionTokenizer/model.ckpt'),
        'emu3_5_text': (*_near('emu3.tiktoken', 'tokenizer_emu3_ibq/emu3.tiktoken'),
                        # The official program has its weights in `weights`.
                        '../../src/tokenizer_emu3_ibq/emu3.tiktoken')})
