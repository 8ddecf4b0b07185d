"""The door: a model, with `generate` and `stream`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from cspd_jax.core import programs, progress as progress_lib
from cspd_jax.core.batches import Progress
from cspd_jax.core.spec import Spec
from cspd_jax.generation import run as run_lib
from cspd_jax.generation.base import BaseModel
from cspd_jax.generation.request import prepare
from cspd_jax.generation.results import Generated
from cspd_jax.generation.run import Partial


class Model(BaseModel):
  """A model: parts to compose, and `generate`, which returns images.

  It consists of pure functions and their parameters. To build a decoder of your own, start from
  `model.target(guided=True)` and call the decoder with `model.params` and
  `model.condition(prompts)`; `model.pixels` decodes its tokens to images. `BaseModel` documents the
  fields.
  """

  def generate(self, prompts: Any = None, *, seed: Any = 0, decoder: str | Spec | None = None,
               prefix: Any = None, rows: int | None = None, batch_size: int | None = None,
               progress: Progress | bool | None = None, raw_log_probs: bool = False,
               **options: Any) -> Generated:
    """Generates one image per prompt.

    All arguments are checked before compilation. A decoder is compiled once per batch size and
    cached by the model; other prompts, seeds and values of sampling options do not compile again.

    Args:
      prompts: a prompt, a list, or the path of a file with one prompt per line; `model.prompts` if
        None.
      seed: an integer, under which the images are numbered, or one integer per image. With the same
        decoder an image depends, up to rounding, only on its own seed, number and prompt.
      decoder: a specification, such as `'seed_exact(window=16)'`; if None, the model's default for
        the device and the batch size, which may be another one for another batch size or, with
        `batch_size=None`, with other free memory.
      prefix: the first rows of the images, which are then completed: tokens, an image or its path;
        see `generation.prefix.tokens`. With every decoder, the other tokens are conditioned on
        them.
      rows: how many rows of tokens of `prefix` are used.
      batch_size: images decoded at once; if None, as many as fit in the memory of the device. With
        more images than that, a row that is complete starts the next one; see `generation.run`.
      progress: True shows a progress bar and the compiled programs on stderr; or a function, called
        with the number of finished images and the number of all images.
      raw_log_probs: whether the result has `Generated.raw_log_probs`; discrete tokens only.
      **options: sampling options (`guidance_scale`, `temperature`, ...), by default the model's,
        and parameters that the specification leaves open (`window`, ...).

    Returns:
      The images with their tokens, settings and statistics.

    Raises:
      ValueError: for anything that is not supported, by the name of the argument, or if the images
        of a batch do not fit in memory.
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
      raise ValueError(f'progress is {progress!r:.80}; it must be True for a progress bar, or a '
                       'function of the numbers of finished images and of all images.')
    request = prepare(
        self, prompts, options, seed=seed, decoder=decoder, prefix=prefix, rows=rows,
        batch_size=batch_size, raw_log_probs=raw_log_probs)
    if progress is not True:
      return request.result(run_lib.decode(request, progress or None))
    with programs.reported(), progress_lib.bar('generating') as show:
      show(0, len(request))
      return request.result(run_lib.decode(request, show))

  def stream(self, prompts: Any = None, *, seed: Any = 0, decoder: str | Spec | None = None,
             prefix: Any = None, rows: int | None = None, every: int = 1,
             raw_log_probs: bool = False, **options: Any) -> Iterator[Partial]:
    """Generates images and yields, after the prefill and every few rounds, what is committed.

    The tokens and errors are those of `generate`, in one batch.

    Args:
      prompts: a prompt, a list, or the path of a file with one prompt per line; `model.prompts` if
        None.
      seed: an integer, under which the images are numbered, or one integer per image.
      decoder: a specification; the model's default for the device and the number of images if None.
      prefix: the first rows of the images, which are then completed; see `generate`.
      rows: how many rows of tokens of `prefix` are used.
      every: rounds between two results; the last one always has the complete images.
      raw_log_probs: whether the result has `Generated.raw_log_probs`; discrete tokens only.
      **options: sampling options, and parameters that the specification leaves open.

    Yields:
      The state of all images.
    """
    if not isinstance(every, (int, np.integer)) or every < 1:
      raise ValueError(f'every is {every!r}; it must be a whole number, at least 1.')
    if 'batch_size' in options:
      raise ValueError(f"batch_size is {options['batch_size']!r}, but all images of a stream are "
                       'decoded at once; leave it out.')
    request = prepare(
        self, prompts, options, seed=seed, decoder=decoder, prefix=prefix, rows=rows,
        all_at_once=True, raw_log_probs=raw_log_probs)
    return run_lib.stream(request, int(every))
