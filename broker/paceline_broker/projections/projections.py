"""Pure: the one fold of a broker's log (R28, R29)."""


class Projections:
    """State of all projections at one position of the log."""
