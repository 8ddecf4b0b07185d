"""Whether decoders generate what they promise on this device, and how fast they are."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cspd_jax.core.guarantees import Guarantee
from cspd_jax.generation import options
from cspd_jax.generation.images import fitted
from cspd_jax.measure import timing
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import acceptance, base, likelihood
from cspd_jax.testing.proofs import enumerated
from cspd_jax.verify.result import Result, judged, skipped

# Windows that are tried, on a CPU and on an accelerator, which drafters of which are seed-exact.
_WINDOWS = {True: 8, False: 64}
_EXACT = ('corrected', 'corrected(corrector=local)', 'corrected(corrector=neighbours)', 'mc_sjd')
_SEED_EXACT = ('corrected_seed_exact', 'corrected_seed_exact(corrector=local)',
               'corrected_seed_exact(corrector=neighbours)', 'seed_exact')
# Standard errors that a mean of an exact decoder may be from zero, and nats that hardly matter.
_ERRORS, _NATS = 4.0, 0.005
# What a rate of acceptance may be below the predicted one, of other images.
_RATE = 0.05
_SAMPLES = 2**19  # Sequences per decoder of a table.
# Turns in which images are timed at most.
_REPEATS = 3


def chosen(model: Any) -> list[str]:
  """Returns the model's default decoder, the best seed-exact one and the best exact one."""
  texts = [str(model.specification())]
  if model.table.seed_exact:
    window = min(_WINDOWS[model.devices[0].platform == 'cpu'], model.num_tokens // 2)
    for names in (_SEED_EXACT, _EXACT):
      name = next(name for name in names if options.lacks(model, name) is None)
      texts.append(str(model.specification(name, window=window)))
  else:
    texts += [name for name in ('exact_head',) if options.lacks(model, name) is None
              and not model.table.refuses(name, model.target(False))]
  return [text for text in dict.fromkeys(texts) if text != model.table.baseline]


def exact(model: Any, bench: Bench, texts: Sequence[str]) -> Iterator[Result]:
  """Yields, per decoder, whether its images are the promised ones; `bench` has prompts twice."""
  for text in dict.fromkeys([bench.baseline, *texts]):
    sample = bench.sample(text)
    decoded, count = sample.decoded, len(sample.decoded.valid)
    if not np.all(decoded.valid):
      yield judged(f'{text}: numbers', False, f'the model returned NaN or infinity for '
                   f'{np.sum(~decoded.valid)} of {count} images')
      continue
    yield _rows(text, bench, decoded.tokens)
    if text != bench.baseline and bench.check(text).guarantee.satisfies(Guarantee.UP_TO_ROUNDING):
      yield _seed_exact(text, bench)
    guarantee = bench.images(text).sampler.guarantee
    if not model.table.seed_exact:
      yield skipped(f'{text}: distribution', 'continuous tokens have no likelihood here; '
                    'cspd-compare --paired compares images of the same seeds')
    elif not guarantee.is_exact:
      yield skipped(f'{text}: distribution', f'it is {guarantee}, and changes the distribution')
    else:
      yield _distribution(text, model, sample)


def _rows(text: str, bench: Bench, tokens: np.ndarray) -> Result:
  """Whether rows of a batch are independent: the same prompt gives different images."""
  half = len(bench.prompts) // 2
  same = [float(np.mean(tokens[i] == tokens[i + half])) for i in range(half)]
  return judged(
      f'{text}: rows', min(same) < 1,
      f'of two images of a prompt {np.mean(same):.0%} of the tokens are equal',
      equal_tokens=float(np.mean(same)))


def _seed_exact(text: str, bench: Bench) -> Result:
  other = bench.same_shapes(text)
  first, second = bench.sample(text).decoded, bench.sample(other).decoded
  guarantee = bench.images(text).sampler.guarantee  # Known once both programs are compiled.
  equal = np.all(first.tokens == second.tokens, axis=1)
  log_probs = float(np.mean(first.log_probs == second.log_probs))
  words = (f'{np.sum(equal)} of {len(equal)} images and {log_probs:.2%} of the log-probabilities '
           f'are those of {other}, bit for bit')
  if guarantee is not Guarantee.SEED_EXACT:
    words += f'; on this device it is {guarantee}'
  return judged(
      f'{text}: same images', guarantee is not Guarantee.SEED_EXACT or (
          np.all(equal) and log_probs == 1), words,
      images=float(np.mean(equal)), log_probs=log_probs, guarantee=guarantee)


def _distribution(text: str, model: Any, sample: Any) -> Result:
  value = likelihood.NLL_EXCESS(sample, model)
  allowed = max(_ERRORS * value.standard_error, _NATS)
  return judged(
      f'{text}: distribution', np.isfinite(value.mean) and abs(value.mean) <= allowed,
      f'the negative log-likelihood of its tokens is {value.mean:+.4f} +- '
      f'{value.standard_error:.4f} nats from the entropy of the model; 0 for an exact decoder',
      nll_excess=value.mean, nll_excess_error=value.standard_error)


def accepted(bench: Bench, records: Iterable[Mapping[str, Any]]) -> Iterator[Result]:
  """Yields whether drafts are accepted as often as the trainings of their networks predicted.

  A record, as `cspd-train` stores it, has a 'decoder' with a chain of drafts, 'sampling' options,
  and the rates 'predicted' by position of the chain, once a draft is reached.
  """
  for record in records:
    text, predicted = record['decoder'], np.asarray(record['predicted'])
    decoded = bench.sample(text, bench.model.sampling(**record['sampling'])).decoded
    counts = np.array([acceptance.by_depth(decoded._replace(round_of_token=row[None]),
                                           len(predicted)) for row in decoded.round_of_token])
    rates = [base.ratio(*counts[:, :, depth].T) for depth in range(len(predicted))]
    measured, errors = (np.array(part) for part in zip(*rates))
    listed = lambda values: ', '.join(f'{value:.2f}' for value in values)
    yield judged(
        f'{text}: acceptance',
        not np.any(measured < predicted - np.maximum(_ERRORS * errors, _RATE)),
        f'drafts are accepted at the rates {listed(measured)} by position, where the training '
        f'predicted {listed(predicted)}', measured=measured.tolist(), predicted=predicted.tolist())


def on_tables(texts: Sequence[str] | None, is_over: Callable[[], bool]) -> Iterator[Result]:
  """Yields a result per decoder, None for all, and table, until the time is over.

  A decoder that cannot be built for a table raises ValueError.
  """
  tables = [enumerated.table(), enumerated.table(greedy=True)]
  texts = enumerated.every(tables[0]) if texts is None else texts
  for text in texts:
    enumerated.build(tables[0], enumerated.sized(text))
  every = [(table, text) for table in tables for text in texts]
  for number, (table, text) in enumerate(every):
    if is_over():
      yield skipped(f'{len(every) - number} of {len(every)} decoders on tables',
                    'the time was over; give more --minutes')
      return
    yield on_table(table, text, len(every), _SAMPLES)


def on_table(table: enumerated.Table, text: str, count: int, samples: int) -> Result:
  """Returns whether one of `count` decoders has the enumerated distribution of a table."""
  report, guarantee, bound, passed = enumerated.tested(table, text, count, samples)
  return judged(
      f'{text} on a table, temperature {table.sampling.temperature:g}', passed,
      f'{report.samples} sequences are {report.tv:.5f} in total variation from the enumerated '
      f'distribution, where an exact decoder has {report.tv_expected:.5f} on average'
      + (f' and this one at most {bound:.5f} more' if bound else ''),
      guarantee=guarantee, tv=report.tv, tv_expected=report.tv_expected, bound=bound,
      p_value=report.p_value, samples=report.samples)


def speed(bench: Bench, texts: Sequence[str], count: int, budget: float
          ) -> Iterator[dict[str, Any]]:
  """Yields a row per decoder: passes, seconds and speed-up of `count` images, one at a time."""
  images = {text: fitted(bench.images(text, batch_size=1, count=count))
            for text in dict.fromkeys([bench.baseline, *texts])}
  compared = timing.compare(images, repeats=_REPEATS, budget=budget)
  times = {text: np.asarray(result.seconds) for text, result in compared.items()}
  for text, result in compared.items():
    passes, seconds = result.sample.decoded.rounds, times[text]
    yield dict(
        decoder=text, guarantee=images[text].sampler.guarantee, passes=float(passes.mean()),
        ms_per_pass=1e3 * float(seconds.sum() / passes.sum()), seconds=float(seconds.mean()),
        speedup=float(times[bench.baseline].mean() / seconds.mean()), noise=result.noise,
        compile_seconds=result.compile_seconds)
