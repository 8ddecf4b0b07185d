"""Draws the pixels of tokens that cspd-generate has written for GLM-Image, with diffusers.

  python examples/decode_with_diffusers.py runs/glm_image/*.safetensors --device=cuda

Needs torch and a diffusers that has GlmImagePipeline, and nothing of this library. The pipeline is
loaded without its autoregressive part, because the files contain the tokens. Each picture is saved
next to its file.
"""

import argparse
import pathlib

import safetensors
import torch


def draw(pipeline, path: pathlib.Path, **options) -> pathlib.Path:
  """Writes the picture of one file of tokens; `options` are further ones of the pipeline."""
  with safetensors.safe_open(path, 'pt') as file:
    tokens, grid = file.get_tensor('prior_token_ids'), file.get_slice('large_tokens').get_shape()
    texts = file.metadata()
  height, width = (32 * side for side in grid[1:])  # Pixels of a token along each side.
  image, = pipeline(
      prompt=texts['prompt'], prior_token_ids=tokens.to(pipeline.device), height=height,
      width=width, generator=torch.Generator().manual_seed(int(texts['seed'])), **options).images
  image.save(picture := path.with_suffix('.png'))
  return picture


def main() -> None:
  """Loads the published pipeline, and draws every file that is named."""
  parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
  parser.add_argument('files', nargs='+', type=pathlib.Path, help='files of tokens')
  parser.add_argument('--model', default='zai-org/GLM-Image', help='folder or id of the pipeline')
  parser.add_argument('--device', default='cuda', help='device of torch')
  parser.add_argument('--steps', default=50, type=int, help='steps of the diffusion decoder')
  config = parser.parse_args()
  from diffusers import GlmImagePipeline
  pipeline = GlmImagePipeline.from_pretrained(
      config.model, vision_language_encoder=None, processor=None, torch_dtype=torch.bfloat16)
  pipeline.to(config.device)
  for path in config.files:
    print(draw(pipeline, path, num_inference_steps=config.steps))


if __name__ == '__main__':
  main()
