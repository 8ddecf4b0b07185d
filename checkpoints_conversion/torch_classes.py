"""Other people's networks with the weights of a model: classes of transformers and of clones.

Nothing of them is part of this package. A class reads published files, those that the model was
converted from or new ones that are written from it, in a format of the family that the class reads.
For every family, `CLASSES` says which class, how it is built, and how it computes logits at the ids
of a prompt and an image in the tokens of this library.
"""

import contextlib
import functools
import importlib
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from checkpoints_conversion import publish, read
from cspd_jax.files import paths
from cspd_jax.models import early_fusion, glm_image, tar

# Parts of networks of transformers that read or draw images.
_NOT_RUN = 'model.vqmodel.', 'model.visual.', 'model.vision_model.', 'model.aligner.'


class TorchClass(NamedTuple):
  """A class of PyTorch for the models of a family of files.

  Attributes:
    name: of the class.
    logits: `(network, model, condition of one image, stream, tokens [n]) ->` logits `[L, V]` of the
      codes: of all tokens of the image up to number `n`, and before them of the last tokens of the
      prompt that the class predicts. For MAR `(..., tokens [T, C])`, of which the hidden ones are
      NaN, `->` what the head reads, `[T, D]`.
    build: `(module, path, model) ->` the network with the weights of published files; None for a
      class of transformers.
    module: the module of the class.
    url: the repository of the clone that has the module; '' for transformers.
    needs: packages to install.
  """

  name: str
  logits: Callable[[Any, Any, Any, int, np.ndarray], Any]
  build: Callable[[Any, pathlib.Path, Any], Any] | None = None
  module: str = 'transformers'
  url: str = ''
  needs: str = 'torch transformers'

  def use(self, clone: str) -> None:
    """Makes the module of a clone importable; ValueError if the folder does not have it."""
    folder, file = paths.find('repo', clone).absolute(), f'{self.module.replace(".", "/")}.py'
    if not (folder / file).is_file():
      raise ValueError(f'repo is {paths.shown(clone)}, which does not contain {file}; give the '
                       f'folder of a clone of {self.url}.')
    sys.path.insert(0, str(folder))

  def load(self, model: Any, source: str, published: str | None, dtype: str) -> Any:
    """Returns the network of a class that can be imported, with the weights of a model.

    Args:
      model: the model.
      source: its name or its folder.
      published: the files or the folder that the class reads; None writes them from the model.
      dtype: of the network of a class of transformers; those of clones compute in float32.

    Raises:
      ValueError: if files cannot be written from the model, or have other tensors than the class.
    """
    module = importlib.import_module(self.module)
    with _files(family_of(model), source, published) as path:
      if self.build is not None:
        return self.build(module, path, model).eval()
      module.utils.logging.set_verbosity_error()
      module.utils.logging.disable_progress_bar()
      network, info = getattr(module, self.name).from_pretrained(
          path, dtype=getattr(_torch(), dtype), output_loading_info=True)
    if missing := [name for name in info['missing_keys'] if not name.startswith(_NOT_RUN)]:
      raise ValueError(f'{missing[0]} is not in the files')
    return network.eval()


def of_model(model: Any) -> TorchClass | None:
  """Returns the class that reads the files of a model; None if none is known."""
  return CLASSES.get(family_of(model))


def family_of(model: Any) -> str:
  """Returns the family of files that a model is, or can be written as."""
  return model.metadata.get('family') or _USUAL.get(model.family, '')


@contextlib.contextmanager
def _files(family: str, source: str, published: str | None) -> Iterator[pathlib.Path]:
  """Yields the files of a model that a class reads."""
  if published is not None:
    yield paths.find('published', published)
    return
  with tempfile.TemporaryDirectory() as folder:
    (path, _), = publish.publish_model(
        family, source, f'{folder}/files', role='prior' if family == 'tar' else 'target')
    yield path


def _torch() -> Any:
  return importlib.import_module('torch')


def after_prompt(network: Any, config: Any, ids: np.ndarray, tokens: np.ndarray) -> Any:
  """Returns logits `[L, codes]` of a language model of transformers, by published ids `[P]` of a
  prompt and tokens `[n]` of an image of an early-fusion model.
  """
  ids = np.concatenate([ids, early_fusion.order(config)[tokens]])
  hidden = network.model(input_ids=_torch().tensor(ids)[None]).last_hidden_state
  return network.lm_head(hidden)[0, :, config.first_code:config.first_code + config.num_codes]


