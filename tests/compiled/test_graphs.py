"""Decoding loops as one CUDA graph, compiled for an H200.

Skipped where the compilers are not installed.
"""

import re

import jax
import pytest

from cspd_jax import families
from cspd_jax.core import programs
from cspd_jax.decoding import warp
from experiments.costs import devices
from tests.compiled import compilers

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize('graphs', programs.GRAPHS)
def test_rounds_or_loops_become_one_graph(graphs, monkeypatch, tmp_path):
  _, device = compilers.find('h200')
  monkeypatch.setattr(programs, 'on_cuda', lambda: True)
  model = families.describe('c2i_xl_256', layers=1)
  condition = families.FAMILIES[model.family].published.condition(model.config, 1)
  arguments = [model.params, condition, jax.random.split(jax.random.key(0), 1),
               warp.drop_inactive(model.sampling()), None]
  # XLA tells what the host launches, one a line, and indents what becomes part of a graph.
  devices.compiled(model.decoder('vanilla', guided=True), arguments, device, options=dict(
      programs.compiler_options(graphs) or {}, xla_dump_to=str(tmp_path)))
  (path,) = tmp_path.glob('*thunk_sequence_after_thunk_passes.txt')
  launched = re.findall(r'^\d+: (k\w+)', path.read_text(), re.MULTILINE)
  assert 'kWhile' in launched if graphs == 'round' else launched == ['kCommandBuffer']
