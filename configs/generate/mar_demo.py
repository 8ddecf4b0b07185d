"""Images from the shipped MAR model with its fastest exact decoder.

  python -m experiments.generate --config=configs/generate/mar_demo.py

Result: in runs/mar_generate, as with `configs/generate/demo.py`.
"""

from configs.generate import demo


def get_config() -> demo.Config:
  """The configuration of `experiments.generate`."""
  return demo.Config(model='mar_demo', workdir='runs/mar_generate')
