"""Runs scripts from seeds and prints a line for each."""

import sys

from paceline_chaos.cluster_sim.all_ack import SCENARIOS
from paceline_chaos.cluster_sim.scripted import run_table

if __name__ == "__main__":
    sys.exit(run_table(SCENARIOS, __doc__))
