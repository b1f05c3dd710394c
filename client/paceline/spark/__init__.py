"""Spark and paceline: a data source, sinks and the export, for PySpark 4.3 (extra `spark`).

`PacelineDataSource` and `register` are here for applications; nothing is imported before it is
asked for, so the pure parts (options, plans, conversion, the export's protocol) work and are
tested without Spark. docs/SPARK.md is the guide.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.spark.source import PacelineDataSource, register

__all__ = ["PacelineDataSource", "register"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from paceline.spark import source

        return getattr(source, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
