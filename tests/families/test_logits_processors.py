"""The sampled distributions, compared with the official samplers on a fixed sequence.

Contexts, guidance, cuts and grammar at once. `tests/data/logits_processors.npz` was recorded in
float32 from the official classes over the networks of transformers 5.23 (Chameleon's own mask of
image tokens left out), with the sizes of `sizes.py` and the weights of `published.py`,
seeds 61, 63 and 65; `softmax` came last.

- Lumina-mGPT, `inference_solver.py`: `LLMImageStartTriggeredUnbatchedClassifierFreeGuidance...`
  with scale 4, which finds the context to lead away from on its own, `MultiModalLogitsProcessor`
  and `InterleavedTopKLogitsWarper` with 40 image tokens.
- Anole, Meta's `logits_processor.py` as `ImageDecoder` joins it:
  `InBatchInstructCFGLogitsProcessor` with scales 3 and 1.2 over the prompt, its images (none) and
  nothing, `AllowOnlyTokensLogitsProcessor` with the image tokens, temperature 0.7, `top_p` 0.9.
- Emu3, `image_generation.py`: `UnbatchedClassifierFreeGuidanceLogitsProcessor` with scale 3 and the
  official words to lead away from, `PrefixConstrainedLogitsProcessor` with
  `Emu3PrefixConstrainedLogitsHelper`, then the 40 most probable tokens.

`tests/data/lumina_mgpt_2.npz` has the same from the processors of `create_logits_processor` of
Lumina-mGPT 2.0 (scale 4, 40 image tokens; a scale of 2 left the same; scale 1 is `_unguided`), seed
83, and `tests/data/emu3_5.npz` from `UnbatchedClassifierFreeGuidanceLogitsForVisualTokenWith
DifferentialTopKProcessor` of baaivision/Emu3.5 (commit 8fcf1da) with scale 5 and the 40 most
probable image tokens over `Emu3ForCausalLM`, seed 76.

`tests/data/mammothmoda2.npz` has it from `generate_t2i` of MammothModa2's branch qwen25vl (commit
768cd4e, transformers 4.53.2) with scale 7, temperature 0.9 and the 40 most probable codes, seed
107, where drawn tokens were replaced by given ones; its scope of tokens, which passes the end of
the vocabulary, was cut to the codes. `prompt` are the ids of the whole text by its own tokenizer.

The prompt is 'a cat'. Codes are `default_rng(seed + 1).integers(0, num_codes)` where the grammar
forces nothing. Arrays hold probabilities at every position in descending order, and the published
ids that they belong to, -1 where there are no more.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.families import early_fusion as early_fusion_family
from cspd_jax.models import early_fusion
from cspd_jax.text import templates
from tests.builders import published, sizes, texts
from tests.marks import representative

for _package in ('tiktoken', 'tokenizers'):  # They read the files of words.
  pytest.importorskip(_package)

# Config, tokenizer file, seed, options, and the file and names of what was recorded.
CASES = {
    'lumina_mgpt': (sizes.LUMINA_MGPT, texts.chameleon, 61, SamplingParams(
        guidance_scale=4.0, top_k=40), ('logits_processors', 'lumina_mgpt', 'lumina_mgpt_ids')),
    'anole': (sizes.ANOLE, texts.chameleon, 63, SamplingParams(
        guidance_scale=3.0, temperature=0.7, top_p=0.9), (
            'logits_processors', 'anole', 'anole_ids')),
    'emu3': (sizes.EMU3, texts.emu3, 65, SamplingParams(
        guidance_scale=3.0, top_k=40), ('logits_processors', 'emu3', 'emu3_ids')),
    'emu3_5': (sizes.EMU3_5, texts.emu3, 76, SamplingParams(
        guidance_scale=5.0, top_k=40), ('emu3_5', 'probabilities', 'probabilities_ids')),
    'lumina_mgpt_2': (
        sizes.LUMINA_MGPT_2, texts.lumina_mgpt_2, 83, SamplingParams(
            guidance_scale=4.0, top_k=40), ('lumina_mgpt_2', 'probabilities', 'ids')),
    'lumina_mgpt_2 unguided': (
        sizes.LUMINA_MGPT_2, texts.lumina_mgpt_2, 83, SamplingParams(
            guidance_scale=1.0, top_k=40), (
                'lumina_mgpt_2', 'probabilities_unguided', 'ids_unguided')),
    'mammothmoda2': (sizes.MAMMOTHMODA2, texts.mammothmoda2, 107, SamplingParams(
        guidance_scale=7.0, temperature=0.9, top_k=40), (
            'mammothmoda2', 'probabilities', 'probabilities_ids')),
}


def _contexts(name, text, config):
  """Published ids of the prompt and of the null condition."""
  if name == 'anole':  # Meta's sampler; LANTERN's, which is the default here, has other words.
    return [0, *text.encode('a cat'), 8710, 8197], [0, 8197]
  if name == 'lumina_mgpt_2':  # That of the settings of the published tokenizer.
    return templates.lumina_mgpt_2(
        text, 'a cat', config.height, config.width, first_token='<|im_end|>')
  if name == 'mammothmoda2':
    request, null = templates.mammothmoda2(
        text, 'a cat', config.height, config.width, sides='{width}*{height}')
    np.testing.assert_array_equal(request, published.recorded(name)['prompt'])
    return request, null
  return early_fusion_family.FAMILY.prompt_writers[name](text, 'a cat', config.height, config.width)


@pytest.mark.parametrize('case', representative(CASES, 'lumina_mgpt'))
def test_probabilities_are_those_of_the_official_sampler(case):
  config, file, seed, options, (recorded, values, places) = CASES[case]
  name = case.partition(' ')[0]
  text = texts.vocabulary(file(), name)
  order = early_fusion.order(config)
  prompt = templates.padded([_contexts(name, text, config)])
  condition = prompt._replace(tokens=np.argsort(order)[prompt.tokens])
  positions = jnp.arange(config.num_tokens)[None]
  forced = early_fusion.forced(config, positions)
  tokens = np.array(forced)
  tokens[tokens < 0] = np.random.default_rng(seed + 1).integers(
      0, config.num_codes, np.sum(tokens < 0))

  @jax.jit
  def probabilities(params):
    streams = [early_fusion.logits_and_features(
        params, config, condition, tokens, jnp.array([drop]))[0] for drop in (False, True)]
    return warp_lib.probabilities(jnp.stack(streams), options, positions, forced)[0]

  with jax.default_matmul_precision('highest'):
    result = np.asarray(probabilities(published.params(name, config, seed)))
  recorded = published.recorded(recorded)
  want, ids = recorded[values], recorded[places]
  whole = np.zeros((config.num_tokens, config.vocab_size), np.float32)
  np.put_along_axis(whole, np.maximum(ids, 0), np.where(ids < 0, 0, want), axis=1)
  np.testing.assert_allclose(result, whole[:, order[:config.num_image_tokens]], atol=2e-5)
  # No other token of the vocabulary is allowed in an image.
  np.testing.assert_allclose(whole[:, order[:config.num_image_tokens]].sum(axis=1), 1, atol=1e-5)
  assert np.array_equal(result > 0, whole[:, order[:config.num_image_tokens]] > 0)
