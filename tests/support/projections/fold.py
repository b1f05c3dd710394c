"""What tests of fold share with others."""

from paceline.records.decode import BatchView
from paceline_broker.projections.projections import (
    Projections,
)


def folded(batches: list[bytes], start: Projections | None = None) -> Projections:
    projections = start or Projections()
    for batch in batches:
        view = BatchView(batch)
        if view.header.physical_offset >= projections.position:
            projections.apply(view.header, view)
    return projections
