"""Writes the files of every family as they are published, at tiny sizes.

Weights are those of `published.py`; sizes those of `sizes.py`, and tokenizers those of `texts.py`.
A function `family(root)` writes them into a folder and returns that of the target.
"""

import functools
import json

import numpy as np
import safetensors.numpy

from checkpoints_conversion import convert, rules
from tests.builders import published, sizes, texts
from tests.conversion import published_settings as settings_lib, torch_files


def save(folder, family, config, settings=None, seed=0, without=()):
  """Writes a file of a network, without some tensors and with settings beside it; returns its path.
  """
  folder.mkdir(parents=True, exist_ok=True)
  drawn = {name: x for name, x in published.tensors(family, config, seed).items()
           if name not in without}
  safetensors.numpy.save_file(drawn, folder / 'x.safetensors')
  if settings is not None:
    (folder / 'config.json').write_text(json.dumps(settings))
  return folder / 'x.safetensors'


def shard(folder, tensors, settings=None, count=2, is_pickled=False):
  """Writes tensors into a folder as transformers does, with an index; returns the folder."""
  folder.mkdir(parents=True, exist_ok=True)
  stem, end = ('pytorch_model', 'bin') if is_pickled else ('model', 'safetensors')
  index = {}
  for number in range(count):
    name = f'{stem}-{number + 1:05}-of-{count:05}.{end}'
    part = {key: tensors[key] for key in sorted(tensors)[number::count]}
    index |= dict.fromkeys(part, name)
    (torch_files.save(folder / name, part) if is_pickled else
     safetensors.numpy.save_file(part, folder / name))
  (folder / f'{stem}.{end}.index.json').write_text(json.dumps(
      {'metadata': {'total_size': sum(x.nbytes for x in tensors.values())}, 'weight_map': index}))
  if settings is not None:
    (folder / 'config.json').write_text(json.dumps(settings))
  return folder


def settings_of(whole, config):
  """A published config.json with the sizes of a tiny transformer."""
  own = dict(
      hidden_size=config.dim, num_hidden_layers=config.num_layers, vocab_size=config.vocab_size,
      num_attention_heads=config.num_heads, num_key_value_heads=config.num_kv_heads,
      intermediate_size=config.ffn_dim, rms_norm_eps=config.norm_eps, rope_theta=config.rope_base)
  return whole | own | ({'head_dim': config.head_dim} if 'head_dim' in whole else {})


def t5_settings(config):
  """A published config.json with the sizes of a tiny T5."""
  return settings_lib.FLAN_T5_XL | dict(
      vocab_size=config.vocab_size, d_model=config.dim, num_layers=config.num_layers,
      num_heads=config.num_heads, d_kv=config.head_dim, d_ff=config.ffn_dim)


def _chameleon(family, config, folder, tokenizer):
  """A model of Chameleon's kin, whose tokenizers are in the folder `tokenizer`."""
  weights = published.tensors(family, config, 1)
  weights['model.vqmodel.encoder.conv_in.bias'] = np.zeros(3, np.float32)
  shard(folder, weights, settings_of(settings_lib.LUMINA_MGPT, config))
  tokenizer.mkdir(parents=True)
  (tokenizer / 'text_tokenizer.json').write_bytes(texts.chameleon())
  pixels = published.tensors('chameleon_vqgan', sizes.CHAMELEON_VQ, 2)
  torch_files.save(tokenizer / 'vqgan.ckpt', {**pixels, 'loss.logvar': np.zeros(1, np.float32)},
                   'state_dict')
  return folder


def lumina_mgpt(root):
  """What the official program of Lumina-mGPT wants in `ckpts`."""
  return _chameleon('lumina_mgpt', sizes.LUMINA_MGPT, root / 'ckpts' / 'Lumina-mGPT-7B-768',
                    root / 'ckpts' / 'chameleon' / 'tokenizer')


