"""Image tokenizers of all families but Janus-Pro.

LlamaGen: arXiv 2406.06525. Chameleon: arXiv 2405.09818; it may be in one file with the transformer.
Lumina-mGPT 2.0 has MoVQGAN (arXiv 2209.09002), as ai-forever stores it. Emu3: arXiv 2409.18869, as
BAAI and transformers store it. Emu3.5 has IBQ (arXiv 2412.02692). MAR's KL-16 is a variational
autoencoder of latent diffusion (arXiv 2112.10752); NextStep-1's (arXiv 2508.10711) is one with
names of its own. SimpleAR has NVIDIA's Cosmos-Tokenizer DV as two TorchScript files, `encoder.jit`
and `decoder.jit`, which name their tensors like the module of the whole tokenizer.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from checkpoints_conversion.rules import base, blocks, family, settings
from checkpoints_conversion.rules.base import CONVOLUTION, KEEP, MATRIX, POINTWISE
from checkpoints_conversion.rules.settings import Free, Must, Part, Size
from cspd_jax.models import vq
from cspd_jax.models.cosmos import CosmosConfig
from cspd_jax.models.kl_vae import KLVAEConfig
from cspd_jax.models.vq import VQConfig

_LLAMAGEN_TITLE, _CHAMELEON_TITLE, _MOVQGAN_TITLE = (
    'a LlamaGen image tokenizer', 'an image tokenizer of Chameleon', 'a MoVQGAN image tokenizer')

# Parts of LlamaGen's names, and those of taming-transformers. Levels are numbered in order.
_LLAMAGEN_NAMES = (
    ('encoder.conv_blocks.', 'encoder.down.'), ('decoder.conv_blocks.', 'decoder.up.'),
    ('.res.', '.block.'), ('.mid.0.', '.mid.block_1.'), ('.mid.1.', '.mid.attn_1.'),
    ('.mid.2.', '.mid.block_2.'))

taming_name = functools.partial(base.replaced, parts=_LLAMAGEN_NAMES)


def rules(config: VQConfig) -> list[base.Rule]:
  """Returns the rule table of LlamaGen's tokenizer."""
  return base.renamed(blocks.taming_vq(config, in_order=True),
                      functools.partial(taming_name, backwards=True))


def infer(shapes: family.Shapes, options: Mapping[str, Any]) -> VQConfig:
  """Infers the sizes of a tokenizer; config.json may say that vectors are not normalised."""
  return blocks.taming_vq_config(
      _LLAMAGEN_TITLE, {taming_name(name): shape for name, shape in shapes.items()},
      VQConfig(normalized=options.get('normalized', True)))


# The arguments of the official class, as for LlamaGen's transformer.
LLAMAGEN_FIELDS: settings.Table = {
    'codebook_size': Size('codebook_size'), 'codebook_embed_dim': Size('codebook_dim'),
    'codebook_l2_norm': Size('normalized', bool, True), 'z_channels': Size('z_channels'),
    **dict.fromkeys(('encoder_ch_mult', 'decoder_ch_mult'), Size('ch_mult', tuple)),
    'codebook_show_usage': settings.OF_SHAPES, **dict.fromkeys(
        ('commit_loss_beta', 'entropy_loss_ratio', 'dropout_p'), settings.OF_TRAINING)}
LLAMAGEN = family.FileFamily(
    name='llamagen_vq', title=_LLAMAGEN_TITLE, kind='vq', rules=rules, infer=infer,
    presets={'vq_16': VQConfig(), 'vq_8': VQConfig(ch_mult=(1, 2, 2, 4))},
    leftovers=r'quantize\.codebook_used', model='llamagen',
    # The official program requires the count of used codes.
    written=family.Written('.pt', ('model',), constants={'quantize.codebook_used': (65536,)}),
    settings=functools.partial(settings.read, {'config.json': LLAMAGEN_FIELDS}))

# Prefix of all names in a file that also holds the transformer.
_PREFIX = r'(?:model\.)?vqmodel\.'

