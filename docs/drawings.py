"""Draws a round and a draft tree for the pages, from rounds of the embedded model.

    python -m docs.drawings    # rewrites docs/pictures/round.png and docs/pictures/tree.png

Every square is a token, shown as the patch that the image tokenizer makes of it.
"""

import dataclasses
import functools
import pathlib
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
_BEFORE = 3  # Committed tokens that are drawn before the drafts.
_HALF = 0.4  # Of the side of a token.


class Round(NamedTuple):
  """One round of one image with `N` drafts."""

  before: np.ndarray  # The committed tokens, the root last.
  tree: tree_lib.Tree  # The draft tree.
  drafts: np.ndarray  # `[N]` tokens.
  passes: np.ndarray  # `[N]` probability to accept a draft that is the first of its siblings.
  path: list[int]  # Nodes that were accepted.
  token: int  # The one more token.


def observe(model: cspd_jax.Model, specification: str, prompt: str,
            wanted: Callable[[Round], bool]) -> Round:
  """The first round of an image that is `wanted`.

  Raises:
    ValueError: if there is none.
  """
  decoder, seen = model.decoder(specification), {}
  drafter = decoder.drafter

  def propose(*args):
    result = drafter.propose(*args)
    seen['draft'] = result[2]
    return result

  def update(*args):
    seen['outcome'] = args[-1]
    return drafter.update(*args)

  watched = dataclasses.replace(
      decoder, drafter=drafter._replace(propose=propose, update=update))
  sampling, draft_params = model.sampling(), model.draft_params(specification)
  state = jax.jit(decoder.start)(
      model.params, model.condition([prompt]), row_keys(jax.random.key(0), 1), sampling,
      draft_params)
  advance = jax.jit(lambda state: (
      watched.round(model.params, state, sampling, draft_params), dict(seen)))
  while int(state.count[0]) < model.num_tokens - drafter.tree.max_depth - 1:
    count = int(state.count[0])
    state, values = advance(state)
    one = _round(drafter, np.asarray(state.tokens[0]), count, **jax.device_get(values))
    if wanted(one):
      return one
  raise ValueError(f'specification is {specification!r}; no round of {prompt!r} is wanted.')


def _round(drafter: Any, tokens: np.ndarray, count: int, draft: Any, outcome: Any) -> Round:
  """A round from what its drafter proposed and what came of it."""
  tree, accepted, drafts = drafter.tree, int(outcome.accepted[0]), draft.tokens[0]
  target = [outcome.probs[0, tree.parents[i]][token] for i, token in enumerate(drafts, 1)]
  drawn = [draft.probs[0, drafter.layout.probs_rows[i]][token]
           for i, token in enumerate(drafts, 1)]
  return Round(tokens[:count], tree, drafts, np.minimum(1, np.divide(target, drawn)),
               [int(node) for node in outcome.path[0, 1:accepted + 1]],
               int(tokens[count + accepted]))


class _Drawing:
  """A figure of tokens, in units of 1.25 of their side."""

  def __init__(self, model: cspd_jax.Model, width: float, height: float):
    self.figure = canvas.figure(width, height)
    self.axes = self.figure.subplots()
    canvas.bare(self.axes)

    @functools.cache
    def patch(token: int) -> np.ndarray:
      image = grid.to_unit(model.pixels(np.full((1, model.num_tokens), token)))[0]
      middle = image.shape[0] // 2
      return image[middle - 8:middle + 8, middle - 8:middle + 8]

    self._patch = patch

  def token(self, token: int, x: float, y: float, edge: str = canvas.INK, faint: bool = False,
            style: str = '-') -> None:
    """Draws a token with its centre at `(x, y)`, as the patch that the tokenizer makes of it."""
    self.axes.imshow(
        self._patch(int(token)), extent=(x - _HALF, x + _HALF, y - _HALF, y + _HALF),
        alpha=0.25 if faint else 1, zorder=2, interpolation='bicubic')
    self.axes.add_patch(Rectangle(
        (x - _HALF, y - _HALF), 2 * _HALF, 2 * _HALF, fill=False, edgecolor=edge, linestyle=style,
        linewidth=1 if faint else 1.8, zorder=3))

  def text(self, x: float, y: float, words: str, color: str = canvas.INK, fontsize: float = 8,
           **options: Any) -> None:
    """Writes words whose vertical centre is at `y`."""
    self.axes.text(x, y, words, color=color, fontsize=fontsize, va='center', **options)

  def png(self, left: float, right: float, bottom: float, top: float) -> bytes:
    """Returns the figure within these limits."""
    self.axes.set(xlim=(left, right), ylim=(bottom, top), aspect='equal')
    return canvas.png(self.figure)


_DRAFT, _SCORE, _VERIFY, _COMMIT = 0, -1.7, -3.6, -5.7  # Heights of the parts of a round.


