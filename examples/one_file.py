"""Five decoders of one image, to be read from top to bottom.

A small transformer draws an image token by token: 16 rows of 16 codes, each followed by a token
that ends the row, and one that ends the image. `vanilla` needs a forward pass per token. The other
decoders guess the next tokens, score all guesses in one pass and keep those that pass a test. None
of them changes the distribution of the images. This is the library without its generality: one
image, one model, plain loops around one jitted forward pass.

    python examples/one_file.py 'a fox on white'
"""

import functools
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from safetensors.flax import load_file

FOLDER = pathlib.Path(__file__).parents[1] / 'cspd_jax' / 'assets' / 'emoji'
CODES, SIDE = 1024, 16
ROW, LENGTH = SIDE + 1, SIDE * (SIDE + 1) + 1  # Tokens of a row and of an image, with their ends.
ROW_END, IMAGE_END, VOCABULARY = CODES, CODES + 1, CODES + 2
LAYERS, HEADS, WIDTH = 8, 4, 64  # Of the transformer; the width is a head's.
GUIDANCE, WINDOW = 1.5, 32  # A forward pass has the last final token and 31 guesses.


def weights(part):
  """Returns the arrays of a part of the model by name, in float32."""
  arrays = load_file(FOLDER / part / 'model.safetensors')
  return {name.removeprefix('transformer/'): jnp.float32(x) for name, x in arrays.items()}


# Decoders see the model as a function `score(cache, tokens, start) -> p, cache`. `tokens` are the
# last final token, number `start` of the image, and guesses for the next ones; row `i` of `p` is
# the distribution of token number `start + 1 + i` after the tokens before it. `begin` has `p` for
# token 0, and the cache after the prompt. A decoder returns the tokens of an image and the number
# of forward passes, including the prompt's.


# Token x has the largest p(x) / E(x), with exponential noise E, with probability p(x).
race = lambda p, noise: int(np.argmax(p / noise))


def vanilla(score, begin, length, noise):
  """Draws one token per forward pass."""
  p, cache = begin
  tokens, passes = [race(p, noise[0])], 1
  while len(tokens) < length:
    p, cache = score(cache, tokens[-1:], len(tokens) - 1)
    tokens.append(race(p[0], noise[len(tokens)]))
    passes += 1
  return tokens, passes


def seed_exact(score, begin, length, noise, window=WINDOW):
  """Finds the tokens of `vanilla` in fewer passes: predictive sampling (arXiv 2002.09928).

  Once the noise of every position is fixed, token k is a function of the tokens before it, and an
  image is the fixed point of all these functions. A Jacobi iteration evaluates them all at once
  (arXiv 2002.03629): each pass draws every token of the window, given the guesses before it.
  """
  p, cache = begin
  tokens, passes = [race(p, noise[0])], 1
  guesses = tokens * (window - 1)
  while len(tokens) < length:
    p, cache = score(cache, tokens[-1:] + guesses, len(tokens) - 1)
    passes += 1
    draws = [race(*row) for row in zip(p, noise[len(tokens):])]
    # A draw is right if all guesses before it were: they led the model to the right context.
    right = np.cumprod(np.equal(guesses, draws[:-1])).sum()
    tokens += draws[:right + 1]
    # The draws behind the first wrong guess are the next guesses: most of them are right already.
    guesses = draws[right + 1:] + [tokens[-1]] * right
  return tokens[:length], passes


def sjd(score, begin, length, rng, window=WINDOW):
  """Speculative Jacobi decoding (arXiv 2410.01699, Algorithm 1).

  A draft is drawn from a distribution q that was computed after drafts which may since have
  changed. It is tested against the new p as in speculative sampling (arXiv 2211.17192): accepted
  with probability min(1, p / q), and else replaced by a draw from the residual distribution.
  """
  p, cache = begin
  tokens, passes = [draw(rng, p)], 1
  uniform, q = np.full_like(p, 1 / len(p)), []
  while len(tokens) < length:
    # Draft from the last pass where it has distributions, else uniformly. What is recorded as q
    # must be the distribution that a draft was really drawn from.
    q += [uniform] * (window - 1 - len(q))
    drafts = [draw(rng, row) for row in q]
    p, cache = score(cache, tokens[-1:] + drafts, len(tokens) - 1)
    passes += 1
    new = verify(rng, p, q, drafts)
    tokens += new
    q = list(p[len(new):])
  return tokens[:length], passes


