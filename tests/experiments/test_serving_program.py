"""The program that measures a server, with few images."""

import json

import pytest

pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

from experiments import serving


@pytest.mark.slow
def test_every_request_is_answered_and_every_image_accounted_for(tmp_path):
  folder = tmp_path / 'serving'
  assert not serving.main(['serving', '--num_images=4', '--clients=1,2', '--slots=2', '--soak=24',
                           f'--workdir={folder}'])
  report = json.loads((folder / 'report.json').read_text())
  assert [row['clients'] for row in report['rows']] == [1, 2] and 0 < report['first_picture'] < 1
  assert report['soak']['answered'] == 24 and report['soak']['images'] > 0
