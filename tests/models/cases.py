"""Models of discrete tokens with the logits of their official modules at random weights.

The arrays in `tests/data` were recorded in float32 with the weights of `published.py`, at the sizes
and weight seeds below. Inputs come from `default_rng(weight seed + 1)` but where it says otherwise:

- `early_fusion.npz`: `chameleon`, `chameleon_swin` (with `swin_norm`) from
  `ChameleonForConditionalGeneration` of transformers 5.23, `emu3` from `Emu3ForCausalLM` with
  `rope_theta` 1e6. Prompts of published ids `integers(0, 96, (3, 12))`, of which the first 0, 5 and
  9 are padding, then codes `integers(0, 48, (3, 8, 8))` plus the first id, with the tokens of the
  grammar where they belong. Positions count what is not padding. The arrays hold the logits of the
  codes, `[3, T, 48]`, from the prompt's last token on, without Chameleon's mask of image tokens.
- `emu3_5.npz`: `logits` `[2, 3, 72, 48]` like these from `Emu3ForCausalLM` of baaivision/Emu3.5
  (commit 8fcf1da, transformers 4.48.2), but that both streams have prompts of their own,
  `integers(0, 96, (2, 3, 12))`, of which the first `PADDING_OF_STREAMS` are padding.
- `lumina_mgpt_2.npz`: `logits` `[3, 2, 73, 48]` by `ChameleonForConditionalGeneration` of the
  repository of Lumina-mGPT 2.0 (commit f44a4d7, transformers 4.46); one call for a whole sequence
  and calls for one token each agreed to 1e-4. Prompts `integers(0, 96, (3, 2, 12))` from the places
  `FIRST` on.
- `language_models.npz`: `simplear` from `Qwen2ForCausalLM` of transformers 5.24 with `rope_theta`
  1e6 and tied embeddings, whose output matrix has no weights of its own, `liquid` from
  `GemmaForCausalLM` with a `head_dim` of 16. Prompts `integers(0, 48, (3, 12))`, padded as above,
  then codes `integers(0, 48, (3, 64))` plus 48. The language model of Tar is a Qwen2, too.
- `glm_image.npz`: from `GlmImageForConditionalGeneration` of transformers 5.24. Two prompts of 70
  and 62 ids, padded on the left, `integers(48, 94, (2, 70))`, of which the last ids are 40; so all
  positions of images, grids of 4x3 and 8x6 tokens, lie beyond 62. `logits` `[2, 61, 40]` are those
  of the codes, the prefill first and then one step of its cache per token, for the tokens
  `default_rng(83).integers(0, 40, (2, 61))`. `greedy` `[2, 60]` are the tokens that its own
  `generate` writes without sampling, with `suppress_tokens` for the outputs that are no codes.
- `mammothmoda2.npz`: from the networks of bytedance/mammothmoda under transformers: `preview` from
  `Mammothmoda2Qwen2_5_VLForConditionalGeneration` (branch qwen25vl, commit 768cd4e, 4.53.2), with
  `mrope_section` [2, 3, 3] and `moe_type` ffn-1:3, `dev` from `Mammothmoda2Qwen3VLFor
  ConditionalGeneration` (branch main, commit ba41c0b, 4.57.1), with [4, 4, 4] and ffn. As in
  `generate_t2i` both streams have the same ids, those of `mammoth_inputs`, padded on the left; the
  second one sees the last ten alone; and every step runs one token on the cache. `[2, 2, 72, 40]`
  hold the logits of the codes. One call for the whole sequence agreed to 3e-6.
- `llamagen.npz`: from the official transformer of LlamaGen. Class model: tokens `integers(0, 48,
  (2, 100))`, labels 3 and 7; `c2i` `[2, 2, 100, 48]` holds the logits of the full forward with the
  labels, then with the null class. Text model: tokens `integers(0, 48, (3, 64))`, then captions
  `standard_normal((3, 120, 40))` as float32, padded on the left by 0, 37 and 117 tokens; the logits
  come from its cached generation, one given token at a time: `t2i_guided` `[3, 64, 48]` mixed with
  guidance scale 4, `t2i_null` those of the null captions.
- `llamagen_words.npz`: from the official program of LlamaGen: its cleaning and its tokenizer call
  (see `tests/text/test_captions.py`), the `T5EncoderModel` of transformers 5.23 with the weights of
  `writers.flan_t5`, the padding on the left of `sample_t2i.py`, and `generate` with guidance over
  the official transformer, where given tokens, `default_rng(44).integers(0, 48, (3, 64))`, took the
  place of sampled ones. `logits` `[2, 3, 64, 48]` are those of every step, with the caption and
  with the null caption, for the three `CAPTIONS` of 42, 120 (cut) and 1 tokens.
- `tar.npz`: from the classes of csuhan/Tar (commit 47da8e1) under transformers 5.24, with inputs of
  `tar_reference.py`: `features` `[2, 81, 24]` of `TextAlignedTokenizer.decode_from_bottleneck`,
  `features_13` and `features_27` the last 40 of larger grids, `logits` `[2, 2, 16, 40]` of
  `ARModel` with these features, and with zeros. `TAR_CLONE=FOLDER python -m
  tests.models.tar_reference` writes them anew.

Those of Janus-Pro come from the installed transformers, with the network of `janus_reference.py`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints_conversion import convert, rules, torch_classes
from cspd_jax.models import early_fusion, glm_image, janus, llamagen, mammothmoda2, tar
from cspd_jax.models.conditions import Prompt
from tests.builders import folders, published

PADDING = np.array([0, 5, 9])
PADDING_OF_STREAMS = np.array([PADDING, [7, 0, 3]])
FIRST = np.array([[0, 10], [5, 8], [9, 11]])
CAPTIONS = ['A portrait photo of a kangaroo wearing an orange hoodie, “Welcome Friends!”',
            'a map of the world made out of sushi. ' * 12, '']


class Case(NamedTuple):
  """A model at random weights, and recorded logits.

  Attributes:
    module: of `cspd_jax.models`, with `target` and `logits_and_features`.
    config: its sizes.
    params: its parameters.
    condition: the condition of all streams.
    tokens: of images, `[B, T]`.
    want: the logits of codes `[S, B, T, V]`.
    small: sizes for checks of all windows and trees.
    tolerance: of logits.
    width: tokens of a window.
  """

  module: Any
  config: Any
  params: Any
  condition: Any
  tokens: Any
  want: Any
  small: Any
  tolerance: float = 3e-5
  width: int = 12


_sizes = dict(height=8, width=8, vocab_size=96, num_codes=48, dim=64, num_layers=2, num_heads=4,
              ffn_dim=96)
_of = lambda **changes: early_fusion.EarlyFusionConfig(**{**_sizes, **changes})
_language = dict(first_code=48, named_codes=False, qk_norm=False, norm_eps=1e-6)
# Config, family of files, seed of the weights.
EARLY_FUSION = {
    'chameleon': (_of(first_code=4, row_end=60, image_ends=(52,)), 'anole', 21),
    'chameleon_swin': (_of(first_code=4, swin_norm=True), 'anole', 23),
    'emu3': (_of(first_code=40, row_end=30, image_ends=(31, 33, 32), num_kv_heads=2, qk_norm=False,
                 rope_base=1e6), 'emu3', 25),
    'emu3_5': (_of(first_code=40, row_end=30, ends_last_row=False, image_ends=(33,), num_kv_heads=2,
                   attention_dim=96, qk_norm=False, qk_rms_norm=True, rope_base=1e6), 'emu3_5', 71),
    'lumina_mgpt_2': (
        _of(first_code=45, row_end=40, image_ends=(37,), num_kv_heads=2), 'lumina_mgpt_2', 81),
    'simplear': (
        _of(num_kv_heads=2, qkv_bias=True, rope_base=1e6, **_language), 'simplear', 83),
    'liquid': (_of(dim=48, attention_dim=64, activation='gelu_tanh', **_language), 'liquid', 81)}


def inputs(name):
  """Published ids of prompts `[B, C]`, what is seen of them, and codes, for all but Emu3.5 and 2.0.
  """
  rng = np.random.default_rng(EARLY_FUSION[name][2] + 1)
  ids = rng.integers(0, 48 if name in ('simplear', 'liquid') else 96, (3, 12))
  return ids, np.arange(12) >= PADDING[:, None], rng.integers(0, 48, (3, 64))


def _early_fusion(name):
  config, family, seed = EARLY_FUSION[name]
  rng, tolerance = np.random.default_rng(seed + 1), 3e-4
  if name == 'lumina_mgpt_2':
    ids, codes = rng.integers(0, 96, (3, 2, 12)), rng.integers(0, 48, (3, 64))
    visible = np.arange(12) >= FIRST[..., None]
    want = published.recorded('lumina_mgpt_2')['logits'].swapaxes(0, 1)
  elif name == 'emu3_5':
    ids, codes = rng.integers(0, 96, (2, 3, 12)).swapaxes(0, 1), rng.integers(0, 48, (3, 64))
    visible = (np.arange(12) >= PADDING_OF_STREAMS[..., None]).swapaxes(0, 1)
    want, tolerance = published.recorded('emu3_5')['logits'], 3e-5
  else:
    ids, visible, codes = inputs(name)
    ids, visible = (np.stack([part] * 2, axis=1) for part in (ids, visible))
    if name in ('simplear', 'liquid'):
      want, tolerance = published.recorded('language_models')[name], 1e-4
    else:
      want = published.recorded('early_fusion')[name]
    want = np.stack([want] * 2)
  tokens = early_fusion.with_grammar(config, jnp.asarray(codes))
  condition = Prompt(jnp.asarray(np.argsort(early_fusion.order(config))[ids]), jnp.asarray(visible))
  return Case(
      early_fusion, config, published.params(family, config, seed), condition, tokens, want,
      dataclasses.replace(config, height=3, width=3), tolerance)


def _tar_prior():
  """At the weights and inputs of SimpleAR."""
  config = tar.PriorConfig(
      height=9, width=9, dim=64, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=96,
      vocab_size=96, num_codes=48, first_code=48)
  ids, visible, codes = inputs('simplear')
  condition = early_fusion.renumbered(config, Prompt(ids[:, None], visible[:, None]))
  return Case(early_fusion, config, published.params('tar', config, 83), condition,
              jnp.asarray(codes), published.recorded('language_models')['simplear'][None], None)


GLM_IMAGE = glm_image.GlmImageConfig(
    height=8, width=6, dim=64, num_layers=3, num_heads=4, num_kv_heads=2, ffn_dim=96, small_side=4,
    vocab_size=96, num_codes=40, image_end=41, output_size=48, sections=(1, 1, 2))


def _glm_image():
  ids = np.random.default_rng(82).integers(48, 94, (2, 70))
  ids[:, -1] = 40
  visible = np.arange(70) >= 70 - np.array([70, 62])[:, None]
  tokens = np.random.default_rng(83).integers(0, 40, (2, GLM_IMAGE.num_tokens))
  tokens[:, -1] = 40  # The end follows the codes here.
  return Case(
      glm_image, GLM_IMAGE, published.params('glm_image', GLM_IMAGE, 81),
      glm_image.renumbered(GLM_IMAGE, Prompt(ids[:, None], visible[:, None])), jnp.asarray(tokens),
      published.recorded('glm_image')['logits'][None],
      dataclasses.replace(GLM_IMAGE, height=3, width=3, small_side=2), width=10)


_mammoth = dict(
    height=8, width=8, dim=64, num_layers=3, num_heads=4, num_kv_heads=2, ffn_dim=96, vocab_size=96,
    text_size=40, num_codes=40, row_end=40, first_code=48)
# Networks of images in the last two layers, and in all.
MAMMOTHMODA2 = {
    'preview': (mammothmoda2.MammothConfig(image_layers=(1, 3), **_mammoth), 101),
    'dev': (mammothmoda2.MammothConfig(
        image_layers=(0, 256), attention_dim=96, qkv_bias=False, qk_rms_norm=True, rope_base=5e6,
        **_mammoth), 103)}


def mammoth_inputs(name):
  """Published ids of prompts `[B, C]`, what is seen of them, and codes."""
  rng = np.random.default_rng(MAMMOTHMODA2[name][1] + 1)
  ids, codes = rng.integers(0, 40, (2, 20)), rng.integers(0, 40, (2, 64))
  ids[:, [-7, -1]] = 46, 45  # The start of an image and its token, around the digits of the sides.
  return ids, np.arange(20) >= np.array([[0], [6]]), codes


def mammoth_condition(name):
  """The prompts, and as the null condition their last ten tokens."""
  ids, visible, _ = mammoth_inputs(name)
  null = visible & (np.arange(20) >= 10)
  return early_fusion.renumbered(MAMMOTHMODA2[name][0], Prompt(
      np.stack([ids] * 2, axis=1), np.stack([visible, null], axis=1)))


def _mammothmoda2(name):
  config, seed = MAMMOTHMODA2[name]
  return Case(
      early_fusion, config, published.params('mammothmoda2', config, seed), mammoth_condition(name),
      early_fusion.with_grammar(config, jnp.asarray(mammoth_inputs(name)[2])),
      published.recorded('mammothmoda2')[name], dataclasses.replace(config, height=3, width=3))


BRIDGE = tar.BridgeConfig(num_codes=50, code_dim=12, normalized=True, dim=24, num_layers=2)
TAR = tar.TarConfig(
    height=4, width=4, dim=32, num_layers=3, num_heads=4, ffn_dim=48, vocab_size=40,
    condition_dim=24, num_positions=96, bridge=BRIDGE)
TAR_SEEDS = {'ta_tok': 91, 'ar_dtok': 92}


def _tar():
  rng = np.random.default_rng(93)
  codes, tokens = rng.integers(0, 50, (2, 81)), rng.integers(0, 40, (2, 16))
  params = published.params('ar_dtok', TAR, TAR_SEEDS['ar_dtok']) | {
      'bridge': published.params('ta_tok', BRIDGE, TAR_SEEDS['ta_tok'])}
  return Case(tar, TAR, params, jnp.asarray(codes), jnp.asarray(tokens),
              published.recorded('tar')['logits'], TAR, width=5)


C2I = llamagen.LlamaGenConfig(
    height=10, width=10, dim=64, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=192,
    vocab_size=48, num_classes=10)
T2I = llamagen.LlamaGenConfig(
    conditioning='text', height=8, width=8, dim=64, num_layers=2, num_heads=4, ffn_dim=192,
    vocab_size=48, caption_dim=40)


def _classes():
  tokens = np.random.default_rng(2).integers(0, 48, (2, 100))
  return Case(llamagen, C2I, published.params('llamagen', C2I, 1), jnp.array([3, 7]),
              jnp.asarray(tokens), published.recorded('llamagen')['c2i'], C2I, 1e-4)


def _captions():
  rng = np.random.default_rng(4)
  tokens = rng.integers(0, 48, (3, 64))
  captions = rng.standard_normal((3, 120, 40)).astype(np.float32)
  mask = np.arange(120) >= np.array([[0], [37], [117]])
  recorded = published.recorded('llamagen')
  null, guided = recorded['t2i_null'], recorded['t2i_guided']
  return Case(llamagen, T2I, published.params('llamagen', T2I, 3),
              llamagen.Caption(jnp.asarray(captions), jnp.asarray(mask)), jnp.asarray(tokens),
              np.stack([null + (guided - null) / 4, null]), T2I, 1e-4, width=1)


def _words():
  """Captions as the encoder of a converted model encodes them."""
  pytest.importorskip('ftfy'), pytest.importorskip('tokenizers')
  condition = folders.loaded('llamagen').condition(CAPTIONS)
  assert condition.mask.sum(axis=1).tolist() == [42, 120, 1]
  tokens = np.random.default_rng(44).integers(0, 48, (3, 64))
  return Case(llamagen, T2I, published.params('llamagen', T2I, 43), condition, jnp.asarray(tokens),
              published.recorded('llamagen_words')['logits'], None, 3e-4, width=1)


@functools.cache
def janus_network():
  """The network of transformers; tests that need it are skipped without PyTorch."""
  pytest.importorskip('torch'), pytest.importorskip('transformers', '5')
  from tests.models import janus_reference
  return janus_reference.network()


def janus_converted(name, config, tensors):
  """Parameters of published tensors in either format."""
  family = rules.get(name)
  shapes = {key: x.shape for key, x in tensors.items()}
  return convert.convert(family._replace(**family.variant(shapes)), config, tensors)


def janus_prompts():
  """Ids `[B, S, C]` of both contexts of two images, as the official programs write them."""
  from tests.models import janus_reference as reference
  return np.array([[[reference.BEGIN, *words, reference.IMAGE],
                    [reference.BEGIN, *[reference.PAD] * len(words), reference.IMAGE]]
                   for words in ([7, 9, 11, 5], [8, 4, 23, 20])])


def _janus(is_deepseek):
  network = janus_network()
  import torch

  from tests.models import janus_reference as reference
  config, ids = reference.CONFIG, janus_prompts()
  tokens = np.random.default_rng(1).integers(0, config.num_codes, (2, config.num_tokens))
  with torch.no_grad():
    want = [[torch_classes.after_janus_prompt(network, row[stream], image[:-1]).numpy()[
        len(row[stream]) - 1:] for row, image in zip(ids, tokens)] for stream in range(2)]
  params = janus_converted('janus_pro', config, reference.tensors(network, is_deepseek))
  condition = janus.renumbered(config, Prompt(ids, np.ones(ids.shape, bool)))
  return Case(
      janus, config, params, condition, jnp.asarray(tokens), np.stack(want), config, width=9)


_MAKE = {
    **{name: functools.partial(_early_fusion, name) for name in EARLY_FUSION},
    **{f'mammothmoda2 {name}': functools.partial(_mammothmoda2, name) for name in MAMMOTHMODA2},
    'tar': _tar_prior, 'glm_image': _glm_image, 'ar_dtok': _tar, 'classes': _classes,
    'captions': _captions, 'words': _words, 'janus': functools.partial(_janus, False),
    'janus of DeepSeek': functools.partial(_janus, True)}
NAMES = tuple(_MAKE)


@functools.cache
def case(name):
  """A model by its name."""
  return _MAKE[name]()
