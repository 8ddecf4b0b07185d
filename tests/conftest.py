"""The order of the tests."""

# Files with expensive fixtures or many slow tests.
_LONG = ('docs', 'experiments', 'testing', 'training')


def pytest_collection_modifyitems(items):
  """Long files first, so that no worker is left alone with one of them at the end."""
  items.sort(key=lambda item: item.path.parent.name not in _LONG)
