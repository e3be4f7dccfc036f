"""Tables of any schema, read from files described by a `TableConfig`, the data half of a recipe file."""
