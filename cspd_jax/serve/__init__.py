"""The server: images on request, decoded together and watched while they are decoded.

`scheduler` owns the device and decodes the images in `slot_batches`, `wire` is the format of
OpenAI's images endpoint, `app` the HTTP service, `guard` what it refuses, `access` its log,
`server` its sockets and signals.
"""
