"""The official classes of Tar, from a clone of csuhan/Tar, with the weights of `published.py`.

The environment variable `TAR_CLONE` is the folder of the clone.
"""

import importlib
import os
import sys
import types
from unittest import mock

import numpy as np
import torch

from tests.builders import published
from tests.models.cases import BRIDGE, TAR as CONFIG, TAR_SEEDS as SEEDS

# Names of the arguments of the classes in files.
ARGUMENTS = dict(
    dim=32, n_layer=3, n_head=4, multiple_of=16, ffn_dim_multiplier=0.56, vocab_size=40,
    cond_dim=24, cls_token_num=81, max_seq_len=16, model_type='clip_cond')
TA_TOK = dict(
    bottleneck=dict(name='bottleneck', args=dict(bottleneck_dim=12, regularizer=dict(
        name='simvq', args=dict(codebook_size=50, l2_normalized=True)))),
    bottleneck_token_num=729, input_size=384, teacher='google/siglip2-so400m-patch14-384',
    decoder_depth=2)


def _module(name):
  """A module of the clone, in which images are not read."""
  if (clone := os.environ['TAR_CLONE']) not in sys.path:
    sys.path.insert(0, clone)
  transforms = types.SimpleNamespace(Resize=lambda size: None)
  others = {'torchvision': types.SimpleNamespace(transforms=transforms),
            'torchvision.transforms': transforms}
  before = {other: sys.modules.pop(other, None) for other in others}
  sys.modules.update(others)
  try:
    return importlib.import_module(name)
  finally:
    for other, module in before.items():
      del sys.modules[other]
      if module is not None:
        sys.modules[other] = module


def _loaded(network, tensors):
  """A network with tensors by their published names, all of which it has."""
  names = set(dict(network.named_parameters()))
  tensors = {name if name in names else name.replace('.vision_model.', '.'): torch.from_numpy(x)
             for name, x in tensors.items()}
  assert tensors.keys() <= names, tensors.keys() - names
  network.load_state_dict(tensors, strict=False)
  return network.eval()


def bridge(tensors):
  """The tokenizer of text-aligned codes without the network that reads images."""
  module, vision = _module('tok.ta_tok'), torch.nn.Module()
  vision.config = types.SimpleNamespace(hidden_size=BRIDGE.dim)
  with mock.patch.multiple(
      module, AutoConfig=types.SimpleNamespace(from_pretrained=lambda name: None),
      AutoModel=types.SimpleNamespace(
          from_config=lambda config: types.SimpleNamespace(vision_model=vision))):
    return _loaded(module.TextAlignedTokenizer(**TA_TOK), tensors)


def ar_dtok(tensors):
  """AR-DTok."""
  module = _module('tok.ar_dtok.ar_model')
  return _loaded(module.ARModel(module.ModelArgs(**ARGUMENTS)), tensors)


def recorded():
  """The arrays of `tests/data/tar.npz`: features of codes, and logits of both streams."""
  rng = np.random.default_rng(93)
  codes, tokens = (torch.from_numpy(rng.integers(0, *size)) for size in (
      (50, (2, 81)), (40, (2, 16))))
  ours = {name: published.tensors(name, config, SEEDS[name])
          for name, config in (('ta_tok', BRIDGE), ('ar_dtok', CONFIG))}
  with torch.no_grad():
    tokenizer, model = bridge(ours['ta_tok']), ar_dtok(ours['ar_dtok'])
    features = tokenizer.decode_from_bottleneck(codes)
    grids = {f'features_{side}': tokenizer.decode_from_bottleneck(
        torch.arange(side**2)[None] % 50)[:, -40:] for side in (13, 27)}
    logits = [model(tokens[:, :-1], condition)[0]
              for condition in (features, torch.zeros_like(features))]
  return {'features': features.numpy(), 'logits': torch.stack(logits).numpy(),
          **{name: array.numpy() for name, array in grids.items()}}


if __name__ == '__main__':
  np.savez_compressed('tests/data/tar.npz', **recorded())
