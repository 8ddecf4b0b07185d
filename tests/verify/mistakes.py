"""Models with a mistake, of a right model."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

import cspd_jax
from cspd_jax.generation.parts import Kept
from cspd_jax.models import early_fusion
from cspd_jax.verify import pictures


def wrong_rotation(model):
  """In all passes but the training's."""
  config = dataclasses.replace(model.config, rope_base=1e6)
  return dataclasses.replace(model, config=config, kept=Kept(), build_target=lambda guided: (
      early_fusion.target(config, guided=guided)))


def wrong_rotation_everywhere(model):
  result = wrong_rotation(model)
  return dataclasses.replace(result, teacher=model.teacher._replace(forward=lambda params, *rest: (
      early_fusion.logits_and_features(params, result.config, *rest))))


def swapped_layers(model):
  layers = dict(model.params['transformer'])
  layers['layers_2'], layers['layers_3'] = layers['layers_3'], layers['layers_2']
  return model.with_params({**model.params, 'transformer': layers})


def swapped_conditions(model):
  """Every second scene's prompt is read as the next one's, and the other way round."""
  captions, encode = pictures.of_model(model).right, model.prompt_kind.encode
  other = dict(zip(captions, [captions[i ^ 1] for i in range(len(captions))], strict=True))
  return dataclasses.replace(model, kept=Kept(), prompt_kind=model.prompt_kind._replace(
      encode=lambda prompts: encode([other[prompt] for prompt in prompts])))


def other_tokenizer(model):
  return cspd_jax.load('emoji', dtype='float32', tokenizer='demo/tokenizer')


def swapped_code_table(model):
  """Its rows, in encoder and decoder alike: other numbers for the same vectors."""
  tokenizer = model.tokenizer
  params = dict(tokenizer.params, codebook=jax.tree.map(
      lambda table: jnp.asarray(table)[::-1], tokenizer.params['codebook']))
  return dataclasses.replace(model, kept=Kept(), tokenizer=tokenizer._replace(params=params))


def swapped_channels(model):
  decode = model.tokenizer.decode
  return dataclasses.replace(model, kept=Kept(), tokenizer=model.tokenizer._replace(
      decode=lambda params, tokens: decode(params, tokens)[..., ::-1]))


def features_of_another_layer(model):
  """The features that drafters read are those of a layer in the middle."""
  def build(guided):
    target = model.build_target(guided)

    def read(run):
      found = []

      def intercept(function, arguments, options, context):
        result = function(*arguments, **options)
        if context.module.name == 'layers_2' and context.method_name == '__call__':
          found.append(result[0])
        return result

      def wrapped(*arguments, **options):
        with nn.intercept_methods(intercept):
          logits, features, cache = run(*arguments, **options)
        return logits, found[-1].reshape(features.shape), cache

      return wrapped

    return target._replace(prefill=read(target.prefill), score=read(target.score))

  return dataclasses.replace(model, build_target=build, kept=Kept())