def mc_sjd(score, begin, length, rng, window=WINDOW):
  """Speculative Jacobi decoding with a maximal coupling (MC-SJD, arXiv 2510.24211).

  SJD draws every draft again in every pass, so drafts change although their distributions hardly
  do, and with them the contexts of all later ones. The coupling keeps a draft as often as any joint
  distribution of the old token ~ q and the new one ~ p can.
  """
  p, cache = begin
  tokens, passes = [draw(rng, p)], 1
  uniform, q, drafts = np.full_like(p, 1 / len(p)), [], []
  while len(tokens) < length:
    q += [uniform] * (window - 1 - len(q))
    drafts += [draw(rng, row) for row in q[len(drafts):]]
    p, cache = score(cache, tokens[-1:] + drafts, len(tokens) - 1)
    passes += 1
    new = verify(rng, p, q, drafts)
    tokens += new
    drafts = [couple(rng, *row)[0] for row in zip(p[len(new):], q[len(new):], drafts[len(new):])]
    q = list(p[len(new):])
  return tokens[:length], passes


def corrected(score, begin, length, rng, corrector, window=WINDOW, iterations=3):
  """A corrected window: MC-SJD whose stale distributions a cheap model corrects.

  Behind the first rejected draft, p is stale: the right model's answer in a slightly wrong context.
  The cheap model answers in both contexts, and p is moved by the difference of its answers.
  `corrector(tokens, first, count)` returns its distributions of tokens number `first` and later,
  each from the tokens before it alone. So q is the true distribution of a draft, given the drafts
  before it, which makes the test exact. See docs/corrected_windows.md.
  """
  p, cache = begin
  tokens, passes = [draw(rng, p)], 1
  certain, count = np.eye(len(p), dtype=p.dtype), window - 1
  stale, old, drafts = [], None, []
  while len(tokens) < length:
    # Positions that no pass has reached yet repeat the last token, with certainty.
    filler = (drafts or tokens)[-1]
    drafts += [filler] * (count - len(drafts))
    q = stale + [certain[filler]] * (count - len(stale))
    for _ in range(iterations):
      target = np.array(corrector(tokens + drafts, len(tokens), count))
      if stale:
        target[:len(stale)] = correct(target[:len(stale)], old, np.stack(stale))
      drafts = [couple(rng, *row)[0] for row in zip(target, q, drafts)]
      q = list(target)
    p, cache = score(cache, tokens[-1:] + drafts, len(tokens) - 1)
    passes += 1
    new = verify(rng, p, q, drafts)
    # The cheap model's answers in the context of p, for the positions that remain.
    old = corrector(tokens + drafts, len(tokens) + 1, count)[len(new) - 1:]
    tokens += new
    stale = list(p[len(new):])
    drafts = [couple(rng, *row)[0] for row in zip(stale, q[len(new):], drafts[len(new):])]
    drafts += [draw(rng, row) for row in stale[len(drafts):]]
  return tokens[:length], passes


def correct(new, old, stale):
  """Returns q: log q = log new + g (log stale - log old), with g = sum_x min(new, old)."""
  log = lambda x: np.log(np.maximum(x, 1e-20))
  agreement = np.minimum(new, old).sum(-1, keepdims=True)
  q = np.exp(log(new) + agreement * (log(stale) - log(old)))
  return q / q.sum(-1, keepdims=True)


def verify(rng, p, q, drafts):
  """Speculative sampling (arXiv 2211.17192, Algorithm 1): returns the tokens that become final.

  A rejected draft is replaced; if all drafts pass, the last row of `p` yields a token for free.
  """
  new = []
  for row in zip(p, q, drafts):
    token, accepted = couple(rng, *row)
    new.append(token)
    if not accepted:
      return new
  return [*new, draw(rng, p[-1])]


def couple(rng, p, q, token):
  """Turns a token ~ q into one ~ p, and keeps it as often as possible; returns it, and if kept."""
  if rng.random() * q[token] < p[token]:  # With probability min(1, p / q).
    return token, True
  residual = np.maximum(p - q, 0)
  # Nothing is left only if rounding rejected a token although p and q are equal.
  return draw(rng, residual if residual.any() else p), False


def draw(rng, weights):
  """Draws a token with probabilities proportional to weights."""
  return race(weights, rng.exponential(size=len(weights)))


