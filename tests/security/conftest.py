"""The gateway's test world, for the tests of this folder too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "integration"))
