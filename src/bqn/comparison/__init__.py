"""Methods side by side on the same splits: plan, run, resume, and one table with a paired test."""

from bqn.comparison.page import render_page
from bqn.comparison.plan import Plan, Task, make_plan
from bqn.comparison.records import ComparisonError, MethodRecord, RecordFolder
from bqn.comparison.run import run_plan
from bqn.comparison.statistics import paired_t_test, standard_error
from bqn.comparison.summary import summarize

__all__ = [
    "ComparisonError",
    "MethodRecord",
    "Plan",
    "RecordFolder",
    "Task",
    "make_plan",
    "paired_t_test",
    "render_page",
    "run_plan",
    "standard_error",
    "summarize",
]
