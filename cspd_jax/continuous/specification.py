"""The decoders of continuous tokens by name, and decoders built from text.

A specification (`core.spec`) is a name with parameters, such as `exact_head(kernels_per_call=8)`
or `cspd_released(block_length=8, kappa=42.0)`, with the parameters, defaults and types of the
function of that name.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cspd_jax.continuous.base import Target
from cspd_jax.continuous.cspd import cspd_paper, cspd_relaxed, cspd_released
from cspd_jax.continuous.decoders import exact_head, exact_path, mar, parallel, windows
from cspd_jax.continuous.loop import Decoder
from cspd_jax.core import sampling
from cspd_jax.core.spec import Spec
from cspd_jax.core.table import Entry, Table


def _causal(target: Target) -> str | None:
  """Why a decoder with a draft model, or with steps of several tokens, cannot decode a target."""
  return None if target.cached is None else 'it decodes masked models only, and this one is causal'


_DRAFT = {'model': lambda draft: draft}
DECODERS: dict[str, Entry] = {
    'mar': Entry(mar, "MAR's own sampler, the baseline"),
    'parallel': Entry(parallel, 'the target alone with the passes of cspd_released',
                      refuses=_causal),
    'exact_head': Entry(exact_head, 'mar with speculation inside the diffusion head'),
    'windows': Entry(windows, 'windows of tokens whose denoising chains are kept between rounds'),
    'exact_path': Entry(exact_path, 'drafts by a smaller model and the path test',
                        networks=_DRAFT, refuses=_causal),
    'cspd_paper': Entry(cspd_paper, 'Algorithm 1 of CSpD as printed',
                        networks=_DRAFT, refuses=_causal),
    'cspd_released': Entry(cspd_released, "the control flow of CSpD's published code",
                           networks=_DRAFT, refuses=_causal),
    'cspd_relaxed': Entry(cspd_relaxed, 'the same blocks with a plain test',
                          networks=_DRAFT, refuses=_causal),
}
TABLE = Table(
    'continuous', DECODERS, {}, {}, networks={'model': 'a draft model'},
    options=(*sampling.CONTINUOUS,), baseline='mar', candidates=('exact_head',), on_cpu=None,
    seed_exact=False)
complete, needs, parameters = TABLE.complete, TABLE.needs, TABLE.parameters


def build(spec: str | Spec, target: Target, drafts: Mapping[str, Any] = MappingProxyType({})
          ) -> Decoder:
  """Builds the decoder of a specification; a draft model is `drafts['model']`.

  Raises ValueError for unknown names, values out of range, or a missing draft model.
  """
  return TABLE.entry(spec).build(target, **TABLE.arguments(spec, drafts))
