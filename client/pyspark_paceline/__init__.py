"""By this name Spark finds format "paceline" by itself: it imports every `pyspark_*` on the path.

It must never fail to be imported: Spark would then find no Python source of anybody, and say so of
the one that was asked for. Without PySpark or pyarrow there is no source here, and that is all.
"""

try:
    from paceline.spark.source import PacelineDataSource as DefaultSource
except Exception:  # whatever it is: nobody else's source may suffer from it
    pass
else:
    __all__ = ["DefaultSource"]
