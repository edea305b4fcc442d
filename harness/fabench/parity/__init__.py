"""`fabench parity`: is a kernel right, and if not, what is wrong with it (docs/parity.md)? `runner` drives it."""