def lumina_mgpt_2(root):
  """The repository of Lumina-mGPT 2.0, next to the image tokenizer of its official program."""
  folder = shard(
      root / 'lumina_mgpt' / 'Lumina-mGPT-2.0',
      published.tensors('lumina_mgpt_2', sizes.LUMINA_MGPT_2, 1),
      settings_of(settings_lib.LUMINA_MGPT_2, sizes.LUMINA_MGPT_2))
  (folder / 'tokenizer.json').write_bytes(texts.lumina_mgpt_2())
  (folder / 'tokenizer_config.json').write_text(json.dumps(
      {**settings_lib.TOKENIZER, 'bos_token': None, 'eos_token': {'content': '<|im_end|>'}}))
  pixels = root / 'lumina_mgpt' / 'movqgan' / '270M' / 'movqgan_270M.ckpt'
  pixels.parent.mkdir(parents=True)
  # The published file is a bare state dict, with the averages of the training.
  torch_files.save(pixels, published.tensors('movqgan', sizes.MOVQGAN, 2) | {
      'ema_encoder.decay': np.ones(1, np.float32)})
  return folder


def anole(root):
  """Anole as transformers stores it, beside the tokenizers of Meta's download."""
  return _chameleon('anole', sizes.ANOLE, root / 'anole', root / 'anole' / 'tokenizer')


def emu3(root):
  """The two repositories of Emu3, beside each other."""
  folder = shard(root / 'Emu3-Gen', published.tensors('emu3', sizes.EMU3, 4),
                 settings_of(settings_lib.EMU3, sizes.EMU3))
  (folder / 'emu3.tiktoken').write_bytes(texts.emu3())
  pixels = {name: np.abs(x) if name.endswith('running_var') else x
            for name, x in published.tensors('emu3_vq', sizes.EMU3_VQ, 5).items()}
  shard(root / 'Emu3-VisionTokenizer', pixels, settings_lib.EMU3_VQ | dict(
      ch=128, ch_mult=[1, 1], num_res_blocks=1, attn_resolutions=[1]), count=1)
  return folder


def emu3_5(root):
  """The folders of the official program of Emu3.5."""
  weights = root / 'weights'
  folder = shard(weights / 'Emu3.5-Image', published.tensors('emu3_5', sizes.EMU3_5, 6),
                 settings_of(settings_lib.EMU3_5, sizes.EMU3_5))
  (weights / 'Emu3.5-VisionTokenizer').mkdir()
  torch_files.save(weights / 'Emu3.5-VisionTokenizer' / 'model.ckpt',
                   published.tensors('emu3_5_vq', sizes.EMU3_5_VQ, 7), 'state_dict')
  text = root / 'src' / 'tokenizer_emu3_ibq'
  text.mkdir(parents=True)
  (text / 'emu3.tiktoken').write_bytes(texts.emu3())
  return folder


def flan_t5(folder):
  """Flan-T5, whole: encoder, decoder and tokenizer."""
  encoder = published.tensors('t5', sizes.T5, 41)
  shard(folder, {**encoder, 'lm_head.weight': encoder['shared.weight'],
                 'decoder.final_layer_norm.weight': np.ones(40, np.float32)},
        t5_settings(sizes.T5))
  (folder / 'tokenizer.json').write_bytes(texts.t5())
  return folder


def llamagen_words(root):
  """`pretrained_models` of text-conditional LlamaGen."""
  folder = root / 'pretrained_models'
  flan_t5(folder / 't5-ckpt' / 'flan-t5-xl')
  for name, family, config, seed in (('t2i_XL_stage1_256.pt', 'llamagen', sizes.T2I, 45),
                                     ('vq_ds16_t2i.pt', 'llamagen_vq', sizes.T2I_VQ, 46)):
    torch_files.save(folder / name, published.tensors(family, config, seed), 'model')
  return folder