def draw_round(model: cspd_jax.Model, one: Round) -> bytes:
  """A round of a chain as PNG: draft, score, verify and commit, one below the other."""
  count, accepted, first, root = len(one.drafts), len(one.path), _BEFORE, _BEFORE - 1
  drawing = _Drawing(model, 8.0, 4.7)
  for name, y, words in (
      ('draft', _DRAFT, f'{count} drafts follow\nthe committed tokens'),
      ('score', _SCORE, 'one forward pass\nof the target over all'),
      ('verify', _VERIFY, 'from the left, until\na draft is refused'),
      ('commit', _COMMIT, 'accepted drafts and\none token more')):
    drawing.text(-3.3, y + 0.35, name, fontsize=11, weight='bold')
    drawing.text(-3.3, y - 0.35, words, canvas.FAINT, 7.5)
  for i, token in enumerate(one.before[-_BEFORE:]):
    for y in (_DRAFT, _COMMIT):
      drawing.token(token, i, y)
  drawing.axes.add_patch(Rectangle((root - 0.4, _SCORE - 0.3), count + 0.8, 0.6,
                                   facecolor='#e4edf4', edgecolor=canvas.ACCENT))
  drawing.text(root + count / 2, _SCORE, 'target', canvas.ACCENT, 9, ha='center')
  for x in range(root, root + count + 1):
    drawing.axes.annotate('', (x, _SCORE + 0.32), (x, _DRAFT - 0.45), arrowprops=dict(
        arrowstyle='-|>', color=canvas.FAINT, linewidth=0.8))
  drawing.text(first + (count - 1) / 2, 0.8, 'drafts', canvas.FAINT, ha='center')
  drawing.text(root / 2, 0.8, 'committed', canvas.FAINT, ha='center')
  drawing.text(root + 0.3, _VERIFY + 0.75, 'min(1, p/q)', canvas.FAINT, ha='right')
  for i, (token, share) in enumerate(zip(one.drafts, one.passes)):
    x, tested, answer = first + i, i <= accepted, 'yes' if i < accepted else 'no'
    edge = ACCEPTED if i < accepted else REFUSED if tested else canvas.NEUTRAL
    drawing.token(token, x, _DRAFT, style=':')
    drawing.token(token, x, _VERIFY, edge, faint=not tested)
    drawing.text(x, _VERIFY + 0.75, f'{share:.2f}', edge, ha='center')
    drawing.text(x, _VERIFY - 0.72, answer * tested, edge, ha='center')
  for i in range(accepted):
    drawing.token(one.drafts[i], first + i, _COMMIT, ACCEPTED)
  drawing.token(one.token, first + accepted, _COMMIT, canvas.ACCENT)
  drawing.text(first + accepted + 0.6, _COMMIT, 'drawn from the residual: the\nnext round '
               'begins with it', canvas.ACCENT)
  return drawing.png(-3.4, _BEFORE + count - 0.3, -6.6, 1.2)


def _heights(tree: tree_lib.Tree) -> np.ndarray:
  """Heights `[N + 1]` of the nodes: leaves from the top, parents at their first child."""
  height, bottom = np.zeros(len(tree.parents)), 0

  def place(node):
    nonlocal bottom
    height[node] = bottom
    for number, child in enumerate(np.flatnonzero(np.array(tree.parents) == node)):
      bottom -= number > 0
      place(child)

  place(0)
  return height


def draw_tree(model: cspd_jax.Model, one: Round) -> bytes:
  """A draft tree as PNG, with the path that was accepted."""
  tree, height, across = one.tree, _heights(one.tree), 2.1
  on_path, right = {0, *one.path}, across * (tree.max_depth + 1)
  drawing = _Drawing(model, 6.0, 6.0 * (2.2 - height.min()) / (right + 1.8))
  for node, parent in enumerate(tree.parents):
    x, y, accepted = across * tree.depth[node], height[node], node in on_path
    if node:
      ahead = across * tree.depth[parent]
      drawing.axes.plot(
          [ahead + 0.4, ahead + 0.8, ahead + 0.8, x - 0.4], [height[parent]] * 2 + [y] * 2,
          zorder=1 + accepted / 2, color=ACCEPTED if accepted else canvas.NEUTRAL,
          linewidth=2.5 if accepted else 0.9)
    drawing.token(
        one.drafts[node - 1] if node else one.before[-1], x, y,
        canvas.INK if not node else ACCEPTED if accepted else canvas.NEUTRAL)
  x, y = across * (tree.depth[one.path[-1]] + 1), height[one.path[-1]]
  drawing.axes.annotate('', (x - 0.42, y), (x - across + 0.42, y), zorder=4, arrowprops=dict(
      arrowstyle='-|>', color=canvas.ACCENT, linestyle='--'))
  drawing.token(one.token, x, y, canvas.ACCENT)
  drawing.text(x, y - 0.65, 'one token more', canvas.ACCENT, ha='center')
  drawing.text(0, 1.0, 'committed', ha='center')
  for depth in range(1, tree.max_depth + 1):
    drawing.text(across * depth, 1.0, f'draft {depth}', canvas.FAINT, ha='center')
  return drawing.png(-0.9, right + 0.9, height.min() - 0.7, 1.5)


def main() -> None:
  """Writes both pictures."""
  model = cspd_jax.load('demo')
  chain = observe(model, 'mc_sjd(window=8)', 'cat',
                  lambda one: len(one.path) == 3 and len(one.before) > 40)
  (PICTURES / 'round.png').write_bytes(draw_round(model, chain))
  tree = observe(model, 'eagle(tree=kary(2, 4))', 'coffee', lambda one: (
      len(one.path) == 3 and one.path[0] > 1 and len(one.before) > 60))
  (PICTURES / 'tree.png').write_bytes(draw_tree(model, tree))


if __name__ == '__main__':
  main()
