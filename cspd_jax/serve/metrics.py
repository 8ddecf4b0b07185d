"""The counters of a server, for Prometheus."""

import prometheus_client

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class Metrics:
  """The counters of one server, with those of its process; all may be changed by any thread.

  Seconds are those from the request of an image. `tokens` / `passes` are the tokens per pass.
  """

  def __init__(self) -> None:
    self._registry = registry = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)

    def counter(name: str, text: str, *labels: str) -> prometheus_client.Counter:
      return prometheus_client.Counter(f'cspd_{name}', text, labels, registry=registry)

    def gauge(name: str, text: str, *labels: str) -> prometheus_client.Gauge:
      return prometheus_client.Gauge(f'cspd_{name}', text, labels, registry=registry)

    def histogram(name: str, text: str, *labels: str) -> prometheus_client.Histogram:
      return prometheus_client.Histogram(
          f'cspd_{name}', text, labels, registry=registry, buckets=_SECONDS)

    self.requests = counter('requests', 'Answered requests for images.', 'status')
    self.images = counter('images', 'Images that left.', 'decoder', 'outcome')
    self.waiting = gauge('images_waiting', 'Images without a slot.')
    self.busy = gauge('slots_busy', 'Slots in use.', 'decoder')
    self.slots = gauge('slots', 'All slots.', 'decoder')
    self.rounds = counter('rounds', 'Forward passes over all slots.', 'decoder')
    self.tokens = counter('tokens', 'Tokens of completed images.', 'decoder')
    self.passes = counter('passes', 'Rounds of completed images.', 'decoder')
    self.queue_seconds = histogram('queue_seconds', 'Time to a slot.')
    self.image_seconds = histogram('image_seconds', 'Time to a complete image.', 'decoder')

  def text(self) -> tuple[bytes, str]:
    """Returns all values in Prometheus' text format, and its content type."""
    return prometheus_client.generate_latest(self._registry), prometheus_client.CONTENT_TYPE_LATEST
