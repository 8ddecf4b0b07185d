"""Tar: a language model writes text-aligned codes, and AR-DTok writes the image that they describe.

Each of the two is a model of its own, and both together are a `Cascade`.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from cspd_jax.families import decoder_only, prompt_kinds
from cspd_jax.families.decoder_only import EAGLE, MEDUSA, NEIGHBOURS
from cspd_jax.families.family import Family, Parts, Published, is_described
from cspd_jax.files import store
from cspd_jax.files.store import Kind
from cspd_jax.generation.cascade import Cascade
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Handover, PromptKind
from cspd_jax.models import eagle, early_fusion, tar, vq
from cspd_jax.text import bpe, templates

_ADVICE = ('a model of the family tar draws them: '
           "cspd_jax.load(FOLDER, prior=None).generate(arrays['codes'])")
# Names of control tokens.
_CONTROL = r'<\|.*\|>|<im_(start|end)>|<S\d>|<I\d+>'


def build_prior(parts: Parts) -> Model:
  """Builds a language model of its networks; raises ValueError unless they belong together."""
  target = parts.loaded['target']
  config = target.config
  decoder_only.pair(parts, 'num_codes', (
      'height', 'width', 'num_codes', 'first_code', 'vocab_size'))
  text = parts.text(PRIOR_FAMILY.text_forms, config.vocab_size)
  if text is not None:
    templates.check_codes(text, '<I{}>', 'tokenizer.json', config.first_code, config.num_codes)
  prompt_kind = prompt_kinds.tokens(
      (config.height, config.width), text, parts.writer(PRIOR_FAMILY.prompt_writers),
      functools.partial(early_fusion.renumbered, config), target.metadata.get('prompts', ()),
      range(config.first_code, config.first_code + config.num_codes), PRIOR_FAMILY.text_forms,
      num_streams=1)
  model = decoder_only.build(
      parts, PRIOR_FAMILY, early_fusion.logits_and_features, prompt_kind, None)
  # The pixels of a code in the images of 384 pixels that the codes of training are read from.
  return dataclasses.replace(model, handover=Handover(
      lambda tokens: {'codes': tokens.astype(np.int32)}, 384 // config.height, _ADVICE))


def build(parts: Parts) -> Model | Cascade:
  """Builds a model of its networks; raises ValueError unless they belong together."""
  target = parts.loaded['target']
  bridge = parts.loaded.get('bridge')
  if bridge is None:
    if not is_described(target):
      raise ValueError(f'model {parts.name!r} has no bridge from codes to features; convert '
                       'ta_tok.pth into its folder with cspd-convert --family=ta_tok, or pass '
                       'bridge=FOLDER.')
    bridge = store.sketch('ta_tok', tar.BridgeConfig(dim=target.config.condition_dim))
  parts.pair('bridge', dim='condition_dim')
  # A smaller AR-DTok that drafts reads the same features.
  whole = {role: part._replace(
      config=tar.TarConfig(**dataclasses.asdict(part.config), bridge=bridge.config),
      params={**part.params, 'bridge': bridge.params})
           for role, part in parts.loaded.items() if role in ('target', 'draft')}
  parts, config = parts._replace(loaded={**parts.loaded, **whole}), whole['target'].config
  decoder_only.pair(parts, 'vocab_size', (
      'height', 'width', 'vocab_size', 'condition_dim', 'num_positions'))
  prior = parts.build_prior(build_prior)
  if prior is not None:
    codes = prior.config
    if codes.num_codes != bridge.config.num_codes:
      raise ValueError(f'prior has num_codes {codes.num_codes}, but the bridge of {parts.name!r} '
                       f'has {bridge.config.num_codes}; pass the prior that belongs to it.')
    config.check_codes(np.zeros((1, codes.num_tokens), np.int32))
  model = decoder_only.build(
      parts, FAMILY, tar.logits_and_features, _prompt_kind(config),
      decoder_only.image_tokenizer(parts.loaded.get('tokenizer'), config))
  return model if prior is None else Cascade(prior, model)


def _prompt_kind(config: tar.TarConfig) -> PromptKind:
  """Returns the prompts of AR-DTok alone: codes."""

  def encode(prompts: Any) -> Any:
    if not isinstance(prompts, np.ndarray | jax.Array):
      raise ValueError(f'prompts is {prompts!r:.80}; this model has no prior that reads words, so '
                       f'it accepts only codes, an array [B, P] of integers below '
                       f'{config.bridge.num_codes}; load it with prior=FOLDER and text=FOLDER, or '
                       'convert them into its folder with cspd-convert --family=tar.')
    config.check_codes(prompts)
    return np.asarray(prompts, np.int32)

  return PromptKind(encode, lambda codes: [f'codes {i}' for i in range(len(codes))], ())


_LANGUAGE_MODEL = {'tar_prior': decoder_only.kind(tar.PriorConfig, early_fusion.init)}
_AR_DTOK = {'ar_dtok': decoder_only.kind(tar.ArDtokConfig, tar.init)}
_TEXT = {'text': Kind(bpe.TextConfig, bpe.init)}
# Networks that draft for either of the two models.
_DRAFTS = {'eagle': EAGLE, 'medusa': MEDUSA, 'neighbours': NEIGHBOURS, 'corrector': EAGLE}

PRIOR_FAMILY = Family(
    name='tar_prior',
    roles={'target': _LANGUAGE_MODEL, 'text': _TEXT, 'draft': _LANGUAGE_MODEL, **_DRAFTS},
    build=build_prior, resize=decoder_only.resize,
    published=Published(tar.PRIORS, lambda config: decoder_only.with_medusa(config, 'tar_prior'),
                        lambda config, count: prompt_kinds.described(count)),
    text_forms={'tar': functools.partial(bpe.Vocabulary, control=_CONTROL)},
    prompt_writers={'tar': templates.tar}, eagle_layers={'tar_prior': eagle.Layer()})
FAMILY = Family(
    name='tar',
    roles={'target': _AR_DTOK, 'tokenizer': {'vq': Kind(vq.VQConfig, vq.init)},
           'bridge': {'ta_tok': Kind(tar.BridgeConfig, tar.init_bridge)},
           'prior': _LANGUAGE_MODEL, 'text': _TEXT, 'draft': _AR_DTOK, **_DRAFTS,
           'prior_draft': _LANGUAGE_MODEL,
           **{f'prior_{role}': kinds for role, kinds in _DRAFTS.items()}},
    build=build,
    published=Published(
        tar.PRESETS, lambda config: decoder_only.with_medusa(config, 'tar') | {
            'bridge': ('ta_tok', tar.BridgeConfig(dim=config.condition_dim))},
        lambda config, count: jax.ShapeDtypeStruct((count, config.most_codes), np.int32)),
    eagle_layers={'tar': eagle.Layer(reads_prompt=False)})
