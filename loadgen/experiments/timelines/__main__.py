"""`python -P -m loadgen.experiments.timelines FOLDER`: a picture of each family of strategies, for `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from loadgen.experiments.timelines.families import FAMILIES, play
from loadgen.experiments.timelines.picture import draw

for name, family in FAMILIES.items():
    (Path(sys.argv[1]) / f"{name}.svg").write_text(draw(play(family)), "utf-8")
