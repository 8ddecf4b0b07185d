"""Messages of programs: one line on stderr, exit code 2, nothing done."""

import functools
import importlib
import os

import jax
import numpy as np
import pytest

import cspd_jax
from checkpoints_conversion import command as convert_command
from cspd_jax.files import store, weights
from cspd_jax.files.run_folder import Report
from tests.builders import models as models_lib
from tests.families import tiny
from tests.marks import representative

# Every program, with the flag that names the folder it writes, and whether it must be --config.
COMMANDS = ('generate', 'compare', 'inspect', 'tune')
WITH_CONFIG = (*COMMANDS, 'sweep', 'compile_report', 'accelerator', 'train', 'cspd-train',
               'papers.cspd')
PROGRAMS = dict.fromkeys(WITH_CONFIG, '--workdir') | dict.fromkeys(COMMANDS, '--output') | {
    'against': '--workdir', 'fit_head_drafter': '--output', 'cspd-convert': '--output'}
# Users run these; the programs of the repository share their checks.
INSTALLED = (*COMMANDS, 'cspd-convert', 'cspd-train')
# What these programs need before anything else is looked at.
NEEDED = {'cspd-convert': ['--family=llamagen', '--source={tmp}/text.safetensors']}


def call(name, words):
  """Runs a program in this process; returns its exit code."""
  if name == 'cspd-convert':
    return convert_command.main(['convert', *words])
  package = 'cspd_jax.commands' if name in (*COMMANDS, 'cspd-train') else 'experiments'
  module = importlib.import_module(f'{package}.{name.removeprefix("cspd-")}')
  return module.main(['command', *words])


