"""Rules that only whole processes show when they are taken out: for the world bed.

Each entry is a `Mutant(bed="world", ...)`, judged by the seeds of the world like the product.
"""

from paceline_chaos.mutants.controllers.controllers import CONTROLLERS
from paceline_chaos.mutants.mutant import Mutant
from paceline_chaos.mutants.shells import SHELLS

WORLD: tuple[Mutant, ...] = (*CONTROLLERS, *SHELLS)