_OF_THE_TRANSFORMER = Free('the transformer is another network')
# Of config.json, next to a file that also holds the transformer.
CHAMELEON_FIELDS: settings.Table = {
    'vq_config': Part({
        **settings.COMMON, **settings.VQGAN, 'model_type': Must(('chameleon_vqgan', 'chameleon')),
        'embed_dim': Size('codebook_dim'),
        **dict.fromkeys(('num_embeddings', 'n_embed'), Size('codebook_size')),
        'attn_type': Must(('vanilla',)), 'attn_resolutions': settings.OF_SHAPES,
        'resolution': settings.OF_SHAPES}),
    '*': _OF_THE_TRANSFORMER}


def _infer_chameleon(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  config = blocks.taming_vq_config(_CHAMELEON_TITLE, shapes, vq.CHAMELEON)
  if not any(name.startswith('decoder.') for name in shapes):
    raise family.ConversionError(
        'The file has no decoder, so it cannot generate images; use the original vqgan.ckpt of '
        "Chameleon, which is in Meta's download and in those of Lumina-mGPT and Anole.")
  return config


def _variant(shapes: family.Shapes) -> Mapping[str, Any]:
  """Returns the rules and settings for a file that also holds the transformer."""
  prefix = next((match[0] for name in shapes if (match := re.match(_PREFIX, name))), '')
  if not prefix:
    return {}
  return {'rules': lambda config: base.renamed(
              blocks.taming_vq(config), lambda name: prefix + name),
          'infer': lambda shapes, options: _infer_chameleon(
              {name.removeprefix(prefix): shape for name, shape in shapes.items()
               if name.startswith(prefix)}, options),
          'leftovers': rf'(?!{re.escape(prefix)}).*',
          'settings': functools.partial(settings.read, {'config.json': CHAMELEON_FIELDS})}


def _yaml(config: VQConfig, others: Mapping[str, Any]) -> dict[str, bytes]:
  """Returns the settings that Chameleon's program reads; YAML contains JSON."""
  content = {'model': {'target': 'taming.models.vqgan.VQModel', 'params': {
      'embed_dim': config.codebook_dim, 'n_embed': config.codebook_size, 'ddconfig': {
          'double_z': False, 'z_channels': config.z_channels, 'resolution': 512,
          'in_channels': config.in_channels, 'out_ch': config.in_channels, 'ch': config.ch,
          'ch_mult': list(config.ch_mult), 'num_res_blocks': config.num_res_blocks,
          'attn_resolutions': [], 'dropout': 0.0}}}}
  return {'vqgan.yaml': (json.dumps(content, indent=2) + '\n').encode()}


CHAMELEON = family.FileFamily(
    name='chameleon_vqgan', title=_CHAMELEON_TITLE, kind='vq', rules=blocks.taming_vq,
    infer=_infer_chameleon, presets={'vqgan': vq.CHAMELEON}, leftovers=r'loss\..*',
    variant=_variant, model='early_fusion',
    written=family.Written('.ckpt', ('state_dict',), files=_yaml),
    # Releases of transformers store the encoder alone.
    inside=rf'{_PREFIX}decoder\.conv_out\.weight', licence='Chameleon Research License',
    hub={'vqgan': 'Junfeng5/Liquid_demo:chameleon/vqgan.ckpt'})


def _infer_movqgan(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  # All other tokenizers with these names have norms without vectors of the tokens.
  family.shape(_MOVQGAN_TITLE, shapes, 'decoder.norm_out.conv_y.weight', 4)
  return blocks.taming_vq_config(_MOVQGAN_TITLE, shapes, vq.MOVQGAN)


MOVQGAN = family.FileFamily(
    name='movqgan', title=_MOVQGAN_TITLE, kind='vq', infer=_infer_movqgan,
    rules=functools.partial(blocks.taming_vq, norm=blocks.spatial_norm),
    presets={'movqgan_270m': vq.MOVQGAN}, leftovers=r'loss\..*|ema_\w+\..*', model='early_fusion',
    written=family.Written('.ckpt'),
    hub={'movqgan_270m': 'ai-forever/MoVQGAN:movqgan_270M.ckpt'})

_EMU3_TITLE = "Emu3's image tokenizer"
# [out, in, time, height, width] to [time, height, width, in, out].
_OVER_TIME = base.Transform(
    lambda x: (x.transpose(2, 3, 4, 1, 0),), lambda x: x.transpose(4, 3, 0, 1, 2))
# Parts of BAAI's names and what transformers calls them, replaced in this order.
_EMU3_NAMES = (
    (r'\.mid\.attn_1\.norm\b', '.middle_block.attn_norm'), (r'\.mid\.', '.middle_block.'),
    (r'\.attn\.({j})\.norm\b', r'.attn_norms.\1'),
    (r'^encoder\.down\.', 'encoder.down_block.down.'), (r'^decoder\.up\.', 'decoder.up_block.up.'),
    (r'\.([qkv])\.(weight|bias)$', r'.\1_proj.\2'), (r'\.proj_out\.', '.out_proj.'))
# Prefix of all names in a file that also holds the transformer.
_EMU3_PREFIX = 'vqmodel.'

_EMU3_FIELDS: settings.Table = {
    **settings.COMMON, **settings.VQGAN,
    'model_type': Must(('Emu3VisionVQ', 'emu3_vqgan', 'emu3')),
    'codebook_size': Size('codebook_size'), 'embed_dim': Size('z_channels'),
    'temporal_downsample_factor': Must((4,)), 'num_attention_heads': Must((1,)),
    'hidden_size': settings.OF_SHAPES,
    'attn_resolutions': Size('attention_levels', tuple, (3,))}
EMU3_FIELDS: settings.Table = {
    **_EMU3_FIELDS, 'vq_config': Part(_EMU3_FIELDS), 'text_config': _OF_THE_TRANSFORMER,
    'vocabulary_map': _OF_THE_TRANSFORMER, 'tie_word_embeddings': _OF_THE_TRANSFORMER}


def _emu3_rules(config: VQConfig) -> list[base.Rule]:
  table = [base.Rule('quantize.embedding.weight', ('codebook/embedding',), KEEP)]
  table += base.layer('quant_conv.conv', 'quant_conv', _OVER_TIME)
  table += base.layer('post_quant_conv.conv', 'post_quant_conv', _OVER_TIME)
  for part in ('encoder', 'decoder'):
    ours = f'{part}_over_time'
    table += base.layer(f'{part}.time_conv.{{i}}.conv.conv', f'{ours}/time_{{i}}', _OVER_TIME)
    for number in (1, 2):
      source, block = f'{part}.time_res_stack.{{i}}', f'{ours}/block_{{i}}'
      norm, our_norm = f'{source}.norm{number}', f'{block}/norm_{number}'
      table += base.norm(norm, our_norm)
      table += [base.Rule(f'{norm}.running_{name}', (f'{our_norm}/{name}',), KEEP)
                for name in ('mean', 'var')]
      table += base.layer(f'{source}.conv{number}.conv', f'{block}/conv_{number}', _OVER_TIME)
  return table + blocks.networks(len(config.ch_mult), blocks.spatial_norm)


def _emu3_variant(shapes: family.Shapes) -> Mapping[str, Any]:
  prefix = _EMU3_PREFIX if any(name.startswith(_EMU3_PREFIX) for name in shapes) else ''
  if not prefix and not any(name.startswith('encoder.down_block.') for name in shapes):
    return {}
  return {'rules': functools.partial(_emu3_renamed, prefix),
          'infer': lambda shapes, options: _infer_emu3({
              name.removeprefix(_EMU3_PREFIX).replace('.down_block.', '.'): shape
              for name, shape in shapes.items()}, options)}


def _emu3_renamed(prefix: str, config: VQConfig) -> list[base.Rule]:
  """Returns the rules for the names of transformers, whose attention uses matrices."""
  table = []
  for rule in _emu3_rules(config):
    name = str(rule.source)
    is_matrix = rule.transform is POINTWISE and re.search(r'\.([qkv]|proj_out)\.weight$', name)
    for pattern, replacement in _EMU3_NAMES:
      name = re.sub(pattern, replacement, name)
    table.append(rule._replace(source=prefix + name,
                               transform=MATRIX if is_matrix else rule.transform))
  return table


def _infer_emu3(shapes: family.Shapes, options: Mapping[str, int]) -> VQConfig:
  sizes: dict[str, Any] = blocks.taming_sizes(_EMU3_TITLE, shapes)
  codebook_size, z_channels = family.shape(_EMU3_TITLE, shapes, 'quantize.embedding.weight', 2)
  return dataclasses.replace(vq.EMU3, z_channels=z_channels, codebook_size=codebook_size,
                             codebook_dim=z_channels, **sizes)


EMU3 = family.FileFamily(
    name='emu3_vq', title=_EMU3_TITLE, kind='vq', rules=_emu3_rules, infer=_infer_emu3,
    presets={'vision_tokenizer': vq.EMU3}, model='early_fusion',
    hub={'vision_tokenizer': 'BAAI/Emu3-VisionTokenizer'},
    leftovers=r'.*\.num_batches_tracked|text_model\..*', variant=_emu3_variant,
    written=family.Written(files=settings.files(
        {name: entry for name, entry in _EMU3_FIELDS.items() if name != 'double_latent'},
        architectures=['Emu3VisionVQModel'])),
    inside=rf'{re.escape(_EMU3_PREFIX)}decoder\.conv_out\.weight',
    settings=functools.partial(settings.read, {'config.json': EMU3_FIELDS}))


_IBQ_TITLE = 'the image tokenizer of Emu3.5'
IBQ_FIELDS: settings.Table = {
    **settings.COMMON, **settings.VQGAN,
    'model_type': Must(('Emu3p5VisionVQ',)),
    'codebook_size': Size('codebook_size'), 'n_embed': Size('codebook_size'),
    'embed_dim': Size('codebook_dim'),
    'resamp_with_conv': Must((True,)), 'give_pre_end': Must((False,)),
    'l2_normalize': Must((False,)), 'remap': Must(()),
    # `_ibq_settings` combines these two.
    'attn_resolutions': Size('attn_resolutions', tuple), 'resolution': Size('resolution'),
    **dict.fromkeys((
        'beta', 'use_entropy_loss', 'cosine_similarity', 'entropy_temperature',
        'sample_minimization_weight', 'batch_maximization_weight'), settings.OF_TRAINING)}


def _ibq_settings(contents: settings.Contents) -> dict[str, Any]:
  """Reads config.json, whose pixels of levels with attention and of images tell these levels."""
  sizes = settings.read({'config.json': IBQ_FIELDS}, contents)
  side, sides = sizes.pop('resolution', None), sizes.pop('attn_resolutions', None)
  if side is None or sides is None:
    return sizes
  count = len(sizes.get('ch_mult', vq.IBQ.ch_mult))
  levels = [level for level in range(count) if side // 2**level in sides]
  if levels not in ([], [count - 1]):
    settings.refuse([f'config.json: attn_resolutions is {list(sides)}, attention at levels '
                     f'{levels} of images of {side} pixels; it can be at the last one, '
                     f'{count - 1}'])
  return {**sizes, 'level_attention': bool(levels)}


def _infer_ibq(shapes: family.Shapes, options: Mapping[str, Any]) -> VQConfig:
  attention = options.get('level_attention', vq.IBQ.level_attention)
  return blocks.taming_vq_config(
      _IBQ_TITLE, shapes, dataclasses.replace(vq.IBQ, level_attention=attention))


EMU3_5 = family.FileFamily(
    name='emu3_5_vq', title=_IBQ_TITLE, kind='vq', rules=blocks.taming_vq, infer=_infer_ibq,
    presets={'ibq_131072': vq.IBQ}, model='early_fusion', settings=_ibq_settings,
    written=family.Written(files=settings.files(
        {name: entry for name, entry in IBQ_FIELDS.items() if name != 'double_latent'})),
    hub={'ibq_131072': 'BAAI/Emu3.5-VisionTokenizer'})


_KL_TITLE = 'a variational autoencoder'


def _kl_rules(config: KLVAEConfig) -> list[base.Rule]:
  return blocks.taming(len(config.ch_mult))


def _infer_kl(shapes: family.Shapes, options: Mapping[str, Any]) -> KLVAEConfig:
  """Infers the sizes of an autoencoder; the scale of its latents is that of KL-16."""
  z_channels = family.shape(_KL_TITLE, shapes, 'post_quant_conv.weight', 4)[0]
  return KLVAEConfig(z_channels=z_channels, **blocks.taming_sizes(_KL_TITLE, shapes))


LATENT_DIFFUSION = family.FileFamily(
    name='kl_vae', title=_KL_TITLE, kind='kl_vae', rules=_kl_rules, infer=_infer_kl,
    presets={'kl_16': KLVAEConfig()}, leftovers=r'loss\..*', model='mar',
    written=family.Written('.ckpt', ('model',)),
    assumed=lambda config, specified: [
        f'assumed latents with the scale {config.scale} of KL-16 (--model=kl_16), the only '
        'supported one: with another autoencoder images have wrong colours'])

_NEXTSTEP_TITLE = 'an image tokenizer of NextStep-1'
NEXTSTEP_FIELDS: settings.Table = {
    **settings.TAMING, 'scaling_factor': Size('scale', float),
    'shift_factor': Size('shift', float), 'encoder_norm': Size('normalized', bool),
    # Patches of one latent, whose channels are normalised together.
    'psz': Must((1,)),
    'resolution': Free('the network is convolutional; only training uses it'),
    'deterministic': Free('images are encoded as means or as samples, as the caller chooses'),
    '*': Free('the official program reads the arguments of its network and ignores all others')}


def _infer_nextstep(shapes: family.Shapes, options: Mapping[str, Any]) -> KLVAEConfig:
  """Infers the sizes of an autoencoder; config.json specifies scale, shift and normalisation."""
  return KLVAEConfig(
      z_channels=family.shape(_NEXTSTEP_TITLE, shapes, 'decoder.conv_in.weight', 4)[1],
      quant_conv=False, level_attention=False,
      **{name: options[name] for name in ('scale', 'shift', 'normalized') if name in options},
      **blocks.taming_sizes(_NEXTSTEP_TITLE, shapes))


NEXTSTEP = family.FileFamily(
    name='nextstep_vae', title=_NEXTSTEP_TITLE, kind='kl_vae', rules=_kl_rules,
    infer=_infer_nextstep, presets={},
    settings=functools.partial(settings.read, {'config.json': NEXTSTEP_FIELDS}),
    # With other values images have wrong colours; versions of the official code differ in defaults.
    needed={'scale': '"scaling_factor"', 'shift': '"shift_factor"'}, model='nextstep',
    written=family.Written('.pt', files=settings.files(NEXTSTEP_FIELDS)))


_COSMOS_TITLE = 'a Cosmos-Tokenizer DV'
# [out, in, time, height, width] to convolutions over space, over time, and matrices.
_SPACE = base.Transform(lambda x: CONVOLUTION.forward(x[:, :, 0]),
                        lambda x: CONVOLUTION.inverse(x)[:, :, None])
_TIME = base.Transform(lambda x: (x[:, :, :, 0, 0].transpose(2, 1, 0),),
                       lambda x: x.transpose(2, 1, 0)[..., None, None])
_MATRIX = base.Transform(lambda x: POINTWISE.forward(x[:, :, 0]),
                         lambda x: POINTWISE.inverse(x)[:, :, None])
# Weights without effect on a single frame, and constants.
_COSMOS_LEFTOVERS = (
    r'(encoder|decoder)\.mid\.attn_1\.1\.[qk]\..*|encoder\.down\.\d+\.downsample\..*|'
    r'decoder\.up\.\d+\.upsample\..*|.*\.(wavelets|_arange|patch_size_buffer|_levels|_basis|'
    r'implicit_codebook)')


def _cosmos_rules(config: CosmosConfig) -> list[base.Rule]:
  count = len(config.ch_mult)
  table = [*_layer('quant_conv', 'encoder/quant_conv', _MATRIX),
           *_layer('post_quant_conv', 'decoder/post_quant_conv', _MATRIX)]
  for part in ('encoder', 'decoder'):
    table += _factorized(f'{part}.conv_in', f'{part}/conv_in')
    table += _factorized(f'{part}.conv_out', f'{part}/conv_out')
    table += base.norm(f'{part}.norm_out.norm', f'{part}/norm_out')
    table += _middle(f'{part}.mid', f'{part}/mid')
  for level in range(count):
    # The published decoder numbers its levels like the encoder, ours in execution order.
    for source, destination, resample in (
        (f'encoder.down.{level}', f'encoder/down_{level}', 'downsample'),
        (f'decoder.up.{level}', f'decoder/up_{count - 1 - level}', 'upsample')):
      table += _residual(f'{source}.block.{{j}}', f'{destination}_res_{{j}}')
      # The encoder convolves over space first, the decoder over time.
      space, time = ('conv1', 'conv2') if resample == 'downsample' else ('conv2', 'conv1')
      for name, ours, transform in ((space, 'space', _SPACE), (time, 'time', _TIME),
                                    ('conv3', 'out', _MATRIX)):
        table += _layer(f'{source}.{resample}.{name}', f'{destination}_resample/{ours}', transform)
  return table


def _layer(source: str, destination: str, transform: base.Transform) -> list[base.Rule]:
  return base.layer(f'{source}.conv3d', destination, transform)


def _factorized(source: str, destination: str) -> list[base.Rule]:
  return [*_layer(f'{source}.0', f'{destination}/space', _SPACE),
          *_layer(f'{source}.1', f'{destination}/time', _TIME)]


def _residual(source: str, destination: str) -> list[base.Rule]:
  table = _layer(f'{source}.nin_shortcut', f'{destination}/shortcut', _MATRIX)
  for number in (1, 2):
    table += base.norm(f'{source}.norm{number}.norm', f'{destination}/norm_{number}')
    table += _factorized(f'{source}.conv{number}', f'{destination}/conv_{number}')
  return table


def _middle(source: str, destination: str) -> list[base.Rule]:
  table = [*_residual(f'{source}.block_1', f'{destination}/res_0'),
           *_residual(f'{source}.block_2', f'{destination}/res_1')]
  names = {'q': 'query', 'k': 'key', 'v': 'value', 'proj_out': 'out'}
  for number, ours in enumerate(('attn_0', 'time_0')):
    table += base.norm(f'{source}.attn_1.{number}.norm.norm', f'{destination}/{ours}/norm')
    for published, name in names.items():
      if ours == 'attn_0' or name in ('value', 'out'):
        table += _layer(
            f'{source}.attn_1.{number}.{published}', f'{destination}/{ours}/{name}', _MATRIX)
  return table


def _infer_cosmos(shapes: family.Shapes, options: Mapping[str, int]) -> CosmosConfig:
  published = CosmosConfig()
  shape = lambda name: family.shape(_COSMOS_TITLE, shapes, f'{name}.conv3d.weight', 5)
  ch, inputs = shape('encoder.conv_in.0')[:2]
  patch_size = round((inputs / published.in_channels) ** (1 / 3))
  count = family.count(shapes, r'encoder\.down\.(\d+)\.block\..*')
  widths = [shape(f'encoder.down.{level}.block.0.conv1.0')[0] for level in range(count)]
  dim = shape('quant_conv')[0]
  shape('decoder.conv_in.0')
  if (patch_size ** 3 * published.in_channels != inputs or dim != len(published.levels)
      or any(width % ch for width in widths)):
    raise family.ConversionError(
        f'The file is not {_COSMOS_TITLE}: it has {inputs} inputs, vectors of {dim} numbers and '
        f'levels of widths {widths}; inputs must be {published.in_channels} times a cube, vectors '
        f'have {len(published.levels)} numbers, and widths are multiples of {ch}.')
  return CosmosConfig(
      ch=ch, ch_mult=tuple(width // ch for width in widths), patch_size=patch_size,
      num_res_blocks=family.count(shapes, r'encoder\.down\.0\.block\.(\d+)\..*'),
      z_channels=shape('post_quant_conv')[0])


COSMOS = family.FileFamily(
    name='cosmos_dv', title=_COSMOS_TITLE, kind='cosmos', rules=_cosmos_rules, infer=_infer_cosmos,
    presets={'dv8x16x16': CosmosConfig()},
    hub={'dv8x16x16': 'nvidia/Cosmos-1.0-Tokenizer-DV8x16x16'}, leftovers=_COSMOS_LEFTOVERS,
    written=family.Written(lines=lambda config: [
        'NVIDIA publishes programs in encoder.jit and decoder.jit, which are not written; the '
        'weights have the names of their tensors']),
    model='early_fusion',
    licence='NVIDIA Open Model License', assumed=lambda config, specified: [
        f'assumed {config.factor}x{config.factor} pixels and {config.time_factor} frames per token '
        f'and {", ".join(map(str, config.levels))} levels, as in Cosmos-1.0-Tokenizer-DV8x16x16, '
        'which SimpleAR uses'])
