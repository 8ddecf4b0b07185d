"""Five decoders of one image, to be read from top to bottom.

A small transformer draws an image token by token: 16 rows of 16 codes, each followed by a token
that ends the row, and one that ends the image. `vanilla` needs a forward pass per token. The other
decoders guess the next tokens, score all guesses in one pass and keep those that pass a test. None
of them changes the distribution of the images. This is the library without its generality: one
image, one model, plain loops around one jitted forward pass.

    python examples/one_file.py 'a fox on white'
"""

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
LAYERS, HEADS, WIDTH = 8, 4, 64  # Of the transformer: layers, attention heads, width of a head.
GUIDANCE = 1.5
WINDOW = 32  # Tokens of a forward pass: the last final one and 31 guesses.


def weights(part):
  """Returns the arrays of a part of the model by name, in float32."""
  arrays = load_file(FOLDER / part / 'model.safetensors')
  return {name.removeprefix('transformer/'): jnp.float32(x) for name, x in arrays.items()}


# Decoders see the model as a function `score(cache, tokens, start) -> p, cache`. `tokens` are the
# last final token, number `start` of the image, and guesses for those after it; row `i` of `p` is
# the distribution of token number `start + 1 + i`, if the tokens before it are right. `begin` has
# `p` for token 0, and the cache after the prompt. A decoder returns the tokens of an image and the
# number of forward passes, that of the prompt included; it varies from image to image.


def vanilla(score, begin, length, noise):
  """Draws one token per forward pass.

  With exponential noise E, token x has the largest p(x) / E(x) with probability p(x).
  """
  p, cache = begin
  tokens, passes = [race(p, noise[0])], 1
  while len(tokens) < length:
    p, cache = score(cache, tokens[-1:], len(tokens) - 1)
    tokens.append(race(p[0], noise[len(tokens)]))
    passes += 1
  return tokens, passes


def seed_exact(score, begin, length, noise, window=WINDOW):
  """Finds the tokens of `vanilla` in fewer passes: predictive sampling (arXiv 2002.09928).

  Once the noise of every place is fixed, token k is a function of the tokens before it, and an
  image is the fixed point of all these functions. A Jacobi iteration evaluates them all at once
  (arXiv 2002.03629): each pass draws every token of the window, after the guesses before it.
  """
  p, cache = begin
  tokens, passes = [race(p, noise[0])], 1
  guesses = tokens * (window - 1)
  while len(tokens) < length:
    first = len(tokens)
    p, cache = score(cache, tokens[-1:] + guesses, first - 1)
    passes += 1
    draws = [race(row, noise[first + i]) for i, row in enumerate(p)]
    # Draw i is right if all guesses before it were: they led the model to the right context.
    right = 0
    while right < len(guesses) and guesses[right] == draws[right]:
      right += 1
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
  uniform = np.full_like(p, 1 / len(p))
  q = [uniform] * (window - 1)
  drafts = [draw(rng, row) for row in q]
  while len(tokens) < length:
    p, cache = score(cache, tokens[-1:] + drafts, len(tokens) - 1)
    passes += 1
    new = verify(rng, p, q, drafts)
    tokens += new
    # Initialise the next window: from this pass where it has distributions, else uniformly. What is
    # recorded as q must be the distribution that a draft was really drawn from.
    q = list(p[len(new):])
    q += [uniform] * (window - 1 - len(q))
    drafts = [draw(rng, row) for row in q]
  return tokens[:length], passes


