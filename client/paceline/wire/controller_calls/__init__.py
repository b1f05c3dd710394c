"""What clients and operators ask of the controllers, over HTTP."""
