"""Checks a model on this device: is it right, are its decoders exact, how fast are they?

  cspd-verify --model=checkpoints/c2i_xl_384
  cspd-verify --model=emoji --minutes=3
  cspd-verify --model=emoji --dtype=bfloat16 --decoder='seed_exact(window=16)' --num_images=256
  cspd-verify --tables --minutes=60

In this order, the cheap and the decisive first: the files; on an NVIDIA GPU the kernels of the
library; the image tokenizer, by pictures that come with the package; the passes of decoders against
the training's, and against other code, if PyTorch is installed and transformers, or with --repo a
clone of the official repository, has a class; whether the model expects these pictures; whether
decoders generate the images that they promise, in which distribution; and their time. With --tables
at last the decoders, without --decoder every one, are compared with enumerated distributions of
small tables, whatever the model is. Every check passed, failed, or was not compared, with what
would compare it. Writes report.md, report.json and sheet.png, images of two decoders to look at.
Exits with 1 if a check failed.
"""

import dataclasses
import functools
import json
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from cspd_jax import cli, sharding
from cspd_jax.cli import groups, inputs
from cspd_jax.core import compilations, fields, programs, progress
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import stored_run
from cspd_jax.generation.cascade import Cascade
from cspd_jax.measure import tables
from cspd_jax.measure.bench import Bench
from cspd_jax.plots import grid
from cspd_jax.verify import decoders, device, likelihood, network, other_code, pictures, stored
from cspd_jax.verify.result import Result, skipped

_SHEET = 'sheet.png'
_LOOK = ('Look at sheet.png: the images of a column show the same prompt. Those of a seed-exact '
         'decoder are the ones above, and no image has seams, rows that are shifted, or colours '
         'that the prompt did not ask for.')
_CHECKS = {'check': '{name}', 'result': '{verdict}', 'what was found': '{words}'}
_SPEED = {'decoder': '`{decoder}`', 'guarantee': '{guarantee}', 'passes': '{passes:.1f}',
          'ms per pass': '{ms_per_pass:.2f}', 's per image': '{seconds:.3f}',
          'speed-up': '{speedup:.2f}x', 'compile s': '{compile_seconds:.1f}'}
_TIMED = 4  # Images of which the time is measured.


@dataclasses.dataclass(frozen=True)
class Config:
  """The model, and how long it is checked.

  Attributes:
    loading: the model, and how it is loaded.
    minutes: time of the whole command, about: checks that would begin later are not made.
    repo: folder of a clone of the model's official repository, for models that transformers has no
      class for; without it their networks are compared with no other code.
    published: files or a folder that the class of other code reads; None writes them from the
      model, which Janus-Pro's cannot be.
    prompt: prompts of the decoders' images, separated as for cspd-generate; may be repeated. None
      uses the model's own.
    decoder: specifications of the decoders that are checked; None for the default, the best
      seed-exact one and the best exact one.
    num_images: images of each decoder, two of every prompt; at most 16 are decoded together.
    tables: whether decoders are compared with enumerated distributions of small tables, too.
    output: folder of the results; None uses runs/verify/ and the name of the model.
  """

  loading: groups.LoadFlags = groups.LoadFlags()
  minutes: float = 10.0
  repo: str | None = None
  published: str | None = None
  prompt: str | tuple[str, ...] | None = None
  decoder: tuple[str, ...] | None = None
  num_images: int = 16
  tables: bool = False
  output: str | None = None

  def __post_init__(self):
    fields.check(self, minutes=fields.NOT_NEGATIVE, num_images=(2, groups.MOST_IMAGES))
    fields.check_lists(self, 'decoder')


@dataclasses.dataclass
class Verification:
  """The checks of a command so far."""

  end: float  # When no further check begins, by `time.monotonic`.
  results: list[Result] = dataclasses.field(default_factory=list)

  def is_over(self) -> bool:
    """Whether no further check begins."""
    return time.monotonic() > self.end

  def run(self, name: str, check: Callable[[], Iterator[Result]]) -> None:
    """Makes a check, in what is left of the time, and shows what it says."""
    if self.is_over():
      self._add(skipped(name, 'the time was over; give more --minutes'))
      return
    with compilations.told(lambda: f'checking: {name}', True):
      for result in check():
        self._add(result)

  def _add(self, result: Result) -> None:
    self.results.append(result)
    progress.say(f'{result.verdict:12}  {result.name}: {result.words}')


def stages(model: Any, prompts: list[Any]) -> list[tuple[str, Any]]:
  """Returns the models that draw images in turn, by name; all read these prompts."""
  if not isinstance(model, Cascade):
    return [('', model)]
  return [('prior ', model.prior), ('', model.drawing(prompts))]


def _check_network(config: Config, model: Any, prompts: list[Any]) -> Iterator[Result]:
  condition, rng = model.condition(prompts[:1]), np.random.default_rng(0)
  ours: Any
  if model.table.seed_exact:
    tokens = rng.integers(0, model.target(False).vocab_size, (1, model.num_tokens))
    ours = network.passes(model, condition, tokens)
    yield from network.check(model, ours)
  else:
    tokens = rng.standard_normal(
        (1, model.num_tokens, model.target(False).token_dim)).astype(np.float32)
    tokens[:, 1::2] = np.nan  # Hidden ones.
    ours = network.vectors(model, condition, tokens)
    yield skipped('windows', 'passes over continuous tokens have no window of drafts')
  source = config.loading.model
  yield from other_code.check(
      model, condition, tokens, ours, source, config.repo, config.published)
  yield from other_code.check_printed(model, source)