def mc_sjd(score, begin, length, rng, window=WINDOW):
  """Speculative Jacobi decoding with a maximal coupling (MC-SJD, arXiv 2510.24211).

  SJD draws every draft again in every pass, so drafts change although their distributions hardly
  do, and with them the contexts of all later ones. The coupling keeps a draft as often as any joint
  distribution of the old token ~ q and the new one ~ p can.
  """
  p, cache = begin
  tokens, passes = [draw(rng, p)], 1
  uniform = np.full_like(p, 1 / len(p))
  q = [uniform] * (window - 1)
  drafts = [draw(rng, row) for row in q]
  while len(tokens) < length:
    p, cache = score(cache, tokens[-1:] + drafts, len(tokens) - 1)
    passes += 1
    new = verify(rng, p, q, drafts)
    tokens += new
    # The last row of p is for a place that had no draft so far.
    drafts = [couple(rng, *old)[0] for old in zip(p[len(new):-1], q[len(new):], drafts[len(new):])]
    q = list(p[len(new):])
    q += [uniform] * (window - 1 - len(q))
    drafts += [draw(rng, row) for row in q[len(drafts):]]
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
    # Places that no pass has reached yet repeat the last token, with certainty.
    q = list(stale)
    filler = (drafts or tokens)[-1]
    drafts += [filler] * (count - len(drafts))
    q += [certain[filler]] * (count - len(q))
    for _ in range(iterations):
      target = np.array(corrector(tokens + drafts, len(tokens), count))
      if stale:
        target[:len(stale)] = correct(target[:len(stale)], old, np.stack(stale))
      drafts = [couple(rng, *place)[0] for place in zip(target, q, drafts)]
      q = list(target)

    p, cache = score(cache, tokens[-1:] + drafts, len(tokens) - 1)
    passes += 1
    new = verify(rng, p, q, drafts)
    # The answers of the cheap model in the context of p, for the places that remain.
    old = corrector(tokens + drafts, len(tokens) + 1, count)[len(new) - 1:]
    tokens += new
    stale = list(p[len(new):])
    drafts = [couple(rng, *place)[0] for place in zip(
        p[len(new):-1], q[len(new):], drafts[len(new):])]
    drafts += [draw(rng, row) for row in stale[len(drafts):]]
  return tokens[:length], passes


def correct(new, old, stale):
  """Returns q: log q = log new + g (log stale - log old), with g = sum_x min(new, old)."""
  log = lambda x: np.log(np.maximum(x, 1e-20))
  agreement = np.minimum(new, old).sum(-1, keepdims=True)
  logits = log(new) + agreement * (log(stale) - log(old))
  q = np.exp(logits - logits.max(-1, keepdims=True))
  return q / q.sum(-1, keepdims=True)


def verify(rng, p, q, drafts):
  """Returns the tokens that a pass makes final: drafts up to the first rejected one, and one more.

  Speculative sampling (arXiv 2211.17192, Algorithm 1); if all drafts pass, the last row of `p`,
  behind them, yields a token for free.
  """
  new = []
  for place in zip(p, q, drafts):
    token, accepted = couple(rng, *place)
    new.append(token)
    if not accepted:
      return new
  return [*new, draw(rng, p[-1])]


def couple(rng, p, q, token):
  """Turns a token ~ q into one ~ p, the same as often as possible; returns it, and if it is."""
  if accept(rng, p[token], q[token]):
    return token, True
  residual = np.maximum(p - q, 0)
  # Nothing is left only if rounding rejected a token although p and q are equal.
  return draw(rng, residual if residual.any() else p), False


def accept(rng, p, q):
  """Returns True with probability min(1, p / q)."""
  return rng.random() * q < p


def draw(rng, weights):
  """Draws a token with probabilities proportional to weights."""
  return race(weights, rng.exponential(size=len(weights)))


def race(weights, noise):
  """Returns the winner of the exponential race."""
  return int(np.argmax(weights / noise))


def position_noise(key, count, vocabulary):
  """Returns exponential noise `[count, vocabulary]` from a key of the image and each position."""
  words = jax.random.bits(key, (2, 2), jnp.uint32)[0]

  def row(position):
    key = jax.random.wrap_key_data(words + jnp.array([position, 0], jnp.uint32))
    uniform = (jax.random.bits(key, (vocabulary,)).astype(jnp.float32) + 0.5) * 2.0**-32
    return -jnp.log1p(-jnp.minimum(uniform, 1 - 2.0**-24))

  return np.asarray(jax.vmap(row)(jnp.arange(count, dtype=jnp.uint32)))


