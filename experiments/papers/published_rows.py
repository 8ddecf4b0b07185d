"""The rows of the papers' tables, and the decoder of this library that each corresponds to.

Figures are quoted from the papers, which measured published models of 0.2 to 8 billion parameters
on a GPU. Settings of a paper that are the same measurement here share a row.
"""

import dataclasses
from typing import Literal

Model = Literal['emoji', 'demo', 'mar_demo']

_NO_ACCELERATOR = 'times of an accelerator; predicted ones are in docs/compiled.md'
_NO_TABLE = 'a table of random neighbours is not shipped'


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a paper's table.

  Attributes:
    place: where it is printed.
    setting: the paper's method, and the models and data if there are several.
    published: the paper's figures.
    decoder: specification of the same method here, or None.
    model: the embedded model with the layout of the paper's: `emoji` for Lumina-mGPT, Anole, Emu3
      and Janus-Pro, `demo` for LlamaGen, `mar_demo` for MAR.
    metrics: the metrics that correspond to the paper's first figures.
    temperature: temperature here.
    top_k: number of most probable tokens to sample from here; 0 is off, None the model's default.
      The embedded models have 1024 codes, so that 250 is the share of 2000 tokens of 8192.
    shown: whether the picture of the page has its images.
    missing: the reason why nothing is measured; None if it is.
  """

  place: str
  setting: str
  published: str
  decoder: str | None = None
  model: Model = 'emoji'
  metrics: tuple[str, ...] = ('step_compression',)
  temperature: float = 1.0
  top_k: int | None = None
  shown: bool = False
  missing: str | None = None

  def __post_init__(self):
    if (self.decoder is None) == (self.missing is None):
      raise ValueError(f'{self.place}, {self.setting}: one of decoder and missing is required.')

  @property
  def has_fidelity(self) -> bool:
    """Whether many images of it are compared with those of one token at a time.

    Rows for which the paper has a FID, and those of this library that show what relaxing costs.
    """
    return self.decoder is not None and self.temperature > 0 and self.model != 'mar_demo' and (
        'FID' in self.published or self.place == _HERE)


def _sjd() -> tuple[Row, ...]:
  jacobi, sjd, spatial = (
      'jacobi(window=16)', 'sjd(window=16)',
      'jacobi(coupling=independent, initialization=repeat-left, window=16)+rejection')
  every = 'Tables 1, 2, 4, 5'
  top_k = [Row('Figure 6, Table 6', f'top-{published}: {name}', figure, decoder, top_k=here)
           for published, here, figures in (
               (10, 10, ('7.31', '7.20', '7.34', '7.26')),
               (100, 100, ('43.37', '43.85', '43.87', '44.03')),
               (2000, 250, ('204.06', '197.64', '217.96', '199.70')))
           for name, decoder, figure in zip(
               ('one token at a time', 'JD', 'SJD', 'SJD, spatial initialization'),
               ('vanilla', jacobi, sjd, spatial), map('perplexity {}'.format, figures))]
  return (
      Row(every, 'one token at a time', 'FID 30.76 with Lumina-mGPT, 28.87 with Anole', 'vanilla',
          shown=True),
      Row(every, 'JD', 'Lumina-mGPT: 1.04x, FID 30.66 on COCO, 1.04x on Parti; '
          'Anole: 1.06x, FID 29.34, 1.14x', jacobi),
      Row(f'{every}, 9, 11', 'SJD', 'Lumina-mGPT: 2.22x, FID 30.85 on COCO, 2.26x on Parti; '
          'Anole: 1.94x, FID 29.04, 2.00x; CLIP 31.83; log-probability -4.9007 (vanilla -4.8950)',
          sjd, metrics=('step_compression', 'nll_difference'), shown=True),
      Row(f'{every}, 10', 'SJD, spatial initialization (horizontal repeat)',
          'Lumina-mGPT: 2.23x on COCO, 2.28x on Parti; Anole: 1.97x, FID 29.14, 2.11x; CLIP 31.17',
          spatial),
      *top_k,
      Row('Figure 6', 'greedy: SJD', 'curve', sjd, temperature=0.0),
      *(Row('Figure 8, Table 9', f'window {window}: SJD', f'CLIP {clip}', f'sjd(window={window})')
        for window, clip in ((1, '32.00'), (4, '31.91'), (32, '31.55'))),
      *(Row('Figure 9, Table 10', f'simple patterns, {name}', f'CLIP {clip}',
            f'jacobi(coupling=independent, initialization={fresh}, window=16)+rejection')
        for name, clip, fresh in (
            ('horizontal sample', 31.52, 'resample-left'),
            ('vertical sample', 30.91, 'resample-above'),
            ('vertical repeat', 31.15, 'repeat-above'))),
      Row('Table 3', 'LlamaGen: one token at a time', 'FID 28.54 in stage 1, 56.21 in stage 2',
          'vanilla', 'demo'),
      Row('Table 3', 'LlamaGen: SJD', 'stage 1: 1.63x, FID 29.00 on COCO, 1.73x on Parti; '
          'stage 2: 1.63x, FID 57.02, 1.69x', sjd, 'demo'),
      Row('Figure 7, Table 8', '512, 768 and 1024 pixels', 'CLIP 29.69, 31.83, 31.11',
          missing='the embedded model has one resolution'))


def _sjd_pac() -> tuple[Row, ...]:
  pac = 'sjd_pac(tree=kary(4, 3), window=64)'
  grouped = 'jacobi(coupling=independent, window=16)+grouped(group={})'
  both = ('step_compression', 'one_token_rounds')
  kary = [Row('Table 3', f'K={k}, D={depth}, window 64', figure,
              f'sjd_pac(tree=kary({k}, {depth}), window=64)')
          for k, depth, figure in ((2, 3, '4.23x'), (3, 3, '4.42x'), (5, 3, '4.47x'),
                                   (4, 2, '4.34x'))]
  return (
      Row('Table 1', 'one token at a time', 'FID 30.79 with Lumina-mGPT, 31.12 with Emu3',
          'vanilla', shown=True),
      Row('Table 1', 'Lumina-mGPT: EAGLE', '2.94x, FID 30.68 on COCO, 2.86x on Parti',
          'eagle(tree=EAGLE)+rejection'),
      Row('Table 1, Figure 1', 'SJD', 'Lumina-mGPT: 2.22x, FID 31.13 on COCO, 2.28x on Parti; '
          'Emu3: 2.32x, FID 30.74, 2.35x; about half of the rounds with one token',
          'sjd(window=16)', metrics=both),
      Row('Tables 1, 2, 3', 'SJD-PAC: K=4, D=3, window 64',
          'Lumina-mGPT: 4.51x, FID 30.69 on COCO, 4.62x on Parti; Emu3: 4.31x, FID 31.10, 4.59x',
          pac, metrics=both, shown=True),
      Row('Table 1', 'Lumina-mGPT: LANTERN++, k=10, lambda=2',
          '3.19x, FID 29.96 on COCO, 3.02x on Parti', 'eagle(tree=EAGLE)+lantern_pp(lam=2, k=10)'),
      Row('Table 1', 'GSD, G=3', 'not measured', grouped.format(3), shown=True),
      Row('Table 1', 'GSD, G=10', 'Lumina-mGPT: 3.39x, FID 33.12 on COCO', grouped.format(10),
          shown=True),
      Row('Table 1', 'GSD, G=50', 'Lumina-mGPT: 3.76x on Parti', grouped.format(50), shown=True),
      Row('Table 1', 'SJD2 on all four', '4.02x, 3.82x, 5.62x, 4.72x',
          missing='requires a retrained target, which is another model'),
      Row('Table 2', 'SJD, window 32', '2.31x', 'sjd(window=32)'),
      Row('Table 2', 'with the tree', '2.71x',
          'jacobi(coupling=independent, tree=kary(4, 3), window=32)+rejection'),
      Row('Table 2', 'with tree and continuation', '3.52x', 'sjd_pac(tree=kary(4, 3), window=32)'),
      Row('Table 2', 'continuation alone, window 64', 'not printed', 'mc_sjd(window=64)'),
      *kary,
      Row('Table 3', 'K=4, D=4, window 64', '4.49x',
          missing='a full tree has 84 drafts, more than the window'),
      Row('Figure 4', 'total variation by offset of a changed token', 'curve',
          missing='a property of the published models, which no decoder changes'),
      Row('Table 4', 'milliseconds of a step: vanilla, SJD-PAC', '41.8, 50.7',
          missing=_NO_ACCELERATOR))


_EAGLE2 = 'eagle2(num_nodes=25, width=10, depth=5)'
# Scenes of emoji show what relaxing costs. Windows of SJD draft, for which nothing is trained;
# fresh tokens repeat the left one, because LANTERN accepts most of the random ones.
_WINDOW = 'jacobi(coupling=independent, initialization=repeat-left, window=16)'
_HERE = 'this library, `emoji`'
_LENGTH = ('accepted_length',)


def _here(setting: str, verifier: str, shown: bool = True) -> Row:
  """A row that no paper has: a verifier of the drafts of SJD."""
  return Row(_HERE, f'drafts of SJD: {setting}', '-', f'{_WINDOW}+{verifier}', metrics=_LENGTH,
             shown=shown)


_VANILLA_HERE = Row(_HERE, 'one token at a time', '-', 'vanilla', metrics=_LENGTH, shown=True)


def _lantern() -> tuple[Row, ...]:
  def row(place, setting, published, decoder, **options):
    return Row(place, setting, published, decoder, 'demo', _LENGTH, **options)

  # The shares of the codebook of 16384 that the paper's k are.
  neighbours = {100: 6, 300: 19, 1000: 62}
  accept = {100: (.0725, .1096, .1703, .2595), 300: (.0759, .1166, .1892, .3267),
            1000: (.0786, .1186, .2000, .3657)}
  deltas, relaxed = (.05, .1, .2, .4), _EAGLE2 + '+lantern(delta={}, k=62{})'
  one = 'eagle2(num_nodes=1, width=1, depth=1)+'
  return (
      _VANILLA_HERE, _here('exact', 'rejection'),
      *(_here(f'LANTERN, k=1000, delta={delta}', f'lantern(delta={delta}, k=62)', delta != .05)
        for delta in deltas),
      *(_here(f'LANTERN, k={k}, delta=0.2', f'lantern(delta=0.2, k={neighbours[k]})', False)
        for k in (100, 300)),
      *(_here(f'LANTERN++, k=10, lambda={lam}', f'lantern_pp(lam={lam}, k=10)', lam == 5)
        for lam in (2, 5)),
      row('Table 1', 'greedy: a smaller model drafts', '1.40', 'model(length=5)+rejection',
          temperature=0.0),
      row('Table 1', 'greedy: Medusa', '1.38', 'medusa+rejection', temperature=0.0),
      row('Table 2', 'first draft accepted: EAGLE-2', '.0402', one + 'match'),
      *(row('Table 2', f'first draft accepted: k={k}, delta={delta}', f'{figure:.4f}',
            one + f'lantern(delta={delta}, k={neighbours[k]})')
        for k, figures in accept.items() for delta, figure in zip(deltas, figures)),
      row('Table 3', 'greedy: one token at a time', '1.00, FID 28.63', 'vanilla', temperature=0.0),
      row('Tables 1, 3', 'greedy: EAGLE-2', '2.11, 1.60', _EAGLE2 + '+match', temperature=0.0),
      *(row('Table 3', f'greedy: LANTERN, delta={delta}', figure,
            relaxed.format(delta, ', greedy=True'), temperature=0.0)
        for delta, figure in ((.05, '2.02, FID 29.77'), (.2, '2.89, FID 30.78'))),
      row('Table 3', 'one token at a time', '1.00, FID 15.22', 'vanilla'),
      row('Table 3', 'EAGLE-2', '1.20', _EAGLE2 + '+match'),
      *(row(place, f'LANTERN, delta={delta}', figure, relaxed.format(delta, ''))
        for place, delta, figure in (
            ('Table 4', .05, '1.50, FID 15.71'), ('Table 3', .1, '1.75, FID 16.17'),
            ('Table 4', .2, '2.09, FID 17.43'), ('Tables 3, 4', .4, '2.40, FID 18.76'))),
      row('Table 4', 'Jensen-Shannon, delta=0.2', '2.29, FID 18.21',
          relaxed.format(.2, ', metric=jsd')),
      Row('Table 4', 'cosine similarity, delta=0.2', '2.09, FID 17.46', model='demo',
          missing='codes have unit length, so the order of the neighbours is the same'),
      Row('Table 4', 'random neighbours, delta=0.2', '1.26, FID 15.62', model='demo',
          missing=_NO_TABLE))


def _cool_sd() -> tuple[Row, ...]:
  eagle, printed = 'eagle(tree=EAGLE)+', 'cool(delta=1.1, length=5, clamp=False)'
  methods = (('EAGLE-1', 'rejection'), ('LANTERN++, k=10, lambda=2', 'lantern_pp(lam=2, k=10)'),
             ('Cool-SD, delta=1.1', 'cool(delta=1.1, length=5)'),
             ('Cool-SD, delta=2', 'cool(delta=2.0, length=5)'))
  figures: dict[tuple[str, Model], tuple[str, ...]] = {
      ('Lumina-mGPT', 'emoji'): ('2.76, FID 29.05', '2.99, FID 30.31', '3.11, FID 30.30'),
      ('LlamaGen-XL', 'demo'): ('2.42, FID 20.97', '2.67, FID 21.17', '2.73, FID 21.02',
                                '3.34, FID 21.20')}
  return (
      _VANILLA_HERE, _here('exact', 'rejection'),
      *(_here(f'Cool-SD, delta={delta}', f'cool(delta={delta}, length=5)')
        for delta in (1.1, 2.0, 3.0, 4.0)),
      *(_here(f'Cool-SD, delta=2, nu={nu}', f'cool(delta=2.0, nu={nu}, length=5)', False)
        for nu in (.5, .9)),
      *(Row('Table 1', f'{name}: {method}', figure, eagle + verifier, model, _LENGTH)
        for (name, model), entries in figures.items()
        for (method, verifier), figure in zip(methods, entries)),
      Row('Table 1', 'LlamaGen-XL: one token at a time', '1.00, FID 21.08', 'vanilla', 'demo',
          _LENGTH),
      Row('Table 1', 'LlamaGen-XL: Cool-SD as printed, delta=1.1', 'the rows above',
          eagle + printed, 'demo', _LENGTH),
      Row('Table 2', 'Lumina-mGPT: SJD', '2.06x in time, FID 31.81', 'sjd(window=16)'),
      Row('Table 2', 'LlamaGen-XL: SJD', '1.84x in time, FID 21.01', 'sjd(window=16)', 'demo'),
      Row('Table 3', 'LlamaGen-XL: accepted length of one draft, 2 - TV', '1.62 (TV .38)',
          'eagle(tree=chain(1))+rejection', 'demo', _LENGTH),
      Row('Table 3', 'Lumina-mGPT: accepted length of one draft, 2 - TV', '1.68 (TV .32)',
          'eagle(tree=chain(1))+rejection', metrics=_LENGTH))


def _cspd() -> tuple[Row, ...]:
  passes = ('target_passes', 'head_calls')

  def row(place, setting, published, decoder, *tests, shown=False):
    return Row(place, setting, published, decoder, 'mar_demo', (*tests, *passes), shown=shown)

  released = 'cspd_released(block_length={}, prefix_share={})'
  lengths, models = (32, 16, 8, 4), 'MAR-L by MAR-B, MAR-H by MAR-B, MAR-H by MAR-L'
  # Of the three pairs of models: accepted, speed at batch 1 and at 256.
  speeds = {32: ('.26, .19, .18', '1.18x, 1.44x, 1.26x', '1.49x, 2.33x, 1.53x'),
            16: ('.31, .26, .24', '1.10x, 1.37x, 1.24x', '1.42x, 2.20x, 1.46x'),
            8: ('.36, .27, .28', '1.05x, 1.26x, 1.11x', '1.32x, 1.96x, 1.33x'),
            4: ('.39, .30, .30', '1.01x, 1.11x, 1.00x', '1.15x, 1.62x, 1.18x')}
  unaligned = {32: '.10, .07', 16: '.12, .07', 8: '.12, .13', 4: '.13, .14'}
  shares = {0.0: (.25, .32, .33, .31), 0.15: (.33, .34, .34, .34)}
  second = dict(zip(lengths, (.30, .33, .31, .32)))
  return (
      row('this library, `mar_demo`', 'one token at a time', 'not in the paper', 'mar',
          shown=True),
      row('Table 1', 'exact: speculation in the head', 'not in the paper', 'exact_head',
          'acceptance', shown=True),
      row('Table 1', 'exact: windows of 8', 'not in the paper', 'windows(window=8)'),
      row('Table 1', 'exact: the path test, gamma=4', 'not in the paper',
          'exact_path(draft_length=4)', 'acceptance'),
      *(row('Tables 1, 4', f'CSpD, gamma={length}',
            f'{models}: accepted {accepted} (Table 4: {second[length]:.2f}), {first} at batch 1, '
            f'{last} at 256', released.format(length, 0.05), 'acceptance', shown=True)
        for length, (accepted, first, last) in reversed(speeds.items())),
      *(row('Table 1', f'as many passes without a draft model, gamma={length}', 'not measured',
            f'parallel(block_length={length}, prefix_share=0.05)') for length in lengths),
      Row('Table 2', 'FID and IS: MAR-H, with MAR-B drafts', 'FID 1.55, 1.60; IS 303.7, 301.6',
          model='mar_demo', missing='needs the published checkpoints and 50,000 images'),
      *(row('Table 3', f'without alignment, gamma={length}',
            f'MAR-L by MAR-B, MAR-H by MAR-B: accepted {accepted}',
            f'cspd_released(aligned=False, block_length={length}, prefix_share=0.05)', 'acceptance')
        for length, accepted in unaligned.items()),
      *(row('Table 4', f'MAR-H by MAR-B, prefix {share:.0%}, gamma={length}',
            f'accepted {accepted:.2f}', released.format(length, share), 'acceptance')
        for share, figures in shares.items() for length, accepted in zip(lengths, figures)))


def _this_project() -> tuple[Row, ...]:
  windows = (16, 32, 64)
  corrected = (('by neighbours, fitted in minutes',
                'corrected(corrector=neighbours, iterations=3, window={})'),
               ('by a network', 'corrected(iterations=4, window={})'))
  coupled = {16: ('this library', 'maximal coupling, window 16', '-'),
             32: ('SCD, arXiv 2510.24211', 'Janus-Pro-7B, COCO: maximal coupling, window 32',
                  'Gumbel coupling: 576 to 154 passes, 2.45x in time'),
             64: ('SCD, arXiv 2510.24211', 'Lumina-mGPT, COCO: maximal coupling, window 64',
                  '2390 to 568 passes, 4.21x; FID 30.79, 30.83')}
  return (
      Row('this library', 'one token at a time', '-', 'vanilla'),
      *(Row(*texts, f'mc_sjd(window={window})') for window, texts in coupled.items()),
      Row('SJD-PAC, arXiv 2603.18599', 'Lumina-mGPT, COCO, window 64', '4.51x',
          'sjd_pac(tree=kary(4, 3), window=64)'),
      Row('HB-SJD, arXiv 2608.18183', 'LlamaGen, batches', '1.48x to 1.58x in time',
          'sjd(window=16)', 'demo'),
      Row('PJD, arXiv 2606.05703', 'Lumina-mGPT, COCO, 11 rows at once',
          '2357 to 371 passes, 6.35x; FID 30.79, 32.38',
          missing='masks tokens of other rows, which is another distribution'),
      *(Row('this library', f'corrected {name}, window {window}', '-', decoder.format(window))
        for window in windows for name, decoder in corrected),
      Row('this library', 'the same with the noise of one token at a time, window 64', '-',
          'corrected_seed_exact(iterations=4, window=64)'),
      *(Row('this library', f'{name}, window 64, top-2000 of 8192', '-', decoder.format(64),
            top_k=250) for name, decoder in (
                ('maximal coupling', 'mc_sjd(window={})'),
                *((f'corrected {name}', decoder) for name, decoder in corrected))))


ROWS = dict(sjd=_sjd(), sjd_pac=_sjd_pac(), lantern=_lantern(), cool_sd=_cool_sd(), cspd=_cspd(),
            this_project=_this_project())
