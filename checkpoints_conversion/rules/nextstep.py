"""NextStep-1 and 1.1 (arXiv 2508.10711) in the format of transformers."""

import functools
from collections.abc import Collection, Mapping
from typing import Any

from checkpoints_conversion.rules import base, blocks, family, settings
from checkpoints_conversion.rules.base import KEEP, MATRIX, Rule
from checkpoints_conversion.rules.settings import Free, Must, Size
from cspd_jax.models.nextstep import PRESETS, NextStepConfig

_TITLE = 'a NextStep-1 model'
_GRID = Free('rows and columns of an image are options, on which no weight depends')
_NEEDED = {'num_heads': '"num_attention_heads": 40', 'norm_eps': '"rms_norm_eps": 1e-05',
           'rope_base': '"rope_theta": 1000000.0'}
# The fields of the sampler, which is not in the files. Their names of sizes tell 1.1 from 1.
_SAMPLER = ('token_norm', 'num_levels', 'last_step')

FIELDS: settings.Table = {
    **settings.llama(), **settings.NO_BIASES, **settings.WINDOWS,
    'model_type': Must(('nextstep', 'stepx_llama')),
    'attention_bias': Must((True,), default=False),
    # Without the field outputs have biases if queries have them.
    'o_attention_bias': settings.NO_BIAS._replace(default=True),
    'tie_word_embeddings': Free('the output matrix of text is not converted'),
    'use_gen_pos_embed': Must((False,)), 'use_2d_rope': Must((False,)),
    'latent_channels': Size('latent_channels'), 'num_channels': Size('latent_channels'),
    'latent_patch_size': Size('patch_size'), 'patch_size': Size('patch_size'),
    'fm_head_dim': Size('head_width'), 'genloss_width': Size('head_width'),
    'fm_head_layers': Size('head_layers'), 'genloss_depth': Size('head_layers'),
    'genloss_net_arch': Must(('mlp',)), 'genloss_type': Must(('transport',)),
    'genloss_num_sampling_steps': Free('the official program passes the number with a call'),
    'latent_size': _GRID, 'image_size': _GRID, 'base_image_grid_size': _GRID,
    'boi': Must((151667,)), 'eoi': Must((151668,)), 'image_placeholder_id': Must((151669,)),
    'pad_token_id_added': Free('prompts are padded with any token, which none reads'),
    'noise_strength': Must((0,)), 'image_encoder_name': Must(()),
    'image_feature_layer': Free('a layer of the image encoder, which there is not'),
    'image_decoder_arch': settings.OF_SHAPES,
    **dict.fromkeys(('lm_loss_weight', 'im_loss_weight', 'image_loss_weight', 'create_kwargs',
                     'fm_head_batch_mul', 'genloss_batch_mul'), settings.OF_TRAINING),
    'vae_name_or_path': Free('the image tokenizer is another network')}


def _settings(contents: settings.Contents) -> dict[str, Any]:
  """Reads config.json, whose names of sizes also tell the release."""
  fields = settings.read({'config.json': FIELDS}, contents)
  if any(name.startswith('genloss_') for name in contents.get('config.json', ())):
    release = PRESETS['nextstep_1_1_512']
    fields |= {name: getattr(release, name) for name in _SAMPLER}
  return fields


def _rules(config: NextStepConfig) -> list[Rule]:
  return [
      Rule('embed_tokens.weight', ('transformer/token_embedding',), KEEP),
      *base.llama_layer(
          'layers.{i}.', 'transformer/layers_{i}/', config.num_heads, config.num_kv_heads),
      Rule('norm.weight', ('transformer/norm/scale',), KEEP),
      *base.layer('image_in_projector', 'token_in', MATRIX),
      *base.layer('image_out_projector', 'token_out', MATRIX),
      *blocks.rules('image_head.net.', config.head_width, config.head_layers)]


