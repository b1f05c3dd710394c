"""Pure: the controllers' replicated state. `Machine` is the door."""

from paceline_controller.state.machine import Machine

__all__ = ["Machine"]
