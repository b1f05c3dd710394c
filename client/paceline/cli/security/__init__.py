"""Users, rights, and who a person is at this machine."""