def _infer(shapes: family.Shapes, options: Mapping[str, Any]) -> NextStepConfig:
  shape = functools.partial(family.shape, _TITLE, shapes)
  published = next(iter(PRESETS.values()))
  vocab_size, dim = shape('embed_tokens.weight', 2)
  num_heads = family.num_heads(options, PRESETS.values(), dim)
  patch_size = options.get('patch_size', published.patch_size)
  token_dim = shape('image_in_projector.weight', 2)[1]
  if patch_size < 1 or token_dim % patch_size**2:
    raise family.ConversionError(
        f'patch_size is {patch_size}, and tokens have {token_dim} numbers; they must be patches of '
        'patch_size x patch_size latents, so give the patch_size of the model.')
  own = ('height', 'width', 'rope_base', 'norm_eps', *_SAMPLER)
  return NextStepConfig(
      vocab_size=vocab_size, dim=dim, num_heads=num_heads, patch_size=patch_size,
      latent_channels=token_dim // patch_size**2,
      num_layers=family.count(shapes, r'layers\.(\d+)\.self_attn\.q_proj\.weight'),
      num_kv_heads=shape('layers.0.self_attn.k_proj.weight', 2)[0] // (dim // num_heads),
      ffn_dim=shape('layers.0.mlp.gate_proj.weight', 2)[0],
      head_width=shape('image_head.net.cond_embed.weight', 2)[0],
      head_layers=family.count(shapes, r'image_head\.net\.res_blocks\.(\d+)\.in_ln\.weight'),
      **{name: options.get(name, getattr(published, name)) for name in own})


def _assumed(config: NextStepConfig, specified: Collection[str]) -> list[str]:
  lines = family.assumed_grid(config, specified, 16)
  if 'last_step' not in specified:
    lines.append('assumed the sampler of NextStep-1, which no file contains; '
                 '--model=nextstep_1_1_512 specifies that of 1.1')
  return lines


def _sampling(config: NextStepConfig) -> Mapping[str, family.Defaults]:
  options = {'guidance_scale': 7.5, 'temperature': 1.0, 'decoder': 'mar'}
  if config.last_step is None:
    options |= {'decoder': 'mar(last_noise=True)', 'contexts': 'nextstep_1_1'}
  return {'pictures': options}


def _files(config: NextStepConfig, others: Mapping[str, Any]) -> dict[str, Any]:
  """Returns config.json, in which the sampler of 1.1 follows from the names of sizes."""
  content = settings.write(FIELDS, config)
  if config.last_step is PRESETS['nextstep_1_1_512'].last_step:
    content |= {new: content.pop(old) for old, new in {
        'latent_channels': 'num_channels', 'latent_patch_size': 'patch_size',
        'fm_head_dim': 'genloss_width', 'fm_head_layers': 'genloss_depth'}.items()}
  else:
    content = {name: value for name, value in content.items() if not name.startswith('genloss_')}
  return {'config.json': content}


FAMILY = family.FileFamily(
    name='nextstep', title=_TITLE, kind='nextstep', rules=_rules, infer=_infer, presets=PRESETS,
    options={'height': 'Rows of tokens of an image.', 'width': 'Tokens of a row of an image.'},
    settings=_settings, needed=_NEEDED, assumed=_assumed,
    # The output matrix of text, and tables that are computed.
    leftovers=r'lm_head\.weight|gen_pos_embed|rotary_emb\.inv_freq', model='nextstep',
    sampling=_sampling, licence='Apache-2.0', written=family.Written(files=_files),
    hub={'nextstep_1_512': 'stepfun-ai/NextStep-1-Large',
         'nextstep_1_1_512': 'stepfun-ai/NextStep-1.1'},
    layout=lambda model: {
        'nextstep': ('.',), 'nextstep_text': ('tokenizer.json',),
        'nextstep_vae': ('vae/checkpoint.pt', '../NextStep-1-f8ch16-Tokenizer/checkpoint.pt')})
