"""Forward passes per image of published models, as others published them."""

from typing import NamedTuple


class Passes(NamedTuple):
  """Forward passes of a model per image; one of `tokens_per_pass` and `passes` is printed.

  Attributes:
    model: the model, a preset of its family of files.
    method: the published method.
    source: the paper, and the place of the number in it.
    prompts: the prompts.
    decoder: the specification of the same method in this library, or None.
    tokens_per_pass: tokens per forward pass.
    passes: forward passes of an image, and those of the same image token by token.
    lossless: whether its authors state that images keep the model's distribution.
  """

  model: str
  method: str
  source: str
  prompts: str
  decoder: str | None = None
  tokens_per_pass: float | None = None
  passes: tuple[int, int] | None = None
  lossless: bool = True

  @property
  def ratio(self) -> float:
    """Tokens per forward pass, also of those published as passes."""
    if self.passes is not None:
      return self.passes[1] / self.passes[0]
    assert self.tokens_per_pass is not None
    return self.tokens_per_pass


def _ratio(model: str, method: tuple[str, str, str | None], place: str, prompts: str,
           ratio: float, lossless: bool = True) -> Passes:
  name, source, decoder = method
  return Passes(model, name, f'{source}, {place}', prompts, decoder, ratio, lossless=lossless)


# Published methods: name, paper, and the decoder here.
_SJD = ('SJD', 'arXiv 2410.01699', 'sjd(window=16)')
_SJD_OF_PAC = ('SJD', 'SJD-PAC, arXiv 2603.18599', 'sjd(window=16)')
_PAC = ('SJD-PAC', 'arXiv 2603.18599', 'sjd_pac(tree=kary(4, 3), window=64)')
_EAGLE = ('EAGLE', 'SJD-PAC, arXiv 2603.18599', 'eagle(tree=EAGLE)')
_LANTERN = ('LANTERN++', 'SJD-PAC, arXiv 2603.18599', 'eagle(tree=EAGLE)+lantern_pp(lam=2, k=10)')
_SCD = 'arXiv 2510.24211'  # The numbers of the second version, as digests of the paper print them.
_PJD = 'arXiv 2606.05703'
_LUMINA = 'lumina_mgpt_7b_768'

# By the family of files of the target, a key of `checkpoints_conversion.rules.FAMILIES`.
PASSES: dict[str, tuple[Passes, ...]] = {
    'llamagen': (
        _ratio('t2i_xl_256', _SJD, 'table 3', 'COCO', 1.63),
        _ratio('t2i_xl_512', _SJD, 'table 3', 'COCO', 1.63),
        _ratio('t2i_xl_256', _SJD, 'table 3', 'Parti', 1.73),
        _ratio('t2i_xl_512', _SJD, 'table 3', 'Parti', 1.69),
        Passes('t2i_xl_512', 'PJD, 6 rows at once', _PJD, 'COCO', tokens_per_pass=4.81,
               lossless=False)),
    'lumina_mgpt': (
        _ratio(_LUMINA, _SJD, 'table 1', 'COCO', 2.22),
        _ratio(_LUMINA, _SJD, 'table 2', 'Parti', 2.26),
        _ratio('lumina_mgpt_7b_1024', _SJD, 'figure 7', '', 2.43),
        _ratio(_LUMINA, (*_SJD_OF_PAC[:2], 'sjd(window=32)'), 'table 2', 'COCO', 2.31),
        _ratio(_LUMINA, _EAGLE, 'table 1', 'COCO', 2.94),
        _ratio(_LUMINA, _EAGLE, 'table 1', 'Parti', 2.86),
        _ratio(_LUMINA, _PAC, 'table 1', 'COCO', 4.51),
        _ratio(_LUMINA, _PAC, 'table 1', 'Parti', 4.62),
        Passes(_LUMINA, 'SJD', f'SCD, {_SCD}', 'COCO', 'sjd(window=64)', passes=(1036, 2390)),
        Passes(_LUMINA, 'SCD', _SCD, 'COCO', 'mc_sjd(window=64)', passes=(568, 2390)),
        _ratio(_LUMINA, _LANTERN, 'table 1', 'COCO', 3.19, lossless=False),
        _ratio(_LUMINA, _LANTERN, 'table 1', 'Parti', 3.02, lossless=False),
        Passes(_LUMINA, 'PJD, 11 rows at once', _PJD, 'COCO', passes=(371, 2357), lossless=False)),
    'anole': (
        _ratio('anole_7b', _SJD, 'table 4', 'COCO', 1.94),
        _ratio('anole_7b', _SJD, 'table 5', 'Parti', 2.00)),
    'emu3': (
        _ratio('emu3_gen_8b', _SJD_OF_PAC, 'table 1', 'COCO', 2.32),
        _ratio('emu3_gen_8b', _PAC, 'table 1', 'COCO', 4.31),
        _ratio('emu3_gen_8b', _SJD_OF_PAC, 'table 1', 'Parti', 2.35),
        _ratio('emu3_gen_8b', _PAC, 'table 1', 'Parti', 4.59)),
    'janus_pro': (
        Passes('janus_pro_7b', 'SJD', f'SCD, {_SCD}', 'COCO', 'sjd(window=32)', passes=(318, 576)),
        Passes('janus_pro_7b', 'SCD, Gumbel coupling', _SCD, 'COCO',
               'seed_exact(window=32, tree=chain(31))', passes=(154, 576))),
    # The program is its own, and its authors do not state that it keeps the distribution.
    'simplear': tuple(
        Passes('simplear_0_5b', f'its own SJD{window}', 'arXiv 2504.11455, table 6', 'DPG-Bench',
               passes=(count, 4096), lossless=False)
        for window, count in (('', 2685), (', window 16', 2199), (', window 32', 2034))),
}