def position_noise(key, count, vocabulary):
  """Returns exponential noise `[count, vocabulary]` from the key of an image and each position."""
  words = jax.random.bits(key, (2, 2), jnp.uint32)[0]
  keys = words + jnp.stack([jnp.arange(count), jnp.zeros(count)], -1).astype(jnp.uint32)
  bits = jax.vmap(lambda key: jax.random.bits(key, (vocabulary,)))(jax.random.wrap_key_data(keys))
  uniform = jnp.minimum((jnp.float32(bits) + 0.5) * 2.0**-32, 1 - 2.0**-24)
  return np.asarray(-jnp.log1p(-uniform))


@jax.jit
def forward(w, cache, tokens, slot, hidden):
  """Returns logits `[n, CODES]` after `tokens` `[n]`, the first in slot `slot`, and the new cache.

  Everything is computed twice, for guidance: with the prompt, and with its first `hidden[1]` tokens
  hidden. In the cache `[layers, 2, 2, slots, heads, width]`, the keys and values of wrong guesses
  are overwritten before any later token sees them.
  """
  slots, every = slot + jnp.arange(len(tokens)), jnp.arange(cache.shape[3])
  seen = (every <= slots[:, None]) & (every >= hidden[:, None, None])
  angles = slots[:, None, None] * 10000.0 ** (-jnp.arange(0, WIDTH, 2) / WIDTH)
  cos, sin = jnp.cos(angles), jnp.sin(angles)

  norm = lambda x, name: (
      x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w[f'{name}/scale'])
  head_norm = lambda x, name: norm(x - x.mean(-1, keepdims=True), name) + w[f'{name}/bias']

  def rotate(x):
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(x.shape)

  x = w['token_embedding'][jnp.stack([tokens, tokens])]
  for i in range(LAYERS):
    layer = f'layers_{i}'
    h = norm(x, f'{layer}/attention_norm')
    query, key, value = (
        jnp.einsum('snd,dhe->snhe', h, w[f'{layer}/{name}']) for name in ('query', 'key', 'value'))
    query = rotate(head_norm(query, f'{layer}/query_norm'))
    key = rotate(head_norm(key, f'{layer}/key_norm'))
    cache = jax.lax.dynamic_update_slice(cache, jnp.array([[key, value]]), (i, 0, 0, slot, 0, 0))
    h = jax.nn.dot_product_attention(query, *cache[i], mask=seen[:, None])
    x = x + jnp.einsum('snhe,hed->snd', h, w[f'{layer}/out'])
    h = norm(x, f'{layer}/ffn_norm')
    x = x + (jax.nn.silu(h @ w[f'{layer}/gate']) * (h @ w[f'{layer}/up'])) @ w[f'{layer}/down']
  with_prompt, without = norm(x, 'norm') @ w['output']
  return without + GUIDANCE * (with_prompt - without), cache


def load_model(prompt):
  """Returns `score` and `begin`, see above, for the tokens of a prompt."""
  # Without the prompt, the model sees only its last token, which announces an image.
  w, hidden = weights('target'), np.array([0, len(prompt) - 1])

  def score(cache, tokens, start):
    logits, cache = forward(w, cache, np.array(tokens), len(prompt) + start, hidden)
    return probabilities(logits, start + 1), cache

  cache = jnp.zeros((LAYERS, 2, 2, len(prompt) + LENGTH + WINDOW, HEADS, WIDTH))
  p, cache = score(cache, prompt, -len(prompt))
  return score, (p[-1], cache)


def neighbours(w, tokens, first, count):
  """A corrector: a small network that reads seven tokens to the left of a position and above it."""
  up, right = np.array([(0, -1), (1, 0), (1, 1), (1, -1), (0, -2), (2, 0), (1, 2)]).T
  position = np.arange(first, first + count)[:, None]
  source, column = position - up * ROW + right, position % ROW + right
  inside = (source >= 0) & (column >= 0) & (column < ROW)
  near = np.where(inside, np.array(tokens)[np.where(inside, source, 0)], VOCABULARY)
  x = w['embedding/embedding'][near].reshape(count, -1)
  for name in ('hidden_0', 'hidden_1'):
    x = jax.nn.silu(x @ w[f'{name}/kernel'] + w[f'{name}/bias'])
  return probabilities((x @ w['output'])[:, :CODES], first)


def probabilities(logits, first):
  """Returns `[n, VOCABULARY]` of tokens number `first` and later: codes, or an end for certain."""
  position = np.arange(first, first + len(logits))[:, None]
  forced = np.where(position % ROW == SIDE, ROW_END, -1)
  forced = np.where(position >= LENGTH - 1, IMAGE_END, forced)
  codes = np.pad(jax.nn.softmax(logits), ((0, 0), (0, VOCABULARY - CODES)))
  return np.where(forced < 0, codes, np.float32(np.arange(VOCABULARY) == forced))


