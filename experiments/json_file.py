"""Files of JSON."""

import json
import os
from typing import Any

from cspd_jax.core import files


def write(path: str | os.PathLike, content: Any) -> None:
  """Writes a file that is complete whenever it is there.

  Raises:
    ValueError: if a number is not finite, which JSON has no word for.
  """
  files.write(path, (json.dumps(content, indent=2, allow_nan=False) + '\n').encode())