def after_janus_prompt(network: Any, ids: np.ndarray, tokens: np.ndarray) -> Any:
  """Returns the same of Janus, whose codes have embeddings of their own."""
  torch, language = _torch(), network.model.language_model
  image = network.prepare_embeddings_for_image_generation(torch.tensor(tokens)[None])
  text = language.embed_tokens(torch.tensor(ids)[None])
  hidden = language(inputs_embeds=torch.cat([text, image], dim=1)).last_hidden_state
  return network.model.generation_head(hidden)[0]


def after_glm_prompt(network: Any, config: Any, ids: np.ndarray, tokens: np.ndarray) -> Any:
  """Returns the same of GLM-Image, which finds positions itself, a token after the other."""
  torch, grids = _torch(), [[1, config.height, config.width], [1, *config.small]]
  mask = torch.ones(1, len(ids), dtype=torch.long)
  out = network(
      input_ids=torch.tensor(ids)[None], attention_mask=mask, use_cache=True,
      image_grid_thw=torch.tensor(grids), images_per_sample=torch.tensor([2]))
  logits = [out.logits[0]]
  for token in tokens:
    mask = torch.nn.functional.pad(mask, (0, 1), value=1)
    out = network(input_ids=torch.tensor([[token]]), attention_mask=mask, cache=out.cache,
                  use_cache=True)
    logits.append(out.logits[0])
  return torch.cat(logits)[:, :config.num_codes]


def _ids(order: np.ndarray, condition: Any, stream: int) -> np.ndarray:
  tokens, visible = (np.asarray(part)[0, stream] for part in condition)
  return order[tokens[visible]]


def _of_early_fusion(network: Any, model: Any, condition: Any, stream: int, tokens: np.ndarray
                     ) -> Any:
  ids = _ids(early_fusion.order(model.config), condition, stream)
  return after_prompt(network, model.config, ids, tokens)


def _of_janus(network: Any, model: Any, condition: Any, stream: int, tokens: np.ndarray) -> Any:
  # Ids of text follow the codes here.
  ids = _ids(np.arange(model.config.vocab_size) - model.config.num_codes, condition, stream)
  return after_janus_prompt(network, ids, tokens)


def _of_glm_image(network: Any, model: Any, condition: Any, stream: int, tokens: np.ndarray
                  ) -> Any:
  order = glm_image.order(model.config)
  return after_glm_prompt(network, model.config, _ids(order, condition, stream), order[tokens])


def _sizes(config: Any) -> dict[str, Any]:
  """Returns arguments of classes like LlamaGen's, which compute the width of layers from others."""
  return dict(
      dim=config.dim, n_layer=config.num_layers, n_head=config.num_heads,
      n_kv_head=config.num_kv_heads, norm_eps=config.norm_eps, vocab_size=config.vocab_size,
      multiple_of=config.ffn_dim, ffn_dim_multiplier=1.5 / int(8 * config.dim / 3))


def _llamagen(module: Any, path: pathlib.Path, model: Any) -> Any:
  config, is_text = model.config, model.config.conditioning == 'text'
  return _with_weights(module.Transformer(module.ModelArgs(
      **_sizes(config), rope_base=config.rope_base, num_classes=config.num_classes,
      caption_dim=config.caption_dim, cls_token_num=config.num_condition_tokens,
      block_size=config.num_tokens, model_type='t2i' if is_text else 'c2i')), path)


def _of_llamagen(network: Any, model: Any, condition: Any, stream: int, tokens: np.ndarray) -> Any:
  torch, count = _torch(), model.config.num_condition_tokens
  visible = np.ones(count + len(tokens), bool)
  if model.config.conditioning == 'class':
    given = torch.tensor([model.config.num_classes if stream else int(condition[0])])
  else:
    visible[:count] = np.asarray(condition.mask)[0]
    given = network.cls_embedding.uncond_embedding[None] if stream else torch.tensor(
        np.asarray(condition.embeddings, np.float32))
  mask = np.tri(len(visible), dtype=bool) & (visible | np.eye(len(visible), dtype=bool))
  logits, _ = network(torch.tensor(tokens)[None], given, torch.arange(len(visible)),
                      mask=torch.tensor(mask)[None, None])
  return logits[0, visible]


