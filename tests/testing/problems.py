"""The report of a check, whether it finds problems or not."""

from cspd_jax.testing.report import ProblemsError


def report_of(check, *args, **options):
  """Returns the report of `check(*args, **options)`."""
  try:
    return check(*args, **options)
  except ProblemsError as error:
    return error.report
