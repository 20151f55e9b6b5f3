"""The paper's tables and figures again: recipes, runs and their records, and the page that is made from them."""

from bqn.reproduction.cells import Cell
from bqn.reproduction.plan import TARGETS, plan
from bqn.reproduction.records import RecordError
from bqn.reproduction.running import run

__all__ = ["TARGETS", "Cell", "RecordError", "plan", "run"]
