"""Tables of any schema, read from files described by a `TableConfig`, which is the data section of a recipe file."""
