// Requests images and shows them while they are decoded. All texts are set as text, never as HTML.
'use strict';

const PICTURES = 12;  // Partial pictures of an image, at most.
const SILENCE = 20_000;  // Milliseconds: a server that decodes sends something every five seconds.
const LOST = 'connection lost; try again when the server can be reached';
const LARGEST_SEED = 2 ** 32;
const [CELL, EDGE] = [16, 1];  // Pixels of a token on the canvas of colours, and of its outline.
const ENTER_KEY = 'Enter the key of this server.';
const EXACT = ['seed-exact', 'seed-exact up to rounding', 'exact'];
const $ = (id) => document.getElementById(id);
const field = (id) => $(id).value;

const asked = new URLSearchParams(location.search);
let model = null;
let starting = null;  // The promise of the lists that are being loaded.
let running = null;  // The AbortController of what is being decoded.

function say(text, isError = false) {
  $('status').textContent = text;
  $('status').classList.toggle('error', isError);
}

function element(name, text = '', attributes = {}) {
  const result = document.createElement(name);
  result.textContent = text;
  for (const [key, value] of Object.entries(attributes)) result.setAttribute(key, value);
  return result;
}

// A decoder whose lines may also end after an underscore or a bracket.
const breakable = (decoder) => decoder.replace(/[_(]/g, '$&\u200b');

function newSeed() {
  $('seed').value = crypto.getRandomValues(new Uint32Array(1))[0];
}

// Waits for something from the network, but not for ever.
async function received(promise) {
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(reject, SILENCE, new TypeError('silence'));
  });
  try {
    return await Promise.race([promise, silence]);
  } catch (error) {  // A TypeError is also what `fetch` has for errors of the network.
    throw error instanceof TypeError ? new Error(LOST) : error;
  } finally {
    clearTimeout(timer);
  }
}

async function request(path, options = {}) {
  const headers = {...options.headers};
  if (field('key')) headers['Authorization'] = `Bearer ${field('key')}`;
  const answer = await received(fetch(path, {...options, headers}));
  if (answer.status === 401) {
    $('key_label').hidden = false;
    throw new Error(field('key') ? 'this is not the key of this server' : ENTER_KEY);
  }
  if (!answer.ok) {
    let message = `the server answered ${answer.status}`;
    try {
      message = (await answer.json()).error.message;
    } catch {}  // A proxy has answered.
    throw new Error(message);
  }
  return answer;
}

// Yields the events of a stream: the JSON values of its data lines.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  try {
    for (;;) {
      const {done, value} = await received(reader.read());
      if (done) return;
      text += value;
      const lines = text.split('\n');
      text = lines.pop();
      for (const line of lines) if (line.startsWith('data: ')) yield JSON.parse(line.slice(6));
    }
  } finally {
    reader.cancel().catch(() => {});  // Of a stream that has not ended: the server stops as well.
  }
}

// A figure with an image, its passes and its time; the size of the image is such as 64x64.
class Side {
  constructor(order, link, guarantee, size) {
    [this.order, this.link] = [order, link];
    this.node = $('side').content.cloneNode(true).firstElementChild;
    this.image = this.node.querySelector('img');
    this.canvas = this.node.querySelector('canvas');
    this.canvas.hidden = !$('colours').checked;
    const [width, height] = size.split('x').map(Number);
    this.node.querySelector('.picture').style.aspectRatio = `${width} / ${height}`;
    this.image.classList.toggle('small', width < 256);
    this.image.hidden = true;  // Until there is a picture.
    this.image.alt = `${order.prompt}, being decoded by ${order.decoder}`;
    const title = this.node.querySelector('h3');
    title.append(breakable(order.decoder), ' ', element('small', guarantee));
    this.start = null;  // When the image has a slot.
    this.cells = null;  // The pass of every token; -1 if none has committed it yet.
  }

  put(name, text) {
    this.node.querySelector(`.${name}`).textContent = text;
  }

  message(text, kind = '') {
    this.put('message', text);
    this.node.querySelector('.message').className = `message ${kind}`;
    this.node.querySelector('.message').setAttribute('role', kind ? 'alert' : 'none');
  }

  numbers(tokens, passes) {
    this.put('passes', passes);
    this.put('rate', passes ? (tokens / passes).toFixed(2) : '–');
    if (this.start) this.put('seconds', ((performance.now() - this.start) / 1000).toFixed(1));
  }

  // Outlines the tokens that one pass committed together in its colour, with some of it on them.
  colour(tint) {
    const {canvas, cells} = this;
    [canvas.height, canvas.width] = [cells.length * CELL, cells[0].length * CELL];
    const context = canvas.getContext('2d');
    cells.forEach((row, y) => row.forEach((round, x) => {
      if (round < 0) return;
      const fill = (alpha, left, top, width, height) => {
        context.globalAlpha = alpha;
        context.fillRect(x * CELL + left, y * CELL + top, width, height);
      };
      context.fillStyle = `hsl(${(round * 137.5) % 360} 85% 55%)`;
      fill(tint, 0, 0, CELL, CELL);
      if (row[x - 1] !== round) fill(1, 0, 0, EDGE, CELL);
      if (row[x + 1] !== round) fill(1, CELL - EDGE, 0, EDGE, CELL);
      if (cells[y - 1]?.[x] !== round) fill(1, 0, 0, CELL, EDGE);
      if (cells[y + 1]?.[x] !== round) fill(1, 0, CELL - EDGE, CELL, EDGE);
    }));
  }