def read(prompt):
  """Returns the tokens of a prompt, and the image tokenizer's code of every image token."""
  file = bytes(np.asarray(load_file(FOLDER / 'text' / 'model.safetensors')['file']))
  ids = json.loads(file)['model']['vocab']
  # The network has the codes first, then the ends of rows and of the image, then all others.
  first = [*range(4, 4 + CODES), 1031, 1028]
  order = first + sorted(set(ids.values()) - set(first))
  words = f'<s> generate an image of {prompt.lower()} <reserved08706> <racm3:break>'.split()
  # As in Chameleon, the letters of IMGIMGBCZ are the digits of code 12.
  names, digits = dict(map(reversed, ids.items())), str.maketrans('ABCDEFGHIJ', '0123456789')
  codes = [int(names[i][6:-1].translate(digits)) for i in first[:CODES]]
  return [order.index(ids[word]) for word in words], np.array(codes)


@jax.jit
def pixels(w, codes):
  """Returns pixels from -1 to 1 of the codes `[SIDE, SIDE]` of an image: a VQGAN's decoder."""
  dense = lambda x, name: x @ w[f'{name}/kernel'] + w[f'{name}/bias']
  conv = lambda x, name: w[f'{name}/bias'] + jax.lax.conv_general_dilated(
      x[None], w[f'{name}/kernel'], (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))[0]

  def norm(x, name):  # Groups of four channels.
    groups = jax.nn.standardize(x.reshape(*x.shape[:2], -1, 4), (0, 1, 3), epsilon=1e-6)
    return groups.reshape(x.shape) * w[f'{name}/scale'] + w[f'{name}/bias']

  def residual(x, name):
    h = conv(jax.nn.silu(norm(x, f'{name}/norm_1')), f'{name}/conv_1')
    h = conv(jax.nn.silu(norm(h, f'{name}/norm_2')), f'{name}/conv_2')
    return h + (dense(x, f'{name}/shortcut') if f'{name}/shortcut/kernel' in w else x)

  def attend(x, name):
    h = norm(x, f'{name}/norm').reshape(-1, 1, x.shape[-1])
    parts = (dense(h, f'{name}/{part}') for part in ('query', 'key', 'value'))
    h = jax.nn.dot_product_attention(*parts)
    return x + dense(h, f'{name}/out').reshape(x.shape)

  x = w['codebook/embedding'][codes]
  x = dense(x / jnp.linalg.norm(x, axis=-1, keepdims=True), 'post_quant_conv')
  x = residual(conv(x, 'decoder/conv_in'), 'decoder/mid/res_0')
  x = residual(attend(x, 'decoder/mid/attn_0'), 'decoder/mid/res_1')
  for level in range(3):
    for i in range(2):
      x = residual(x, f'decoder/up_{level}/res_{i}')
      x = x if level else attend(x, f'decoder/up_0/attn_{i}')
    if level < 2:
      x = conv(x.repeat(2, 0).repeat(2, 1), f'decoder/up_{level}/upsample')
  return conv(jax.nn.silu(norm(x, 'decoder/norm_out')), 'decoder/conv_out')


def main(prompt='a fox on white', seed=4):
  """Draws the image of a prompt with every decoder, and writes `one_file.png`."""
  prompt, codes = read(prompt)
  score, begin = load_model(prompt)
  # The library has the same key, and so the same image, as the first one of this seed.
  noise = position_noise(jax.random.fold_in(jax.random.key(seed), 0), LENGTH + WINDOW, VOCABULARY)
  rng = np.random.default_rng(seed)
  _, axes = plt.subplots(1, 5, figsize=(11, 2.7), layout='constrained')
  runs = (vanilla, noise), (seed_exact, noise), (sjd, rng), (mc_sjd, rng), (
      corrected, rng, functools.partial(neighbours, weights('neighbours')))
  for axis, (decode, *rest) in zip(axes, runs):
    tokens, passes = decode(score, begin, LENGTH, *rest)
    grid = np.array(tokens[:-1]).reshape(SIDE, ROW)[:, :SIDE]
    axis.imshow(np.clip((pixels(weights('tokenizer'), codes[grid]) + 1) / 2, 0, 1))
    axis.set_title(f'{decode.__name__}: {passes} passes', fontsize=10)
    axis.axis('off')
  plt.savefig('one_file.png', dpi=150)


if __name__ == '__main__':
  main(*sys.argv[1:2])
