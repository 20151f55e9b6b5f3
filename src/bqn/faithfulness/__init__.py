"""Faithfulness: how far the analytic pass agrees with the sampled networks that it stands for, and where it departs."""

from bqn.faithfulness.calibration import calibration
from bqn.faithfulness.layers import LayerTally
from bqn.faithfulness.measuring import COUNTS, measure
from bqn.faithfulness.votes import Votes

__all__ = ["COUNTS", "LayerTally", "Votes", "calibration", "measure"]