def _ar_dtok(module: Any, path: pathlib.Path, model: Any) -> Any:
  config = model.config
  return _with_weights(module.ARModel(module.ModelArgs(
      **_sizes(config), cond_dim=config.condition_dim, max_seq_len=config.num_tokens,
      cls_token_num=config.most_codes, model_type='clip_cond')), path)


def _of_ar_dtok(network: Any, model: Any, condition: Any, stream: int, tokens: np.ndarray) -> Any:
  features = np.array(tar.Bridge(model.config.bridge).apply(
      {'params': model.params['bridge']}, condition), np.float32)
  return network(_torch().tensor(tokens)[None], _torch().tensor(features * (1 - stream)))[0][0]


def _mar(module: Any, path: pathlib.Path, model: Any) -> Any:
  config = model.config
  sizes = {f'{part}_{name}': value for part in ('encoder', 'decoder') for name, value in (
      ('embed_dim', config.dim), ('depth', config.num_layers), ('num_heads', config.num_heads))}
  return _with_weights(module.MAR(
      img_size=16 * config.height * config.patch_size, vae_stride=16, patch_size=config.patch_size,
      vae_embed_dim=config.latent_channels, class_num=config.num_classes,
      buffer_size=config.buffer_size, diffloss_d=config.head_layers, diffloss_w=config.head_width,
      norm_layer=functools.partial(_torch().nn.LayerNorm, eps=1e-6), **sizes), path)


def _of_mar(network: Any, model: Any, condition: Any, stream: int, tokens: np.ndarray) -> Any:
  torch = _torch()
  kind = network.fake_latent if stream else network.class_emb(torch.tensor([int(condition[0])]))
  mask, given = (torch.tensor(part)[None].float()
                 for part in (np.isnan(tokens).any(axis=1), np.nan_to_num(tokens)))
  return network.forward_mae_decoder(network.forward_mae_encoder(given, mask, kind), mask)[0]


def _with_weights(network: Any, path: pathlib.Path) -> Any:
  """Gives a network the tensors of a file, all of which it must have."""
  torch = _torch()
  missing, unexpected = network.load_state_dict({
      name: torch.from_numpy(np.asarray(tensor).astype(np.float32))
      for name, tensor in read.read(path).tensors.items()}, strict=False)
  if wrong := [*unexpected, *missing]:
    raise ValueError(f'{path.name} has other tensors than the class, such as {wrong[0]}')
  return network


_CHAMELEON = TorchClass('ChameleonForConditionalGeneration', _of_early_fusion)
# By the family of files. Those of Emu3.5 are like Qwen3's, whose class reads them.
CLASSES = {
    'lumina_mgpt': _CHAMELEON, 'lumina_mgpt_2': _CHAMELEON, 'anole': _CHAMELEON,
    'emu3': TorchClass('Emu3ForCausalLM', _of_early_fusion),
    'emu3_5': TorchClass('Qwen3ForCausalLM', _of_early_fusion),
    'simplear': TorchClass('Qwen2ForCausalLM', _of_early_fusion),
    'tar': TorchClass('Qwen2ForCausalLM', _of_early_fusion),
    'liquid': TorchClass('GemmaForCausalLM', _of_early_fusion),
    'janus_pro': TorchClass('JanusForConditionalGeneration', _of_janus),
    'glm_image': TorchClass('GlmImageForConditionalGeneration', _of_glm_image),
    'llamagen': TorchClass(
        'Transformer', _of_llamagen, _llamagen, 'autoregressive.models.gpt',
        'https://github.com/FoundationVision/LlamaGen', 'torch'),
    'ar_dtok': TorchClass(
        'ARModel', _of_ar_dtok, _ar_dtok, 'tok.ar_dtok.ar_model', 'https://github.com/csuhan/Tar',
        'torch torchvision transformers einops'),
    'mar': TorchClass(
        'MAR', _of_mar, _mar, 'models.mar', 'https://github.com/LTH14/mar',
        "torch torchvision 'timm<1' scipy tqdm")}
# The files in which models are written that were not converted from any.
_USUAL = {'early_fusion': 'anole', 'llamagen': 'llamagen', 'mar': 'mar'}
