"""Messages of trainings: recipes, optimisers, stored images, correctors of own targets."""

import dataclasses

import jax
import numpy as np
import pytest

import cspd_jax
from configs.train import drafters
from cspd_jax import SamplingParams, families
from cspd_jax.commands import train
from cspd_jax.training import corrector, drafter, fit_corrector, optimizer, samples
from tests.messages import said
from tests.messages.said import each, slow
from tests.training import test_corrector_training, test_drafter_training, test_own_target
from tests.training.test_own_target import GUIDED, HEAD

EAGLE = test_corrector_training.EAGLE


def _fitted(at, changes):
  params = ()
  if changes.get('target') is GUIDED:
    params = test_drafter_training.target_params(test_own_target.CONFIG)
  fit_corrector(**dict(target=test_own_target._above(), params=params,
                       condition=test_own_target.LABELS, key=jax.random.key(0)) | changes)


def _optimizer(at, changes):
  dataclasses.replace(optimizer.OptimizerConfig(num_steps=20, warmup_steps=4), **changes)


def _stored(at, tokens):
  np.savez(at.tmp / 'tokens.npz', tokens=tokens)
  samples.stored(str(at.tmp / 'tokens.npz'), at.model, None, 3)


def _corrector(at, changes):
  recipe = dataclasses.replace(drafters.get_config('corrector'), **changes)
  corrector.check(recipe, cspd_jax.load(recipe.target, dtype='float32'))


def _drafter(at, changes):
  recipe = dataclasses.replace(drafters.get_config('eagle'), **changes)
  drafter.check(recipe, cspd_jax.load(recipe.target))


CALLS = [
    *each(_fitted,
    (dict(num_images=8), 'num_images is 8; it must be a whole number, at least 32'),
    (dict(batch_size=0), 'batch_size is 0; it must be a whole number, at least 1'),
    (dict(num_steps=1), 'num_steps is 1; it must be a whole number, at least 2'),
    (dict(target='emoji'), "target is 'emoji'; it must be a cspd_jax.decoding.base.Target"),
    (dict(condition=[]), 'condition has leaves of the shapes'),
    (dict(sampling=SamplingParams(guidance_scale=2.0)), 'guidance_scale is 2.0; it must be 1'),
    (dict(sampling=SamplingParams(temperature=np.ones(6))), 'it must be one number for all images'),
    (dict(head=HEAD), 'head is given, but prefill of the target returns no features'),
    (dict(target=GUIDED, head=lambda params, features: features),
     'head returned ShapeDtypeStruct')),
    *each(lambda at, make, corrector: make(test_own_target._above(), *corrector), *(
        (make, corrector, r'corrector is .*fit one to your target with .*'
         r'cspd_jax.training.fit_corrector\(target, params, ')
        for make in (cspd_jax.corrected, cspd_jax.corrected_seed_exact)
        for corrector in ((), (None,), ('neighbours',), ((1, 2),)))),
    *each(_optimizer,
          (dict(cooldown_steps=17), 'it must be at most 16, the steps after warm-up'),
          *((dict(warmup_steps=21, cooldown_steps=cooldown),
             'warmup_steps is 21; it must be at most 20') for cooldown in (None, 0))),
    # Images to train on; the tiny model has 16 tokens of 6 colours.
    *each(_stored,
          (np.zeros((3, 9), np.int16), 'tokens of shape'),
          (np.zeros((2, 16), np.int16), 'at least 3 images of 16 tokens'),
          (np.full((3, 16), 99, np.int16), 'from 99 to 99; they must be integers from 0 to 5'),
          (np.zeros((3, 16), np.float32), 'float32 tokens')),
    # Recipes.
    *each(lambda at, name, changes: dataclasses.replace(drafters.get_config(name), **changes),
    ('corrector', dict(num_held_out_images=4), 'optimizer.batch_size is 8; it must be from 1 to 4'),
    ('corrector', dict(num_plain_images=8), 'plain.batch_size is 16; it must be from 1 to 8'),
    ('eagle', dict(num_train_images=4), 'train.optimizer.batch_size is 8; it must be from 1 to 4'),
          ('eagle', dict(top_k=-1), 'top_k is -1; it must be a whole number from 0'),
          ('eagle', dict(num_depths=256), 'must be 1 to 255'),
          ('medusa', dict(num_depths=9), 'must be 1 to')),
    *each(lambda at: drafter.DrafterTrainConfig(labels='soft'), ("labels is 'soft'",)),
    *slow([
        *each(_corrector,
    (dict(drafter=dataclasses.replace(EAGLE, num_tokens=256, row_width=16, vocab_size=1024)),
     'drafter.dim is 16'),
    (dict(decoder='corrected(corrector=eagle, window=64)'), 'must be a chain'),
    (dict(target='mar_demo'), "target is 'mar_demo', a 'mar' model")),
        *each(_drafter,
              (dict(drafter=dataclasses.replace(
                  drafters.get_config('eagle').drafter, vocab_size=11, num_outputs=11)),
               'drafter.vocab_size is 11; it must be 1024'),
              (dict(target='mar_demo'), "target is 'mar_demo', a 'mar' model")),
        *each(lambda at, name: train.recipe_for(families.describe(name), name, 'medusa'), (
            'janus_pro_7b', "kind is 'medusa'; it must be one of neighbours, local, eagle, co")),
    ]),
]


@pytest.mark.parametrize('call, words', CALLS)
def test_what_is_refused(at, call, words):
  said.check(lambda: call(at), words)
