"""Runs scripts from seeds and prints a line for each."""

import sys

from paceline_chaos.world.moments import SCENARIOS
from paceline_chaos.world.scripted import run_table

if __name__ == "__main__":
    sys.exit(run_table(SCENARIOS, __doc__))
