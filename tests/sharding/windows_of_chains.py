"""Share of rows whose tokens are those of one device, as JSON; `test_windows_of_chains` runs it."""

import json

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from cspd_jax import sharding
from tests.continuous import test_windows_modes as modes


def main():
  """Prints the shares by model and by how the rows are divided."""
  shares = {}
  for name, model in modes.MODELS.items():
    decoder, expected, arguments = modes.build(name), modes.whole(name), (
        model.params, modes.LABELS, modes.keys(), modes.SAMPLING)
    for groups in (2, 4):
      mesh = sharding.make_mesh(groups, 1, devices=jax.devices()[:groups])
      run = jax.jit(sharding.over_images(decoder, mesh))
      shares[f'{name}, {groups} groups'] = modes.equal_rows(
          jax.device_get(run(*arguments, None)), expected)
    # Rows that a user has divided: XLA divides the program.
    rows = NamedSharding(mesh, PartitionSpec(sharding.DATA))
    params, labels, keys, sampling = arguments
    decoded = jax.jit(decoder)(params, jax.device_put(labels, rows), jax.device_put(keys, rows),
                               sampling)
    assert len(decoded.tokens.sharding.device_set) == 4
    shares[f'{name}, rows'] = modes.equal_rows(jax.device_get(decoded), expected)
  print(json.dumps({key: float(np.round(share, 4)) for key, share in shares.items()}))


if __name__ == '__main__':
  main()
