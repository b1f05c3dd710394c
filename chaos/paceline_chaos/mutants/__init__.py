"""Negative controls: what must be caught, by the seeds and checks that judge the product.

A check that cannot fail proves nothing. Each `Mutant` takes one rule out of the real code, and a
bed has to notice within 180 CPU-seconds, by a property that the mutant names: another crash does
not count.
"""

from collections.abc import Mapping

from paceline_chaos.mutants.acting import ACTING
from paceline_chaos.mutants.clients import CLIENTS
from paceline_chaos.mutants.controllers.controllers import CONTROLLERS
from paceline_chaos.mutants.controllers.epochs import EPOCHS
from paceline_chaos.mutants.controllers.founding import FOUNDING
from paceline_chaos.mutants.controllers.raft import RAFT
from paceline_chaos.mutants.features.delays import DELAYS
from paceline_chaos.mutants.features.doors import DOORS
from paceline_chaos.mutants.features.escaping import ESCAPING
from paceline_chaos.mutants.features.filters import FILTERS
from paceline_chaos.mutants.features.flooding import FLOODING
from paceline_chaos.mutants.features.groups import GROUPS
from paceline_chaos.mutants.features.hooks import HOOKS
from paceline_chaos.mutants.features.permits import PERMITS
from paceline_chaos.mutants.features.queries import QUERIES
from paceline_chaos.mutants.features.receipts import RECEIPTS
from paceline_chaos.mutants.features.retries import RETRIES
from paceline_chaos.mutants.features.rights import RIGHTS
from paceline_chaos.mutants.features.transactions import TRANSACTIONS
from paceline_chaos.mutants.mutant import Mutant
from paceline_chaos.mutants.scripts import MOMENTS
from paceline_chaos.mutants.shells import SHELLS
from paceline_chaos.mutants.storage.deletion import DELETION
from paceline_chaos.mutants.storage.disks import DISKS
from paceline_chaos.mutants.storage.projections import PROJECTIONS
from paceline_chaos.mutants.storage.replication import REPLICATION
from paceline_chaos.mutants.storage.retention import RETENTION
from paceline_chaos.mutants.storage.returning import RETURNING
from paceline_chaos.mutants.storage.sealing import SEALING
from paceline_chaos.mutants.storage.waiting import WAITING

__all__ = ["CORE_MUTANTS", "MUTANTS", "WORLD_MUTANTS", "Mutant"]

_ALL = (
    *EPOCHS,
    *REPLICATION,
    *DISKS,
    *PERMITS,
    *PROJECTIONS,
    *QUERIES,
    *CLIENTS,
    *CONTROLLERS,
    *SHELLS,
    *MOMENTS,
    *ACTING,
    *DOORS,
    *ESCAPING,
    *FILTERS,
    *FLOODING,
    *FOUNDING,
    *HOOKS,
    *RAFT,
    *RETENTION,
    *RETRIES,
    *RETURNING,
    *RIGHTS,
    *DELETION,
    *RECEIPTS,
    *DELAYS,
    *TRANSACTIONS,
    *WAITING,
    *GROUPS,
    *SEALING,
)
MUTANTS: Mapping[str, Mutant] = {mutant.rule: mutant for mutant in _ALL}
"""By rule."""
assert len(MUTANTS) == len(_ALL), "two mutants have one name: the first would never run"
CORE_MUTANTS: Mapping[str, Mutant] = {
    rule: mutant for rule, mutant in MUTANTS.items() if mutant.bed == "core"
}
WORLD_MUTANTS: Mapping[str, Mutant] = {
    rule: mutant for rule, mutant in MUTANTS.items() if mutant.bed == "world"
}
