"""The page on rollouts shows the kept trainings."""

import pytest

from docs import rollouts, tables


@pytest.mark.parametrize('name', rollouts.TABLES)
def test_tables_are_those_of_the_reports(name):
  text = (tables.REPORTS / f'{name}.md').read_text()
  assert text == f'{rollouts.TABLES[name]()}\n', 'run python -m docs.rollouts'


def test_seed_exact_runs_have_one_curve():
  vanilla, fast, exact, one = ([(row['reward'], row['digest']) for row in report['rows']]
                               for report in rollouts.reports())
  assert vanilla == fast and len(vanilla) == len(exact) and vanilla[-1] != exact[-1]
  # Passes of one token round otherwise: the page says that the rewards are the same nevertheless.
  for (reward, digest), (other_reward, other_digest) in zip(vanilla, one, strict=True):
    assert reward == other_reward and digest != other_digest