def janus_pro(root, is_transformers=True):
  """A folder as transformers or DeepSeek publishes it."""
  config, dim, tensors = sizes.JANUS, sizes.JANUS.dim, {}
  for seed, (name, own) in enumerate((('janus_pro', config), ('janus_pro_vq', sizes.JANUS_VQ))):
    family = rules.get(name)
    family = family._replace(
        rules=functools.partial(family.rules, is_transformers=is_transformers))
    tensors |= published.weights(convert.published_shapes(family, own), seed)
  head = next(name for name in tensors if name.endswith('vision_head.weight'))
  tensors[head] *= 4  # Distributions that are far from uniform.
  language = dict(
      hidden_size=dim, intermediate_size=config.ffn_dim, num_hidden_layers=config.num_layers,
      num_attention_heads=config.num_heads, num_key_value_heads=config.num_kv_heads,
      vocab_size=config.text_size)
  if is_transformers:
    whole = settings_lib.JANUS_PRO_HF
    settings = whole | dict(
        text_config=whole['text_config'] | language | dict(head_dim=config.head_dim),
        vq_config=whole['vq_config'] | dict(
            num_embeddings=12, channel_multiplier=[1, 1], num_res_blocks=1, latent_channels=4,
            projection_dim=dim, image_token_embed_dim=dim))
  else:
    whole = settings_lib.JANUS_PRO_1B
    parts = {'gen_aligner_config': dict(n_embed=dim),
             'gen_vision_config': dict(image_token_size=12),
             'gen_head_config': dict(n_embed=dim, image_token_embed=dim, image_token_size=12)}
    settings = whole | dict(language_config=whole['language_config'] | language) | {
        name: whole[name] | dict(params=whole[name]['params'] | changed)
        for name, changed in parts.items()}
  folder = shard(root / 'Janus-Pro-1B', tensors, settings, is_pickled=not is_transformers)
  (folder / 'tokenizer.json').write_bytes(texts.janus_pro())
  return folder


# Seeds of the weights of the language models.
SEEDS = {'simplear': 91, 'liquid': 93}


def _language_config(name):
  return {'simplear': sizes.SIMPLEAR, 'liquid': sizes.LIQUID}[name]


def language_target(name):
  """Published tensors of a target; the last norm scales by a tenth, so that many codes compete."""
  tensors = published.tensors(name, _language_config(name), SEEDS[name])
  offset = np.float32(name == 'liquid')  # Gemma adds one.
  return tensors | {'model.norm.weight': np.float32(0.1) * tensors['model.norm.weight'] - offset}


def language_codes(name):
  """Codes of an image."""
  config = _language_config(name)
  return np.random.default_rng(SEEDS[name] + 1).integers(0, config.num_codes, config.num_tokens)


def _language_model(name, root):
  settings = settings_of(getattr(settings_lib, name.upper()), _language_config(name))
  folder = shard(root / name, language_target(name), settings)
  (folder / 'tokenizer.json').write_bytes(texts.of_language_model(name))
  return folder


def simplear(root):
  """SimpleAR, beside NVIDIA's image tokenizer."""
  shard(root / 'Cosmos-1.0-Tokenizer-DV8x16x16',
        published.tensors('cosmos_dv', sizes.COSMOS, 3), count=1)
  return _language_model('simplear', root)


def liquid(root):
  """Liquid, with Chameleon's image tokenizer."""
  folder = _language_model('liquid', root)
  (folder / 'chameleon').mkdir()
  torch_files.save(folder / 'chameleon' / 'vqgan.ckpt', published.tensors(
      'chameleon_vqgan', sizes.CHAMELEON_VQ, 2), 'state_dict')
  return folder


GLM_NAMES = {'bos_token': '<|dit_token_16384|>', 'grid_bos_token': '<sop>',
             'grid_eos_token': '<eop>', 'image_token': '<|image|>', 'pad_token': '<|endoftext|>'}


def glm_settings(config=sizes.GLM_IMAGE):
  """A published config.json with the sizes of a tiny network."""
  whole = settings_lib.GLM_IMAGE
  return whole | dict(
      image_start_token_id=config.image_start, image_end_token_id=config.image_end,
      text_config=whole['text_config'] | dict(
          attention_bias=config.qkv_bias, hidden_size=config.dim, intermediate_size=config.ffn_dim,
          num_attention_heads=config.num_heads, num_hidden_layers=config.num_layers,
          num_key_value_heads=config.num_kv_heads, vision_vocab_size=config.output_size,
          vocab_size=config.vocab_size, rope_parameters=dict(
              mrope_section=[*config.sections], partial_rotary_factor=config.rotary_factor,
              rope_theta=config.rope_base, rope_type='default')),
      vq_config=whole['vq_config'] | dict(num_embeddings=config.num_codes))


