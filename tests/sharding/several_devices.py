"""Tokens on several devices, printed as JSON; `test_several_devices` runs this as a program.

  several_devices.py DECODERS MESH...       meshes such as 2x4
  several_devices.py seed_exact MESH...     seed-exact decoders and their baseline, in bfloat16
  several_devices.py process MODEL NUMBER PORT    one of two processes
"""

import dataclasses
import json
import re
import sys
import tempfile

import jax
import numpy as np

import cspd_jax
from cspd_jax import families, sharding
from cspd_jax.core import random
from cspd_jax.decoding import warp
from cspd_jax.files import store, weights
from cspd_jax.generation import memory
from cspd_jax.generation.stored_run import decode
from cspd_jax.models import eagle, llamagen

_COLLECTIVE = re.compile(
    r' (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(')
DECODERS = ('mc_sjd(window=8)', 'eagle(tree=chain(3))',
            'corrected(corrector=layers, window=6, iterations=2)')


def _random(params):
  """Parameters of some size everywhere, none left zero."""
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape) * 0.3), params)


def save(folder):
  """A small model of classes with an EAGLE network."""
  config = llamagen.LlamaGenConfig(
      height=4, width=4, vocab_size=32, num_classes=3, dim=32, num_layers=2, num_heads=4,
      num_kv_heads=4, ffn_dim=48)
  drafter = eagle.EagleConfig(
      num_tokens=16, row_width=4, dim=32, num_heads=4, ffn_dim=48, vocab_size=32, norm_eps=1e-5)
  store.save(f'{folder}/target', 'llamagen', config,
                  _random(jax.eval_shape(lambda: llamagen.init(config, jax.random.key(0)))))
  store.save(f'{folder}/eagle', 'eagle', drafter,
                  _random(jax.eval_shape(lambda: eagle.init(drafter, jax.random.key(0)))))
  families.save(folder, 'llamagen', {'target': 'target', 'eagle': 'eagle'})


def decoded(model, decoder):
  """What three images are decoded to; the model has no pixels."""
  request = model.images(
      [0, 1, 2], dict(guidance_scale=2.0), decoder=decoder, pixels=False, batch_size=3)
  result = decode(request)
  return request, dict(tokens=result.tokens.tolist(), rounds=result.rounds.tolist(),
                    log_probs=result.log_probs.ravel().tolist())


def collectives(request):
  """How often each kind of exchange between devices stands in the compiled decoder."""
  mesh = request.sampler.model.mesh
  program = jax.jit(sharding.over_images(request.sampler.decoder, mesh))
  whole = request.sampler.arguments(request, np.resize(np.arange(3), mesh.shape[sharding.DATA]))
  text = program.lower(*whole).compile().as_text()
  names = _COLLECTIVE.findall(text)
  return {name: names.count(name) for name in set(names)}


def memory_share(mesh):
  """Estimated bytes per device, as a multiple of what a compiled decoder needs on each."""
  model, num_rows = families.describe('c2i_b_256', dtype='float32', layers=1), 8
  kind = families.FAMILIES[model.family].roles['target']['llamagen']
  params = jax.tree.map(
      lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
      model.params, sharding.split(model.params, kind.split, mesh))
  model = dataclasses.replace(model, params=params, mesh=mesh)
  text = 'mc_sjd(window=16)'
  decoder, sampling = model.decoder(text, guided=True), warp.drop_inactive(
      model.sampling(guidance_scale=2.0))
  condition = np.zeros(num_rows, np.int32)
  program = jax.jit(sharding.over_images(decoder, mesh)).lower(
      params, condition, random.image_keys([(0, i) for i in range(num_rows)]), sampling, None)
  compiled = program.compile().memory_analysis()
  estimate = memory.estimate(model, text, decoder, condition, sampling)
  return estimate.needed(num_rows) / (compiled.temp_size_in_bytes + compiled.output_size_in_bytes)


def slices_read(folder, mesh):
  """The shapes in which the matrices of queries are read for a mesh."""
  read, result = weights.Leaf.read, set()

  def watched(leaf, index):
    array = read(leaf, index)
    if leaf.name.endswith('/query'):
      result.add(array.shape)
    return array

  weights.Leaf.read = watched
  try:
    cspd_jax.load(folder, sharding=mesh)
  finally:
    weights.Leaf.read = read
  return sorted(result)


def main(count, shapes):
  """Prints what the first decoders give on one device, and on the devices of every shape."""
  result = {}
  with tempfile.TemporaryDirectory() as folder:
    save(folder)
    for name in (None, *shapes):
      mesh = name and sharding.make_mesh(*name, devices=jax.devices()[:name[0] * name[1]])
      model, runs, task = cspd_jax.load(folder, sharding=mesh), {}, None
      for decoder in DECODERS[:count]:
        last, runs[decoder] = decoded(model, decoder)
        task = task or last
      # Batches of two: the last image fills a batch alone.
      if count > 1 and name in (None, (2, 2)):
        for key, size in (('batches', 2), ('one', 1)):
          request = model.images([0, 1, 2], decoder=DECODERS[0], seed=5, batch_size=size,
                                 pixels=False)
          runs[key] = decode(dataclasses.replace(request, slots=False)).tokens.tolist()
      if mesh is not None:
        query = model.params['transformer']['layers_0']['query']
        runs['slices'] = [shape[1] for shape in slices_read(folder, mesh)]
        runs['part'] = query.addressable_shards[0].data.shape[1]
        runs['collectives'] = collectives(task)
        if name != (2, 2):  # Which the default run takes; another program is compiled for it.
          runs['memory'] = memory_share(mesh)
      result['x'.join(map(str, name or [1]))] = runs
  print(json.dumps(result))


def seed_exact(shapes):
  """Prints the guarantee and the bits of eight decoded images, by mesh and decoder."""
  result = {}
  with tempfile.TemporaryDirectory() as folder:
    save(folder)
    for shape in shapes:
      model = cspd_jax.load(folder, dtype='bfloat16', sharding=sharding.make_mesh(*shape))
      for decoder in ('vanilla(window=5)', 'seed_exact(window=5)'):
        request = model.images([0, 1, 2, 0] * 2, dict(guidance_scale=2.0), decoder=decoder,
                                pixels=False, batch_size=8)
        decoded = decode(request)
        result[f'{"x".join(map(str, shape))} {decoder}'] = dict(
            guarantee=request.sampler.guarantee, tokens=decoded.tokens.tolist(),
            bits=decoded.log_probs.view(np.int32).tolist())
  print(json.dumps(result))


def one_of_two(folder, number, port):
  """Prints what one of two processes gets that share a mesh."""
  jax.distributed.initialize(f'localhost:{port}', 2, int(number))
  mesh = sharding.make_mesh(2, len(jax.devices()) // 2)
  result = decoded(cspd_jax.load(folder, sharding=mesh), DECODERS[0])[1]
  print(json.dumps(result | dict(devices=len(jax.devices()))))


if __name__ == '__main__':
  if sys.argv[1] == 'process':
    one_of_two(*sys.argv[2:])
    sys.exit()
  meshes = [tuple(map(int, text.split('x'))) for text in sys.argv[2:]]
  if sys.argv[1] == 'seed_exact':
    seed_exact(meshes)
    sys.exit()
  main(int(sys.argv[1]), meshes)
