"""What users of other programs and packages type, and what it is here.

A name stands for names here, of which the first supported one counts, or for the text of what to do
in its place. `naming.suggestion` reads both. `ALIASES` are for Python, `FLAGS` for command lines.
"""

from cspd_jax.core import naming

_COUNT = "one image is generated per prompt, so pass the prompt as often: ['a fox on white'] * 4"
_SIZE = ("the size of images is the model's: load one that supports several with "
         'grid=(ROWS, COLUMNS) of tokens, or resize the images')
_GREEDY = 'pass temperature=0, which is greedy with every decoder, such as vanilla'
_DEVICE = ('JAX chooses the device: set JAX_PLATFORMS=cpu before Python starts, or load the model '
           'with sharding=jax.devices()[0]')
_NULL = ('models are guided away from an empty prompt alone, so leave it out and pass '
         'guidance_scale')
_PASSES = ('an image takes as many forward passes as its decoder needs; choose another decoder, '
           'such as mc_sjd(window=32)')
_SAVE = ('its folder holds it; cspd_jax.files.store.save(FOLDER, KIND, model.config, '
         'model.params) writes other parameters, and load(MODEL, target=FOLDER) reads them')
_ARRAYS = 'its parameters are the arrays model.params, and load(..., dtype=...) converts them'

ALIASES: naming.Aliases = {
    # Arguments of `generate`, and of `load`.
    **dict.fromkeys(('cfg', 'cfg_scale', 'guidance', 'cfg_weight'), ('guidance_scale',)),
    'cfg_interval': ('guidance_interval',),
    **dict.fromkeys(('seeds', 'key', 'rng', 'generator', 'random_state', 'manual_seed'),
                    ('seed',)),
    'batch': ('batch_size',), 'temp': ('temperature',),
    **dict.fromkeys(('prompt', 'text', 'texts', 'inputs', 'input_ids', 'class_labels'),
                    ('prompts',)),
    **dict.fromkeys(('verbose', 'show_progress', 'use_tqdm'), ('progress',)),
    **dict.fromkeys(('precision', 'torch_dtype'), ('dtype',)),
    **dict.fromkeys(('load_in_8bit', 'quantization', 'quantization_config'), ('quantize',)),
    **dict.fromkeys(('mesh', 'tensor_parallel_size'), ('sharding',)),
    'image': ('prefix',),
    **dict.fromkeys(('num_images', 'n', 'num_images_per_prompt', 'num_return_sequences',
                     'num_samples', 'samples'), _COUNT),
    **dict.fromkeys(('width', 'height', 'size', 'resolution', 'image_size'), _SIZE),
    'do_sample': _GREEDY,
    **dict.fromkeys(('negative_prompt', 'negative_prompts'), _NULL),
    **dict.fromkeys(('device', 'device_map'), _DEVICE),
    **dict.fromkeys(('num_inference_steps', 'steps', 'num_steps', 'max_new_tokens', 'max_tokens'),
                    _PASSES),
    **dict.fromkeys(('draft_model', 'assistant_model', 'speculative_config'), (
        "load the model with draft=FOLDER, and choose decoder='speculative'")),
    'num_speculative_tokens': "choose decoder='speculative' with length=4",
    'output_type': 'out.images are arrays, and out.save(FOLDER) writes PNGs',
    **dict.fromkeys(('dtype', 'quantize', 'cache_dtype', 'grid', 'sharding'),
                    'it is an option of cspd_jax.load'),
    'params': 'call model.with_params(params).generate',
    'sampling_params': ('pass sampling options as arguments of their own, such as '
                        'temperature=0.9'),
    # Decoders.
    **dict.fromkeys(('greedy', 'argmax'), _GREEDY),
    **dict.fromkeys(('ar', 'autoregressive', 'sample', 'sampling', 'naive', 'baseline'),
                    ('vanilla', 'mar')),
    # Attributes of a model.
    **dict.fromkeys(('save', 'save_pretrained', 'push_to_hub'), _SAVE),
    **dict.fromkeys(('to', 'cuda', 'cpu'), _DEVICE),
    **dict.fromkeys(('half', 'bfloat16', 'state_dict', 'parameters'), _ARRAYS),
    'eval': 'a model is a set of pure functions, without modes; leave it out',
    'from_pretrained': 'call cspd_jax.load(FOLDER)',
    # Families of cspd-convert.
    'chameleon': ('anole',)}
FLAGS: naming.Aliases = {
    **ALIASES,
    **dict.fromkeys(('workdir', 'out', 'export'), ('output',)), 'output': ('workdir',),
    'input': ('source', 'images'), **dict.fromkeys(('checkpoint', 'ckpt'), ('source', 'model')),
    'target': ('model',), **dict.fromkeys(('n', 'num_samples'), ('num_images',)),
    'repeats': ('budget', 'minutes'), 'best': ('minutes',),
    **dict.fromkeys(('process_index', 'process_count'), ('process',)),
    **dict.fromkeys(('tokenizer', 'draft', 'eagle', 'medusa', 'neighbours', 'local', 'corrector',
                     'text', 't5'), ('parts',)),
    # Another command that does what a flag would.
    'npz': 'cspd-evaluate --layout=adm writes images as one array',
    'evaluator': 'cspd-evaluate --evaluator computes the features of images'}
