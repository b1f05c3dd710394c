"""What this broker is: master, replica or acting master, and how it becomes another."""
