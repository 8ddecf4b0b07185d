"""The counters of a server, for Prometheus."""

import functools
from typing import Any

import prometheus_client

# Limits of the histograms of seconds.
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class Metrics:
  """The counters of a server for Prometheus, and of its process, changed by any thread.

  Seconds are those from the request of an image. `passes` are what the device does, `image_passes`
  what images need: a pass over eight busy slots is one of `passes`, and one for each of the eight.
  """

  def __init__(self) -> None:
    self._registry = registry = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)

    def metric(kind: Any, name: str, text: str, *labels: str, **more: Any) -> Any:
      return kind(f'cspd_{name}', text, labels, registry=registry, **more)

    counter = functools.partial(metric, prometheus_client.Counter)
    gauge = functools.partial(metric, prometheus_client.Gauge)
    histogram = functools.partial(metric, prometheus_client.Histogram, buckets=_SECONDS)
    self.requests = counter(
        'requests', 'Requests for images, by the status of their line in the log.', 'status')
    self.images = counter('images', 'Images that left.', 'decoder', 'outcome')
    self.waiting = gauge('images_waiting', 'Images without a slot.')
    self.busy = gauge('slots_busy', 'Slots in use.', 'decoder')
    self.slots = gauge('slots', 'All slots: images that are decoded at once.', 'decoder')
    self.compiling = gauge('compiling', 'Programs that are compiled in the background.')
    self.passes = counter(
        'passes', 'Forward passes of the target, each over all slots of a program, busy or not; '
        'prefills, one for each image, are not counted.', 'decoder')
    self.tokens = counter('tokens', 'Tokens of completed images.', 'decoder')
    self.image_passes = counter(
        'image_passes', 'Forward passes of the target that completed images needed, prefills '
        'included, summed over the images; tokens per pass are cspd_tokens_total divided by it.',
        'decoder')
    self.queue_seconds = histogram('queue_seconds', 'Time to a slot.')
    self.image_seconds = histogram('image_seconds', 'Time to a complete image.', 'decoder')

  def text(self) -> tuple[bytes, str]:
    """Returns all values in Prometheus' text format, and its content type."""
    return prometheus_client.generate_latest(self._registry), prometheus_client.CONTENT_TYPE_LATEST
