"""Serves images: a page to watch them on, and the API of OpenAI's images endpoint.

  cspd-serve
  cspd-serve --model=checkpoints/emu3 --decoder='mc_sjd(window=32),vanilla' --dtype=bfloat16
  cspd-serve --host=0.0.0.0 --api_key_file=key.txt
  cspd-serve --served_model_name=gpt-image-1,dall-e-3 --lenient
  CSPD_PORT=8001 CSPD_LOG_FORMAT=json cspd-serve

Images of all requests are decoded together: they join when a slot is free and leave when they are
complete. An image depends only on the model, its prompt, seed, options and decoder.
"""

import dataclasses
import sys
from typing import Any, Literal

from cspd_jax import Model, cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields, packages
from cspd_jax.generation import defaults
from cspd_jax.generation.cascade import Cascade

# The decoders of models that do not name their own, the best first, and what they are compared
# with. The seed determines the image, the same one for all of these.
_DECODERS, _BASELINE = ('corrected_seed_exact', 'seed_exact'), 'vanilla'
_PACKAGES = ('starlette', 'uvicorn', 'prometheus_client')


@dataclasses.dataclass(frozen=True)
class Config:
  """The settings of a server.

  Attributes:
    loading: the model, of discrete tokens, and how it is loaded; on one device.
    decoder: specifications separated by commas, such as seed_exact(window=16),vanilla. Requests
      choose among them, and the first is the default. None serves the one that cspd-tune stored for
      as many images as slots, or else the one that the model names for servers or the best
      seed-exact one, and vanilla for comparison.
    served_model_name: names by which requests call the model, separated by commas, in place of its
      own.
    lenient: answers requests of clients that were written for other models: images are resampled
      to the `size` of a request, `quality`, `style`, `moderation` and `background` are ignored, and
      `response_format` may be url, which is a data URL. The answer says so.
    slots: images that are decoded at once, by each decoder. None is 8, but 1 on a CPU, where a pass
      takes longer with every slot.
    fixed_slots: decodes every image in a program of all slots, however few are busy, so that its
      bytes do not depend on how many images there are. Otherwise few images are decoded in fewer
      slots, which takes less time.
    queue: images that wait for a slot, at most; requests for more are refused.
    prompt_length: the most tokens of a prompt, for models whose prompts have any number of them.
      None is 256, or less for small images.
    deadline: seconds in which a request must be answered.
    grace: seconds in which the server completes what it has accepted when SIGTERM or Ctrl-C ends
      it; after these, the other requests are answered with 503. None completes all.
    host: the address to listen on. Others than this machine's own need a key.
    port: the port.
    api_key_file: a file with the key that clients must send.
    allowed_host: names under which a proxy makes the server known, separated by commas.
    log_format: text, or json, which makes every line of the output an object. Each request is a
      line, with its id.
  """

  loading: groups.LoadFlags = dataclasses.field(
      default=groups.LoadFlags(), metadata=dict(without=('mesh',)))
  decoder: tuple[str, ...] | None = None
  served_model_name: tuple[str, ...] | None = None
  lenient: bool = False
  slots: int | None = None
  fixed_slots: bool = False
  queue: int = 64
  prompt_length: int | None = None
  deadline: float = 600.0
  grace: float | None = None
  host: str = '127.0.0.1'
  port: int = 8000
  api_key_file: str | None = None
  allowed_host: tuple[str, ...] = ()
  log_format: Literal['text', 'json'] = 'text'

  def __post_init__(self):
    fields.check(self, slots=(1, 1024), queue=(0, 10**5), port=(0, 2**16 - 1),
                 prompt_length=(1, 2**16), deadline=(1, 10**6), grace=(0, 10**6))


@cli.command(Config, environment='CSPD_')
def main(config: Config) -> int:
  try:
    for name in _PACKAGES:
      packages.load(name)
  except ImportError as error:
    raise ImportError(
        f'{error}, which the server needs; run {packages.install("serve")}.') from error
  from cspd_jax.serve import access, guard, server, wire  # Only this command needs these packages.

  fields.check_lists(config, 'decoder', 'served_model_name')
  if config.loading.mesh is not None:
    # Of a configuration file; there is no such flag.
    raise ValueError(f'mesh is {config.loading.mesh!r}, and a server decodes on one device; leave '
                     'it out, or use cspd-generate.')
  key = None if config.api_key_file is None else server.read_key(config.api_key_file)
  if key is None and not guard.is_loopback(config.host):
    raise ValueError(f'host is {config.host!r}, which other machines reach, and api_key_file is '
                     'None; pass a file with a key, or --host=127.0.0.1.')
  with server.bind(config.host, config.port) as sock, access.lines(config.log_format) as log:
    guarded: dict[str, Any] = dict(key=key, allowed_hosts=config.allowed_host, log=log)
    with server.loading(sock, **guarded):
      model = inputs.model(config.loading, tokens='discrete')
      slots = config.slots or (1 if model.devices[0].platform == 'cpu' else 8)
      served = wire.serving(model, decoders(config.decoder, model, slots),
                            config.served_model_name, config.lenient)
      scheduler = server.make_scheduler(
          served, slots=slots, queue=config.queue, prompt_length=config.prompt_length,
          fixed_slots=config.fixed_slots)
    host, port = sock.getsockname()[:2]
    place = f'[{host}]:{port}' if ':' in host else f'{host}:{port}'
    print(f'Serving {model.name!r} on http://{place} with {", ".join(served.decoders)}, '
          f'{slots} {"slot" if slots == 1 else "slots"} each.', flush=True)
    return server.run(
        served, scheduler, sock, deadline=config.deadline, grace=config.grace, **guarded)


def decoders(texts: tuple[str, ...] | None, model: Model, slots: int) -> list[str]:
  """Returns the decoders to serve in as many slots, without repetitions."""
  if texts is None:
    table, fallback = model.table, str(model.specification(batch_size=slots))
    # What was measured on such a device counts more than what the folder names for all devices.
    is_tuned = model.devices[0].device_kind in (model.defaults.get('seconds') or {})
    stored = (defaults.find(model.defaults.get(name), model.devices[0], slots)
              for name in (('decoder', 'serve') if is_tuned else ('serve', 'decoder')))
    choices = [*filter(None, stored), *(name for name in _DECODERS if name in table.decoders)]
    stages = (model.prior, model) if isinstance(model, Cascade) else (model,)  # One text for both.
    best = next((text for text in choices if all(
        table.needs(text) in (None, *stage.drafts) for stage in stages)), fallback)
    texts = (best, _BASELINE) if _BASELINE in table.decoders else (best,)
  return list(dict.fromkeys(texts))


if __name__ == '__main__':
  sys.exit(main())
