"""A tiny GLM-Image of transformers, with the weights of `published.py`."""

import numpy as np
import torch
import transformers
from transformers.models import glm_image

from tests.builders import published
from tests.models import cases

# Grids of 4x3 and 8x6 tokens; half of a head rotates, in sections of 1, 1 and 2 pairs.
CONFIG = cases.GLM_IMAGE
SEED = 81
# Tokens of both prompts: the positions of images lie beyond 64.
LENGTHS = 70, 62


def settings(config, **text):
  """The settings of a network with these sizes."""
  return transformers.GlmImageConfig(
      text_config=dict(
          vocab_size=config.vocab_size, hidden_size=config.dim, intermediate_size=config.ffn_dim,
          num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
          num_key_value_heads=config.num_kv_heads, vision_vocab_size=config.output_size,
          attention_bias=config.qkv_bias, pad_token_id=config.vocab_size - 1,
          eos_token_id=config.image_end, max_position_embeddings=512, rope_parameters=dict(
              rope_type='default', rope_theta=config.rope_base, mrope_section=[*config.sections],
              partial_rotary_factor=config.rotary_factor), **text),
      vision_config=dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16, image_size=32),
      vq_config=dict(embed_dim=8, num_embeddings=config.num_codes, latent_channels=16),
      image_start_token_id=config.image_start, image_end_token_id=config.image_end,
      image_token_id=config.vocab_size - 2)


def network(config=CONFIG, seed=SEED):
  """The network, with the drawn weights in place of all that draw tokens."""
  result = glm_image.GlmImageForConditionalGeneration(settings(config)).eval()
  drawn = published.tensors('glm_image', config, seed)
  missing, unexpected = result.load_state_dict(
      {name: torch.from_numpy(x) for name, x in drawn.items()}, strict=False)
  assert not unexpected and all(name.startswith(('model.visual', 'model.vqmodel'))
                                for name in missing)
  return result


def prompts(config=CONFIG):
  """Ids and visibility `[2, C]` of two prompts, padded on the left, that end with the start."""
  rng = np.random.default_rng(SEED + 1)
  ids = rng.integers(config.output_size, config.vocab_size - 2, (2, max(LENGTHS)))
  ids[:, -1] = config.image_start
  visible = np.arange(max(LENGTHS)) >= max(LENGTHS) - np.array(LENGTHS)[:, None]
  return np.where(visible, ids, config.vocab_size - 1), visible


def arguments(config=CONFIG):
  """The prompts and grids as the processor returns them."""
  ids, visible = prompts(config)
  grids = [[1, config.height, config.width], [1, *config.small]]
  return dict(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(visible).long(),
              image_grid_thw=torch.tensor(grids * 2), images_per_sample=torch.tensor([2, 2]))


def logits(model, tokens, config=CONFIG):
  """Logits `[2, T, outputs]` of the positions of images, by the model's own steps."""
  given, result = arguments(config), []
  mask = given.pop('attention_mask')
  with torch.no_grad():
    out = model(**given, attention_mask=mask, use_cache=True)
    result.append(out.logits[:, -1])
    for token in tokens[:, :-1].T:
      mask = torch.nn.functional.pad(mask, (0, 1), value=1)
      out = model(input_ids=torch.from_numpy(token.copy())[:, None], attention_mask=mask,
                  cache=out.cache, use_cache=True)
      result.append(out.logits[:, -1])
  return torch.stack(result, dim=1).numpy()


def greedy(model, config=CONFIG):
  """The tokens `[2, T - 1]` of its own `generate` without sampling, given that all are codes."""
  given = arguments(config)
  made = model.generate(
      **given, max_new_tokens=config.num_tokens - 1, do_sample=False,
      suppress_tokens=list(range(config.num_codes, config.output_size)))
  return made[:, given['input_ids'].shape[1]:].numpy()
