"""Lists that the pages take from the code: decoders, parts, metrics, networks, programs."""

import ast
import configparser
import functools
import pathlib
import re
from collections.abc import Callable

import jax
import numpy as np

from checkpoints_conversion import rules
from cspd_jax import families, metrics
from cspd_jax.core import sampling
from cspd_jax.decoding import specification
from cspd_jax.decoding.loop import Decoder
from cspd_jax.testing import tabular
from docs import zoo

ROOT = pathlib.Path(__file__).parents[1]
# A chain, and siblings drawn one by one: what `block` and `kseq` can verify.
_CHAIN = 'eagle(tree=chain(2), draws=iid)'


@functools.cache
def _toy(spec: str) -> Decoder:
  """A decoder of a small table, to ask it for its guarantee."""
  model = tabular.tabular(jax.random.key(0), vocab_size=16, length=4)
  drafts = tabular.drafts(model.target, model.target)
  codebook = np.random.default_rng(0).standard_normal((16, 3))
  return specification.build(specification.complete(spec, window=4, length=2), model.target,
                             drafts, codebook)


def _needs(key: str | None) -> str:
  return specification.TABLE.networks[key] if key else '-'


def decoders() -> str:
  """The named decoders of discrete tokens."""
  return zoo.markdown(
      {'decoder': f'`{specification.usage(name)}`', 'stands for': f'`{entry.parts}`',
       'guarantee': _toy(name).guarantee, 'needs': _needs(specification.needs(name)),
       'in words': entry.summary}
      for name, entry in specification.DECODERS.items())


def options() -> str:
  """The sampling options."""
  usual = sampling.SamplingParams._field_defaults
  return zoo.markdown(
      {'option': f'`{name}`', 'default': usual[name], 'is': option.words, 'in words': option.about}
      for name, option in sampling.DISCRETE.items())


def drafters() -> str:
  """The drafters."""
  return zoo.markdown(
      {'drafter': f'`{specification.usage(name)}`' if name not in specification.DECODERS else
                  f'`{_as_drafter(name)}`', 'needs': _needs(next(iter(entry.networks), None)),
       'drafts': entry.summary}
      for name, entry in specification.DRAFTERS.items())


def _as_drafter(name: str) -> str:
  """The usage of a drafter that shares its name with a decoder."""
  known = specification.parameters(f'{name}+rejection')
  return f'{name}({", ".join(known)})'


def verifiers() -> str:
  """The verifiers."""
  guarantee = lambda name: _toy(f'{_CHAIN}+{name}').guarantee
  return zoo.markdown(
      {'verifier': f'`{specification.usage(name)}`', 'guarantee': guarantee(name),
       'rule': entry.summary}
      for name, entry in specification.VERIFIERS.items())


def continuous() -> str:
  """The decoders of continuous tokens."""
  model = families.load('mar_demo')
  needed = lambda entry: 'a draft model' if entry.networks else '-'
  return zoo.markdown(
      {'decoder': f'`{name}`', 'guarantee': model.decoder(name).guarantee, 'needs': needed(entry),
       'in words': entry.summary}
      for name, entry in model.table.decoders.items())


def measures() -> str:
  """The metrics."""
  return zoo.markdown(
      {'metric': f'`{one.name}`', 'meaning': one.meaning}
      for one in metrics.METRICS)


def published() -> str:
  """The published files that can be converted."""
  return zoo.markdown(
      {'`--family`': f'`{name}`', 'holds': family.title,
       '`--model`': ', '.join(f'`{preset}`' for preset in family.presets) or '-',
       'or options': ', '.join(f'`--{option}`' for option in family.options) or '-'}
      for name, family in rules.FAMILIES.items())


def commands() -> str:
  """The commands of an installation, with the first sentence of each."""
  setup = configparser.ConfigParser()
  setup.read(ROOT / 'setup.cfg', encoding='utf-8')
  scripts = setup['options.entry_points']['console_scripts'].split('\n')
  return zoo.markdown(
      {'command': f'`{name}`', 'does': _sentence(ROOT / f'{module.replace(".", "/")}.py')}
      for name, module in (re.split(' = |:', line)[:2] for line in scripts if line))


def _sentence(path: pathlib.Path) -> str:
  """The first paragraph of a module's docstring."""
  docstring = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or ''
  return ' '.join(docstring.split('\n\n')[0].split())


LISTS: dict[str, Callable[[], str]] = {
    'decoders': decoders, 'options': options, 'drafters': drafters, 'verifiers': verifiers,
    'continuous': continuous, 'metrics': measures, 'published': published, 'commands': commands}