  show(event) {
    const kind = event.type.split('.')[1];
    if (kind === 'progress') {
      this.message({waiting: 'Waiting for a slot.', prior: 'The prior reads the words.'}[event.stage] ?? '');
      if (event.stage === 'waiting') return;
      this.start ??= performance.now();
      this.numbers(event.tokens, event.passes);
      this.node.querySelector('progress').value = event.tokens / event.total;
      const [rows, columns] = model.grid;
      this.cells ??= Array.from({length: rows}, () => Array(columns).fill(-1));
      for (const [row, column, round] of event.new_cells) this.cells[row][column] = round;
      this.colour(0.25);
    } else {
      this.image.src = `data:image/png;base64,${event.b64_json}`;
      this.image.hidden = false;
    }
    if (kind === 'completed') this.complete(event);
  }

  complete(event) {
    this.result = event;
    this.numbers(event.usage.output_tokens, event.passes);
    this.node.querySelector('progress').value = 1;
    this.cells = event.round_of_cell;
    this.colour(0.06);
    this.image.alt = `${this.order.prompt}, decoded by ${this.order.decoder}, seed ${event.seed}`;
    if (event.unknown_words.length && !model?.words) {  // Without a list, the image says it.
      this.message(`The model does not read: ${event.unknown_words.join(', ')}.`, 'warning');
    }
    const download = this.node.querySelector('.download');
    download.href = this.image.src;
    const words = this.order.prompt.replace(/[^\p{L}\p{N}]+/gu, '_').slice(0, 60);
    download.download = `${words}_seed${event.seed}.png`;
    this.node.querySelector('.repeat').href = this.link;
    this.node.querySelector('.links').hidden = false;
  }

  async run(signal) {
    const answer = await request('v1/images/generations', {
      method: 'POST', signal, headers: {'Content-Type': 'application/json'},
      body: JSON.stringify({...this.order, stream: true, progress: true, partial_images: PICTURES}),
    });
    for await (const event of events(answer)) {
      if (event.error) throw new Error(event.error.message);
      this.show(event);
    }
    if (!this.result) throw new Error('the connection ended before the image was complete');
    await this.image.decode();
    keep(this);
  }
}

// Adds an image to those of the visit; its button fills in the form again.
function keep(side) {
  const button = element('button', '', {type: 'button'});
  const {order} = side;
  button.append(
      element('img', '', {src: side.image.src, alt: side.image.alt}), element('span', order.prompt),
      element('span', `${side.result.passes} passes, ${breakable(order.decoder)}`));
  button.querySelector('img').className = side.image.className;
  button.addEventListener('click', () => {
    [$('prompt').value, $('seed').value, $('decoder').value] =
        [order.prompt, order.seed, order.decoder];
    warn();
    $('prompt').focus();
  });
  const item = element('li');
  item.append(button);
  $('gallery').prepend(item);
  $('visit').hidden = false;
}

function pixels(image) {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  return context.getImageData(0, 0, canvas.width, canvas.height).data;
}

// Says in words what two complete images have in common, and their passes.
function difference([first, second]) {
  const [one, other] = [pixels(first.image), pixels(second.image)];
  const isSame = one.length === other.length && one.every((value, i) => value === other[i]);
  const [fewer, more] = [first, second].map((side) => side.result.passes).sort((a, b) => a - b);
  const isExact = [first, second].every((side) => EXACT.includes(side.result.guarantee));
  return (isSame ? 'The same picture, pixel for pixel'
      : isExact ? 'Two draws from the same distribution' : 'Pictures of different distributions') +
      `: ${fewer} passes instead of ${more}, ${(more / fewer).toFixed(1)} times fewer.`;
}

function place(sides) {
  $('stored').hidden = true;
  $('sides').replaceChildren(...sides.map((side) => side.node));
  $('sides').classList.toggle('two', sides.length > 1);
}

// Warns of words that the model does not know, if it has a list of those that it does.
function warn() {
  const words = new Set(field('prompt').toLowerCase().match(/[\p{L}\p{M}\p{N}_]+/gu));
  const unknown = [...words].filter((word) => model?.words && !model.words.includes(word));
  $('unknown').hidden = !unknown.length;
  $('unknown').textContent = `This model does not know: ${unknown.join(', ')}. ` +
      'The words that it knows are listed below.';
}

const linked = (values) => `?${new URLSearchParams(values)}`;