@jax.jit
def forward(w, cache, tokens, slot, padding):
  """Returns logits `[n, V]` after tokens `[2, n]`, the first of number `slot`, and the new cache.

  The rows are the streams of guidance, with the prompt and without; `padding` `[2]` slots on the
  left are unused. In the cache `[layers, 2, 2, slots, heads, width]`, the keys and values of wrong
  guesses are overwritten before any later token sees them.
  """
  slots, every = slot + jnp.arange(tokens.shape[1]), jnp.arange(cache.shape[3])
  seen = (every <= slots[:, None]) & (every >= padding[:, None, None])
  turns = 10000.0 ** (-jnp.arange(0, WIDTH, 2) / WIDTH)
  angles = (slots - padding[:, None])[..., None, None] * turns
  cos, sin = jnp.cos(angles), jnp.sin(angles)

  norm = lambda x, name: (
      x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w[f'{name}/scale'])
  head_norm = lambda x, name: norm(x - x.mean(-1, keepdims=True), name) + w[f'{name}/bias']

  def rotate(x):
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(x.shape)

  x = w['token_embedding'][tokens]
  for i in range(LAYERS):
    layer = f'layers_{i}'
    h = norm(x, f'{layer}/attention_norm')
    query, key, value = (
        jnp.einsum('snd,dhe->snhe', h, w[f'{layer}/{name}']) for name in ('query', 'key', 'value'))
    query = rotate(head_norm(query, f'{layer}/query_norm'))
    key = rotate(head_norm(key, f'{layer}/key_norm'))
    cache = jax.lax.dynamic_update_slice(
        cache, jnp.stack([key, value])[None], (i, 0, 0, slot, 0, 0))
    logits = jnp.einsum('snhe,smhe->shnm', query, cache[i, 0]) * WIDTH**-0.5
    attention = jax.nn.softmax(jnp.where(seen[:, None], logits, -1e30))
    h = jnp.einsum('shnm,smhe->snhe', attention, cache[i, 1])
    x = x + jnp.einsum('snhe,hed->snd', h, w[f'{layer}/out'])
    h = norm(x, f'{layer}/ffn_norm')
    x = x + (jax.nn.silu(h @ w[f'{layer}/gate']) * (h @ w[f'{layer}/up'])) @ w[f'{layer}/down']
  with_prompt, without = norm(x, 'norm') @ w['output']
  logits = without + GUIDANCE * (with_prompt - without)
  return jnp.pad(logits, ((0, 0), (0, 2)), constant_values=-1e30), cache


def load_model(prompt):
  """Returns `score` and `begin`, see above, for the tokens of a prompt."""
  w, size = weights('target'), len(prompt)
  # Without the prompt, the model sees only its last token, which announces an image.
  both, padding = np.array([prompt, prompt[-1:] * size]), np.array([0, size - 1])

  def score(cache, tokens, start):
    logits, cache = forward(w, cache, np.array([tokens] * 2), size + start, padding)
    return probabilities(logits, start + 1), cache

  cache = jnp.zeros((LAYERS, 2, 2, size + LENGTH + WINDOW, HEADS, WIDTH))
  logits, cache = forward(w, cache, both, 0, padding)
  return score, (probabilities(logits[-1:], 0)[0], cache)


def load_corrector():
  """Returns the corrector: a small network that reads seven tokens to the left and above."""
  w = weights('neighbours')
  up, right = np.array([(0, -1), (1, 0), (1, 1), (1, -1), (0, -2), (2, 0), (1, 2)]).T

  @jax.jit
  def logits(near):
    x = w['embedding/embedding'][near].reshape(len(near), -1)
    for name in ('hidden_0', 'hidden_1'):
      x = jax.nn.silu(x @ w[f'{name}/kernel'] + w[f'{name}/bias'])
    return x @ w['output']

  def corrector(tokens, first, count):
    position = np.arange(first, first + count)[:, None]
    source, column = position - up * ROW + right, position % ROW + right
    inside = (source >= 0) & (column >= 0) & (column < ROW)
    near = np.where(inside, np.array(tokens)[np.where(inside, source, 0)], VOCABULARY)
    return probabilities(logits(near), first)

  return corrector


def probabilities(logits, first):
  """Returns `[n, V]` of tokens number `first` and later, certain where the grammar is."""
  position = np.arange(first, first + len(logits))
  forced = np.where(position % ROW == SIDE, ROW_END, -1)
  forced = np.where(position >= LENGTH - 1, IMAGE_END, forced)[:, None]
  return np.where(forced < 0, jax.nn.softmax(logits), np.float32(np.arange(VOCABULARY) == forced))


def read(prompt):
  """Returns the tokens of a prompt, and the image tokenizer's code of every image token."""
  file = bytes(np.asarray(load_file(FOLDER / 'text' / 'model.safetensors')['file']))
  ids = json.loads(file)['model']['vocab']
  # The network has the codes first, then the ends of rows and of the image, then all others.
  first = [*range(4, 4 + CODES), 1031, 1028]
  order = first + sorted(set(ids.values()) - set(first))
  words = f'generate an image of {prompt.lower()}'.split()
  if unknown := [word for word in words if word not in ids]:
    sys.exit(f'prompt has words that the model does not know, {unknown}; use others.')
  names = '<s>', *words, '<reserved08706>', '<racm3:break>'
  # As in Chameleon, the letters of IMGIMGBCZ are the digits of code 12.
  codes = {ids[name]: int(''.join(str(ord(letter) - ord('A')) for letter in name[6:-1]))
           for name in ids if name.startswith('IMGIMG')}
  return [order.index(ids[name]) for name in names], np.array([codes[i] for i in first[:CODES]])


