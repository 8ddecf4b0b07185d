"""The published families at tiny sizes, and the models that the command makes of their files."""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import jax

import cspd_jax
from checkpoints_conversion import command, rules
from checkpoints_conversion.rules import tar as tar_rules
from cspd_jax import families
from cspd_jax.files import store
from cspd_jax.models import eagle
from tests.builders import sizes, writers
from tests.conversion import published_settings as settings_lib


def run(source, family, output, *words):
  """Runs the command on a file or a folder, and returns its exit code."""
  return command.main(
      ['convert', f'--family={family}', f'--source={source}', f'--output={output}', *words])


@dataclasses.dataclass(frozen=True)
class Family:
  """A published model at a tiny size.

  Attributes:
    family: the family of files.
    config: the sizes of its target.
    write: `root -> folder`, writes the files and returns the folder of the target.
    words: what the command is told beside the source.
    more: further commands in the same root: family, source and words.
    pixels: rows and columns of a picture; None if another program draws it.
    defaults: the options of a model that is loaded.
    networks: sizes of its other networks, by role.
    decoder: a seed-exact decoder of several tokens per pass, or the default one.
    prompts: what is generated.
  """

  family: str
  config: Any
  write: Callable[[pathlib.Path], pathlib.Path]
  words: tuple[str, ...] = ()
  more: tuple[tuple[str, ...], ...] = ()
  pixels: tuple[int, int] | None = None
  defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  networks: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  decoder: str | None = 'seed_exact(window=4)'
  prompts: tuple[str, ...] = ('a cat', 'a dog, 中文')


_PLAIN = dict(temperature=1.0, top_p=1.0)


def _early_fusion(name, tokenizer, pixel=1, **defaults):
  """An early-fusion model of words, whose tokens are squares of some pixels."""
  config = getattr(sizes, name.upper())
  return Family(
      name, config, getattr(writers, name),
      (f'--height={config.height}', f'--width={config.width}'),
      pixels=(pixel * config.height, pixel * config.width), defaults=_PLAIN | defaults,
      networks=dict(tokenizer=tokenizer))


def _nextstep(config, settings, decoder, **defaults):
  return Family(
      'nextstep', config, functools.partial(writers.nextstep, config=config, settings=settings),
      ('--height=3', '--width=4'), pixels=(12, 16),
      defaults=dict(guidance_scale=7.5, temperature=1.0, decoder=decoder, **defaults),
      networks=dict(tokenizer=sizes.NEXTSTEP_VAE), decoder=None)


_JANUS = Family(
    'janus_pro', sizes.JANUS, writers.janus_pro, ('--model=janus_pro_1b',), pixels=(6, 8),
    defaults=dict(guidance_scale=5.0, **_PLAIN), networks=dict(tokenizer=sizes.JANUS_VQ))
