"""What a history says, put in order for the checkers, and what faults allow."""
