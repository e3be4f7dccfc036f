"""The command line, with one file per command or group of commands, all registered in `main`."""
