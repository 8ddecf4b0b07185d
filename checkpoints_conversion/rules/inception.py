"""The Inception network of the Frechet inception distance, as pytorch-fid published it."""

import functools
from collections.abc import Mapping

import jax
from flax import traverse_util

from checkpoints_conversion.rules import base, family
from cspd_jax.metrics.inception import InceptionConfig
from cspd_jax.models import inception

_TITLE = 'the Inception network of the FID'
# Published names of the parameters of a convolution and its normalisation.
_LEAVES = {'kernel': 'conv.weight', 'scale': 'bn.weight', 'bias': 'bn.bias',
           'mean': 'bn.running_mean', 'variance': 'bn.running_var'}


def rules(config: InceptionConfig) -> list[base.Rule]:
  """Returns the rule table of the network."""
  params = jax.eval_shape(lambda: inception.init(config, jax.random.key(0)))
  return [_rule(path) for path in traverse_util.flatten_dict(params, sep='/')]


def _rule(path: str) -> base.Rule:
  if path == 'fc/kernel':
    return base.Rule('fc.weight', (path,), base.MATRIX)
  *names, leaf = path.split('/')
  source = '.'.join([names[0].capitalize(), *names[1:], _LEAVES[leaf]])
  return base.Rule(source, (path,), base.CONVOLUTION if leaf == 'kernel' else base.KEEP)


def infer(shapes: family.Shapes, options: Mapping[str, int]) -> InceptionConfig:
  """Infers the sizes of the network."""
  del options
  shape = functools.partial(family.shape, _TITLE, shapes)
  width = shape('Conv2d_1a_3x3.conv.weight', 4)[0]
  if width % 2:
    raise family.ConversionError(
        f'The file is not {_TITLE}: Conv2d_1a_3x3 has {width} channels, which must be even.')
  classes = shape('fc.weight', 2)[0]
  if classes == 1000:
    raise family.ConversionError(
        f'The file is not {_TITLE}: it has 1000 classes, as the Inception of torchvision, whose '
        'features are other ones. That of the FID has 1008; convert '
        'pt_inception-2015-12-05-6726825d.pth, which pytorch-fid and torch-fidelity use.')
  return InceptionConfig(unit=width // 2, num_classes=classes)


FAMILY = family.FileFamily(
    name='inception', title=_TITLE, kind='inception', rules=rules, infer=infer,
    presets={'inception_2015_12_05': InceptionConfig()},
    # The inception score uses logits without the bias.
    leftovers=r'fc\.bias|.*\.num_batches_tracked')