FAMILIES = {
    'lumina_mgpt': _early_fusion(
        'lumina_mgpt', sizes.CHAMELEON_VQ, guidance_scale=4.0, top_k=2000),
    'lumina_mgpt_2': _early_fusion(
        'lumina_mgpt_2', sizes.MOVQGAN, 2, guidance_scale=4.0, top_k=4096),
    'anole': _early_fusion('anole', sizes.CHAMELEON_VQ, guidance_scale=3.0, top_k=2000),
    'emu3': _early_fusion('emu3', sizes.EMU3_VQ, 2, guidance_scale=3.0, top_k=2048),
    'emu3_5': _early_fusion('emu3_5', sizes.EMU3_5_VQ, 2, guidance_scale=5.0, top_k=5120),
    'simplear': _early_fusion('simplear', sizes.COSMOS, 16, guidance_scale=6.0),
    'liquid': _early_fusion(
        'liquid', sizes.CHAMELEON_VQ, guidance_scale=7.0, temperature=0.99, top_k=4096, top_p=0.96),
    'llamagen': Family(
        'llamagen', sizes.T2I, writers.llamagen_words, ('--model=t2i_xl_256',), pixels=(3, 3),
        defaults=dict(guidance_scale=7.5, top_k=1000, **_PLAIN),
        networks=dict(tokenizer=sizes.T2I_VQ, t5=sizes.T5)),
    'janus_pro': _JANUS,
    'janus_pro of DeepSeek': dataclasses.replace(
        _JANUS, write=functools.partial(writers.janus_pro, is_transformers=False)),
    'glm_image': Family(
        'glm_image', sizes.GLM_IMAGE, writers.glm_image, ('--model=glm_image_9b',),
        defaults=dict(temperature=0.9, top_p=0.75)),
    'mammothmoda2': Family(
        'mammothmoda2', sizes.MAMMOTHMODA2, writers.mammothmoda2, ('--height=4', '--width=10'),
        defaults=dict(guidance_scale=7.0, temperature=0.9, top_k=500, top_p=1.0)),
    'nextstep': _nextstep(sizes.NEXTSTEP_1, settings_lib.NEXTSTEP_1, 'mar'),
    'nextstep 1.1': _nextstep(
        sizes.NEXTSTEP_1_1, settings_lib.NEXTSTEP_1_1, 'mar(last_noise=True)',
        contexts='nextstep_1_1'),
    'tar': Family(
        'tar', sizes.AR_DTOK, writers.tar, ('--height=9', '--width=9'),
        (('ar_dtok', 'TA-Tok', '--model=ar_dtok_256'), ('tar_vq', 'vq_ds16_t2i.pt')), (4, 4),
        dict(guidance_scale=4.0, top_k=0, prior_temperature=1.0, prior_top_k=1200,
             prior_top_p=0.95, **_PLAIN),
        dict(tokenizer=sizes.T2I_VQ, bridge=sizes.TA_TOK, prior=sizes.TAR),
        'vanilla | seed_exact(window=4)'),
    'mar': Family(
        'mar', sizes.MAR, writers.mar, ('--num_heads=2',), pixels=(4, 4),
        defaults=dict(guidance_scale=4.0, temperature=1.0,
                      decoder='exact_head(num_iter=4, guidance=constant)'),
        networks=dict(tokenizer=sizes.MAR_VAE), decoder=None, prompts=('0', '2'))}
# Published sizes that are tiny here, beside those that are published.
_PRESETS = {'llamagen': {'t2i_xl_256': sizes.T2I}, 'janus_pro': {'janus_pro_1b': sizes.JANUS},
            'glm_image': {'glm_image_9b': sizes.GLM_IMAGE},
            'ar_dtok': {'ar_dtok_256': sizes.AR_DTOK}}


@contextlib.contextmanager
def tiny():
  """Lets commands and files name tiny sizes as published ones."""
  known = {name: rules.get(name) for name in _PRESETS}
  known = {name: family._replace(presets={**family.presets, **_PRESETS[name]})
           for name, family in known.items()}
  with (mock.patch.dict(rules.FAMILIES, known),
        mock.patch.dict(tar_rules._NETWORKS, {'XXS': (2, 2, 16)})):
    yield


def convert(name, root, output, *words):
  """Writes the published files of a model in `root`, and converts them to a model folder."""
  family = FAMILIES[name]
  source = family.write(root)
  with tiny():
    assert not run(source, family.family, output, *family.words, *words)
    for other, place, *others in family.more:
      assert not run(root / place, other, output, *others)
  return output


@functools.cache
def _converted(name):
  """A temporary folder with the published files and the model."""
  folder = tempfile.TemporaryDirectory()
  root = pathlib.Path(folder.name)
  convert(name, root / 'published', root / 'model')
  return folder


def model(name):
  """The folder of a converted model, which is made once per process; not to be changed."""
  return pathlib.Path(_converted(name).name) / 'model'


def copied(name, folder):
  """The same in a folder of a test."""
  shutil.copytree(model(name), folder, dirs_exist_ok=True)
  return folder


@functools.cache
def loaded(name):
  """The model, which keeps what it has compiled."""
  return cspd_jax.load(model(name))


def add_eagle(folder, family, config, role='eagle'):
  """Adds an EAGLE network that was not trained to a model, for its target of a family."""
  sizes_of = families.FAMILIES[family].published.networks(config)['eagle'][1]
  store.save(folder / role, 'eagle', sizes_of, eagle.init(sizes_of, jax.random.key(3)))
  families.save(folder, families.model_file.read(folder)['family'], {role: role})