def glm_tensors():
  """Published tensors, with one of the networks that read images."""
  return published.tensors('glm_image', sizes.GLM_IMAGE, 85) | {
      'model.vqmodel.quant_conv.bias': np.zeros(8, np.float32)}


def glm_image(root, has_processor=True):
  """The repository of GLM-Image, with a tensor of each of its other networks."""
  whole = root / 'GLM-Image'
  shard(whole / 'vision_language_encoder', glm_tensors(), glm_settings())
  for name, tensor in {'transformer': 'transformer_blocks.0.attn1.to_q.weight',
                       'vae': 'decoder.up_blocks.0.resnets.0.norm1.weight',
                       'text_encoder': 'encoder.block.0.layer.0.layer_norm.weight'}.items():
    shard(whole / name, {tensor: np.zeros(4, np.float32)},
          {'_class_name': 'GlmImageTransformer2DModel'}, count=1)
  (whole / 'model_index.json').write_text(json.dumps({'_class_name': 'GlmImagePipeline'}))
  if has_processor:
    (whole / 'processor').mkdir()
    (whole / 'processor' / 'tokenizer.json').write_bytes(texts.glm_image())
    (whole / 'processor' / 'tokenizer_config.json').write_text(json.dumps(GLM_NAMES))
  return whole


def mammoth_settings(config=sizes.MAMMOTHMODA2):
  """A published config.json with the sizes of a tiny network."""
  llm, (first, stop) = settings_lib.MAMMOTHMODA2['llm_config'], config.image_layers
  experts = {'moe_type': f'ffn-{first}:{stop}'}
  return settings_lib.MAMMOTHMODA2 | {'llm_config': llm | experts | {
      'text_config': settings_of(llm['text_config'], config) | experts | {
          'vocab_size': config.text_size}}}


# As the official loop reads them.
MAMMOTH_GENERATION = {
    'do_sample': True, 'eol_token_id': 152064, 'repetition_penalty': 1.0, 'temperature': 0.9,
    'top_k': 500, 'top_p': 1.0, 'visual_token_start_id': 152072, 'visual_token_end_id': 168456}
MAMMOTH_TEMPLATE = (
    '{% if t2i_generate %}<|image start|>{{ ar_width }}*{{ ar_height }}<|image token|>{% endif %}')


def mammoth_tensors():
  """Published tensors, with one of each part of the release that draws no tokens."""
  return published.tensors('mammothmoda2', sizes.MAMMOTHMODA2, 105) | {
      name: np.zeros(3, np.float32) for name in (
          'llm_model.lm_head.weight', 'llm_model.model.visual.merger.ln_q.weight',
          'gen_transformer.norm_out.bias', 'gen_vae.decoder.conv_in.bias',
          'gen_image_condition_refiner.norm.weight')}


def mammothmoda2(root):
  """The repository of MammothModa2-Preview."""
  folder = shard(root / 'MammothModa2-Preview', mammoth_tensors(), mammoth_settings())
  (folder / 't2i_generation_config.json').write_text(json.dumps(MAMMOTH_GENERATION))
  (folder / 'mammothu.tiktoken').write_bytes(texts.emu3())
  (folder / 'mammothu_vision_tokens.txt').write_bytes(texts.MAMMOTH_NAMES)
  (folder / 'chat_template.json').write_text(json.dumps({'chat_template': MAMMOTH_TEMPLATE}))
  return folder


