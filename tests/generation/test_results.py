"""Generated images as a sequence, and what `generate` shows while it runs."""


import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax.plots import grid

PROMPTS = ['sea', 'sky', 'sand']


@pytest.fixture(scope='module')
def model(beach):
  return cspd_jax.load(str(beach))


@pytest.fixture(scope='module')
def out(model):
  return model.generate(PROMPTS, seed=3, decoder='seed_exact', window=4,
                        guidance_scale=[1.0, 2.0, 3.0])


def test_an_image_has_everything_that_belongs_to_it(out):
  for index, image in enumerate(out):
    assert len(image) == 1 and image.prompts == [PROMPTS[index]]
    assert image.metadata(0) == out.metadata(index)
    assert image.sampling['guidance_scale'] == [index + 1.0]
    assert image.labels == [out.labels[index]] and image.unknown_words == [[]]
    np.testing.assert_array_equal(image.images, out.images[index:index + 1])
    np.testing.assert_array_equal(image.tokens, out.tokens[index:index + 1])
    np.testing.assert_array_equal(image.round_of_cell, out.round_of_cell[index:index + 1])
    assert {leaf.shape[0] for leaf in jax.tree.leaves(image.decoded)} == {1}
    assert image.png(0) == out.png(index) and image._repr_html_().count('data:image/png') == 2


@pytest.mark.parametrize('index, prompts', [
    (0, ['sea']), (-1, ['sand']), (np.int64(1), ['sky']), (slice(1, 3), ['sky', 'sand']),
    (slice(None, None, -1), ['sand', 'sky', 'sea']), (slice(5, None), [])])
def test_indices_are_those_of_lists(out, index, prompts):
  part = out[index]
  assert part.prompts == prompts and len(part) == len(part.images) == len(prompts)
  assert part._repr_html_().startswith('<p>Generated(')


def test_images_that_are_saved_one_by_one_have_the_names_of_all(out, tmp_path):
  assert [path.name for image in out[1:] for path in image.save(tmp_path)] == out.names()[1:]


def test_equal_images_are_saved_again_without_a_word(model, out, tmp_path):
  times = [path.stat().st_mtime_ns for path in out.save(tmp_path)]
  again = model.generate(PROMPTS, seed=3, decoder='seed_exact', window=4,
                         guidance_scale=[1.0, 2.0, 3.0]).save(tmp_path)
  assert [path.stat().st_mtime_ns for path in again] == times
  other = model.generate(PROMPTS, seed=3, decoder='seed_exact', window=4)
  with pytest.raises(ValueError, match='holds another 00000_sea_seed3.png already; use another'):
    other.save(tmp_path)
  again[2].unlink()
  assert len(out.save(tmp_path)) == 3 and again[2].exists()
  assert other.save(tmp_path, overwrite=True)[1].read_bytes() == other.png(1)


def test_results_of_decoders_are_short(out):
  text = repr(out.decoded)
  assert text.startswith('Decoded(tokens: int32[3, 16], rounds: [') and '\n' not in text
  assert 'log_probs' in text and 'raw_log_probs' not in text
  assert 'rounds: int32[]' not in repr(out[0].decoded)
  jax.eval_shape(lambda decoded: repr(decoded) and 0, out.decoded)  # Of arrays that are traced.
  many = jax.tree.map(lambda leaf: np.repeat(leaf, 9, axis=0), out.decoded)
  assert 'rounds: int32[27]' in repr(many) and 'NOT VALID' not in repr(many)
  wrong = many._replace(valid=np.arange(27) != 4)
  assert ', 1 of 27 rows NOT VALID (an option' in repr(wrong)


def test_the_picture_has_the_rounds_of_the_summary(out, monkeypatch):
  """Those of its cells would leave out the rounds of other tokens."""
  drawn = {}
  monkeypatch.setattr(grid, 'acceptance_map', lambda rounds, **options: (
      drawn.update(options['notes']), b'')[1])
  for images in (out, out[:1]):
    images._repr_html_()
    (note,) = drawn.values()
    assert f', {note}' in repr(images) and note.endswith(' forward passes')


def test_progress_is_shown_on_request(model, out, capsys):
  model.kept.programs.clear()
  options = dict(seed=3, decoder='seed_exact', window=4, guidance_scale=[1.0, 2.0, 3.0])
  for progress in (None, False):
    model.generate(PROMPTS, progress=progress, **options)
    assert capsys.readouterr() == ('', '')
  model.kept.programs.clear()
  shown = model.generate(PROMPTS, progress=True, **options)
  np.testing.assert_array_equal(shown.tokens, out.tokens)
  captured = capsys.readouterr()
  assert captured.out == '' and '\r' not in captured.err
  assert 'generating:   0%' in captured.err and '0/3' in captured.err
  assert 'compiling seed_exact(window=4)...\n' in captured.err
  model.generate(PROMPTS, progress=True, **options)
  assert 'compiling' not in capsys.readouterr().err
