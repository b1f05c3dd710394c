"""The escape bridge (R36): what is due in a group without a master goes to another group, and the
next master is told of it."""
