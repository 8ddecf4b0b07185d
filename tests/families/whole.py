"""Published folders of whole models, at tiny sizes, by family."""

import functools
from unittest import mock

from checkpoints_conversion import rules
from tests.families import janus_files, language_model_files, published_files

# By family: builds the folder and returns that of the target; further words of the command; sizes.
WHOLE = {
    'lumina_mgpt': (published_files.lumina_mgpt, ('--height=4', '--width=6'),
                    published_files.LUMINA_MGPT),
    'lumina_mgpt_2': (published_files.lumina_mgpt_2, ('--height=4', '--width=8'),
                      published_files.LUMINA_MGPT_2),
    'anole': (published_files.anole, ('--height=3', '--width=4'), published_files.ANOLE),
    'emu3': (published_files.emu3, ('--height=2', '--width=3'), published_files.EMU3),
    'emu3_5': (published_files.emu3_5, ('--height=2', '--width=3'), published_files.EMU3_5),
    'llamagen': (published_files.llamagen_words, ('--model=t2i_xl_256',), published_files.T2I),
    'janus_pro': (lambda root: janus_files.folder(root / 'Janus-Pro-1B', True),
                  ('--model=janus_pro_1b',), janus_files.CONFIG),
    'simplear': (functools.partial(language_model_files.whole, 'simplear'),
                 ('--height=2', '--width=3'), language_model_files.SIMPLEAR),
    'liquid': (functools.partial(language_model_files.whole, 'liquid'),
               ('--height=3', '--width=4'), language_model_files.LIQUID),
}
# Published sizes that are tiny here.
_PRESETS = {'llamagen': {'t2i_xl_256': published_files.T2I},
            'janus_pro': {'janus_pro_1b': janus_files.CONFIG}}


def convert(family, root, output):
  """Builds a published folder of a family in `root`, and converts it to a model folder."""
  build, words, _ = WHOLE[family]
  folder = build(root)
  small = {name: rules.get(name)._replace(presets=presets) for name, presets in _PRESETS.items()}
  with mock.patch.dict(rules.FAMILIES, small):
    assert not published_files.convert(folder.parent, family, folder.name, output, *words)
