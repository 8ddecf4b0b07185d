"""Memory of a round's intermediate results, from the sizes that a decoder's parts declare.

XLA computes a round one step after the other: the transformer, then the chains of the head, for the
draft model and for the target. The largest step determines the memory.
"""

from collections.abc import Sequence

from cspd_jax.continuous import head as head_lib
from cspd_jax.continuous.base import Stage, Target
from cspd_jax.continuous.context import BLOCK

# A product and its sum with the bias, or a row of a table and the copy that the head reads: the
# compiled head has two arrays of a modulation's size at the same time. (An accelerator has a third,
# of at most `head.MODULATION_BYTES`, if matrices are bfloat16: see `models.exact_product`.)
_COPIES = 2


def largest(target: Target, stages: Sequence[Stage], levels: int, num_rows: int) -> float:
  """Returns the bytes of the intermediate results of the largest round.

  Args:
    target: the model.
    stages: the kinds of rounds of a decoder.
    levels: levels of its schedule.
    num_rows: images that are decoded at once.
  """
  return max(_of_stage(target, stage, levels, num_rows) for stage in stages)


def _of_stage(target: Target, stage: Stage, levels: int, num_rows: int) -> float:
  """Returns as `largest` for the rounds of one stage."""
  states = stage.verifier.head_states(stage.width)
  steps = [_of_pass(target, stage.context.sizes(stage.width), num_rows),
           _of_head(target, stage.width, states, levels, num_rows)]
  draft = None if stage.drafter is None else stage.drafter.model
  if draft is not None:  # It decodes token by token, and scores proposals of the target.
    steps += [_of_pass(draft, BLOCK.sizes(1), num_rows),
              _of_head(draft, 1, states, levels, num_rows)]
  return max(steps)


def _of_pass(target: Target, passes: int, num_rows: int) -> float:
  """Returns the bytes of `passes` parallel passes of a transformer per image and stream."""
  return target.num_streams * num_rows * passes * target.sizes.per_pass


def _of_head(target: Target, tokens: int, states: int, levels: int, num_rows: int) -> float:
  """Returns the bytes of a head: the modulation of `tokens` per image, and calls with `states`."""
  unit = target.num_streams * num_rows * target.sizes.per_state
  table = tokens * levels * unit
  stored = target.modulation is not None and table <= head_lib.MODULATION_BYTES
  call = _COPIES * states * unit
  return max(_COPIES * table, table + call) if stored else call
