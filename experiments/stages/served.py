"""A server on this device: `experiments.serving`, in a folder of its own."""

import pathlib

from cspd_jax import families
from cspd_jax.files import store
from cspd_jax.measure import tables
from cspd_jax.models import vq
from experiments import serving
from experiments.costs import timed_rounds
from experiments.stages import rounds
from experiments.stages.piece import Piece


def measure(piece: Piece, name: str, decoder: str, num_images: int, slots: int, clients: str,
            folder: pathlib.Path | None = None) -> None:
  """Times a server of a model against the decoding of a list; `folder` if it is not shipped."""
  title, workdir = f'serving {name}', piece.folder / name
  if piece.has(title):
    return
  piece.attempt(title, lambda: serving.main([
      'serving', f'--model={folder or name}', '--soak=0', f'--num_images={num_images}',
      f'--slots={slots}', f'--clients={clients}', f'--decoder={decoder}', f'--workdir={workdir}']))
  for table in tables.read_tables(workdir) if (workdir / 'report.json').exists() else ():
    for row in table.rows:
      piece.add(title, table.columns, dict(row))


def with_random_weights(piece: Piece, size: str) -> pathlib.Path | None:
  """Stores a published size of LlamaGen with random weights, and its tokenizer; returns the folder.

  A rehearsal keeps one layer. None, with a note, if it fails.
  """
  folder = piece.folder / 'random' / size

  def create() -> pathlib.Path:
    model = rounds.described(piece, size)
    sizes = vq.VQConfig(codebook_size=model.config.vocab_size)
    networks = {'target': (model.family, model.config, model.params), 'tokenizer': (
        'vq', sizes, timed_rounds.random_like(store.sketch('vq', sizes).params))}
    for role, network in networks.items():
      store.save(folder / role, *network)
    families.save(folder, model.family, {role: role for role in networks})
    return folder

  return folder if (folder / 'model.json').exists() else piece.attempt(
      f'{size}: random weights', create)
