"""Pure: the controllers' replicated state; `Machine` applies commands to it."""

from paceline_controller.state.machine import Machine

__all__ = ["Machine"]
