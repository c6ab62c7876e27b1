"""What became of one network of a table."""

from __future__ import annotations

import dataclasses

from keras_curv.reproduce.tables import Row
from keras_curv.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Result:
    """A row of the table with what was measured.

    Attributes:
        row: as in the paper.
        recipe: by which the network was trained.
        figures: column → figure; a column that no process has measured yet is not there.
        seconds: what the training took, with its certification; None: not trained yet, or resumed.
        done: whether all figures are there that there are of such a network.
    """

    row: Row
    recipe: Recipe
    figures: dict[str, float]
    seconds: float | None
    done: bool
