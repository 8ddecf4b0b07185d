"""The features that published models support, tried on their targets without numbers."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

from checkpoints_conversion import rules
from cspd_jax import families
from cspd_jax.decoding import continuous_batching, specification
from cspd_jax.families.folder import with_cache_dtype
from cspd_jax.files import store
from cspd_jax.generation.model import Model
from docs import sizes


def model(page: str) -> Model:
  """Returns a model of a page with one layer, and a network for every drafter that it can have."""
  file = rules.FAMILIES[sizes.FILES[page][0]]
  config = dataclasses.replace(next(iter(file.presets.values())), num_layers=1)
  family = families.family.target_family(file.kind)
  networks = dict(family.published.networks(config))
  if 'draft' in family.roles:  # A smaller model of the same tokens.
    networks['draft'] = file.kind, config
  return sizes.described(file.kind, config, **{
      role: store.sketch(*network) for role, network in networks.items()})


def _works(*calls: Callable[[], Any]) -> bool:
  """Whether none of the calls is refused."""
  try:
    for call in calls:
      call()
  except ValueError:
    return False
  return True


def _named(model: Model) -> list[str]:
  """Returns the named decoders that decode the model."""
  target = model.target(guided=True)
  return [name for name in model.table.decoders
          if model.table.refuses(name, target) is None
          and _works(lambda name=name: model.decoder(name))]


def _decoders(model: Model) -> str:
  """Returns the named decoders in words: the few that decode the model, or the few others."""
  every, named = model.table.decoders, _named(model)
  others = [name for name in every if name not in named]
  if not others:
    return f'all {len(every)}'
  few = min(named, others, key=len)
  listed = ', '.join(f'`{name}`' for name in few)
  return listed if few is named else f'all but {listed}'


def _prefix(model: Model) -> bool:
  length = getattr(model.target(guided=True), 'row_width', model.grid[1])
  return _works(lambda: model.with_prefix([0] * length).decoder(model.table.baseline))


def _refills(model: Model) -> bool:
  decoders = (model.decoder(name) for name in _named(model))
  return any(continuous_batching.supports(decoder) for decoder in decoders)


def _relaxed(model: Model) -> bool:
  texts = [*_named(model), *(f'jacobi(window=4)+{name}' for name in specification.VERIFIERS)]
  return any(not model.decoder(text).guarantee.is_exact
             for text in texts if _works(lambda text=text: model.decoder(text)))


# Columns of the table: whether a family of models supports something.
FEATURES: dict[str, Callable[[Model], bool]] = {
    'trees': lambda model: any('tree' in model.table.parameters(name) for name in _named(model)),
    'relaxed': _relaxed,
    'trained drafters': lambda model: model.teacher is not None,
    'first rows': _prefix,
    'refill': _refills,
    'other sizes': lambda model: families.FAMILIES[model.family].resize is not None,
    'int8 matrices': lambda model: bool(
        store.KINDS[next(iter(families.FAMILIES[model.family].roles['target']))].matrices),
    'int8 cache': lambda model: _works(lambda: with_cache_dtype(model, 'int8')),
    'guidance interval': lambda model: 'guidance_interval' in model.table.options
                                       and model.target(guided=True).num_streams > 1,
    'log-probabilities': lambda model: _works(lambda: model.sampler(
        model.table.baseline, raw_log_probs=True)),
}


@functools.cache
def row(page: str) -> dict[str, str]:
  """Returns what works on a page's models, with `yes` for what does."""
  described = model(page)
  return {'decoders': _decoders(described),
          **{name: 'yes' if works(described) else '-' for name, works in FEATURES.items()}}


def rows(pages: Iterable[str]) -> list[dict[str, str]]:
  """Returns a row for every page."""
  return [{'family': f'[{sizes.name(page)}](families/{page}.md)', **row(page)} for page in pages]


def supported() -> str:
  """Returns a list of the features, with the families that lack each."""
  every = rows(sizes.FILES)
  without = {name: [row['family'] for row in every if row[name] != 'yes'] for name in FEATURES}
  return '\n'.join(f'- *{name}*: {_except(lacking, len(every))}'
                   for name, lacking in without.items())


def _except(lacking: list[str], count: int) -> str:
  return ('all families.' if not lacking else f'all but {", ".join(lacking)}.'
          if len(lacking) < count / 2 else f'not {", ".join(lacking)}.')
