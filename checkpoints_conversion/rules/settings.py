"""Checks the fields of config.json and other settings files against a table for each file family.

A field is a size of the network (`Size`), determines several of them or is checked (`Sizes`), must
have a certain value (`Must`), contains fields (`Part`), or does not affect what the network
computes (`Free`). Every other field is refused by name: a setting that a converter ignores leads to
wrong images without an error. Null, and -1 for a whole number, count as absent, and names that
begin with '_' belong to the program that wrote the file. An absent field has the default of the
published code: it is used where shapes do not determine the size, and refused where the weights
contradict it, or another part of the file.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from checkpoints_conversion.rules.family import ConversionError

# Contents of the settings files next to weights, by name.
Contents = Mapping[str, Mapping[str, Any]]


class Size(NamedTuple):
  """A field that determines a field of our config.

  Attributes:
    name: the field of our config.
    kind: `int`, `float` (also without a point), `bool`, `str`, or `tuple` for a list of whole
      numbers.
    default: the default of the published code if the field is absent; None where the shapes of the
      weights determine it.
  """

  name: str
  kind: type = int
  default: Any = None


class Sizes(NamedTuple):
  """A field, `value ->` fields of our config by name; or a problem that continues 'FIELD is'."""

  fields: Callable[[Any], Mapping[str, Any] | str]


class Must(NamedTuple):
  """A field of which the networks here support certain values only.

  Attributes:
    values: the supported values; empty if the field must be absent.
    why: an explanation for the message, with its punctuation.
    default: the default of the published code if the field is absent; None if it is supported.
  """

  values: tuple[Any, ...]
  why: str = ''
  default: Any = None


class Free(NamedTuple):
  """A field that does not affect what the network computes, with the reason."""

  why: str


class Part(NamedTuple):
  """A field that contains fields, with their table."""

  fields: 'Table'


Entry = Size | Sizes | Must | Free | Part
# Fields by name. The entry '*' applies to all others.
Table = Mapping[str, Entry]


def read(tables: Mapping[str, Table], contents: Contents) -> dict[str, Any]:
  """Checks settings files against tables of their fields, by name; returns fields of our config.

  These are those in the files, and the defaults of the published code for absent ones; empty
  without a file. Raises ConversionError naming every field that is not in its table, is of another
  type, has an unsupported value, or occurs twice with different values.
  """
  sizes: dict[str, Any] = {}
  defaults: dict[str, Any] = {}
  problems: list[str] = []
  for file in sorted(tables.keys() & contents.keys()):
    defaults |= _defaults(tables[file])
    for field, value, entry in _fields(tables[file], contents[file], f'{file}: '):
      if isinstance(entry, Size):
        size = tuple(value) if entry.kind is tuple and isinstance(value, list) else value
        if not _fits(entry.kind, size):
          problems.append(f'{field} is {value!r:.80}; it must be {_WORDS[entry.kind]}')
        elif sizes.setdefault(entry.name, size) != size:
          problems.append(f'{field} is {value!r}, but another field is {sizes[entry.name]!r}')
      elif isinstance(entry, Sizes):
        determined = entry.fields(value)
        if isinstance(determined, str):
          problems.append(f'{field} is {determined}')
        elif other := {name: sizes[name] for name in determined
                       if sizes.get(name, determined[name]) != determined[name]}:
          problems.append(f'{field} is {value!r:.80}, but another field means {other}')
        else:
          sizes |= determined
      elif problem := _problem(entry, value):
        problems.append(f'{field} is {problem}')
    for field, entry in _absent(tables[file], contents[file], f'{file}: '):
      absent = f'{field} is absent, which means {entry.default!r}'
      if isinstance(entry, Must):
        problems.append(f'{absent}; {_remedy(entry)}')
      elif sizes.setdefault(entry.name, entry.default) != entry.default:
        problems.append(f'{absent}, but another field is {sizes[entry.name]!r}')
  if problems:
    refuse(problems)
  return sizes | {name: size for name, size in defaults.items() if name not in sizes}


def write(table: Table, config: Any, **fixed: Any) -> dict[str, Any]:
  """Returns the content of a settings file for a network, which `read` inverts.

  Sizes have the first of their names, and other fields the first value that is supported. `fixed`
  are fields with their values; None leaves a field out.
  """
  return {name: value for name, value in {**_written(table, config, set()), **fixed}.items()
          if value is not None}


def files(table: Table, **fixed: Any) -> Callable[[Any, Mapping[str, Any]], dict[str, Any]]:
  """Returns `Written.files` of families whose only settings file is a config.json; see `write`."""
  return lambda config, others: {'config.json': write(table, config, **fixed)}


def _written(table: Table, config: Any, sizes: set[str]) -> dict[str, Any]:
  """Returns the fields of a table; adds the names of the sizes in it to `sizes`."""
  content: dict[str, Any] = {}
  for name, entry in table.items():
    if isinstance(entry, Size) and entry.name not in sizes and hasattr(config, entry.name):
      value = getattr(config, entry.name)
      content[name] = list(value) if entry.kind is tuple else value
      sizes.add(entry.name)
    elif isinstance(entry, Part):
      inside: set[str] = set()
      part = _written(entry.fields, config, inside)
      if inside - sizes:  # Else it is another name of fields that are there.
        content[name] = part
        sizes |= inside
    elif isinstance(entry, Must) and entry.values and name not in COMMON and entry != _WHOLE_HEAD:
      content[name] = entry.values[0]
  return content


def refuse(problems: list[str]) -> None:
  """Raises ConversionError with a line for each field, which begins with its file and name."""
  raise ConversionError(
      'The settings next to the weights are not those of a network that can be converted:\n  ' +
      ';\n  '.join(problems) +
      '.\nA setting that is ignored leads to wrong images. If a field does not matter, remove it '
      'from the file; if the file belongs to other weights, put these into a folder of their own.')


def _fields(table: Table, content: Mapping[str, Any], prefix: str
            ) -> Iterator[tuple[str, Any, Entry | None]]:
  """Yields name, value and entry of the fields that are set, including those of parts."""
  for name, value in content.items():
    if name.startswith('_') or value is None:
      continue
    entry = table.get(name, table.get('*'))
    if isinstance(entry, Part) and isinstance(value, Mapping):
      yield from _fields(entry.fields, value, f'{prefix}{name}.')
    elif not (isinstance(entry, Size) and entry.kind is int and value == -1):
      yield prefix + name, value, entry


def _problem(entry: Entry | None, value: Any) -> str | None:
  """Returns the problem with a field that is not a size, or None."""
  if isinstance(entry, Must) and value not in entry.values:
    return f'{value!r:.80}; {_remedy(entry)}'
  if isinstance(entry, Part):
    return f'{value!r:.80}; it must be an object with fields'
  return f'{value!r:.80}; no published model has the field' if entry is None else None


def _remedy(entry: Must) -> str:
  values = ' or '.join(map(repr, entry.values))
  return f'it must be {values}{entry.why}' if values else f'it must be left out{entry.why}'


def _absent(table: Table, content: Mapping[str, Any], prefix: str, is_part: bool = False
            ) -> Iterator[tuple[str, Must | Size]]:
  """Yields name and entry of absent fields with a default, including those of parts.

  Sizes only of parts in which no field specifies them: those of the whole file may be the names of
  another format.
  """
  specified = {entry.name for _, _, entry in _fields(table, content, '') if isinstance(entry, Size)}
  for name, entry in table.items():
    value = content.get(name)
    if isinstance(entry, Part) and isinstance(value, Mapping):
      yield from _absent(entry.fields, value, f'{prefix}{name}.', True)
    elif isinstance(entry, Must | Size) and entry.default is not None and (
        value is None if isinstance(entry, Must) else is_part and entry.name not in specified):
      yield prefix + name, entry


def _defaults(table: Table) -> dict[str, Any]:
  """Returns the defaults of sizes that files may leave out."""
  defaults: dict[str, Any] = {}
  for entry in table.values():
    if isinstance(entry, Part):
      defaults |= _defaults(entry.fields)
    elif isinstance(entry, Size) and entry.default is not None:
      defaults[entry.name] = entry.default
  return defaults


_WORDS = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'a string',
          tuple: 'a list of whole numbers'}


def _fits(kind: type, value: Any) -> bool:
  if kind is tuple:
    return isinstance(value, tuple) and all(_fits(int, number) for number in value)
  kinds = (int, float) if kind is float else (kind,)
  return isinstance(value, kinds) and isinstance(value, bool) == (kind is bool)


def rope(default: float | None = None) -> Table:
  """Returns the table of rotary settings, in both formats of transformers; `default` is a base."""
  angles: Table = {
      'rope_theta': Size('rope_base', float), 'rope_type': _DEFAULT_ROPE, 'type': _DEFAULT_ROPE,
      'partial_rotary_factor': _WHOLE_HEAD}
  return {'rope_theta': Size('rope_base', float, default), 'rope_scaling': Part(angles),
          'rope_parameters': Part(angles), 'partial_rotary_factor': _WHOLE_HEAD}


def llama(norm_eps: float = 1e-6, rope_base: float = 10000.0) -> Table:
  """Returns the table of a transformer like Llama; the arguments are defaults of published code."""
  return {
      **COMMON, **rope(rope_base),
      'vocab_size': Size('vocab_size'), 'hidden_size': Size('dim'),
      'intermediate_size': Size('ffn_dim'), 'num_hidden_layers': Size('num_layers'),
      'num_attention_heads': Size('num_heads'), 'num_key_value_heads': Size('num_kv_heads'),
      'head_dim': Size('head_dim'), 'rms_norm_eps': Size('norm_eps', float, norm_eps),
      'hidden_act': SILU,
      'max_position_embeddings': Free('rotation by any position is computed when it is needed')}


_DEFAULT_ROPE = Must(('default',), ', the only rotation that the networks here support')
_WHOLE_HEAD = Must((1,))
SILU = Must(('silu', 'swish'))
_OF_WINDOWS = Free('it is for layers with sliding windows, which no published model has')
WINDOWS: Table = {
    'use_sliding_window': Must((False,)), 'sliding_window': _OF_WINDOWS,
    'max_window_layers': _OF_WINDOWS, 'layer_types': Sizes(
        lambda value: {} if isinstance(value, list) and set(map(str, value)) == {'full_attention'}
        else f'{value!r:.80}; every layer must have full attention')}
NO_BIAS = Must((False,))
NO_BIASES: Table = {'attention_bias': NO_BIAS, 'mlp_bias': NO_BIAS}
OF_SHAPES = Free('names and shapes of the weights determine it')
OF_TRAINING = Free('only training uses it')
OWN_OUTPUT = Free('the lm_head.weight of a file is the output matrix, as in transformers 5')

# The sizes of image tokenizers, by their names in taming-transformers, and in transformers too:
# files that its programs converted may have both.
TAMING: Table = {
    **dict.fromkeys(('in_channels', 'out_ch'), Size('in_channels')), 'ch': Size('ch'),
    'ch_mult': Size('ch_mult', tuple), 'num_res_blocks': Size('num_res_blocks'),
    'z_channels': Size('z_channels')}
VQGAN: Table = {
    **TAMING, 'out_channels': Size('in_channels'), 'base_channels': Size('ch'),
    'channel_multiplier': Size('ch_mult', tuple), 'latent_channels': Size('z_channels'),
    **dict.fromkeys(('double_z', 'double_latent'), Must((False,)))}


def _all(why: str, names: str) -> Table:
  return dict.fromkeys(names.split(), Free(why))


# Fields of any config.json of transformers.
COMMON: Table = {
    **_all('names the author of the file, and the programs that read it',
           'architectures auto_map transformers_version name_or_path tokenizer_class '
           'processor_class prefix'),
    **_all('the format of weights in files and in memory; a conversion has an option for the dtype',
           'dtype torch_dtype use_bfloat16 attn_implementation torchscript'),
    **_all(OF_TRAINING.why,
           'initializer_range initializer_factor dropout attention_dropout dropout_rate '
           'classifier_dropout gradient_checkpointing z_loss_weight class_dropout_p'),
    **_all('the results of calls, and output heads for other tasks',
           'output_attentions output_hidden_states return_dict use_return_dict tf_legacy_loss '
           'id2label label2id num_labels problem_type finetuning_task task_specific_params'),
    **_all('sampling options are stored in the model folder, or passed with a call',
           'max_length min_length max_new_tokens do_sample early_stopping num_beams '
           'num_beam_groups diversity_penalty temperature top_k top_p typical_p '
           'repetition_penalty length_penalty no_repeat_ngram_size '
           'encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores '
           'return_dict_in_generate forced_bos_token_id forced_eos_token_id '
           'remove_invalid_values exponential_decay_length_penalty suppress_tokens '
           'begin_suppress_tokens'),
    **_all('the tokenizer file and the grammar of images determine these tokens',
           'bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id '
           'image_token_id'),
    **_all('the same sums in other parts, or cached for the next round',
           'use_cache chunk_size_feed_forward pretraining_tp'),
    **_all('the class of the network determines it', 'is_encoder_decoder is_decoder '
           'cross_attention_hidden_size tie_encoder_decoder'),
    'add_cross_attention': Must((False,)),
    'pruned_heads': Must(({},)),
    'quantization_config': Must((), ': convert the weights before they were quantized')}
