"""Reports: one page about a run, with the numbers and the plots, that needs nothing but a browser."""

from bqn.report.collection import collect
from bqn.report.contents import ReportData
from bqn.report.rendering import render
from bqn.report.writing import write

__all__ = ["ReportData", "collect", "render", "write"]
