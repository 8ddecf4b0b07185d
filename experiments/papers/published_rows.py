"""The rows of the papers' tables, and the decoder of this library that each corresponds to.

Figures are quoted from the papers, which measured published models of 0.2 to 8 billion parameters
on a GPU.
"""

import dataclasses

_NO_ACCELERATOR = 'times of an accelerator; predicted ones are in docs/compiled.md'
_QUALITY = 'needs the published checkpoints and 5,000 captioned photographs'


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a paper's table.

  Attributes:
    place: where it is printed.
    setting: the paper's model, data and method.
    published: the paper's figures.
    decoder: specification of the same method here, or None.
    metrics: the metrics that correspond to the paper's first figures.
    temperature: temperature here.
    top_k: number of most probable tokens to sample from here; 0 is off. The embedded model has
      1024 tokens, so that 250 is the share of 2000 tokens of 8192.
    missing: the reason why nothing is measured; None if it is.
  """

  place: str
  setting: str
  published: str
  decoder: str | None = None
  metrics: tuple[str, ...] = ('step_compression',)
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
          sjd, metrics=('nll_difference',)))


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
          metrics=('one_token_rounds',)),
      Row('Figure 1', 'the same with the tree', 'not printed', pac, metrics=('one_token_rounds',)),
      Row('Figure 4', 'total variation by offset of a changed token', 'curve',
          missing='a property of the published models, which no decoder changes'),
      Row('Table 4', 'milliseconds of a step: vanilla, SJD-PAC', '41.8, 50.7',
          missing=_NO_ACCELERATOR))


_EAGLE2 = 'eagle2(num_nodes=25, width=10, depth=5)'


def _lantern() -> tuple[Row, ...]:
  length = dict(metrics=('accepted_length',))
  greedy = length | dict(temperature=0.0)
  # The shares of the codebook of 16384 that the paper's k are.
  neighbours = {100: 6, 300: 19, 1000: 62}
  accept = {100: (.0725, .1096, .1703, .2595), 300: (.0759, .1166, .1892, .3267),
            1000: (.0786, .1186, .2000, .3657)}
  first = 'eagle2(num_nodes=1, width=1, depth=1)+lantern(delta={}, k={})'
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
          missing='a table of random neighbours is not shipped'),
      Row('Figure 5', 'quality against accepted length', 'curves',
          missing='the curves below are those of LANTERN++'))


def _cool_sd() -> tuple[Row, ...]:
  length = dict(metrics=('accepted_length',))
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
          'sjd(window=16)'),
      Row('Table 3', 'accepted length of one draft, 2 - TV: LlamaGen-XL, Lumina-mGPT',
          '1.62, 1.68 (TV .38, .32)', 'eagle(tree=chain(1))+exact', **length))


def _cspd() -> tuple[Row, ...]:
  tested = dict(metrics=('acceptance', 'target_passes', 'head_calls'))
  released = 'cspd_released(block_length={}, prefix_share={})'
  lengths = (32, 16, 8, 4)
  speeds = {'MAR-L, MAR-B drafts': ((.26, 1.18, 1.49), (.31, 1.10, 1.42), (.36, 1.05, 1.32),
                                    (.39, 1.01, 1.15)),
            'MAR-H, MAR-B drafts': ((.19, 1.44, 2.33), (.26, 1.37, 2.20), (.27, 1.26, 1.96),
                                    (.30, 1.11, 1.62)),
            'MAR-H, MAR-L drafts': ((.18, 1.26, 1.53), (.24, 1.24, 1.46), (.28, 1.11, 1.33),
                                    (.30, 1.00, 1.18))}
  unaligned = {'MAR-L, MAR-B drafts': (.10, .12, .12, .13),
               'MAR-H, MAR-B drafts': (.07, .07, .13, .14)}
  shares = {0.0: (.25, .32, .33, .31), 0.05: (.30, .33, .31, .32), 0.15: (.33, .34, .34, .34)}
  return (
      *(Row('Table 1', f'{models}, gamma={length}',
            f'accepted {accepted}, {first}x at batch 1, {last}x at 256',
            released.format(length, 0.05), **tested)
        for models, figures in speeds.items()
        for length, (accepted, first, last) in zip(lengths, figures)),
      *(Row('Table 1', f'as many passes without a draft model, gamma={length}', 'not measured',
            f'parallel(block_length={length}, prefix_share=0.05)',
            metrics=('target_passes', 'head_calls')) for length in lengths),
      *(Row('Table 1', f'exact decoders of this library: {name}', 'not in the paper', decoder,
            metrics=(*tests, 'target_passes', 'head_calls'))
        for name, decoder, tests in (
            ('one token at a time', 'mar', ()), ('windows of 8', 'windows(window=8)', ()),
            ('speculation in the head', 'exact_head', ('acceptance',)),
            ('the path test, gamma=4', 'exact_path(draft_length=4)', ('acceptance',)))),
      Row('Table 2', 'FID and IS: MAR-H, with MAR-B drafts', 'FID 1.55, 1.60; IS 303.7, 301.6',
          missing='needs the published checkpoints and 50,000 images'),
      *(Row('Table 3', f'without alignment: {models}, gamma={length}', f'accepted {accepted}',
            f'cspd_released(aligned=False, block_length={length}, prefix_share=0.05)', **tested)
        for models, figures in unaligned.items() for length, accepted in zip(lengths, figures)),
      *(Row('Table 4', f'MAR-H, MAR-B drafts, prefix {share:.0%}, gamma={length}',
            f'accepted {accepted}', released.format(length, share), **tested)
        for share, figures in shares.items() for length, accepted in zip(lengths, figures)))


def _this_project() -> tuple[Row, ...]:
  neighbours, trained = ('corrected(by=neighbours, passes=3, window={})',
                         'corrected(passes=4, window={})')
  return (
      Row('SCD, arXiv 2510.24211', 'Lumina-mGPT, COCO, window 64',
          '2390 to 568 passes, 4.21x; FID 30.79, 30.83', 'mc_sjd(window=64)'),
      Row('SCD, arXiv 2510.24211', 'Janus-Pro-7B, COCO, window 32',
          '576 to 154 passes, 2.45x in time', 'mc_sjd(window=32)'),
      Row('SJD-PAC, arXiv 2603.18599', 'Lumina-mGPT, COCO, window 64', '4.51x',
          'sjd_pac(tree=kary(4, 3), window=64)'),
      Row('HB-SJD, arXiv 2608.18183', 'LlamaGen, batches', '1.48x to 1.58x in time',
          'sjd(window=16)'),
      Row('PJD, arXiv 2606.05703', 'Lumina-mGPT, COCO, 11 rows at once',
          '2357 to 371 passes, 6.35x; FID 30.79, 32.38',
          missing='masks tokens of other rows, which is another distribution'),
      *(Row('this library', f'{name}, window {window}', '-', decoder.format(window))
        for window in (16, 32, 64) for name, decoder in (
            ('maximal coupling', 'mc_sjd(window={})'),
            ('corrected by neighbours, nothing trained', neighbours),
            ('corrected by a network', trained))),
      Row('this library', 'the same with the noise of one token at a time, window 64', '-',
          'corrected_seed_exact(passes=4, window=64)'),
      *(Row('this library', f'{name}, window 64, top-2000 of 8192', '-', decoder.format(64),
            top_k=250) for name, decoder in (
                ('maximal coupling', 'mc_sjd(window={})'),
                ('corrected by neighbours', neighbours), ('corrected by a network', trained))))


ROWS = dict(sjd=_sjd(), sjd_pac=_sjd_pac(), lantern=_lantern(), cool_sd=_cool_sd(), cspd=_cspd(),
            this_project=_this_project())