async function generate() {
  running?.abort();
  const controller = running = new AbortController();
  const order = {prompt: field('prompt'), seed: Number(field('seed'))};
  const decoders = {decoder: field('decoder'), compare: field('compare')};
  const guarantees = Object.fromEntries(model.decoders.map((one) => [one.id, one.guarantee]));
  const link = linked({...order, ...decoders});
  const sides = Object.values(decoders).filter(Boolean).map(
      (decoder) => new Side({...order, decoder}, link, guarantees[decoder], model.size));
  place(sides);
  warn();
  say('Decoding …');
  $('stop').hidden = false;
  const outcomes = await Promise.allSettled(sides.map(async (side) => {
    try {
      await side.run(controller.signal);
    } catch (error) {
      const isStopped = controller.signal.aborted;
      side.message(isStopped ? 'Stopped.' : `Error: ${error.message}`, isStopped ? '' : 'error');
      throw error;
    }
  }));
  if (running !== controller) return;
  running = null;
  $('stop').hidden = true;
  const isDone = outcomes.every((outcome) => outcome.status === 'fulfilled');
  say(!isDone ? '' : sides.length > 1 ? difference(sides) : 'Complete.');
}

// Shows the images that are stored with the page, as a server sent them, and sets their seed.
async function example() {
  const stored = await (await received(fetch('example.json'))).json();
  if (running) return;
  const {prompt, seed} = stored;
  const [decoder, compare] = stored.images.map((image) => image.decoder);
  const sides = stored.images.map((image) => new Side(
      {prompt, seed, decoder: image.decoder}, linked({prompt, seed, decoder, compare}),
      image.guarantee, image.size));
  $('seed').value = seed;
  place(sides);
  sides.forEach((side, i) => side.show(stored.images[i]));
  await Promise.all(sides.map((side) => side.image.decode()));
  $('stored').textContent =
      `A stored example, “${prompt}” by the model ${stored.model}. ${difference(sides)}`;
  $('stored').hidden = Boolean(running);
}

function fill(select, values) {
  select.replaceChildren(...values.map(([value, text]) => element('option', text, {value})));
}

// Says that the server is not ready yet, as long as it is not.
async function ready() {
  const before = $('status').textContent;
  try {
    while (!running && (await (await received(fetch('health'))).json()).status === 'compiling') {
      say('The server is compiling its decoders …');
      await new Promise((resolve) => setTimeout(resolve, 1000));
      if (!running) say(before);
    }
  } catch (error) {
    say(`Error: ${error.message}`, true);
  }
}

// Loads the lists of the model, once if several ask at the same time.
function start() {
  starting ??= load().finally(() => {
    starting = null;
  });
  return starting;
}

async function load() {
  try {
    model = (await (await request('v1/models')).json()).data[0];
  } catch (error) {
    if (error.message === ENTER_KEY) say(ENTER_KEY);
    else say(`Error: ${error.message}`, true);
    return false;
  }
  const names = model.decoders.map((decoder) => decoder.id);
  $('about').textContent = `${model.root}: images of ${model.grid.join(' by ')} tokens`;
  fill($('decoder'), names.map((name) => [name, name]));
  fill($('compare'), [['', 'nothing'], ...names.map((name) => [name, name])]);
  $('compare').value = names[1] ?? '';
  $('examples').replaceChildren(...model.prompts.slice(0, 14).map((prompt) => {
    const button = element('button', prompt, {type: 'button'});
    button.addEventListener('click', () => {
      $('prompt').value = prompt;
      $('form').requestSubmit();
    });
    return button;
  }));
  say('');
  for (const name of ['decoder', 'compare']) {
    const value = asked.get(name);
    if (names.includes(value) || value === '' && name === 'compare') $(name).value = value;
  }
  $('prompt').required = true;
  $('prompt').value ||= model.prompts[0] ?? '';
  $('words').hidden = !model.words;
  $('words').querySelector('summary').textContent =
      `The ${model.words?.length} words that this model knows`;
  $('words').querySelector('p').textContent = model.words?.join(', ');
  warn();
  return true;
}

// Fills in what a link says, and starts nothing: a link of another site must not cause work.
async function open() {
  $('colours').checked = true;
  $('prompt').value = asked.get('prompt') ?? '';
  const seed = Number(asked.get('seed') ?? NaN);
  if (Number.isInteger(seed) && seed >= 0 && seed < LARGEST_SEED) $('seed').value = seed;
  else newSeed();
  if (!asked.has('prompt')) await example();
  if (!await start()) return;
  if (asked.has('prompt')) {
    say('Press Generate to repeat the image of the link.');
    $('generate').focus();
  }
  await ready();
}

$('form').addEventListener('submit', async (event) => {
  event.preventDefault();
  if (model || await start()) await generate();
});
// The lists of decoders and of examples need the key.
$('key').addEventListener('change', async () => {
  if (!model && await start()) await ready();
});
$('prompt').addEventListener('change', warn);
$('random').addEventListener('click', newSeed);
$('stop').addEventListener('click', () => running?.abort());
$('colours').addEventListener('change', () => {
  for (const canvas of document.querySelectorAll('#sides canvas')) {
    canvas.hidden = !$('colours').checked;
  }
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') running?.abort();
});
open().catch((error) => say(`Error: ${error.message}`, true));