def load_pixels(code):
  """Returns the function from the tokens of an image to its pixels: the decoder of a VQGAN."""
  w = weights('tokenizer')

  dense = lambda x, name: x @ w[f'{name}/kernel'] + w[f'{name}/bias']

  def conv(x, name):
    kernel, numbers = w[f'{name}/kernel'], ('NHWC', 'HWIO', 'NHWC')
    x = jax.lax.conv_general_dilated(x[None], kernel, (1, 1), 'SAME', dimension_numbers=numbers)
    return x[0] + w[f'{name}/bias']

  def norm(x, name):  # Groups of four channels.
    x = x.reshape(*x.shape[:2], -1, 4)
    x = (x - x.mean((0, 1, 3), keepdims=True)) / jnp.sqrt(x.var((0, 1, 3), keepdims=True) + 1e-6)
    return x.reshape(*x.shape[:2], -1) * w[f'{name}/scale'] + w[f'{name}/bias']

  def residual(x, name):
    h = conv(jax.nn.silu(norm(x, f'{name}/norm_1')), f'{name}/conv_1')
    h = conv(jax.nn.silu(norm(h, f'{name}/norm_2')), f'{name}/conv_2')
    return h + (dense(x, f'{name}/shortcut') if f'{name}/shortcut/kernel' in w else x)

  def attend(x, name):
    h = norm(x, f'{name}/norm').reshape(-1, x.shape[-1])
    query, key, value = (dense(h, f'{name}/{part}') for part in ('query', 'key', 'value'))
    h = jax.nn.softmax(query @ key.T / x.shape[-1]**0.5) @ value
    return x + dense(h, f'{name}/out').reshape(x.shape)

  @jax.jit
  def pixels(codes):
    x = w['codebook/embedding'][codes]
    x = dense(x / jnp.linalg.norm(x, axis=-1, keepdims=True), 'post_quant_conv')
    x = conv(x, 'decoder/conv_in')
    x = attend(residual(x, 'decoder/mid/res_0'), 'decoder/mid/attn_0')
    x = residual(x, 'decoder/mid/res_1')
    for level in ('decoder/up_0', 'decoder/up_1', 'decoder/up_2'):
      for i in range(2):
        x = residual(x, f'{level}/res_{i}')
        x = attend(x, f'{level}/attn_{i}') if level == 'decoder/up_0' else x
      if level != 'decoder/up_2':
        x = conv(x.repeat(2, 0).repeat(2, 1), f'{level}/upsample')
    return conv(jax.nn.silu(norm(x, 'decoder/norm_out')), 'decoder/conv_out')

  codes = lambda tokens: code[np.array(tokens[:-1]).reshape(SIDE, ROW)[:, :SIDE]]
  return lambda tokens: np.clip((np.asarray(pixels(codes(tokens))) + 1) / 2, 0, 1)


def main(prompt='a fox on white', seed=4):
  """Draws the image of a prompt with every decoder, and writes `one_file.png`."""
  tokens, code = read(prompt)
  (score, begin), pixels, corrector = load_model(tokens), load_pixels(code), load_corrector()
  # The key of the first image of a seed in the library, so these are its images, too.
  noise = position_noise(jax.random.fold_in(jax.random.key(seed), 0), LENGTH + WINDOW, VOCABULARY)
  rng = np.random.default_rng(seed)
  _, axes = plt.subplots(1, 5, figsize=(11, 2.7), layout='constrained')
  for axis, (decode, *chance) in zip(axes, (
      (vanilla, noise), (seed_exact, noise), (sjd, rng), (mc_sjd, rng),
      (corrected, rng, corrector))):
    tokens, passes = decode(score, begin, LENGTH, *chance)
    axis.imshow(pixels(tokens))
    axis.set_title(f'{decode.__name__}: {passes} passes', fontsize=10)
    axis.axis('off')
  plt.savefig('one_file.png', dpi=150)


if __name__ == '__main__':
  main(*sys.argv[1:2])
