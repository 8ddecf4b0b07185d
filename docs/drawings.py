"""Draws a round and a draft tree for the pages, from rounds of the embedded model.

    python -m docs.drawings    # rewrites docs/pictures/round.png and docs/pictures/tree.png

Every square is a token, shown as the patch that the image tokenizer makes of it.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.patches import Rectangle

import cspd_jax
from cspd_jax.core.random import row_keys
from cspd_jax.decoding import tree as tree_lib
from cspd_jax.plots import canvas, grid

PICTURES = pathlib.Path(__file__).parent / 'pictures'
ACCEPTED, REFUSED = '#2e8b57', '#c0392b'
# Committed tokens that are drawn before the drafts.
_BEFORE = 3
_SIDE = 0.8


class Round(NamedTuple):
  """One round of one image with `N` drafts.

  Attributes:
    before: the committed tokens, the root last.
    tree: the draft tree.
    drafts: `[N]` tokens.
    passes: `[N]` probability that a draft is accepted if it is the first of its siblings.
    path: nodes that were accepted.
    token: the one more token.
  """

  before: np.ndarray
  tree: tree_lib.Tree
  drafts: np.ndarray
  passes: np.ndarray
  path: list[int]
  token: int


def observe(model: cspd_jax.Model, specification: str, prompt: str,
            wanted: Callable[[Round], bool]) -> Round:
  """The first round of an image that is `wanted`.

  Raises:
    ValueError: if there is none.
  """
  decoder, seen = model.decoder(specification), {}

  def propose(*args):
    result = decoder.drafter.propose(*args)
    seen['draft'] = result[2]
    return result

  def update(*args):
    seen['outcome'] = args[-1]
    return decoder.drafter.update(*args)

  watched = dataclasses.replace(
      decoder, drafter=decoder.drafter._replace(propose=propose, update=update))
  sampling, draft_params = model.sampling(), model.draft_params(specification)
  state = jax.jit(decoder.start)(
      model.params, model.condition([prompt]), row_keys(jax.random.key(0), 1), sampling,
      draft_params)
  advance = jax.jit(lambda state: (
      watched.round(model.params, state, sampling, draft_params), dict(seen)))
  while int(state.count[0]) < model.num_tokens - decoder.drafter.tree.max_depth - 1:
    count = int(state.count[0])
    state, values = advance(state)
    one = _round(decoder.drafter, np.asarray(state.tokens[0]), count, jax.device_get(values))
    if wanted(one):
      return one
  raise ValueError(f'specification is {specification!r}; no round of {prompt!r} is wanted.')


def _round(drafter: Any, tokens: np.ndarray, count: int, values: Any) -> Round:
  """A round from what its drafter proposed and what came of it."""
  draft, outcome = values['draft'], values['outcome']
  tree, accepted = drafter.tree, int(outcome.accepted[0])
  drafts = draft.tokens[0]
  target = [outcome.probs[0, tree.parents[i]][token] for i, token in enumerate(drafts, 1)]
  drawn = [draft.probs[0, drafter.layout.probs_rows[i]][token]
           for i, token in enumerate(drafts, 1)]
  return Round(tokens[:count], tree, drafts, np.minimum(1, np.divide(target, drawn)),
               [int(node) for node in outcome.path[0, 1:accepted + 1]],
               int(tokens[count + accepted]))


class Patches:
  """Draws tokens as the patches that the tokenizer makes of them."""

  def __init__(self, model: cspd_jax.Model):
    self._model, self._patches = model, {}

  def draw(self, axes, token: int, x: float, y: float, edge: str = canvas.INK,
           faint: bool = False, style: str = '-', side: float = _SIDE) -> None:
    """Draws a token with its centre at `(x, y)`."""
    if token not in self._patches:
      flat = np.full((1, self._model.num_tokens), token)
      image = grid.to_unit(self._model.pixels(flat))[0]
      middle = image.shape[0] // 2
      self._patches[token] = image[middle - 8:middle + 8, middle - 8:middle + 8]
    half = side / 2
    axes.imshow(self._patches[token], extent=(x - half, x + half, y - half, y + half),
                alpha=0.25 if faint else 1, zorder=2, interpolation='bicubic')
    axes.add_patch(Rectangle((x - half, y - half), side, side, fill=False, edgecolor=edge,
                             linestyle=style, linewidth=1 if faint else 1.8, zorder=3))


def _axes(width: float, height: float, left: float, right: float, bottom: float, top: float):
  figure = canvas.figure(width, height)
  axes = figure.subplots()
  canvas.bare(axes)
  return figure, axes, lambda: axes.set(xlim=(left, right), ylim=(bottom, top), aspect='equal')


def draw_round(model: cspd_jax.Model, one: Round) -> bytes:
  """A round of a chain as PNG: draft, score, verify and commit, one below the other."""
  count, accepted = len(one.drafts), len(one.path)
  figure, axes, finish = _axes(8.0, 4.7, -3.4, _BEFORE + count - 0.3, -6.6, 1.2)
  patches = Patches(model)
  text = lambda x, y, words, colour=canvas.INK, size=8.0, **more: axes.text(
      x, y, words, color=colour, fontsize=size, va='center', **more)
  rows = {'draft': 0.0, 'score': -1.7, 'verify': -3.6, 'commit': -5.7}
  words = {'draft': f'{count} drafts follow\nthe committed tokens', 'score':
           'one forward pass\nof the target over all', 'verify':
           'from the left, until\na draft is refused', 'commit':
           'accepted drafts and\none token more'}
  for name, y in rows.items():
    text(-3.3, y + 0.35, name, size=11, weight='bold')
    text(-3.3, y - 0.35, words[name], canvas.FAINT, 7.5)
  for i, token in enumerate(one.before[-_BEFORE:]):
    for name in ('draft', 'commit'):
      patches.draw(axes, token, i, rows[name])
  first, root = _BEFORE, _BEFORE - 1
  axes.add_patch(Rectangle((root - 0.4, rows['score'] - 0.3), count + 0.8, 0.6,
                           facecolor='#e4edf4', edgecolor=canvas.ACCENT))
  text(root + count / 2, rows['score'], 'target', canvas.ACCENT, 9, ha='center')
  for i in range(count + 1):
    axes.annotate('', (root + i, rows['score'] + 0.32), (root + i, rows['draft'] - 0.45),
                  arrowprops=dict(arrowstyle='-|>', color=canvas.FAINT, linewidth=0.8))
  text(first + (count - 1) / 2, 0.8, 'drafts', canvas.FAINT, ha='center')
  text(root / 2, 0.8, 'committed', canvas.FAINT, ha='center')
  for i, (token, share) in enumerate(zip(one.drafts, one.passes)):
    x, tested = first + i, i <= accepted
    patches.draw(axes, token, x, rows['draft'], style=':')
    edge = ACCEPTED if i < accepted else REFUSED if tested else canvas.NEUTRAL
    patches.draw(axes, token, x, rows['verify'], edge, faint=not tested)
    text(x, rows['verify'] + 0.75, f'{share:.2f}', edge if tested else canvas.NEUTRAL, ha='center')
    text(x, rows['verify'] - 0.72, 'yes' if i < accepted else 'no' if tested else '', edge,
         ha='center')
  text(root + 0.3, rows['verify'] + 0.75, 'min(1, p/q)', canvas.FAINT, ha='right')
  for i in range(accepted):
    patches.draw(axes, one.drafts[i], first + i, rows['commit'], ACCEPTED)
  patches.draw(axes, one.token, first + accepted, rows['commit'], canvas.ACCENT)
  text(first + accepted + 0.6, rows['commit'], 'drawn from the residual: the\nnext round '
       'begins with it', canvas.ACCENT)
  finish()
  return canvas.png(figure)


def _rows(tree: tree_lib.Tree) -> np.ndarray:
  """Heights `[N + 1]` of the nodes: leaves from the top, parents at their first child."""
  height, bottom = np.zeros(len(tree.parents)), 0
  children = lambda node: [i for i, parent in enumerate(tree.parents) if parent == node]

  def place(node):
    nonlocal bottom
    height[node] = bottom
    for number, child in enumerate(children(node)):
      bottom -= number > 0
      place(child)

  place(0)
  return height


def draw_tree(model: cspd_jax.Model, one: Round) -> bytes:
  """A draft tree as PNG, with the path that was accepted."""
  tree, height = one.tree, _rows(one.tree)
  across, down = 2.1, 1.0
  spot = lambda node: (across * tree.depth[node], down * height[node])
  right = across * (tree.max_depth + 1)
  figure, axes, finish = _axes(
      6.0, 6.0 * (2.2 - down * height.min()) / (right + 1.8), -0.9, right + 0.9,
      down * height.min() - 0.7, 1.5)
  patches, on_path = Patches(model), {0, *one.path}
  for node, parent in enumerate(tree.parents):
    if node:
      kept = node in on_path
      (x, y), (ahead, level) = spot(node), spot(parent)
      axes.plot([ahead + 0.4, ahead + 0.8, ahead + 0.8, x - 0.4], [level, level, y, y],
                zorder=1 + kept / 2, color=ACCEPTED if kept else canvas.NEUTRAL,
                linewidth=2.5 if kept else 0.9)
  for node in range(len(tree.parents)):
    token = one.before[-1] if not node else one.drafts[node - 1]
    edge = canvas.INK if not node else ACCEPTED if node in on_path else canvas.NEUTRAL
    patches.draw(axes, int(token), *spot(node), edge)
  last = spot(one.path[-1])
  more = (last[0] + across, last[1])
  axes.annotate('', (more[0] - 0.42, more[1]), (last[0] + 0.42, last[1]), zorder=4,
                arrowprops=dict(arrowstyle='-|>', color=canvas.ACCENT, linestyle='--'))
  patches.draw(axes, one.token, *more, canvas.ACCENT)
  label = lambda x, words, colour: axes.text(
      x, 1.0, words, color=colour, fontsize=8, ha='center', va='center')
  label(0, 'committed', canvas.INK)
  for depth in range(1, tree.max_depth + 1):
    label(across * depth, f'draft {depth}', canvas.FAINT)
  axes.text(more[0], more[1] - 0.65, 'one token more', color=canvas.ACCENT, fontsize=8, ha='center',
            va='center')
  finish()
  return canvas.png(figure)


def main() -> None:
  model = cspd_jax.load('demo')
  chain = observe(model, 'mc_sjd(window=8)', 'cat',
                  lambda one: len(one.path) == 3 and len(one.before) > 40)
  (PICTURES / 'round.png').write_bytes(draw_round(model, chain))
  tree = observe(model, 'eagle(tree=kary(2, 4))', 'coffee', lambda one: (
      len(one.path) == 3 and one.path[0] > 1 and len(one.before) > 60))
  (PICTURES / 'tree.png').write_bytes(draw_tree(model, tree))


if __name__ == '__main__':
  sys.exit(main())