CONFIGS = {
    'text': 'this is no Python', 'raises': 'def get_config():\n  return 1 / 0',
    'none': 'def get_config():\n  return None', 'ends': 'import sys\nsys.exit(0)',
    'nothing': 'x = 1', 'imports': 'import no_such_package_at_all',
    'deep': 'x = ' + '(' * 300 + ')' * 300, 'spins': 'def get_config():\n  return get_config()',
    'kind': 'def get_config():\n  import cspd_jax.cli.groups\n  return cspd_jax.cli.groups.Images',
    'fields': 'from cspd_jax.commands.generate import Config\n\n'
              'def get_config():\n  return Config(images=None)',
    'twisted': 'from cspd_jax.commands.generate import Config\n\n'
               'def get_config():\n  config = Config()\n'
               '  object.__setattr__(config, "batch_size", "8")\n  return config',
    'own': 'import dataclasses\n\n@dataclasses.dataclass\n'
           'class Own:\n' + ''.join(f'  {name}: object = None\n' for name in (
               'loading', 'decoder', 'images', 'sampling', 'prior', 'prefix', 'rows', 'batch_size',
               'stream', 'overwrite', 'output', 'process', 'inception'))
           + '\ndef get_config():\n  return Own()'}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Tiny models, and files of every wrong kind."""
  folder = tmp_path_factory.mktemp('inputs')
  models_lib.llamagens(folder)
  tiny.saved(folder / 'beach')
  (folder / 'blank').write_text('\n')
  os.mkfifo(folder / 'pipe')
  (folder / 'binary').write_bytes(bytes(range(256)))
  (folder / 'zeros').write_bytes(bytes(64))
  (folder / 'empty').write_text('')
  (folder / 'latin').write_bytes('def get_config(): "café"'.encode('latin-1'))
  (folder / 'text.safetensors').write_text('no tensors, but some words')
  (folder / 'empty.safetensors').write_text('')
  (folder / 'strange' / 'target').mkdir(parents=True)
  (folder / 'strange' / 'target' / store.FILE).write_text('{"name": "of another program"}')
  (folder / 'loop').symlink_to(folder / 'loop')
  for name, text in CONFIGS.items():
    (folder / f'{name}.py').write_text(text)
  return folder


@pytest.fixture(autouse=True)
def _models_are_loaded_once(monkeypatch):
  monkeypatch.setattr(cspd_jax, 'load', _LOAD)


_LOAD = functools.cache(cspd_jax.load)


def refused(capfd, name, words, messages, folder):
  """Checks that a program ended with one line, which holds messages, and left nothing."""
  before = sorted(folder.rglob('*'))
  words = [*NEEDED.get(name, ()), *words]
  code = call(name, [word.replace('{tmp}', str(folder)).replace('{long}', 'x' * 300)
                     for word in words])
  out, err = capfd.readouterr()
  assert code == 2, (code, out, err)
  assert err.startswith('error: ') and err.count('\n') == 1 and not out, err
  assert len(err) < 2000, err
  for message in (messages,) if isinstance(messages, str) else messages:
    assert message in err, err
  assert sorted(folder.rglob('*')) == before, 'something was written'


@pytest.mark.parametrize('name', representative(PROGRAMS, 'generate', 'cspd-convert'))
def test_unknown_flags_and_stray_words(capfd, folder, name):
  refused(capfd, name, ['--foo=1'], '--foo', folder)
  refused(capfd, name, ['stray'], 'stray', folder)


@pytest.mark.parametrize('name', representative(PROGRAMS, *INSTALLED))
def test_help(capfd, name):
  code = call(name, ['--help'])
  out, err = capfd.readouterr()
  flag = '--config=' if name in WITH_CONFIG else PROGRAMS[name]
  assert code == 0 and not err and flag in out and (PROGRAMS[name]) in out
  if name in WITH_CONFIG:
    assert 'a Python file, which is run' in out
    assert '--seed=' in out or name in (
      'compile_report', 'inspect', 'accelerator', 'cspd-train')


PLACES = [('{tmp}/{long}', 'cannot be a path (File name too long)'),
          ('~nobody_of_this_name/x', 'cannot be a path'), ('{tmp}/empty', 'empty is not a folder'),
          ('{tmp}/empty/x', 'empty is not a folder'), ('{tmp}/pipe', 'is not a folder'),
          ('{tmp}/loop', 'is not a folder'), ('{tmp}/loop/x', 'cannot be a path')]


@pytest.mark.parametrize('name', representative(
    PROGRAMS, 'generate', 'cspd-train'))
def test_folders_that_cannot_be_written(capfd, folder, monkeypatch, name):
  flag = PROGRAMS[name]
  for place, message in PLACES:
    message = message.replace('empty is not', 'is not') if place == '{tmp}/empty' else message
    refused(capfd, name, [f'{flag}={place}'], message, folder)
  monkeypatch.setattr(os, 'access', lambda path, mode: False)
  refused(capfd, name, [f'{flag}={{tmp}}/new'], 'not writable', folder)
  monkeypatch.undo()
  usage = type('usage', (), dict(free=1000, total=10**9))
  monkeypatch.setattr('shutil.disk_usage', lambda path: usage)
  refused(capfd, name, [f'{flag}={{tmp}}/new'], 'a disk with ', folder)


BAD_CONFIGS = [
    ('{tmp}/{long}', 'cannot be a path'), ('~nobody_of_this_name/x.py', 'cannot be a path'),
    ('{tmp}/none_of_this_name.py', 'no such file'), ('{tmp}', 'no such file'),
    ('{tmp}/pipe', 'no such file'), ('{tmp}/binary', 'cannot be run'),
    ('{tmp}/zeros', 'cannot be run'), ('{tmp}/empty', 'no function get_config()'),
    ('{tmp}/latin', 'cannot be run: SyntaxError'), ('{tmp}/text.py', 'cannot be run: SyntaxError'),
    ('{tmp}/raises.py', 'ZeroDivisionError'), ('{tmp}/none.py', 'returned a NoneType'),
    ('{tmp}/ends.py', 'SystemExit'), ('{tmp}/nothing.py', 'no function get_config()'),
    ('{tmp}/imports.py', 'ModuleNotFoundError'), ('{tmp}/deep.py', 'cannot be run'),
    ('{tmp}/spins.py', 'RecursionError'), ('{tmp}/kind.py', 'returned a type'),
    ('{tmp}/fields.py', 'images is None; it must be a Images'), ('', 'no such file'),
    ('{tmp}/twisted.py', "--config: batch_size is '8'"), ('{tmp}/own.py', 'loading is None'),
    ('{tmp}/other.py', '--config returns a Other')]


@pytest.mark.parametrize('config, message', BAD_CONFIGS)
def test_configurations_that_cannot_be(capfd, folder, config, message):
  refused(capfd, 'generate', [f'--config={config}'], message, folder)


@pytest.mark.parametrize('name', representative(WITH_CONFIG, *COMMANDS, 'cspd-train'))
def test_configurations_of_other_programs(capfd, folder, name):
  refused(capfd, name, ['--config={tmp}/other.py'], '--config returns a Other', folder)
  refused(capfd, name, ['--config'], 'Missing value for flag --config', folder)


HUGE, WORDS = '9' * 25, 'x' * 300
# Fields of configurations and flags, by program: what each checks itself. Types and ranges of
# all fields are checked by `core.fields`; see test_sizes.py.
FLAGS = {
    'generate': [
        (f'--seed={HUGE}', f'--seed={HUGE}: it must be a whole number'),
        ('--seed=-1', 'seed is -1; it must be a whole number from 0 to 4294967295'),
        ('--seed=1,-1', 'seed is (1, -1)'), ('--seed=' + '(' * 5000, 'values separated by commas'),
        ('--num_images=999999999999', 'num_images is 999999999999; it must be'),
        ('--num_images=nan', 'a whole number'), ('--batch_size=0', 'batch_size is 0'),
        ('--overwrite=maybe', 'true or false'), ('--dtype=int8', 'one of float32'),
        (f'--model={WORDS}', 'cannot be a path'), ('--model=~nobody_here/x', 'cannot be a path'),
        ('--model={tmp}/empty', 'which is not a folder'), ('--model={tmp}/loop', 'is not a folder'),
        ('--model={tmp}', 'has no model.json'), ('--model={tmp}/tokenizer', "'vq'"),
        ('--model={tmp}/truncated', 'bytes instead of'),
        ('--prompts={tmp}/pipe', 'cannot be read as text (it is not a file)'),
        ('--prompts={tmp}/binary', 'cannot be read as text'),
        ('--prompts={tmp}/empty', 'a file without prompts'), (f'--prompts={WORDS}', 'be a path'),
        (f'--prompt={WORDS}', 'prompts holds'), ('--prompt=$x$', "prompts holds '$x$'"),
        ('--prompt=,', "prompts holds ''"), (f'--decoder={WORDS}', 'is not registered'),
        (f'--decoder=mc_sjd(window={HUGE})', 'window'), ('--decoder=' + '(' * 5000, 'decoder'),
        ('--decoder=', 'decoder'), ('--parts=draft={tmp}/tokenizer', "draft is a 'vq' network"),
        ('--parts=draft={tmp}/other_vocabulary', 'vocab_size'),
        ('--parts=draft={tmp}/pipe', 'draft is'), (f'--parts=draft={WORDS}', 'cannot be a path'),
        ('--parts=eagle', "parts holds 'eagle'"), ('--parts=verify=x', "parts holds 'verify=x'"),
        ('--mesh=0x1', 'both numbers must be at least 1'),
        ('--mesh=9999x9999', 'it requires 99980001 devices'),
        ('--grid=4x4', "grid is (4, 4), but a 'llamagen' model"), ('--grid=x', "grid is 'x'"),
        ('--quantize=int4', 'one of int8'), ('--rows=2', 'no prefix'),
        ('--prefix={tmp}/pipe', 'it is not a file'), ('--stream={tmp}', 'is not a file'),
        ('--cfg_scale=3', 'did you mean --guidance_scale?'),
        ('--workdir=x', 'did you mean --output?'), ('--eagle=x', 'you mean --parts?'),
        ('--npz', 'cspd-evaluate --layout=adm writes images'),
        ('--process=4', "process is '4'; it must be two numbers, such as 2/4"),
        ('--process=4/4', 'process is 4/4'),
        ('--prompt=cat,moon', ('moon', 'cat, dog, owl')), ('--prompts={tmp}/nothing', 'nothing'),
        ('--prompts={tmp}/blank', ('blank', 'without prompts')),
        (('--prompt=cat', '--seed=1,2', '--num_images=1'), 'seed has 2'),
        ('--inception={tmp}/nothing', ('nothing', 'no such folder')),
        (('--model={tmp}/beach', '--decoder=eagle'), ('none', 'use a decoder without it')),
        ('--stream=missing/now.png', 'stream is'),
        (('--stream=now.png', '--mesh=1x1'), 'cannot be streamed'),
        ('--window=16', "--window is not a flag; for a parameter of a decoder, write --decoder='N"),
        ('--evaluator=adm', 'cspd-evaluate --evaluator')],
    'compare': [
        ('--repeats=1', 'did you mean --budget?'), ('--decoder=', 'decoder is empty'),
        ('--decoder=eagle', 'eagle cannot run'),
        ('--decodr=x', ('decodr', 'did you mean --decoder')),
        ('--config={tmp}/other.py', ('Other', 'images')),
        ('--decoder=vanilla,all', ("'vanilla,all'", '--all')),
        (('--decoder=vanilla', '--all'), ("'vanilla'", 'only one')),
        (('--decoder=sjd', '--paired'), ('paired is True', 'add vanilla')),
        ('--asked', ("caption is 'cat'", 'like "a blue owl')),
        ('--budget=0', ('budget is 0', 'above 0')),
        (('--num_images=1', '--prompt=0,1'), ('num_images is 1', '2')),
        ('--mesh=2x1', ("mesh is '2x1'", 'first number must be 1')),
        (('--seed=1,2', '--num_images=3'), ('seed has 2', '3 images')),
        ('--prompt=3', ("'3'", '0 to 2')),
        (('--prompt=cat', '--prompts=x'), ('prompt', 'prompts', 'only one')),
        (('--model={tmp}/unnamed', '--prompt=cat'), ("'cat'", '0 to 2')),
        (('--model={tmp}/alone', '--decoder=speculative'), ('speculative', 'draft model', 'alone')),
        ('--parts=eagle=demo/eagle', ('vocab_size', '1024', '16', 'eagle')),
        ('--parts=draft={tmp}/other_vocabulary', ('vocab_size', '32', '16')),
        ('--model=', "model is ''"), ('--model={tmp}/truncated', 'damaged'),
        ('--model={tmp}/tokenizer', ("'vq'", 'llamagen')), ('--model={tmp}/text', 'prompt'),
        (('--model={tmp}/other_vocabulary', '--parts=tokenizer={tmp}/tokenizer'),
         ('codebook_size', '16', '32')),
        ('--output={tmp}/other.py/out', ('output', 'other.py'))],
    'compare of continuous tokens': [
        ('--top_k=3', ('top_k', 'temperature')), ('--decoder=vanilla', ('vanilla', 'exact_head')),
        (('--model={tmp}/mars/alone', '--decoder=exact_path'),
         ('exact_path', '--parts=draft=FOLDER')),
        ('--parts=draft={tmp}/mars/narrow', ('token_dim', '3', '4')),
        ('--parts=tokenizer={tmp}/mars/other_vae', ('z_channels', '2', '4')),
        ('--model={tmp}/mars/vae', ("'kl_vae'", 'mar')),
        ('--parts=draft={tmp}/mars/patches', ('patch_size', '2', '1'))],
    'inspect': [
        ('--window=0', 'window is'), ('--model=nothing', 'nothing'), ('--batch=0', 'batch is 0')],
    'sweep': [
        ('--window=-4,16', '(-4, 16)'), ('--metrics=beauty', 'beauty'),
        ('--columns=beauty', 'beauty'), ('--measure=beauty', 'one of overhead, queue'),
        (('--drafter=falcon', '--verifier=match'), 'falcon'), ('--scales=nan', 'scales'),
        ('--drafter=eagle', 'verifier is empty'), ('--decoder=eagle+loose', 'loose'),
        ('--reference_sets=1', 'reference_sets is 1'),
        (('--measure=entropy', '--num_images=1'), 'num_images is 1'),
        (('--measure=int8', '--quantize=int8'), 'no decoder can run'),
        (('--curve_drafter=jacobi', '--scales=2'), 'so leave models, temperatures and scales')],
    'compile_report': [
        ('--device=abacus', 'abacus'), ('--tokens_per_round=nan', 'tokens_per_round is nan')],
    'accelerator': [('--minutes=nan', 'minutes is nan'),
        ('--stages=xl,nothing', "stages is 'nothing'; it must be one of exact, batches"),
        ('--minutes=0', 'minutes is 0'), ('--repo={tmp}/nothing', 'repo is'),
        ('--repo={tmp}', 'does not contain autoregressive/models/gpt.py'),
        ('--stages=', 'stages is empty')],
    'tune': [
        ('--best=2', 'did you mean --minutes?'), ('--minutes=nan', 'minutes is nan'),
        ('--window=()', 'window is empty'), ('--batch_size=0', 'batch_size is (0,)'),
        ('--guarantee=none', 'it must be one of'), ('--store={tmp}/pipe', 'is not a folder'),
        ('--batch_size=', 'batch_size'), ('--minutes=0', 'minutes is 0'),
        ('--guarantee=none', 'seed-exact, seed-exact up to rounding, exact, b'),
        ('--model=demo', ("'demo', which is part of the package", 'store=FOLDER', '--dry_run')),
        (('--model=demo', '--store={tmp}/beach'), ('beach', 'holds other networks', '--dry_run')),
        (('--mesh=2x1', '--dry_run'), ("mesh is '2x1'", 'first number must be 1')),
        (('--decoder=eagle', '--guarantee=seed-exact'), ('nothing can run', 'EAGLE network'))],
    'train': [
        ('--image_size=1000000', 'image_size is 1000000'), ('--config.seed=-1', '--seed'),
        ('--target_train.optimizer.num_steps=-5', 'num_steps is -5'),
        ('--draft_train.optimizer.ema_decay=1.5', 'it must be a number from 0 to 1 or None'),
        (f'--target_train.optimizer.seed={HUGE}', 'a whole number'),
        ('--draft_train.optimizer.b2=1', 'b2 is 1.0; it must be a number from 0 to below 1'),
        ('--target_train.optimizer.cooldown_steps=9999', 'it must be at most 2300'),
        ('--quantize_from=-1', 'quantize_from'), ('--codebook_size=0', 'codebook_size'),
        ('--tokenizer_of=demo/eagle', 'is not a folder'), ('--stage=dance', 'must be one of all'),
        ('--export={tmp}/empty', 'is not a folder'),
        ('--export={tmp}/strange', 'strange/target, which exists and is not a checkpoint'),
        ('--export={tmp}/target', 'which is the folder of a network')],
    'cspd-train': [
        ('--learning_rate=nan', 'learning_rate is nan'), ('--noise=-1', 'noise is -1'),
        ('--labels=x', 'one of probs'), ('--num_depths=0', 'num_depths is 0'),
        ('--target={tmp}/model', 'drafter.'), ('--output={tmp}/pipe', 'is not a folder'),
        ('--output={tmp}/strange/target', 'which exists and is not a checkpoint'),
        ('--dtype=complex64', 'it must be one of float32'),
        ('--model={tmp}/x', 'give --target='), ('--model=emoji', 'give --target=emoji in its'),
        (('--model=demo', '--config=configs/train/drafters.py:medusa', '--target={tmp}/no'), 'no'),
        (('--config=configs/train/drafters.py:eagle', '--kind=medusa'),
         "kind is 'medusa', but --config"),
        (('--model=emoji', '--config=configs/train/drafters.py:emoji_medusa', '--prompts=x'),
         "'runs/scenes/tokens.npz', have prompts of their own")],
    'cspd-train of a model': [
        ('--model={tmp}/empty', 'is not a folder'), ('--model={tmp}/tokenizer', "'vq'"),
        ('--model=mar_demo', "a 'mar' model of continuous tokens, for which nothing is trained"),
        ('--kind=draft', 'one of neighbours, local, corrector, eagle, medusa'),
        ('--batch_size=99', 'batch_size is 99'), ('--mesh=9x9', 'it requires 81 devices'),
        (('--kind=eagle', '--dtype=bfloat16'),
         "kind is 'eagle', which learns from the model in float"),
        ('--prompts={tmp}/none', 'cannot be read'), ('--export=x', 'did you mean --output?'),
        *((('--model={tmp}/beach', f'--kind={kind}', smoke), message)
          for smoke in ('--smoke', '--smoke=false') for kind, message in (
              ('neighbours', ("the family 'tiny' of model ", ' has no role of this name; ', 'or fit'
                              ' a corrector to the target alone with cspd_jax.training.fit_corre')),
              ('eagle', ("the family 'tiny' of model ", ' has no teacher, from which such networks '
                         'learn; give its Model a families.Teacher, or train --kind=neighbou'))))],
    'fit_head_drafter': [
        ('--num_chains=1', 'num_chains is 1'), ('--guidance_scale=inf', 'guidance_scale is inf'),
        ('--num_chains=4', 'num_chains is 4; it must be a whole number from 32'),
        ('--kernels_per_call=1', 'kernels_per_call is 1'), ('--num_iter=5', 'num_iter is 5'),
        ('--guidance_scale=1', 'guidance_scale is 1'),
        ('--model=demo', 'which has discrete tokens'),
        ('--output={tmp}', 'which exists; use another folder')],
    'against': [
        ('--repeats=0', 'repeats is 0'),
        (('--method=transformers', '--decoder=nothing'), "'nothing'"),
        ('--repo={tmp}', 'does not contain scheduler/jacobi_iteration_lumina_mgpt.py')],
    'papers.cspd': [
        ('--suite=table9', 'suite'), ('--batch_sizes=0', 'batch_sizes is (0,)'),
        ('--lengths=()', 'lengths is empty'), ('--prefix_share=2', 'prefix_share is 2'),
        ('--guidance=cosine', 'cosine'), ('--decoder=mar', "decoder is 'mar'")],
    'cspd-convert': [
        ('--source={tmp}/pipe', 'neither a file nor'), ('--source={tmp}/{long}', 'be a path'),
        ('--source=~nobody_here/x', 'cannot be a path'), ('--dtype=int4', 'one of float32'),
        ('--source={tmp}/none.safetensors', 'there is no such file'), ('--family=gpt', 'gpt'),
        ('--model=c9_xl', 'published'),
        ('--source={tmp}/text.safetensors', 'is text, which begins with'),
        ('--source={tmp}/model', 'a folder without'),
        ('--num_heads=x', 'it must be a whole number')]}
# What is passed besides, unless a case has its own.
DEFAULTS = {
    **dict.fromkeys(('generate', 'sweep'), ('--model={tmp}/model',)),
    'compare': ('--model={tmp}/model', '--decoder=vanilla,sjd_pac,speculative', '--budget=1e-3'),
    'compare of continuous tokens': ('--model={tmp}/mars/model', '--num_images=2'),
    'tune': ('--model={tmp}/beach',), 'cspd-train': ('--config=configs/train/drafters.py:eagle',),
    'cspd-train of a model': ('--model={tmp}/model', '--smoke'), 'fit_head_drafter': (
        '--model={tmp}/mars/model', '--num_chains=32', '--num_iter=2', '--kernels_per_call=4')}


@pytest.mark.parametrize('name, words, message', [
    pytest.param(name, *case, marks=() if name.split()[0] in INSTALLED and 'continuous' not in name
                 else pytest.mark.slow)
    for name, cases in FLAGS.items() for case in cases])
def test_values_that_cannot_be(capfd, folder, name, words, message):
  words, program = (words,) if isinstance(words, str) else words, name.split()[0]
  output = f'{PROGRAMS[program]}={{tmp}}/new'
  if 'mars' in str(DEFAULTS.get(name)) and not (folder / 'mars').exists():
    models_lib.mars(folder / 'mars')
  latest = {word.partition('=')[0]: word for word in (output, *DEFAULTS.get(name, ()), *words)}
  refused(capfd, program, latest.values(), message, folder)


@pytest.mark.parametrize('name, words', [
    ('compare', ['--decoder=vanilla']),
    pytest.param('sweep', ['--window=4', '--decoder=mc_sjd'], marks=pytest.mark.slow)])
def test_finished_images_of_a_stopped_run_stay(capfd, folder, tmp_path, name, words):
  """They were removed in silence, and the program ended with 0."""
  report = Report(tmp_path / 'x', run={'seed': 1})
  report.path('a.png').write_bytes(b'hours of work')
  del report
  refused(capfd, name, [f'{PROGRAMS[name]}={tmp_path}/x', '--model={tmp}/model', *words],
          'where another run was stopped; resume that one', folder)
  assert (tmp_path / 'x' / '.unfinished' / 'a.png').read_bytes() == b'hours of work'


@pytest.mark.parametrize('name', representative(
    ('generate', 'compare', 'sweep', 'papers.cspd', 'cspd-train', 'fit_head_drafter', 'train'),
    'generate', 'compare', 'cspd-train'))
def test_networks_of_another_kind(capfd, folder, name):
  flag = '--tokenizer_of' if name == 'train' else '--model'
  for model, message in (('{tmp}/tokenizer', "'vq'"), ('{tmp}/model.json', 'is not a folder'),
                         ('{tmp}/{long}', 'cannot be a path'), ('{tmp}/pipe', 'is not a folder')):
    refused(capfd, name, [f'{PROGRAMS[name]}={{tmp}}/new', f'{flag}={model}'], message, folder)


def test_stored_numbers_of_another_type(capfd, folder, tmp_path, monkeypatch):
  """Whole numbers where the network has floating-point ones."""
  result = store.load(folder / 'target')
  whole = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.int32), result.params)
  with pytest.raises(store.CheckpointError, match='mis-typed: .* is int32'):
    store.save(tmp_path / 'x', result.kind, result.config, whole)
  with monkeypatch.context() as patched:
    patched.setattr(weights, 'differences', lambda expected, params: [])
    store.save(tmp_path / 'x', result.kind, result.config, whole)
  refused(capfd, 'generate', [f'--model={tmp_path}/x'], 'mis-typed', folder)
