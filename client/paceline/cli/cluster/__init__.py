"""`paceline cluster`, `controller` and `pins`."""
