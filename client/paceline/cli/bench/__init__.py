"""`paceline bench`: the cases, the report and the command."""