def nextstep(root, config=sizes.NEXTSTEP_1, settings=settings_lib.NEXTSTEP_1):
  """NextStep-1 as it is on the hub, with an output matrix of text."""
  heads = (('genloss_width', 'genloss_depth', 'num_channels') if 'genloss_width' in settings else
           ('fm_head_dim', 'fm_head_layers', 'latent_channels'))
  settings = settings_of(settings, config) | dict(
      zip(heads, (config.head_width, config.head_layers, config.latent_channels)))
  folder = shard(root / 'NextStep-1-Large', published.tensors('nextstep', config, 1) | {
      'lm_head.weight': np.zeros((3, 2), np.float32)}, settings)
  (folder / 'tokenizer.json').write_bytes(texts.nextstep())
  (folder / 'vae').mkdir()
  torch_files.save(folder / 'vae' / 'checkpoint.pt',
                   published.tensors('nextstep_vae', sizes.NEXTSTEP_VAE, 2))
  (folder / 'vae' / 'config.json').write_text(json.dumps(settings_lib.NEXTSTEP_VAE | dict(
      ch_mult=[1, 1], num_res_blocks=1, z_channels=4, scaling_factor=0.9, shift_factor=0.1)))
  return folder


# Arguments of the official classes of Tar, and tensors of the network that reads images.
TAR_SETTINGS = settings_of(settings_lib.TAR, sizes.TAR) | dict(
    image_start_token_id=265, num_image_tokens=sizes.TAR_CODES)
AR_DTOK = dict(
    multiple_of=8, ffn_dim_multiplier=0.6, vocab_size=48, cond_dim=12, cls_token_num=81,
    max_seq_len=16, model_type='clip_cond', class_dropout_prob=0.1, use_fixed_pe=False)
TA_TOK = dict(
    bottleneck=dict(name='bottleneck', args=dict(bottleneck_dim=8, regularizer=dict(
        name='simvq', args=dict(codebook_size=sizes.TAR_CODES, l2_normalized=True)))),
    bottleneck_token_num=81, input_size=384, teacher='google/siglip2-so400m-patch14-384',
    decoder_depth=1)
_READING = {name: np.zeros(3, np.float32) for name in (
    'encoder.post_layernorm.bias', 'encode_task_layer.0.bias', 'scale_layer.shift',
    'bottleneck.in_linear.bias', 'decoder.vision_model.head.layernorm.bias')}


def tar_language(root):
  """The repository of the language model."""
  folder = shard(root / 'Tar-1.5B', published.tensors('tar', sizes.TAR, 71), TAR_SETTINGS)
  (folder / 'tokenizer.json').write_bytes(texts.tar())
  return folder


def ta_tok(path, arguments=TA_TOK):
  """The file of the bridge, with the name and the arguments of its class."""
  tensors = published.tensors('ta_tok', sizes.TA_TOK, 73) | _READING
  torch_files.save_described(path, tensors, 'ta_tok', arguments)


def tar_pixels(root, name='llama-abs-XXS', **changes):
  """The repository of the bridge and AR-DTok, in which some arguments differ."""
  folder = root / 'TA-Tok'
  folder.mkdir(parents=True, exist_ok=True)
  torch_files.save_described(folder / 'ar_dtok_lp_256px.pth', published.tensors(
      'ar_dtok', sizes.AR_DTOK, 72), name, AR_DTOK | changes)
  ta_tok(folder / 'ta_tok.pth')
  return folder


def tar(root):
  """Both repositories and the image tokenizer, beside each other."""
  tar_pixels(root)
  torch_files.save(
      root / 'vq_ds16_t2i.pt', published.tensors('tar_vq', sizes.T2I_VQ, 74), 'model')
  return tar_language(root)


def mar(root):
  """`pretrained_models` of MAR, with averaged weights."""
  for path, parts in (
      ('mar/mar_tiny/checkpoint-last.pth', dict(
          model=published.tensors('mar', sizes.MAR),
          model_ema=published.tensors('mar', sizes.MAR, 1))),
      ('vae/kl16.ckpt', dict(model=published.tensors('kl_vae', sizes.MAR_VAE)))):
    (root / path).parent.mkdir(parents=True)
    torch_files.save_parts(root / path, parts)
  return root / 'mar' / 'mar_tiny'
