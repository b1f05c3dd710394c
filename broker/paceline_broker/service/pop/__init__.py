"""POP: messages received by receipt, acknowledged, given back."""
