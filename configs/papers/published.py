"""The rows of the papers' tables, and the decoder of this library that each corresponds to.

  python -m experiments.papers.published

Figures are quoted from the papers, which measured published models of 0.8 to 8 billion parameters
on a GPU; ours are measured on the embedded model. Result: in runs/papers/published, a table per
paper (rows.csv, report.json).
"""

import dataclasses

from cspd_jax.cli import groups
from cspd_jax.core import fields

_NO_ACCELERATOR = 'times of an accelerator; predicted ones are in docs/evidence/compiled.md'
_QUALITY = 'needs the published checkpoints and 5,000 captioned photographs'


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a paper's table.

  Attributes:
    place: where it is printed.
    setting: the paper's model, data and method.
    published: the paper's figures.
    decoder: specification of the same method here; None if there is none.
    metric: the metric that corresponds to the paper's first figure.
    temperature: temperature here.
    top_k: number of most probable tokens to sample from here; 0 is off. The embedded model has
      1024 tokens, so that 250 is the share of 2000 tokens of 8192.
    missing: the reason why nothing is measured; None if it is.
  """

  place: str
  setting: str
  published: str
  decoder: str | None = None
  metric: str = 'step_compression'
  temperature: float = 1.0
  top_k: int = 0
  missing: str | None = None

  def __post_init__(self):
    if (self.decoder is None) == (self.missing is None):
      raise ValueError(f'{self.place}, {self.setting}: one of decoder and missing is required.')


def _sjd() -> tuple[Row, ...]:
  jacobi, sjd, isp = 'jacobi(window=16)', 'sjd(window=16)', (
      'jacobi(coupling=redraw, fresh=repeat-left, window=16)+exact')
  methods = (('JD', jacobi), ('SJD', sjd), ('SJD, spatial initialisation', isp))
  steps = {
      ('Table 1', 'Lumina-mGPT, COCO'): ('1.04x, FID 30.66', '2.22x, FID 30.85', '2.23x'),
      ('Table 2', 'Lumina-mGPT, Parti'): ('1.04x', '2.26x', '2.28x'),
      ('Table 4', 'Anole, COCO'): ('1.06x, FID 29.34', '1.94x, FID 29.04', '1.97x, FID 29.14'),
      ('Table 5', 'Anole, Parti'): ('1.14x', '2.00x', '2.11x')}
  rows = [Row(place, f'{model}: {name}', figure, decoder)
          for (place, model), figures in steps.items()
          for (name, decoder), figure in zip(methods, figures)]
  rows += [Row('Table 3', f'LlamaGen {stage}: SJD', figure, sjd) for stage, figure in (
      ('stage 1, COCO', '1.63x, FID 29.00'), ('stage 2, COCO', '1.63x, FID 57.02'),
      ('stage 1, Parti', '1.73x'), ('stage 2, Parti', '1.69x'))]
  rows += [Row('Figure 6, Table 6', f'Lumina-mGPT, top-{published}: {name}', figure, decoder,
               top_k=top_k)
           for published, top_k, figures in (
               (10, 10, ('perplexity 7.20', 'perplexity 7.34')),
               (100, 100, ('perplexity 43.85', 'perplexity 43.87')),
               (2000, 250, ('perplexity 197.64', 'perplexity 217.96')))
           for (name, decoder), figure in zip(methods, figures)]
  rows += [Row('Figure 6', 'Lumina-mGPT, greedy: SJD', 'curve', sjd, temperature=0.0)]
  rows += [Row('Figure 8, Table 9', f'Lumina-mGPT, window {window}: SJD', f'CLIP {clip}',
               f'sjd(window={window})')
           for window, clip in ((1, 32.00), (4, 31.91), (16, 31.83), (32, 31.55))]
  rows += [Row('Figure 9, Table 10', f'simple patterns, {name}', f'CLIP {clip}',
               f'jacobi(coupling=redraw, fresh={fresh}, window=16)+exact')
           for name, clip, fresh in (
               ('horizontal sample', 31.52, 'resample-left'),
               ('vertical sample', 30.91, 'resample-above'),
               ('horizontal repeat', 31.17, 'repeat-left'),
               ('vertical repeat', 31.15, 'repeat-above'), ('random', 31.37, 'uniform'))]
  return (
      *rows,
      Row('Figure 7, Table 8', '512, 768 and 1024 pixels', 'CLIP 29.69, 31.83, 31.11',
          missing='the embedded model has one resolution'),
      Row('Table 7', 'CLIP and HPSv2 by top-k', 'CLIP 26.16 to 32.65', missing=_QUALITY),
      Row('Table 11', 'log-probability of the tokens', '-4.9007 (vanilla -4.8950)',
          sjd, metric='nll_difference'))


def _sjd_pac() -> tuple[Row, ...]:
  pac, sjd = 'sjd_pac(tree=kary(4, 3), window=64)', 'sjd(window=16)'
  lantern, eagle = 'eagle(tree=EAGLE)+lantern_pp(lam=2, k=10)', 'eagle(tree=EAGLE)+exact'
  grouped = 'jacobi(coupling=redraw, window=16)+grouped(group={})'
  rows = [
      Row('Table 1', f'{model}: {name}', figure, decoder)
      for model, entries in {
          'Lumina-mGPT, COCO': (
              ('EAGLE', '2.94x, FID 30.68', eagle), ('SJD', '2.22x, FID 31.13', sjd),
              ('LANTERN++, k=10, lambda=2', '3.19x, FID 29.96', lantern),
              ('GSD, G=10', '3.39x, FID 33.12', grouped.format(10)),
              ('SJD-PAC', '4.51x, FID 30.69', pac)),
          'Lumina-mGPT, Parti': (
              ('EAGLE', '2.86x', eagle), ('SJD', '2.28x', sjd),
              ('LANTERN++, k=10, lambda=2', '3.02x', lantern),
              ('GSD, G=50', '3.76x', grouped.format(50)),
              ('SJD-PAC', '4.62x', pac)),
          'Emu3, COCO': (('SJD', '2.32x, FID 30.74', sjd), ('SJD-PAC', '4.31x, FID 31.10', pac)),
          'Emu3, Parti': (('SJD', '2.35x', sjd), ('SJD-PAC', '4.59x', pac))}.items()
      for name, figure, decoder in entries]
  kary = [Row('Table 3', f'K={k}, D={depth}, window 64', figure,
              f'sjd_pac(tree=kary({k}, {depth}), window=64)')
          for k, depth, figure in ((2, 3, '4.23x'), (3, 3, '4.42x'), (5, 3, '4.47x'),
                                   (4, 2, '4.34x'), (4, 3, '4.51x'))]
  return (
      *rows,
      Row('Table 1', 'SJD2 on all four', '4.02x, 3.82x, 5.62x, 4.72x',
          missing='the target is trained anew for it, so it is another model'),
      Row('Table 2', 'SJD, window 32', '2.31x', 'sjd(window=32)'),
      Row('Table 2', 'with the tree', '2.71x',
          'jacobi(coupling=redraw, tree=kary(4, 3), window=32)+exact'),
      Row('Table 2', 'with tree and continuation', '3.52x', 'sjd_pac(tree=kary(4, 3), window=32)'),
      Row('Table 2', 'the same, window 64', '4.51x', pac),
      Row('Table 2', 'continuation alone, window 64', 'not printed', 'mc_sjd(window=64)'),
      *kary,
      Row('Table 3', 'K=4, D=4, window 64', '4.49x',
          missing='a full tree has 84 drafts, more than the window'),
      Row('Figure 1', 'rounds of SJD with one token', 'about half', sjd,
          metric='one_token_rounds'),
      Row('Figure 1', 'the same with the tree', 'not printed', pac, metric='one_token_rounds'),
      Row('Figure 4', 'total variation by offset of a changed token', 'curve',
          missing='an offset beyond the window changes no decoder; docs/evidence/kinds.md shows '
                  'what decoders retain'),
      Row('Table 4', 'milliseconds of a step: vanilla, SJD-PAC', '41.8, 50.7',
          missing=_NO_ACCELERATOR))


_EAGLE2 = 'eagle2(num_nodes=25, width=10, depth=5)'


def _lantern() -> tuple[Row, ...]:
  length, greedy = dict(metric='accepted_length'), dict(metric='accepted_length', temperature=0.0)
  # The shares of the codebook of 16384 that the paper's k are.
  neighbours = {100: 6, 300: 19, 1000: 62}
  accept = {100: (.0725, .1096, .1703, .2595), 300: (.0759, .1166, .1892, .3267),
            1000: (.0786, .1186, .2000, .3657)}
  first = 'eagle(tree=chain(1))+lantern(delta={}, k={})'
  return (
      Row('Table 1', 'LlamaGen-3B, greedy: a smaller model drafts', '1.40',
          'model(length=5)+exact', **greedy),
      Row('Table 1', 'LlamaGen-3B, greedy: Medusa', '1.38', 'medusa+exact', **greedy),
      Row('Table 1', 'LlamaGen-3B, greedy: EAGLE-2', '2.11', _EAGLE2 + '+match', **greedy),
      Row('Table 2', 'first draft accepted: EAGLE-2', '.0402',
          'eagle2(num_nodes=1, width=1, depth=1)+match', **length),
      *(Row('Table 2', f'first draft accepted: k={k}, delta={delta}', f'{figure:.4f}',
            first.format(delta, neighbours[k]), **length)
        for k, figures in accept.items() for delta, figure in zip((.05, .1, .2, .4), figures)),
      Row('Table 3', 'temperature 0: EAGLE-2', '1.60', _EAGLE2 + '+match', **greedy),
      *(Row('Table 3', f'temperature 0: LANTERN, delta={delta}', figure,
            f'eagle2(num_nodes=25, width=10, depth=5)+lantern(delta={delta}, k=62, greedy=True)',
            **greedy) for delta, figure in ((.05, '2.02, FID 29.77'), (.2, '2.89, FID 30.78'))),
      Row('Table 3', 'temperature 1: EAGLE-2', '1.20', _EAGLE2 + '+match', **length),
      *(Row('Table 3', f'temperature 1: LANTERN, delta={delta}', figure,
            f'{_EAGLE2}+lantern(delta={delta}, k=62)', **length)
        for delta, figure in ((.1, '1.75, FID 16.17'), (.4, '2.40, FID 18.76'))),
      Row('Table 4', 'squared distance, delta=0.2', '2.09, FID 17.43',
          f'{_EAGLE2}+lantern(delta=0.2, k=62)', **length),
      Row('Table 4', 'squared distance, delta=0.05', '1.50, FID 15.71',
          f'{_EAGLE2}+lantern(delta=0.05, k=62)', **length),
      Row('Table 4', 'Jensen-Shannon, delta=0.2', '2.29, FID 18.21',
          f'{_EAGLE2}+lantern(delta=0.2, k=62, metric=jsd)', **length),
      Row('Table 4', 'cosine similarity, delta=0.2', '2.09, FID 17.46',
          missing='codes have unit length, so the order of the neighbours is the same'),
      Row('Table 4', 'random neighbours, delta=0.2', '1.26, FID 15.62',
          missing='no specification names a table of random neighbours'),
      Row('Figure 5', 'quality against accepted length', 'curves',
          missing='docs/papers/lantern.md has curves of LANTERN++ with the Frechet distance of the '
                  'tokenizer'))


def _cool_sd() -> tuple[Row, ...]:
  length = dict(metric='accepted_length')
  eagle = 'eagle(tree=EAGLE)+'
  methods = (('EAGLE-1', 'exact'), ('LANTERN++, k=10, lambda=2', 'lantern_pp(lam=2, k=10)'),
             ('Cool-SD, delta=1.1', 'cool(delta=1.1, length=5)'),
             ('Cool-SD, delta=2', 'cool(delta=2.0, length=5)'))
  figures = {'Lumina-mGPT': ('2.76, FID 29.05', '2.99, FID 30.31', '3.11, FID 30.30'),
             'LlamaGen-XL': ('2.42, FID 20.97', '2.67, FID 21.17', '2.73, FID 21.02',
                             '3.34, FID 21.20')}
  return (
      *(Row('Table 1', f'{model}: {name}', figure, eagle + verifier, **length)
        for model, entries in figures.items()
        for (name, verifier), figure in zip(methods, entries)),
      Row('Table 1', 'Cool-SD as printed, delta=1.1', 'the rows above',
          eagle + 'cool(delta=1.1, length=5, clamp=False)', **length),
      Row('Table 2', 'speed-up of SJD: Lumina-mGPT, LlamaGen-XL', '2.06x, 1.84x',
          'sjd(window=16)', **length),
      Row('Table 3', 'accepted length of one draft, 2 - TV: LlamaGen-XL, Lumina-mGPT',
          '1.62, 1.68 (TV .38, .32)', 'eagle(tree=chain(1))+exact', **length))


ROWS = dict(sjd=_sjd(), sjd_pac=_sjd_pac(), lantern=_lantern(), cool_sd=_cool_sd())


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    model: a shipped model with drafters, or a folder.
    parts: networks that replace those of the model.
    paper: the papers.
    images: the images, the same for every row.
    sampling: sampling options; a row overrides its temperature and top_k.
    batch_size: images decoded together.
    dtype: of the parameters: float32 or bfloat16.
    workdir: folder of the results.
  """

  model: str = 'demo'
  parts: groups.Parts = groups.Parts()
  paper: tuple[str, ...] = tuple(ROWS)
  images: groups.Images = groups.Images(num_images=16)
  sampling: groups.Sampling = groups.Sampling()
  batch_size: int = 16
  dtype: str | None = None
  workdir: str = 'runs/papers/published'

  def __post_init__(self):
    fields.check(self)
    if unknown := [name for name in self.paper if name not in ROWS]:
      raise ValueError(f'paper holds {unknown[0]!r}; every name must be one of: '
                       f'{", ".join(ROWS)}.')


def get_config() -> Config:
  """Returns the configuration of `experiments.papers.published`."""
  return Config()
