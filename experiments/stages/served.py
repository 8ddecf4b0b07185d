"""A server on this device: `experiments.serving`, in a folder of its own."""

from cspd_jax.measure import tables
from experiments import serving
from experiments.stages.piece import Piece


def measure(piece: Piece, name: str, num_images: int, slots: int, clients: str) -> None:
  """Times a server of a shipped model against the decoding of a list."""
  title, folder = f'serving {name}', piece.folder / name
  if piece.has(title):
    return
  piece.attempt(title, lambda: serving.main([
      'serving', f'--model={name}', '--soak=0', f'--num_images={num_images}', f'--slots={slots}',
      f'--clients={clients}', '--decoder=corrected_seed_exact', f'--workdir={folder}']))
  for table in tables.of_report(folder) if (folder / 'report.json').exists() else ():
    for row in table.rows:
      piece.add(title, table.columns, dict(row))
