"""The files of a model: whether they are whole, and which published model they are."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cspd_jax import families
from cspd_jax.families import folder, model_file
from cspd_jax.files import store, weights
from cspd_jax.generation import stored_run
from cspd_jax.verify.result import Result, judged, skipped

# Digits of the digest that names a report.
_DIGITS = 8


def check(name_or_folder: str) -> Iterator[Result]:
  """Yields whether the networks of a folder are the ones that were saved, finite, and published.

  The number `digest` of the first result names all weights.
  """
  path = folder.find(name_or_folder)
  networks, sizes, problems = {}, 0, []
  parts = model_file.read(path)['parts']
  for role, part in parts.items():
    try:
      networks[role] = network = store.opened(path / part)
      for leaf in network.params.values():
        sizes += math.prod(leaf.shape)
        weights.check_finite({leaf.name: leaf.read()})
    except ValueError as error:
      problems.append(f'{role}: {" ".join(str(error).split())}')
  if problems:
    yield judged('files', False, '; '.join(problems))
    return
  dtypes = sorted({str(np.dtype(leaf.dtype)) for network in networks.values()
                   for leaf in network.params.values()})
  listed = {role: weights.digests(path / part, [store.FILE])[store.FILE]
            for role, part in parts.items()}
  digest = stored_run.digest_of(repr(sorted(listed.items())))[:_DIGITS]
  yield judged('files', True, f'{len(networks)} networks of {sizes:,} numbers in '
               f'{", ".join(dtypes)} are the ones that were saved, and finite; digest {digest}',
               digest=digest, networks=listed)
  yield _sizes(networks['target'])


def _sizes(target: store.Loaded) -> Result:
  """Compares the sizes of a target with those of the published model that it names."""
  name = target.metadata.get('model')
  if name is None:
    return skipped('sizes', 'the folder names no published model; pass --model to cspd-convert, '
                   'and it has that model\'s sizes')
  published = families.describe(name).config  # Which may hold the sizes of other networks, too.
  others = {field: getattr(published, field) for field, size in vars(target.config).items()
            if getattr(published, field) != size}
  return judged('sizes', not others, f'the sizes are those of {name}' if not others else
                f'{target.config} is not {name}, which has {others}', model=name)


def predictions(name_or_folder: str, parts: Mapping[str, Any], of_prior: bool
                ) -> list[Mapping[str, Any]]:
  """Returns the acceptance that trainings of a model's drafters predicted, as they recorded it.

  `parts` are folders of networks in place of the model's own, by role.
  """
  path = folder.find(name_or_folder)
  places = {role: path / part for role, part in model_file.read(path)['parts'].items()}
  return [record for role, place in (places | dict(parts)).items()
          if role.startswith('prior_') == of_prior
          and (record := store.describe(place).metadata.get('acceptance')) is not None]
