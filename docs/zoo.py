"""The table of published models: sizes by shape evaluation, and the tests that verify each."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from checkpoints_conversion import rules
from docs import sizes


class Evidence(NamedTuple):
  """Facts about a family that its networks do not hold.

  Attributes:
    licence: of the weights, as their publishers state it.
    tests: by what they verify, the file of tests.
    others: the speed that others have published for decoding without a change of the distribution.
  """

  licence: str
  tests: dict[str, str]
  others: str = '-'


def _discrete(parity: str = 'early_fusion', pictures: str = 'families/test_whole_folders.py'
              ) -> dict[str, str]:
  """Returns the tests of a family of discrete tokens whose files all others share."""
  return {'shapes': 'tests/conversion/test_rules.py', 'parity': f'tests/models/test_{parity}.py',
          'folder to pictures': f'tests/{pictures}'}


# By the name of the family's page in docs/families.
EVIDENCE: dict[str, Evidence] = {
    'llamagen': Evidence(
        'MIT', _discrete('llamagen'), '2.03x with EAGLE (Cool-SD, arXiv 2601.09212)'),
    'lumina_mgpt': Evidence(
        'that of Chameleon', _discrete(),
        '2390 to 568 passes with coupled windows (SCD, arXiv 2510.24211)'),
    'lumina_mgpt_2': Evidence('Apache-2.0', {
        **_discrete(), 'parity': 'tests/families/test_lumina_mgpt_2.py'}),
    'anole': Evidence('that of Chameleon', _discrete(), '2.00x with SJD (arXiv 2410.01699)'),
    'emu3': Evidence('Apache-2.0', _discrete(), '4.31x with SJD-PAC (arXiv 2603.18599)'),
    'emu3_5': Evidence('Apache-2.0 (code)', {
        'shapes': 'tests/models/test_emu3_5.py', 'parity': 'tests/models/test_emu3_5.py',
        'folder to pictures': 'tests/families/test_whole_folders.py'}),
    'janus': Evidence('DeepSeek License Agreement 1.0', {
        'shapes': 'tests/conversion/test_janus_conversion.py',
        'parity': 'tests/models/test_janus.py',
        'folder to pictures': 'tests/families/test_janus_family.py'},
                      '576 to 154 passes with coupled windows (SCD, arXiv 2510.24211)'),
    'simplear': Evidence('MIT; NVIDIA Open Model License of the image tokenizer', _discrete(
        'language_models', 'families/test_language_model_families.py')
                         | {'shapes': 'tests/models/test_language_models.py'}),
    'liquid': Evidence("MIT and Gemma's terms of use", _discrete(
        'language_models', 'families/test_language_model_families.py')
                       | {'shapes': 'tests/models/test_language_models.py'}),
    'mar': Evidence('MIT', {'shapes': 'tests/conversion/test_mar_conversion.py',
                            'parity': 'tests/models/test_mar.py'}),
    'nextstep': Evidence('Apache-2.0', {
        'shapes': 'tests/conversion/test_nextstep_conversion.py',
        'parity': 'tests/models/test_nextstep.py',
        'folder to pictures': 'tests/families/test_nextstep_family.py'}),
}


def models() -> str:
  """A row for every family of published models."""
  return sizes.markdown(_row(page, evidence) for page, evidence in EVIDENCE.items())


def _row(page: str, evidence: Evidence) -> dict[str, Any]:
  target = rules.FAMILIES[sizes.FILES[page][0]]
  rows = [sizes.of_target(target.kind, preset, config)
          for preset, config in target.presets.items()]
  between = lambda name: _range([row[name] for row in rows])
  return {
      'family': f'[{_name(page)}](families/{page}.md)', 'models': str(len(rows)),
      'parameters': between('parameters'), 'tokens of an image': between('tokens of an image'),
      'in bfloat16': between('in bfloat16'), 'licence of the weights': evidence.licence,
      'tested': ', '.join(evidence.tests), 'published by others as lossless': evidence.others}


def _name(page: str) -> str:
  """The name of a family, in which a point separates the numbers of a version."""
  return re.sub(r'(?<=\d)_(?=\d)', '.', page).replace('_', ' ')


def _range(values: Sequence[str]) -> str:
  """The smallest and the largest of values with a number in front, in one cell."""
  ordered = sorted(dict.fromkeys(values), key=lambda value: float(value.split()[0]))
  return ordered[0] if len(ordered) == 1 else f'{ordered[0]} to {ordered[-1]}'
