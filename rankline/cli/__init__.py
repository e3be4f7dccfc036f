"""The command line, one file per command or group of commands. `main` registers them."""
