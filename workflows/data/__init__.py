"""The datasets, one file each: a `Dataset`, its reader, and what generates rows like it."""