def _usual_prompts(config: Config, model: Any) -> list[Any]:
  count = config.num_images // 2
  prompts, _ = inputs.images(groups.Images(prompt=config.prompt), model, default=count)
  return [prompts[i % len(prompts)] for i in range(count)] * 2


@cli.command(Config, kept='nothing is kept')
def main(config: Config) -> int:
  folder = pathlib.Path(config.output or f'runs/verify/{inputs.run_name(config.loading.model)}')
  report = Report(folder, [_SHEET, tables.PAGE], program='cspd-verify')
  done = Verification(time.monotonic() + 60 * config.minutes)
  done.run('files', lambda: stored.check(config.loading.model))
  if programs.on_cuda():
    done.run('kernels', device.check)
  speeds: list[dict[str, Any]] = []
  content: dict[str, Any] = dict(model=config.loading.model)
  if done.results[0].verdict != 'failed':
    model = inputs.model(config.loading)
    content = dict(model=model.name, family=model.family, where=sharding.in_words(model.devices),
                   weights=stored_run.weights(model))
    _check_model(config, model, done, report, speeds)
  if config.tables:
    done.run('tables', lambda: decoders.on_tables(config.decoder, done.is_over))
  failed = [result for result in done.results if result.verdict == 'failed']
  verdict = _verdict(done.results)
  rows = [{**dataclasses.asdict(result), 'numbers': {
      name: None if isinstance(value, float) and not math.isfinite(value) else value
      for name, value in result.numbers.items()}} for result in done.results]
  atomic.write(report.path(tables.PAGE), _text(config, rows, speeds, verdict).encode())
  content |= dict(speed=speeds, verdict=verdict)
  report.write(settings=dataclasses.asdict(config), rows=rows,
               signature=signature({**content, 'rows': rows}), **content)
  if speeds:
    print(tables.text(_SPEED, speeds))
  print(f'{verdict}\n{_LOOK if speeds else ""}\nThe report is in {folder}.')
  return int(bool(failed))


def _check_model(config: Config, model: Any, done: Verification, report: Report,
                 speeds: list[dict[str, Any]]) -> None:
  prompts = _usual_prompts(config, model)
  drawing = model.second if isinstance(model, Cascade) else model
  seen = pictures.of_model(drawing)
  done.run('image tokenizer', lambda: pictures.check(drawing, seen))
  for name, stage in stages(model, prompts):
    done.run(f'{name}network', functools.partial(_check_network, config, stage, prompts))
    if not isinstance(model, Cascade):  # Whose pictures have no codes of a prior.
      done.run('likelihood', functools.partial(likelihood.check, stage, seen))
    texts = decoders.chosen(stage) if config.decoder is None else [
        str(stage.specification(text)) for text in config.decoder]
    bench = Bench(stage, prompts)
    done.run(f'{name}decoders', functools.partial(decoders.exact, stage, bench, texts))
    done.run(f'{name}drafters', functools.partial(decoders.accepted, bench, stored.predictions(
        config.loading.model, inputs.parts(config.loading.parts), bool(name))))
    if done.is_over():
      continue
    speeds += decoders.speed(bench, texts, _TIMED, max(done.end - time.monotonic(), 1))
    if not name and stage.tokenizer is not None:
      shown = {text: bench.sample(text).images(stage)[:_TIMED]
               for text in [bench.baseline, *texts][:2]}
      grid.save_rows(report.path(_SHEET), shown,
                     captions=stage.prompt_kind.titles(prompts[:_TIMED]))


def signature(report: Mapping[str, Any]) -> str:
  """Returns the digest of what a report says; a report that was changed has another."""
  said = {name: report[name] for name in (
      'model', 'family', 'where', 'rows', 'speed', 'verdict', 'weights') if name in report}
  return stored_run.digest_of(json.dumps(atomic.plain(said), sort_keys=True))


def _verdict(results: list[Result]) -> str:
  """Returns what the checks say together, in a sentence."""
  count = {verdict: sum(result.verdict == verdict for result in results)
           for verdict in ('passed', 'failed', 'not compared')}
  first = next((result.name for result in results if result.verdict == 'failed'), None)
  return (f'{count["passed"]} checks passed, {count["failed"]} failed, {count["not compared"]} '
          'compared nothing' + (f'; the first that failed is: {first}.' if first else '.'))


def _text(config: Config, rows: list[dict[str, Any]], speeds: list[dict[str, Any]], verdict: str
          ) -> str:
  parts = [f'# {config.loading.model}', verdict, tables.markdown(_CHECKS, rows)]
  if speeds:
    parts += [tables.markdown(_SPEED, speeds), f'![Images of two decoders]({_SHEET})', _LOOK]
  return '\n\n'.join(parts) + '\n'


if __name__ == '__main__':
  sys.exit(main())
