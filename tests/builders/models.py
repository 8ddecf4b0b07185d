"""Tiny models with random weights: folders for programs, and a table that is a model."""

import functools
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import families
from cspd_jax.files import store
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import ImageTokenizer, PromptKind
from cspd_jax.models import kl_vae, llamagen, mar, vq
from cspd_jax.testing import tabular
from tests.builders import published

NAMES = ['cat', 'dog', 'owl']


@functools.cache
def made(make: Callable[..., object], *args) -> tempfile.TemporaryDirectory:
  """A folder after `make(folder, *args)`, which is called once per process; to be copied."""
  folder = tempfile.TemporaryDirectory()
  make(pathlib.Path(folder.name), *args)
  return folder


def copied(folder: pathlib.Path, make: Callable[..., object], *args) -> None:
  """Fills `folder` as `make(folder, *args)` does, with copies of files that are made once."""
  shutil.copytree(made(make, *args).name, folder, dirs_exist_ok=True)


def save(folder: pathlib.Path, name: str, kind: str, config, scale: float = 0.5, **extra) -> None:
  """Saves a network with random weights."""
  params = published.random_params(functools.partial(store.KINDS[kind].init, config), scale)
  store.save(folder / name, kind, config, params, extra=extra)


def llamagens(folder: pathlib.Path) -> None:
  """The models 'model' and 'alone', without drafts, and networks that do not fit them."""
  copied(folder, _llamagens, tuple(NAMES))


def _llamagens(folder: pathlib.Path, names: tuple[str, ...]) -> None:
  sizes = dict(height=4, width=4, dim=16, num_layers=1, num_heads=2, ffn_dim=16, vocab_size=16,
               num_classes=3, caption_dim=8)
  target = lambda name, extra, **changes: save(
      folder, name, 'llamagen', llamagen.LlamaGenConfig(**{**sizes, **changes}), **extra)
  target('target', {'labels': list(names)})
  target('draft', {}, dim=8)
  target('unnamed', {})
  target('truncated', {})
  target('other_vocabulary', {}, vocab_size=32)
  target('text', {}, conditioning='text')
  config = vq.VQConfig(ch=4, ch_mult=(1, 1), num_res_blocks=1, z_channels=4, codebook_size=16,
                       codebook_dim=2)
  store.save(folder / 'tokenizer', 'vq', config, vq.init(config, jax.random.key(0)))
  weights = folder / 'truncated' / 'model.safetensors'
  weights.write_bytes(weights.read_bytes()[:-1])
  parts = {'target': '../target', 'tokenizer': '../tokenizer'}
  families.save(folder / 'model', 'llamagen', {**parts, 'draft': '../draft'},
                {'guidance_scale': 2.0})
  families.save(folder / 'alone', 'llamagen', parts)
  (folder / 'other.py').write_text(
      'import dataclasses\n\n@dataclasses.dataclass(frozen=True)\nclass Other:\n  seed: int = 0\n'
      '\ndef get_config():\n  return Other()\n')


def mars(folder: pathlib.Path) -> None:
  """The models 'model' and 'alone', without a draft model, and networks that do not fit them."""
  copied(folder, _mars)


def _mars(folder: pathlib.Path) -> None:
  for name, dim, token_dim, patch_size in (
      ('target', 16, 4, 1), ('draft', 8, 4, 1), ('narrow', 8, 3, 1), ('patches', 8, 4, 2)):
    save(folder, name, 'mar', mar.MARConfig(
        height=2, width=2, token_dim=token_dim, patch_size=patch_size, dim=dim, num_layers=1,
        num_heads=2, head_width=8, head_layers=1, num_classes=3, buffer_size=2), scale=0.2)
  for name, channels in (('vae', 4), ('other_vae', 2)):
    save(folder, name, 'kl_vae', kl_vae.KLVAEConfig(
        ch=4, ch_mult=(1, 1), num_res_blocks=1, z_channels=channels), scale=0.2)
  parts = {'target': '../target', 'tokenizer': '../vae'}
  families.save(folder / 'model', 'mar', {**parts, 'draft': '../draft'}, {'guidance_scale': 2.0})
  families.save(folder / 'alone', 'mar', parts)


# Pixels are one grey level per token, and features those of the first two tokens.
TOKENIZER = ImageTokenizer(
    None, np.float32(1.0),
    decode=lambda params, tokens: jnp.broadcast_to(
        params * tokens[:, None, :, None] / 2.0 - 0.5, (len(tokens), 1, tokens.shape[1], 3)),
    features=lambda params, images: params * 2 * images[:, 0, :2, 0])


def of_table(seed: int = 0, length: int = 4, tokenizer: ImageTokenizer | None = TOKENIZER) -> Model:
  """Returns a random model with three classes and four tokens."""
  table = tabular.tabular(jax.random.key(seed), vocab_size=4, length=length, num_classes=3)
  return Model(
      'tiny', 'tiny', None, table.params, (1, length), lambda guided: table.target, PromptKind(
          lambda prompts: jnp.asarray(prompts, jnp.int32), lambda prompts: list(map(str, prompts)),
          [0, 1, 2]), tokenizer)


def rows(results: Any) -> list:
  """Returns the results of every image as nested lists."""
  leaves = jax.tree.leaves(results)
  return [[np.asarray(leaf[i]).tolist() for leaf in leaves] for i in range(len(leaves[0]))]
