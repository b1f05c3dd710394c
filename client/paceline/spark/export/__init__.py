"""The export: a topic as files, incremental and exactly once (docs/SPARK.md, "Export")."""
